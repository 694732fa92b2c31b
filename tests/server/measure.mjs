// How a running server feels: time to the first byte and the first token with and without reuse, decode
// rate with 1 to 8 clients, and what a long prompt takes from running answers.
//
//   node measure.mjs [PROMPT_WORDS] [ANSWER_TOKENS] [ROUNDS] [options of megalith serve] > server.json
//
// The machine is to have nothing else to do. Answers are not ended by the model. Medians over the
// rounds.

import { idle, median, randomSource, words } from "./client.mjs";
import { startServer } from "./server.mjs";

const [promptWords = "1000", answerTokens = "200", rounds = "5", ...options] = process.argv.slice(2);
const server = await startServer(["--sequences", "9", ...options]);
const { client } = server;
const random = randomSource(3);
const now = () => performance.now() / 1000;
const endless = { temperature: 0, ignore_eos: true };

async function timed(body) {
  const start = now();
  const times = { headers: 0, first: 0, last: 0, chunks: [] };
  const seen = await client.stream("/v1/completions", body, {
    headers: () => { times.headers = now() - start; },
    chunk: (chunk) => {
      if (!chunk.choices?.[0]?.text && !chunk.choices?.[0]?.finish_reason) return;
      times.last = now() - start;
      times.first ||= times.last;
      times.chunks.push(now());
    },
  });
  return { ...times, usage: seen.usage };
}

function log(line) {
  console.error(line);
}

const result = { prompt_words: Number(promptWords), answer_tokens: Number(answerTokens), rounds: Number(rounds) };
result.model = (await client.json("GET", "/v1/models")).data[0].id;
await timed({ prompt: "warm up", max_tokens: 20, ...endless });

// First byte and first token, cold and again.
const first = { cold: [], again: [], headers: [], prompt_tokens: 0 };
for (let round = 0; round < result.rounds; ++round) {
  const prompt = words(random, result.prompt_words);
  const cold = await timed({ prompt, max_tokens: 2, ...endless });
  const again = await timed({ prompt, max_tokens: 2, ...endless });
  first.cold.push(cold.first);
  first.again.push(again.first);
  first.headers.push(cold.headers, again.headers);
  first.prompt_tokens = cold.usage.prompt_tokens;
  first.cached_tokens = again.usage.prompt_tokens_details.cached_tokens;
}
result.first = {
  prompt_tokens: first.prompt_tokens, cached_tokens: first.cached_tokens,
  headers_seconds: median(first.headers), cold_seconds: median(first.cold), again_seconds: median(first.again),
};
log(`first token of ${first.prompt_tokens} tokens: ${result.first.cold_seconds.toFixed(3)} s cold, ${result.first.again_seconds.toFixed(3)} s again; headers ${(1000 * result.first.headers_seconds).toFixed(1)} ms`);

// Decode rate by clients.
result.decode = [];
for (const clients of [1, 2, 4, 8]) {
  const rates = [];
  for (let round = 0; round < result.rounds; ++round) {
    const all = await Promise.all(Array.from({ length: clients }, () =>
      timed({ prompt: words(random, 10), max_tokens: result.answer_tokens, ...endless })));
    rates.push(...all.map((one) => (one.usage.completion_tokens - 1) / (one.last - one.first)));
  }
  result.decode.push({ clients, tokens_per_second_each: median(rates), tokens_per_second: clients * median(rates) });
  log(`${clients} clients: ${median(rates).toFixed(1)} tok/s each, ${(clients * median(rates)).toFixed(1)} together`);
}

// Four answers while a long prompt comes, and the same answers at the same moments without it: steps
// grow slower as texts grow longer.
async function fourAnswers(prompts, during) {
  await idle(client);
  const arrivals = [];
  let stop = false;
  const start = now();
  const answers = prompts.map((prompt) => client.stream("/v1/completions",
    { prompt, max_tokens: 1_000_000, ...endless },
    { chunk: (chunk) => { if (chunk.choices?.[0]?.text) arrivals.push(now() - start); return stop; } }).catch(() => {}));
  while (arrivals.length < 40) await new Promise((resolve) => setTimeout(resolve, 5));
  const window = await during(start);
  stop = true;
  await Promise.all(answers);
  return { window, rate: arrivals.filter((time) => time >= window[0] && time < window[1]).length / (window[1] - window[0]) };
}
const shares = [];
const prompts = [];
for (let round = 0; round < result.rounds; ++round) {
  const four = Array.from({ length: 4 }, () => words(random, 10));
  const beside = await fourAnswers(four, async (start) => {
    const begin = now() - start;
    prompts.push((await timed({ prompt: words(random, result.prompt_words / 2), max_tokens: 1, ...endless })).first);
    return [begin, now() - start];
  });
  const alone = await fourAnswers(four, async (start) => {
    while (now() - start < beside.window[1]) await new Promise((resolve) => setTimeout(resolve, 5));
    return beside.window;
  });
  shares.push(beside.rate / alone.rate);
}
result.beside_prompt = { answers: 4, share_of_rate: median(shares), prompt_seconds: median(prompts) };
log(`4 answers beside a prompt of ${result.prompt_words / 2} words keep ${(100 * median(shares)).toFixed(0)} % of their rate; it takes ${median(prompts).toFixed(2)} s`);
await server.stop();
console.log(JSON.stringify(result, null, 1));
