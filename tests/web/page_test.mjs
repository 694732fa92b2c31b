// Drives the web page in a real browser:
//
//   node page_test.mjs BASE_URL SCREENSHOT_PATH
//
// BASE_URL is a running `megalith serve`, whose model may say anything. What depends on the text of
// an answer (folding of reasoning, errors, markup) is played back instead: the page cannot tell.
// SCREENSHOT_PATH gets a conversation with the model, wide; beside it, with "-narrow" in the name, a
// phone's. CHROMIUM: the browser, /usr/bin/chromium if not set. Fails with the first thing that is wrong.

import { chromium } from "playwright-core";

const [baseUrl, screenshotPath] = process.argv.slice(2);
if (!baseUrl || !screenshotPath) {
  console.error("usage: node page_test.mjs BASE_URL SCREENSHOT_PATH");
  process.exit(2);
}
// How long to wait for what must happen; nothing here measures speed.
const kPatience = 60_000;

function require(condition, what) {
  if (!condition) throw new Error(what);
}

function sse(chunks) {
  return ": ping\n\n" + chunks.map((chunk) =>
    "data: " + (typeof chunk === "string" ? chunk : JSON.stringify(chunk)) + "\n\n").join("");
}
function delta(fields, finish_reason = null) {
  return { id: "x", object: "chat.completion.chunk", choices: [{ index: 0, delta: fields, finish_reason }] };
}
const kUsage = {
  id: "x", choices: [],
  usage: { prompt_tokens: 1200, completion_tokens: 7, total_tokens: 1207, prompt_tokens_details: { cached_tokens: 1024 } },
};

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
context.setDefaultTimeout(kPatience);
const page = await context.newPage();
const complaints = [];
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("console", (message) => {
  // The browser reports every status that is not 2xx; those are played back on purpose.
  if (message.type() === "error" && !message.text().includes("Failed to load resource")) {
    complaints.push(message.text());
  }
});
page.on("request", (request) => {
  if (!request.url().startsWith(baseUrl) && !request.url().startsWith("data:")) {
    complaints.push("a request to elsewhere: " + request.url());
  }
});

const prompt = page.locator("#prompt");
const answers = page.locator(".message.assistant");
const lastAnswer = answers.last();

async function ask(text) {
  await prompt.fill(text);
  await prompt.press("Enter");
}
async function waitUntilDone() {
  await page.locator("#send").waitFor({ state: "visible" });
}
// The next request for an answer gets this instead of the server's.
async function playBack(reply) {
  await page.route("**/v1/chat/completions", (route) => route.fulfill(reply), { times: 1 });
}
async function playBackStream(chunks) {
  await playBack({ status: 200, contentType: "text/event-stream", body: sse(chunks) });
}

