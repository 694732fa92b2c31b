// OpenAI's own client against a running server:
//
//   MEGALITH_URL=http://127.0.0.1:8080 node --test suite.mjs
//
// The model may say anything: what is tested is the protocol, and that the same request gives the
// same text in every way of asking. Nothing here measures time.

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

const url = process.env.MEGALITH_URL;
if (!url) throw new Error("MEGALITH_URL: the address of a running server expected");
const client = new OpenAI({ baseURL: url + "/v1", apiKey: process.env.MEGALITH_KEY ?? "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;

const messages = [
  { role: "system", content: "Speak like an old book." },
  { role: "user", content: "In the beginning" },
];
const greedy = { model, messages, temperature: 0, max_tokens: 40 };

async function joinStream(stream) {
  const joined = { content: "", reasoning: "", roles: [], reasons: [], usage: null, chunks: 0 };
  for await (const chunk of stream) {
    joined.chunks += 1;
    if (chunk.usage) joined.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    if (choice.delta.role) joined.roles.push(choice.delta.role);
    joined.content += choice.delta.content ?? "";
    joined.reasoning += choice.delta.reasoning_content ?? "";
    if (choice.finish_reason) joined.reasons.push(choice.finish_reason);
  }
  return joined;
}

async function rejects(promise, status, check) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.status, status, String(error));
    check?.(error);
    return true;
  });
}

test("models can be listed and looked up", async () => {
  const found = await client.models.retrieve(model);
  assert.equal(found.id, model);
  assert.equal(found.object, "model");
  await rejects(client.models.retrieve("nobody"), 404);
});

