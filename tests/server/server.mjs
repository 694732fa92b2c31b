// Starts `megalith serve` for a test and waits until it is ready.

import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { Client } from "./client.mjs";

const kMegalith = process.env.MEGALITH ?? fileURLToPath(new URL("../../build/release/bin/megalith", import.meta.url));

// Until a server has written so many files of its cache into the folder; it does so behind its answers.
export async function filesWritten(folder, count) {
  const written = () => readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".prefix")).length;
  while (written() < count) await new Promise((resolve) => setTimeout(resolve, 20));
}

export async function startServer(args = []) {
  const child = spawn(kMegalith, ["serve", ...args, "--port", "0"], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  child.stderr.setEncoding("utf8");
  child.stderr.on("data", (piece) => { log += piece; });
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));
  let alive = true;
  ended.then(() => { alive = false; });
  let url;
  for (;;) {
    url ??= /listening on (http:[^,\s]*)/.exec(log)?.[1];
    if (url && (await fetch(url + "/ready")).status === 200) break;
    if (!alive) throw new Error("the server has ended:\n" + log);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return {
    url, client: new Client(url), pid: child.pid,
    log: () => log,
    residentKiB: () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, "utf8"))[1]),
    // Resolves with how it ended.
    async stop(signal = "SIGTERM") {
      this.client.close();
      child.kill(signal);
      return ended;
    },
  };
}
