// Many clients at once: no answer may depend on the others, none may be lost, nothing may be left.
//
//   node load.mjs [SECONDS] [CLIENTS] [SHORT_REQUESTS]
//
// Answers under load are compared with those that the same requests had alone.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Client, idle, randomSource, words } from "./client.mjs";
import { startServer } from "./server.mjs";

const [seconds = "300", clients = "64", shortRequests = "10000"] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "megalith-load-"));
// The cache is small, so that it is full long before the end.
const server = await startServer(["--sequences", "8", "--prefix-cache", "64M", "--cache-dir", folder, "--cache-dir-size", "64M"]);
const { client } = server;
const random = randomSource(7);

const requests = [];
const system = words(random, 120);
for (let i = 0; i < 48; ++i) {
  const messages = [];
  if (i % 3 === 0) messages.push({ role: "system", content: system });
  // Every eighth prompt is a long one.
  messages.push({ role: "user", content: words(random, i % 8 === 7 ? 900 + random(300) : 3 + random(60)) });
  requests.push({
    messages, max_tokens: 8 + random(120), temperature: i % 2, top_p: 0.95, seed: i,
    ...(i % 4 === 1 ? { thinking: { type: "disabled" } } : {}),
    ...(i % 6 === 2 ? { frequency_penalty: 0.5 } : {}),
  });
}
console.log(`${requests.length} requests alone`);
const alone = [];
for (const request of requests) alone.push(await client.stream("/v1/chat/completions", request));

const counts = { finished: 0, aborted: 0, slow: 0, refused: 0, tokens: 0 };
const faults = [];
const start = Date.now();
const end = start + Number(seconds) * 1000;
const memory = [];
const sampler = setInterval(() => memory.push(server.residentKiB()), 1000);

async function oneClient(number) {
  const own = randomSource(1000 + number);
  while (Date.now() < end) {
    const i = own(requests.length);
    const kind = own(10);
    const abortAfter = kind < 2 ? own(40) : Infinity;
    const delay = kind === 2 ? 20 : 0;
    let chunks = 0;
    try {
      const seen = await client.stream("/v1/chat/completions", requests[i], {
        delay, chunk: () => ++chunks > abortAfter,
      });
      counts.tokens += chunks;
      const want = alone[i];
      if (seen.aborted) {
        counts.aborted += 1;
        if (!want.text.startsWith(seen.text) || !want.reasoning.startsWith(seen.reasoning)) faults.push(`request ${i}: an aborted answer differs`);
        continue;
      }
      counts.finished += 1;
      counts.slow += delay > 0 ? 1 : 0;
      if (seen.error) faults.push(`request ${i}: ${JSON.stringify(seen.error)}`);
      if (seen.text !== want.text || seen.reasoning !== want.reasoning) faults.push(`request ${i}: another answer than alone:\n  ${JSON.stringify(want)}\n  ${JSON.stringify(seen)}`);
      if (seen.reasons.length !== 1 || seen.done !== 1) faults.push(`request ${i}: finish reasons ${seen.reasons}, ${seen.done} times [DONE]`);
      if (seen.usage?.completion_tokens !== want.usage.completion_tokens) faults.push(`request ${i}: usage differs`);
    } catch (error) {
      if (error.status === 429) {
        counts.refused += 1;
        await new Promise((resolve) => setTimeout(resolve, 200));
      } else {
        faults.push(`request ${i}: ${error.message}`);
      }
    }
    if (faults.length > 10) return;
  }
}

console.log(`${clients} clients for ${seconds} s`);
await Promise.all(Array.from({ length: Number(clients) }, (_, number) => oneClient(number)));
await idle(client);
clearInterval(sampler);
const status = await client.json("GET", "/status");
console.log(counts, `${(counts.tokens / Number(seconds)).toFixed(0)} chunks/s`, status);

// The steady phase begins when every request has been seen and the prefix cache has filled; in less
// than two minutes there is none.
const early = memory.slice(Math.floor(memory.length / 3), Math.floor(memory.length / 3) + 10);
const late = memory.slice(-10);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const growth = mean(late) / mean(early) - 1;
console.log(`resident memory ${(mean(early) / 1024).toFixed(1)} MiB after a third of the time, ${(mean(late) / 1024).toFixed(1)} MiB at the end: ${(100 * growth).toFixed(2)} %`);
if (Number(seconds) >= 120 && growth > 0.02) faults.push("memory has grown");
if (status.generations.length !== 0) faults.push("generations are stuck");
if (status.failed !== 0) faults.push(`${status.failed} generations failed`);

console.log(`${shortRequests} short requests through kept connections`);
const few = new Client(server.url, { sockets: 16 });
let short = 0;
await Promise.all(Array.from({ length: 16 }, async () => {
  while (short < Number(shortRequests) && faults.length < 10) {
    short += 1;
    const answer = await few.json("POST", "/v1/completions", { prompt: "In", max_tokens: 1, temperature: 0 });
    if (answer.choices[0].finish_reason !== "length") faults.push("a short answer ended with " + answer.choices[0].finish_reason);
  }
}));
console.log(`${short} answered; resident memory ${(server.residentKiB() / 1024).toFixed(1)} MiB`);
few.close();
const { code } = await server.stop();
if (code !== 0) faults.push(`the server ended with ${code}:\n${server.log().split("\n").slice(-20).join("\n")}`);
rmSync(folder, { recursive: true });
if (faults.length > 0) {
  console.log("FAILED\n" + faults.join("\n"));
  process.exit(1);
}
console.log("load: no fault");
