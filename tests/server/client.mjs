// A small HTTP client for tests: what OpenAI's own client hides (single pieces, keep-alive, slow
// reading) is what these tests are about.

import http from "node:http";

export class Client {
  constructor(url, { keepAlive = true, sockets = 1000 } = {}) {
    this.url = new URL(url);
    this.agent = new http.Agent({ keepAlive, maxSockets: sockets });
  }

  close() {
    this.agent.destroy();
  }

  request(method, path, body) {
    return new Promise((resolve, reject) => {
      const request = http.request({
        host: this.url.hostname, port: this.url.port, method, path, agent: this.agent,
        headers: body === undefined ? {} : { "content-type": "application/json" },
      }, resolve);
      request.on("error", reject);
      request.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  async json(method, path, body) {
    const response = await this.request(method, path, body);
    let text = "";
    response.setEncoding("utf8");
    for await (const piece of response) text += piece;
    const parsed = JSON.parse(text);
    if (response.statusCode !== 200) {
      throw Object.assign(new Error(`${path}: ${response.statusCode}: ${text}`), { status: response.statusCode, body: parsed });
    }
    return parsed;
  }

  // Calls on.chunk(parsed) for every event, on.headers() when they come. Resolves with what was
  // seen; `stop` (returned true by on.chunk) closes the connection. `delay(ms)` between reads.
  async stream(path, body, on = {}) {
    const seen = { text: "", reasoning: "", reasons: [], done: 0, pings: 0, usage: null, aborted: false, error: null };
    try {
      const response = await this.request("POST", path, { ...body, stream: true, stream_options: { include_usage: true } });
      on.headers?.();
      if (response.statusCode !== 200) {
        let text = "";
        for await (const piece of response) text += piece;
        throw Object.assign(new Error(`${path}: ${response.statusCode}: ${text}`), { status: response.statusCode });
      }
      response.setEncoding("utf8");
      let rest = "";
      for await (const piece of response) {
        rest += piece;
        for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
          const event = rest.slice(0, end);
          if (event.startsWith(":")) {
            seen.pings += 1;
            continue;
          }
          const data = event.replace(/^data: /, "");
          if (data === "[DONE]") {
            seen.done += 1;
            continue;
          }
          const chunk = JSON.parse(data);
          if (chunk.error) seen.error = chunk.error;
          if (chunk.usage) seen.usage = chunk.usage;
          const choice = chunk.choices?.[0];
          if (choice) {
            seen.text += choice.text ?? choice.delta?.content ?? "";
            seen.reasoning += choice.delta?.reasoning_content ?? "";
            if (choice.finish_reason) seen.reasons.push(choice.finish_reason);
          }
          if (on.chunk?.(chunk, seen)) {
            seen.aborted = true;
            response.destroy();
            return seen;
          }
        }
        if (on.delay) await new Promise((resolve) => setTimeout(resolve, on.delay));
      }
      if (rest) throw new Error("a stream ended inside an event: " + rest.slice(0, 80));
    } catch (error) {
      if (!seen.aborted) throw error;
    }
    return seen;
  }
}

// Random numbers that are the same every time.
export function randomSource(seed) {
  let state = BigInt(seed) * 2862933555777941757n + 3037000493n;
  return (limit) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
    return Number((state >> 33n) % BigInt(limit));
  };
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length === 0 ? NaN : (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

const kWords = ("the king said unto people land house lord son day came went great water earth heaven light man " +
  "woman city gate stone wine bread field river mountain voice word hand heart eye morning evening").split(" ");

export function words(random, count) {
  return Array.from({ length: count }, () => kWords[random(kWords.length)]).join(" ");
}

export async function idle(client) {
  for (;;) {
    if ((await client.json("GET", "/status")).generations.length === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
