// The page's state (one request at a time, the conversation, the form) and what its controls do.

const form = $("form");
const DEFAULTS = settingsOf(form);
let conversation = [];
let running = null;
let served = {};

function settingsOf(form) {
  const out = {};
  for (const element of form.elements) {
    if (!element.name || (element.type === "radio" && !element.checked)) continue;
    out[element.name] = element.type === "checkbox" ? element.checked : element.value;
  }
  return out;
}

async function start() {
  readLink();
  showMode();
  await connect();
}

async function connect() {
  try {
    const models = await listModels(form.elements.key.value);
    const model = models[0];
    $("model").textContent = model.id;
    const select = form.elements.hierarchy, wanted = select.dataset.wanted ?? select.value;
    served = model;
    const names = model.hierarchies ?? [];
    if (model.chat_template === false && !new URLSearchParams(location.hash.slice(1)).has("mode")) {
      form.elements.mode.value = "completion";  // this model has no format for conversations
      showMode();
    }
    select.replaceChildren(...names.map((name, i) => new Option(name, i ? name : "")));
    if (names.slice(1).includes(wanted)) select.value = wanted;
    showError(null);
  } catch (error) {
    $("model").textContent = "no answer from the server";
    showError(error instanceof Refusal ? error : new Error(`The server cannot be reached: ${error.message}`));
  }
}

/** A link with the settings and the prompt, but no key, after #, which is never sent to a server. */
function linkOf(settings) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (name !== "key" && value !== DEFAULTS[name]) params.set(name, value);
  }
  return `${location.href.split("#")[0]}#${params}`;
}

function readLink() {
  const params = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of params) {
    const element = form.elements[name];
    if (name === "key" || !element) continue;
    if (element.type === "checkbox") element.checked = value === "true";
    else if (element.tagName === "SELECT") element.dataset.wanted = value;
    else element.value = value;
  }
  if ([...params].some(([name]) => !["prompt", "mode"].includes(name))) $("settings").open = true;
}

async function share() {
  const link = linkOf(settingsOf(form));
  history.replaceState(null, "", link);
  try {
    await navigator.clipboard.writeText(link);
    $("shared").textContent = "The link is copied; it holds the settings and the prompt.";
  } catch {
    $("shared").textContent = "The link is in the address bar; it holds the settings and the prompt.";
  }
}

function showMode() {
  const chat = settingsOf(form).mode === "chat";
  $("prompt-label").textContent = chat ? "Message" : "Text to continue";
  $("system-row").hidden = !chat;
  $("clear").textContent = chat ? "New chat" : "Clear";
  $("turns").classList.toggle("marks", form.elements.marks.checked);
  $("legend").classList.toggle("marks", form.elements.marks.checked);
}

function clear() {
  running?.abort();
  conversation = [];
  $("turns").replaceChildren();
  $("about").textContent = "";
  $("status").textContent = "";
  showError(null);
  form.elements.prompt.focus();
}

async function send() {
  if (running || !form.reportValidity()) return;
  const settings = settingsOf(form), chat = settings.mode === "chat";
  if (!settings.prompt) {
    showError(new Error("Type a prompt first."));
    form.elements.prompt.focus();
    return;
  }
  const stop = (running = new AbortController());
  $("send").disabled = true;
  $("stop").disabled = false;
  showError(null);
  const earlier = chat ? conversation : [];
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, ...earlier, { role: "user", content: settings.prompt }];
  if (!chat) $("turns").replaceChildren();
  $("text").scrollIntoView({ block: "nearest" });
  showPrompt(chat ? "You" : "Prompt", settings.prompt);
  $("speed-plain").value = 0;
  $("speed-plain-text").textContent = settings.compare ? "after the answer" : "not asked for";
  $("verdict").textContent = "";
  $("status").textContent = "Waiting for the first token…";
  const answer = new Answer(chat ? "Model" : "Continuation");
  const keepAnswer = () => {  // a stopped one too
    if (!chat || !answer.text) return;
    conversation = [...earlier, messages.at(-1), { role: "assistant", content: answer.text }];
    form.elements.prompt.value = "";
  };
  try {
    const own = await follow(settings, messages, answer, stop.signal);
    keepAnswer();
    $("status").textContent = `Done: ${plural(own.count, "token")}, ended by ${own.finish}.`;
    if (settings.compare) await compare(settings, messages, own, stop.signal);
  } catch (error) {
    if (error.name === "AbortError") {
      keepAnswer();
      $("status").textContent = `Stopped after ${plural(answer.tokens.length, "token")}.`;
    } else {
      $("status").textContent = "";
      showError(error instanceof Refusal ? error : new Error(`The connection broke: ${error.message}`));
    }
  } finally {
    if (!answer.text) answer.element.remove();
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
  }
}