test("an answer has text, usage and a reason", async () => {
  const answer = await client.chat.completions.create(greedy);
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.model, model);
  const choice = answer.choices[0];
  assert.ok(["stop", "length"].includes(choice.finish_reason));
  assert.equal(choice.message.role, "assistant");
  assert.ok((choice.message.content ?? "").length + (choice.message.reasoning_content ?? "").length > 0);
  assert.ok(answer.usage.completion_tokens > 0 && answer.usage.completion_tokens <= 40);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("a stream joins to the same answer", async () => {
  const answer = await client.chat.completions.create(greedy);
  const stream = await client.chat.completions.create({
    ...greedy, stream: true, stream_options: { include_usage: true },
  });
  const joined = await joinStream(stream);
  assert.deepEqual(joined.roles, ["assistant"]);
  assert.deepEqual(joined.reasons, [answer.choices[0].finish_reason]);
  assert.equal(joined.content, answer.choices[0].message.content ?? "");
  assert.equal(joined.reasoning, answer.choices[0].message.reasoning_content ?? "");
  assert.equal(joined.usage.completion_tokens, answer.usage.completion_tokens);
});

test("usage comes only if it is asked for", async () => {
  const joined = await joinStream(await client.chat.completions.create({ ...greedy, stream: true }));
  assert.equal(joined.usage, null);
});

test("a seed fixes what is drawn", async () => {
  const drawn = { ...greedy, temperature: 1, top_p: 0.9, seed: 17 };
  const text = async (request) => {
    const { message } = (await client.chat.completions.create(request)).choices[0];
    return (message.reasoning_content ?? "") + "|" + (message.content ?? "");
  };
  assert.equal(await text(drawn), await text(drawn));
  assert.notEqual(await text(drawn), await text({ ...drawn, seed: 18 }));
});

test("several answers to one question", async () => {
  const answer = await client.chat.completions.create({ ...greedy, temperature: 1, seed: 3, n: 3, max_tokens: 12 });
  assert.deepEqual(answer.choices.map((choice) => choice.index).sort(), [0, 1, 2]);
  const texts = answer.choices.map((choice) => JSON.stringify(choice.message));
  assert.ok(new Set(texts).size > 1);
});

test("stop strings end the answer and are not part of it", async () => {
  const open = { ...greedy, thinking: { type: "disabled" } };
  const whole = (await client.chat.completions.create(open)).choices[0].message.content;
  assert.ok(whole.length > 8, "the model says too little for this test: " + JSON.stringify(whole));
  const stop = whole.slice(4, 8);
  const cut = (await client.chat.completions.create({ ...open, stop })).choices[0];
  assert.equal(cut.finish_reason, "stop");
  assert.equal(cut.message.content, whole.slice(0, whole.indexOf(stop)));
  const joined = await joinStream(await client.chat.completions.create({ ...open, stop, stream: true }));
  assert.equal(joined.content, cut.message.content);
});

test("log probabilities are finite and have bytes", async () => {
  const answer = await client.chat.completions.create({
    ...greedy, thinking: { type: "disabled" }, logprobs: true, top_logprobs: 3, max_tokens: 5,
  });
  const { content } = answer.choices[0].logprobs;
  assert.ok(content.length > 0);
  for (const token of content) {
    assert.ok(Number.isFinite(token.logprob) && token.logprob <= 0);
    assert.ok(Array.isArray(token.bytes));
    assert.equal(token.top_logprobs.length, 3);
    assert.ok(token.top_logprobs[0].logprob >= token.top_logprobs[2].logprob);
  }
});

test("penalties and biases change the text", async () => {
  const open = { ...greedy, thinking: { type: "disabled" } };
  const plain = (await client.chat.completions.create(open)).choices[0].message.content;
  const { tokens } = await (await fetch(url + "/tokenize", {
    method: "POST", body: JSON.stringify({ content: plain.slice(0, 12) }), headers: { "content-type": "application/json" },
  })).json();
  const biased = await client.chat.completions.create({ ...open, logit_bias: { [tokens[0]]: -100 } });
  assert.notEqual(biased.choices[0].message.content, plain);
  const penalised = await client.chat.completions.create({ ...open, frequency_penalty: 2, presence_penalty: 2 });
  assert.notEqual(penalised.choices[0].message.content, plain);
});

test("a conversation goes on from what was computed", async () => {
  const history = [{ role: "user", content: "Tell me a very long story about the sea and the ships upon it, and of the men who went down to it." }];
  const first = await client.chat.completions.create({ ...greedy, messages: history });
  history.push({ role: "assistant", ...first.choices[0].message }, { role: "user", content: "And then?" });
  const second = await client.chat.completions.create({ ...greedy, messages: history });
  const cached = second.usage.prompt_tokens_details.cached_tokens;
  assert.ok(cached >= first.usage.prompt_tokens, `${cached} of ${second.usage.prompt_tokens} cached, the first turn had ${first.usage.prompt_tokens}`);
});

test("tools are accepted, with calls and results in the history", async () => {
  const tools = [{
    type: "function",
    function: {
      name: "weather", description: "Weather of a place",
      parameters: { type: "object", properties: { place: { type: "string" }, days: { type: "integer" } }, required: ["place"] },
    },
  }];
  const history = [
    { role: "user", content: "What is the weather in Ur?" },
    {
      role: "assistant", content: null, tool_calls: [
        { id: "call_a", type: "function", function: { name: "weather", arguments: '{"place":"Ur","days":2}' } },
        { id: "call_b", type: "function", function: { name: "weather", arguments: '{"place":"Uruk"}' } },
      ],
    },
    { role: "tool", tool_call_id: "call_b", content: "dry" },
    { role: "tool", tool_call_id: "call_a", content: "hot" },
  ];
  for (const tool_choice of ["auto", "none"]) {
    const answer = await client.chat.completions.create({ ...greedy, messages: history, tools, tool_choice, max_tokens: 10 });
    assert.ok(answer.usage.prompt_tokens > 40);
  }
  await rejects(client.chat.completions.create({ ...greedy, tools, tool_choice: { type: "function", function: { name: "nobody" } } }), 400);
});

test("a forced tool call has arguments of the schema", async () => {
  const parameters = {
    type: "object",
    properties: { place: { type: "string", enum: ["Ur", "Uruk"] }, days: { type: "integer" }, dry: { type: "boolean" } },
    required: ["place", "days", "dry"], additionalProperties: false,
  };
  const request = {
    ...greedy, max_tokens: 300, thinking: { type: "disabled" },
    tools: [{ type: "function", function: { name: "weather", parameters, strict: true } }],
    tool_choice: { type: "function", function: { name: "weather" } },
  };
  const answer = await client.chat.completions.create(request);
  const [choice] = answer.choices;
  assert.equal(choice.finish_reason, "tool_calls", JSON.stringify(choice));
  assert.equal(choice.message.tool_calls[0].function.name, "weather");
  const given = JSON.parse(choice.message.tool_calls[0].function.arguments);
  assert.ok(["Ur", "Uruk"].includes(given.place) && Number.isInteger(given.days) && typeof given.dry === "boolean", JSON.stringify(given));
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    for (const call of chunk.choices[0]?.delta.tool_calls ?? []) {
      if (call.index === 0) streamed += call.function?.arguments ?? "";
    }
  }
  assert.deepEqual(JSON.parse(streamed), given);
});

