// Conversations as agents have them: every turn sends the whole history again, with tool calls, their
// results and reasoning. From the second turn on only what is new should have to run, also after a
// restart of the server, and a second client shares the system prompt.
//
//   node agent.mjs [TURNS] [options of megalith serve]
//
// Prints a table; fails if a turn runs again what had been run before.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { idle, randomSource, words } from "./client.mjs";
import { filesWritten, startServer } from "./server.mjs";

const [turns = "10", ...options] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "megalith-agent-"));
const start = () => startServer(["--cache-dir", folder, ...options]);
let server = await start();

const tools = [{
  type: "function",
  function: {
    name: "read_file", description: "Reads a file",
    parameters: { type: "object", properties: { path: { type: "string" }, lines: { type: "integer" } }, required: ["path"] },
  },
}];
const system = { role: "system", content: "You help with files. " + words(randomSource(5), 150) };
const faults = [];

class Conversation {
  constructor(seed) {
    this.messages = [system];
    this.random = randomSource(seed);
    this.known = 0;  // tokens of the history that have been run
    this.turn = 0;
  }

  async next() {
    this.turn += 1;
    if (this.turn % 3 === 0) {
      // As if the model had asked for two files, and the client gives the results in the other order.
      const call = (id, path) => ({ id, type: "function", function: { name: "read_file", arguments: JSON.stringify({ path, lines: this.turn }) } });
      this.messages.push(
        { role: "assistant", content: null, tool_calls: [call(`a${this.turn}`, "/src/a.c"), call(`b${this.turn}`, "/src/b.c")] },
        { role: "tool", tool_call_id: `b${this.turn}`, content: words(this.random, 30) },
        { role: "tool", tool_call_id: `a${this.turn}`, content: words(this.random, 30) });
    } else {
      this.messages.push({ role: "user", content: words(this.random, 25) });
    }
    const answer = await server.client.json("POST", "/v1/chat/completions", {
      messages: this.messages, tools, max_tokens: 40, temperature: 1, seed: this.turn,
    });
    const { prompt_tokens: total, prompt_tokens_details: { cached_tokens: cached }, completion_tokens: generated } = answer.usage;
    const row = { turn: this.turn, prompt: total, known: this.known, cached, ran: total - cached };
    // The answer's last token was chosen, but not run.
    this.known = total + generated - 1;
    this.messages.push({ role: "assistant", ...answer.choices[0].message });
    await idle(server.client);
    // A server whose disk is slower than its answers would leave out some: every turn brings one at least.
    await filesWritten(folder, this.turn);
    return row;
  }
}

function report(row, note = "") {
  console.log([row.turn, row.prompt, row.known, row.cached, row.ran].map((value) => String(value).padStart(7)).join(" ") + "  " + note);
}

console.log("   turn  prompt   known  cached     ran");
const first = new Conversation(1);
let known = 0;
let cached = 0;
for (let turn = 1; turn <= Number(turns); ++turn) {
  let note = "";
  if (turn === Math.ceil(Number(turns) / 2) + 1) {
    const { code } = await server.stop();
    if (code !== 0) faults.push(`the server ended with ${code}`);
    server = await start();
    note = "after a restart";
  }
  const row = await first.next();
  report(row, note);
  known += row.known;
  cached += Math.min(row.cached, row.known);
  if (row.cached < row.known) faults.push(`turn ${turn}: ${row.cached} tokens cached of ${row.known} known`);
}
console.log(`of what had been run before, ${(100 * cached / known).toFixed(1)} % came from the cache`);

const second = new Conversation(2);
const row = await second.next();
report(row, "another client with the same system prompt and tools");
if (row.cached < 300) faults.push(`the system prompt was not shared: ${row.cached} tokens`);

await server.stop();
rmSync(folder, { recursive: true });
if (faults.length > 0) {
  console.log("FAILED\n" + faults.join("\n"));
  process.exit(1);
}