/** Show an answer as it comes. */
async function follow(settings, messages, answer, signal) {
  const pace = new Pace(), levels = levelsOf(settings.hierarchy), drafts = new Drafts(levels);
  let finish = "stop";
  showLegend(levels);
  for await (const chunk of ask(settings, bodyOf(settings, messages), signal)) {
    pace.add(chunk);
    const area = $("turns"), below = area.scrollHeight - area.scrollTop - area.clientHeight;
    if (chunk.round && chunk.tokens.length) drafts.add(chunk.round, chunk.tokens);
    const origin = { round: chunk.round && drafts.rounds, drafts: chunk.round ?? [] };
    for (const token of chunk.tokens) answer.add({ ...token, ...origin }, levels);
    if (below < 40) area.scrollTop = area.scrollHeight;
    if (chunk.tokens.length) $("status").textContent = "Writing…";
    if (pace.speed) showSpeed(pace.speed, undefined);
    finish = chunk.finish ?? finish;
  }
  return { text: answer.text, count: pace.count, speed: pace.speed, finish };
}

/** The levels of a hierarchy by its name; the default's is "". */
function levelsOf(name) {
  return new Levels(served.levels?.[name || served.hierarchies?.[0]] ?? []);
}

/** Measures tokens per second after the first chunk, as they reach this page. */
class Pace {
  first = 0; last = 0; early = 0; count = 0;
  add({ tokens, usage }) {
    if (tokens.length) {
      this.last = performance.now();
      if (!this.first) { this.first = this.last; this.early = tokens.length; }
      this.count += tokens.length;
    }
    if (usage) this.count = usage.completion_tokens;
  }
  get speed() {
    const seconds = (this.last - this.first) / 1000;
    return seconds > 0 ? (this.count - this.early) / seconds : undefined;
  }
}

/** Decode the same prompt by the target alone, and compare speed and text. */
async function compare(settings, messages, own, signal) {
  $("status").textContent = "Decoding plainly, to compare…";
  const pace = new Pace();
  let text = "";
  const body = bodyOf(settings, messages, { speculative: false, return_levels: false });
  for await (const chunk of ask(settings, body, signal)) {
    pace.add(chunk);
    text += chunk.text;
    showSpeed(own.speed, pace.speed);
  }
  $("status").textContent = `Done: ${plural(own.count, "token")}, ended by ${own.finish}.`;
  if (!own.speed || !pace.speed) return;
  const same = Number(settings.temperature) !== 0 ? ""
    : text === own.text ? " The text is the same." : " The texts differ.";
  $("verdict").textContent = `${(own.speed / pace.speed).toFixed(2)} × plain decoding.${same}`;
}

form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
form.addEventListener("change", showMode);
form.elements.key.addEventListener("change", connect);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", clear);
$("share").addEventListener("click", share);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
  if (event.key === "Escape") running?.abort();
});
$("turns").addEventListener("mouseover", (event) => {
  const span = event.target.closest(".token");
  if (span) point(span);
});
$("turns").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) { event.preventDefault(); move(step); }
});
start();