test("structured output follows its schema", async () => {
  const schema = {
    type: "object",
    properties: {
      name: { type: "string", maxLength: 12 }, age: { type: "integer" }, tags: { type: "array", items: { enum: ["a", "b"] }, maxItems: 3 },
    },
    required: ["name", "age", "tags"], additionalProperties: false,
  };
  for (const temperature of [0, 1]) {
    const answer = await client.chat.completions.create({
      ...greedy, temperature, seed: 5, max_tokens: 400, thinking: { type: "disabled" },
      response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } },
    });
    assert.equal(answer.choices[0].finish_reason, "stop", answer.choices[0].message.content);
    const person = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(person), ["name", "age", "tags"]);
    assert.ok(typeof person.name === "string" && Number.isInteger(person.age));
    assert.ok(person.tags.length <= 3 && person.tags.every((tag) => ["a", "b"].includes(tag)));
  }
});

test("an aborted stream frees its place", async () => {
  const controller = new AbortController();
  const stream = await client.chat.completions.create(
    { ...greedy, max_tokens: 100000, ignore_eos: true, stream: true }, { signal: controller.signal });
  for await (const chunk of stream) {
    if (chunk.choices.length > 0) break;
  }
  controller.abort();
  for (let i = 0; ; ++i) {
    const status = await (await fetch(url + "/status")).json();
    if (status.generations.length === 0) break;
    assert.ok(i < 600, "the generation still runs");
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
});

test("completions: text, lists, ids, echo with log probabilities", async () => {
  const plain = await client.completions.create({ model, prompt: "In the beginning", temperature: 0, max_tokens: 8 });
  assert.ok(plain.choices[0].text.length > 0);
  const both = await client.completions.create({ model, prompt: ["In the beginning", "And the king"], temperature: 0, max_tokens: 8 });
  assert.equal(both.choices.length, 2);
  assert.equal(both.choices.find((choice) => choice.index === 0).text, plain.choices[0].text);
  const { tokens } = await (await fetch(url + "/tokenize", {
    method: "POST", body: JSON.stringify({ content: "In the beginning" }), headers: { "content-type": "application/json" },
  })).json();
  const byIds = await client.completions.create({ model, prompt: tokens, temperature: 0, max_tokens: 8 });
  assert.equal(byIds.choices[0].text, plain.choices[0].text);
  const echoed = await client.completions.create({ model, prompt: "In the beginning", echo: true, logprobs: 1, max_tokens: 1, temperature: 0 });
  const { logprobs, text } = echoed.choices[0];
  assert.ok(text.startsWith("In the beginning"));
  assert.equal(logprobs.tokens.length, tokens.length + 1);
  assert.equal(logprobs.token_logprobs[0], null);
  assert.ok(logprobs.token_logprobs.slice(1).every((value) => Number.isFinite(value)));
  let streamed = "";
  for await (const chunk of await client.completions.create({ model, prompt: "In the beginning", temperature: 0, max_tokens: 8, stream: true })) {
    streamed += chunk.choices[0]?.text ?? "";
  }
  assert.equal(streamed, plain.choices[0].text);
});

test("responses: text and events", async () => {
  const request = { model, input: "In the beginning", instructions: "Speak like an old book.", temperature: 0, max_output_tokens: 60 };
  const answer = await client.responses.create(request);
  assert.equal(answer.object, "response");
  assert.ok(["completed", "incomplete"].includes(answer.status));
  const types = [];
  let text = "";
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    types.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(types[0], "response.created");
  assert.ok(["response.completed", "response.incomplete"].includes(types.at(-1)), types.at(-1));
  assert.equal(text, answer.output_text);
});

test("responses: forms and calls are enforced", async () => {
  const base = { model, input: "Tell me of a man.", temperature: 0, max_output_tokens: 400, reasoning: { effort: "none" } };
  const schema = { type: "object", properties: { name: { type: "string", maxLength: 12 } }, required: ["name"], additionalProperties: false };
  const formed = await client.responses.create({ ...base, text: { format: { type: "json_schema", name: "man", strict: true, schema } } });
  assert.deepEqual(Object.keys(JSON.parse(formed.output_text)), ["name"]);
  const called = await client.responses.create({
    ...base, tools: [{ type: "function", name: "weather", strict: true, parameters: schema }], tool_choice: "required",
    parallel_tool_calls: false,
  });
  const call = called.output.find((item) => item.type === "function_call");
  assert.equal(call.name, "weather");
  assert.deepEqual(Object.keys(JSON.parse(call.arguments)), ["name"]);
});

test("Anthropic's messages: a forced call", async () => {
  const answer = await (await fetch(url + "/v1/messages", {
    method: "POST", headers: { "content-type": "application/json", "anthropic-version": "2023-06-01" },
    body: JSON.stringify({
      model, max_tokens: 400, temperature: 0, messages: [{ role: "user", content: "The weather, please." }],
      tools: [{ name: "weather", input_schema: { type: "object", properties: { days: { type: "integer" } }, required: ["days"] } }],
      // This model would go on calling until its tokens are used up.
      tool_choice: { type: "any", disable_parallel_tool_use: true },
    }),
  })).json();
  assert.equal(answer.stop_reason, "tool_use", JSON.stringify(answer));
  const use = answer.content.find((block) => block.type === "tool_use");
  assert.equal(use.name, "weather");
  assert.ok(Number.isInteger(use.input.days), JSON.stringify(use));
});

test("errors say what is wrong, in the client's own classes", async () => {
  await rejects(client.chat.completions.create({ ...greedy, model: "nobody" }), 404, (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
  });
  await rejects(client.chat.completions.create({ ...greedy, temperature: -1 }), 400, (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.match(error.message, /temperature/);
  });
  await rejects(client.chat.completions.create({ ...greedy, messages: [{ role: "wizard", content: "x" }] }), 400, (error) => {
    assert.match(error.message, /messages\[0\]/);
  });
  await rejects(client.chat.completions.create({ ...greedy, messages: [{ role: "user", content: "x ".repeat(60000) }] }), 400, (error) => {
    assert.equal(error.code, "context_length_exceeded");
    assert.match(error.message, /\d+.*\d+/);
  });
  await rejects(client.chat.completions.create({ ...greedy, messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:," } }] }] }), 400);
  await assert.rejects(client.embeddings.create({ model, input: "x" }), (error) => {
    assert.ok(error.status >= 400 && error.status < 500);
    assert.match(error.message, /embedding/i);
    return true;
  });
});