const steps = {
  async "the page loads and names the model"() {
    await page.goto(baseUrl);
    await page.waitForFunction(() => !["connecting", ""].includes(document.getElementById("model").textContent));
    const models = await (await fetch(new URL("v1/models", baseUrl))).json();
    require((await page.locator("#model").textContent()) === models.data[0].id, "another model is shown");
    require(await prompt.evaluate((node) => node === document.activeElement), "the input has no focus");
  },

  async "Enter sends, Shift+Enter begins a line, the answer streams in"() {
    await prompt.focus();
    await page.keyboard.type("Say something");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("in two lines.");
    require((await prompt.inputValue()) === "Say something\nin two lines.", "Shift+Enter did not begin a line");
    const sent = page.waitForRequest("**/v1/chat/completions");
    await page.keyboard.press("Enter");
    const body = (await sent).postDataJSON();
    require(body.stream === true && body.stream_options.include_usage === true, "not a streaming request");
    require(body.messages.at(-1).content === "Say something\nin two lines.", "another message was sent");
    require((await prompt.inputValue()) === "", "the input was not cleared");
    await waitUntilDone();
    const text = await lastAnswer.locator(".text, .reasoning").allTextContents();
    require(text.join("").length > 0, "the answer is empty");
    require(await lastAnswer.locator(".error").isHidden(), "the answer shows an error");
    const facts = await lastAnswer.locator(".facts").textContent();
    require(/\d tokens?\b/.test(facts) && /prompt \d/.test(facts), "no counts below the answer: " + facts);
  },

  async "the conversation survives a reload and goes to the server again"() {
    const before = await page.locator("#log .text").allTextContents();
    await page.reload();
    require(JSON.stringify(await page.locator("#log .text").allTextContents()) === JSON.stringify(before),
      "the conversation is another one after the reload");
    const sent = page.waitForRequest("**/v1/chat/completions");
    await ask("And now?");
    const roles = (await sent).postDataJSON().messages.map((message) => message.role);
    require(roles.join() === "user,assistant,user", "the server is told: " + roles);
    await waitUntilDone();
    require((await answers.count()) === 2, "two answers expected");
  },

  async "Regenerate replaces the last answer"() {
    await playBackStream([delta({ role: "assistant", content: "" }), delta({ content: "another one" }), delta({}, "stop"), kUsage, "[DONE]"]);
    await lastAnswer.getByRole("button", { name: "Regenerate" }).click();
    await lastAnswer.locator(".text", { hasText: "another one" }).waitFor();
    await waitUntilDone();
    require((await answers.count()) === 2, "two answers expected");
  },

  async "Escape stops an answer that has not begun"() {
    await page.route("**/v1/chat/completions", () => {}, { times: 1 });  // never answered
    await ask("Wait");
    await page.locator("#stop").waitFor({ state: "visible" });
    await page.keyboard.press("Escape");
    await waitUntilDone();
    require((await lastAnswer.locator(".facts").textContent()).includes("stopped"), "not marked as stopped");
    require(await lastAnswer.locator(".error").isHidden(), "stopping shows an error");
  },

  async "Stop ends the generation in the server"() {
    // Not ended by the model, however soon it would.
    await page.route("**/v1/chat/completions", (route) => route.continue({
      postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true, max_tokens: 1_000_000 }),
    }), { times: 1 });
    await ask("Tell a very long story");
    await page.locator("#stop").click();
    await waitUntilDone();
    for (const end = Date.now() + kPatience; ; ) {
      const status = await (await fetch(new URL("status", baseUrl))).json();
      if (status.generations.length === 0) break;
      require(Date.now() < end, "the server still generates");
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  },

  async "reasoning is folded away when the answer begins"() {
    await playBackStream([
      delta({ role: "assistant" }), delta({ reasoning_content: "Let me " }), delta({ reasoning_content: "think." }),
      delta({ content: "It is " }), delta({ content: "42." }), delta({}, "stop"), kUsage, "[DONE]"]);
    await ask("Think");
    await lastAnswer.locator(".text", { hasText: "It is 42." }).waitFor();
    await waitUntilDone();
    const details = lastAnswer.locator("details");
    require(!(await details.evaluate((node) => node.open)), "reasoning is open");
    await details.locator("summary").focus();
    await page.keyboard.press("Enter");
    require((await details.locator(".reasoning").innerText()) === "Let me think.", "another reasoning is shown");
    const facts = await lastAnswer.locator(".facts").textContent();
    require(facts.includes("7 tokens") && facts.includes("prompt 1,200 (1,024 cached)"), "wrong counts: " + facts);
    // It goes back to the model with the next question.
    const sent = page.waitForRequest("**/v1/chat/completions");
    await playBackStream([delta({ content: "yes" }), delta({}, "stop"), "[DONE]"]);
    await ask("Sure?");
    const told = (await sent).postDataJSON().messages.at(-2);
    require(told.content === "It is 42." && told.reasoning_content === "Let me think.", "the answer went back as " + JSON.stringify(told));
    await waitUntilDone();
  },

  async "reasoning is open while it comes"() {
    await playBackStream([delta({ reasoning_content: "only thoughts" })]);
    const opened = page.evaluate(() => new Promise((resolve) => {
      new MutationObserver(() => {
        if (document.querySelector(".message.assistant:last-child details[open]")) resolve(true);
      }).observe(document.getElementById("log"), { subtree: true, attributes: true, childList: true });
    }));
    await ask("Think more");
    require(await opened, "reasoning did not open");
    // This stream ended without [DONE].
    await lastAnswer.locator(".error", { hasText: "ended before" }).waitFor();
  },

  async "text is never markup"() {
    const evil = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</" + "script>&amp; **x**";
    await playBackStream([delta({ reasoning_content: evil, content: evil }), delta({}, "stop"), "[DONE]"]);
    await ask(evil);
    await lastAnswer.locator(".text", { hasText: "onerror" }).waitFor();
    await waitUntilDone();
    require((await lastAnswer.locator(".text").textContent()) === evil, "the answer is not shown as it came");
    require((await page.locator("#log img, #log script").count()) === 0, "the text became elements");
    require((await page.title()) === "Megalith", "the text was run");
  },

  async "tool calls are shown"() {
    await playBackStream([
      delta({ tool_calls: [{ index: 0, id: "a", type: "function", function: { name: "weather", arguments: "" } }] }),
      delta({ tool_calls: [{ index: 0, function: { arguments: "{\"city\":" } }] }),
      delta({ tool_calls: [{ index: 0, function: { arguments: "\"Oslo\"}" } }] }), delta({}, "tool_calls"), "[DONE]"]);
    await ask("Weather?");
    await lastAnswer.locator(".tool", { hasText: "{\"city\":\"Oslo\"}" }).waitFor();
    await waitUntilDone();
  },

  async "errors are shown where the answer would be, and can be tried again"() {
    await playBack({ status: 429, contentType: "application/json",
      body: JSON.stringify({ error: { message: "The queue is full.", type: "server_error", param: null, code: "queue_full" } }) });
    await ask("Busy?");
    await lastAnswer.locator(".error", { hasText: "The queue is full. (queue_full)" }).waitFor();
    await waitUntilDone();
    await playBackStream([delta({ content: "half" }), { error: { message: "Out of memory.", code: "oom" } }]);
    await lastAnswer.getByRole("button", { name: "Try again" }).click();
    await lastAnswer.locator(".error", { hasText: "Out of memory. (oom)" }).waitFor();
    require((await lastAnswer.locator(".text").textContent()) === "half", "what came before the error is gone");
    await waitUntilDone();
    await page.route("**/v1/chat/completions", (route) => route.abort(), { times: 1 });
    await lastAnswer.getByRole("button", { name: "Try again" }).click();
    await lastAnswer.locator(".error", { hasText: "cannot be reached" }).waitFor();
    await waitUntilDone();
  },

  async "settings are kept and sent"() {
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByLabel("Temperature").fill("0.5");
    await page.getByLabel("Top p").fill("0.9");
    await page.getByLabel("Most tokens").fill("16");
    await page.getByLabel("Reasoning effort").selectOption("low");
    await page.getByLabel("API key").fill("secret");
    await page.getByRole("button", { name: "Save" }).click();
    await page.reload();
    const sent = page.waitForRequest("**/v1/chat/completions");
    await playBackStream([delta({ content: "ok" }), delta({}, "length"), "[DONE]"]);
    await ask("Settings?");
    const request = await sent;
    const body = request.postDataJSON();
    require(body.temperature === 0.5 && body.top_p === 0.9 && body.max_tokens === 16 && body.reasoning_effort === "low",
      "sent: " + JSON.stringify(body));
    require(body.messages[0].role === "system" && body.messages[0].content === "Be brief.", "no system prompt");
    require((await request.headerValue("Authorization")) === "Bearer secret", "no API key");
    await waitUntilDone();
    require((await lastAnswer.locator(".facts").textContent()).includes("no room"), "the cut answer is not marked");
    await page.evaluate(() => localStorage.removeItem("megalith.settings"));
    await page.reload();
  },

  async "the live view follows the server"() {
    const live = page.locator("#live");
    if (await live.isHidden()) await page.getByRole("button", { name: "Live" }).click();
    await page.locator("#live-state.good").waitFor();
    require(/^\d+ of \d+$/.test(await page.locator("#live-running").textContent()), "no count of running sequences");
    require(/\d/.test(await page.locator("#live-steps").textContent()), "no count of steps");
  },

  async "a long answer fits a wide and a narrow window"() {
    const long = Array.from({ length: 200 }, (_, i) => "line " + i + " " + "x".repeat(i)).join("\n");
    await playBackStream([delta({ content: long }), delta({}, "stop"), kUsage, "[DONE]"]);
    await ask("Long");
    await lastAnswer.locator(".text", { hasText: "line 199" }).waitFor();
    await waitUntilDone();
    for (const [width, height] of [[360, 640], [1280, 800]]) {
      await page.setViewportSize({ width, height });
      const overflow = await page.evaluate(() =>
        document.documentElement.scrollWidth - document.documentElement.clientWidth);
      require(overflow <= 0, "the page is " + overflow + " pixels too wide at " + width);
      for (const name of ["Settings", "New chat", "Send"]) {
        const box = await page.getByRole("button", { name, exact: true }).boundingBox();
        require(box && box.x >= 0 && box.x + box.width <= width && box.y + box.height <= height,
          name + " is off the screen at " + width);
      }
    }
  },

  async "everything has a name and can be reached by keyboard"() {
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll("button, input, select, textarea")]
        .filter((node) => !node.textContent.trim() && !node.getAttribute("aria-label") && !(node.labels && node.labels.length))
        .map((node) => node.outerHTML));
    require(nameless.length === 0, "without a name: " + nameless);
    await prompt.focus();
    await page.keyboard.press("Tab");
    require(await page.evaluate(() => document.activeElement.matches(":focus-visible")), "the focus cannot be seen");
  },

  async "New chat begins again"() {
    await page.getByRole("button", { name: "New chat" }).click();
    require((await page.locator(".message").count()) === 0, "messages are left");
    await page.reload();
    require((await page.locator(".message").count()) === 0, "messages came back");
    require(await page.locator("#welcome").isVisible(), "no welcome");
  },

  // The pictures: what the model really says, wide and on a phone.
  async "pictures"() {
    await ask("Hello!");
    await waitUntilDone();
    await ask("Please read me the beginning.");
    await waitUntilDone();
    await page.screenshot({ path: screenshotPath });
    await page.setViewportSize({ width: 360, height: 640 });
    await page.screenshot({ path: screenshotPath.replace(/(\.\w+)?$/, "-narrow$1") });
  },
};

let failed = false;
for (const [name, step] of Object.entries(steps)) {
  try {
    await step();
    require(complaints.length === 0, "the browser complains: " + complaints.join("; "));
    console.log("ok      " + name);
  } catch (error) {
    console.log("FAILED  " + name + "\n        " + error.message);
    await page.screenshot({ path: screenshotPath }).catch(() => {});
    failed = true;
    break;
  }
}
await browser.close();
process.exit(failed ? 1 : 0);
