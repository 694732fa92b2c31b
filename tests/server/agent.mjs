// Conversations as agents have them: every turn sends the whole history again, with tool calls, their
// results and reasoning. From the second turn on only what is new should have to run.
//
//   node agent.mjs URL [FIRST_TURN] [LAST_TURN] < history.json > history.json
//
// The history goes on from standard input, so that the server can be restarted in between. Prints a
// table to standard error; fails if a turn runs much more than what is new.

import { readFileSync } from "node:fs";

import { Client, randomSource, words } from "./client.mjs";

const [url, firstTurn = "1", lastTurn = "10"] = process.argv.slice(2);
const client = new Client(url);
const tools = [{
  type: "function",
  function: {
    name: "read_file", description: "Reads a file",
    parameters: { type: "object", properties: { path: { type: "string" }, lines: { type: "integer" } }, required: ["path"] },
  },
}];
const state = Number(firstTurn) > 1
  ? JSON.parse(readFileSync(0, "utf8"))
  : { messages: [{ role: "system", content: "You help with files. " + words(randomSource(5), 150) }], expected: 0 };

let worst = 1;
console.error("turn  prompt  cached   new  ran again");
for (let turn = Number(firstTurn); turn <= Number(lastTurn); ++turn) {
  const random = randomSource(turn);
  if (turn % 2 === 1) {
    state.messages.push({ role: "user", content: words(random, 25) });
  } else {
    // The last answer becomes one with a call, as if the model had asked for a file.
    const id = `call_${turn}`;
    state.messages.push(
      { role: "assistant", content: null, tool_calls: [{ id, type: "function", function: { name: "read_file", arguments: JSON.stringify({ path: `/src/${turn}.c`, lines: turn }) } }] },
      { role: "tool", tool_call_id: id, content: words(random, 40) });
  }
  const answer = await client.json("POST", "/v1/chat/completions", { messages: state.messages, tools, max_tokens: 40, temperature: 0 });
  const { prompt_tokens: total, prompt_tokens_details: { cached_tokens: cached }, completion_tokens: generated } = answer.usage;
  // All of the turn before is known: its prompt and its answer but for the last token.
  const again = Math.max(0, state.expected - cached);
  console.error(`${String(turn).padStart(4)}  ${String(total).padStart(6)}  ${String(cached).padStart(6)}  ${String(total - state.expected).padStart(4)}  ${again}`);
  if (turn > 1) worst = Math.min(worst, state.expected === 0 ? 1 : cached / state.expected);
  // The end of the generation prompt is not part of the history.
  state.expected = total + generated - 1;
  state.messages.push({ role: "assistant", ...answer.choices[0].message });
}
console.error(`of what had been run before, at least ${(100 * worst).toFixed(1)} % came from the cache in every turn`);
client.close();
process.stdout.write(JSON.stringify(state));
if (worst < 0.9) process.exit(1);
