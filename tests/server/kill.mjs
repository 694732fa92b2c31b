// The server is killed while it writes its cache, again and again: each next start is clean, finds what
// was complete, and gives the answers of before.
//
//   node kill.mjs [TIMES]

import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { randomSource, words } from "./client.mjs";
import { filesWritten, startServer } from "./server.mjs";

const [times = "10"] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "megalith-kill-"));
const random = randomSource(11);
const request = { prompt: words(randomSource(1), 300), max_tokens: 10, temperature: 0 };
const faults = [];
let answer;
let found = 0;
for (let time = 0; time < Number(times); ++time) {
  const server = await startServer(["--cache-dir", folder, "--cache-dir-size", "32M"]);
  if (/taken away|error/.test(server.log())) faults.push("not clean: " + server.log());
  if (readdirSync(folder, { recursive: true }).some((name) => name.endsWith(".part"))) faults.push("an unfinished file is left");
  const now = await server.client.json("POST", "/v1/completions", request);
  answer ??= now.choices[0].text;
  await filesWritten(folder, 1);
  if (now.choices[0].text !== answer) faults.push(`start ${time}: another answer`);
  found += now.usage.prompt_tokens_details.cached_tokens > 0 ? 1 : 0;
  // Other prompts, so that something is always being written, and an end at any moment.
  const busy = Array.from({ length: 6 }, () => server.client.json("POST", "/v1/completions",
    { prompt: words(random, 100 + random(300)), max_tokens: 2 + random(10) }).catch(() => {}));
  await new Promise((resolve) => setTimeout(resolve, random(400)));
  await server.stop("SIGKILL");
  await Promise.all(busy);
}
rmSync(folder, { recursive: true });
console.log(`killed ${times} times; ${found} starts found the first prompt in the cache`);
if (found === 0) faults.push("nothing was ever found");
if (faults.length > 0) {
  console.log("FAILED\n" + faults.join("\n"));
  process.exit(1);
}
