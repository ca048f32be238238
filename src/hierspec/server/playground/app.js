// The page's state (one request at a time, the conversation, the form) and what its controls do.

const form = $("form");
const DEFAULTS = settingsOf(form);
let conversation = [];
let served = null;  // the model; null: there is no connection
let running = null, comparing = null;  // what ends an answer, and the plain decoding after it
let failed = null;  // a prompt whose answer is not part of the conversation

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

/** Learn what is served; return whether there was an answer. */
async function connect() {
  try {
    served = await servedModel();
  } catch (error) {
    showProblem(error, "The server cannot be reached");
    return false;
  }
  $("model").textContent = served.id;
  $("access").hidden = true;
  const select = form.elements.hierarchy, wanted = select.dataset.wanted ?? select.value;
  const names = served.hierarchies ?? [];
  if (served.chat_template === false && !new URLSearchParams(location.hash.slice(1)).has("mode")) {
    form.elements.mode.value = "completion";  // this model has no format for conversations
    showMode();
  }
  $("hierarchy-row").hidden = names.length < 2;
  select.replaceChildren(...names.map((name, i) => new Option(name, i ? name : "")));
  if (names.slice(1).includes(wanted)) select.value = wanted;
  showError("");
  return true;
}

/** Say why there is no answer; where a key is missing or wrong, ask for one. */
function showProblem(error, what) {
  const asks = error.status === 401;
  if (asks) served = null;
  if (!served) $("model").textContent = asks ? "needs an API key" : "no answer from the server";
  if (asks) {
    $("access").hidden = false;
    $("access-problem").textContent = $("key").value ? "This key is not valid here." : "";
    $("key").focus();
  } else {
    showError(error instanceof Refusal ? error.message : `${what}: ${error.message}`);
  }
}

/** A link with the settings and the prompt after #, which is never sent to a server. */
function linkOf(settings) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (value !== DEFAULTS[name]) params.set(name, value);
  }
  return `${location.href.split("#")[0]}#${params}`;
}

function readLink() {
  const params = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of params) {
    const element = form.elements[name];
    if (!element) continue;
    if (element.type === "checkbox") element.checked = value === "true";
    else if (element.tagName === "SELECT") element.dataset.wanted = value;
    else element.value = value;
  }
  if ([...params].some(([name]) => !["prompt", "mode"].includes(name))) $("settings").open = true;
}

async function share() {
  const settings = settingsOf(form);
  settings.prompt ||= conversation[0]?.content ?? "";  // the box is empty once a message is sent
  const link = linkOf(settings);
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
  stop();
  conversation = [];
  $("turns").replaceChildren();
  $("about").textContent = "";
  $("status").textContent = "";
  showError("");
  form.elements.prompt.focus();
}

function stop() {
  running?.abort();
  comparing?.abort();
}

function showBusy() {  // a disabled button would lose the focus
  $("send").ariaDisabled = Boolean(running);
  $("stop").ariaDisabled = !(running || comparing);
}

async function send() {
  if (running) return;
  if (!form.checkValidity()) $("settings").open = true;
  if (!form.reportValidity()) return;
  const settings = settingsOf(form), chat = settings.mode === "chat";
  if (!settings.prompt) {
    showError("Type a prompt first.");
    form.elements.prompt.focus();
    return;
  }
  const ending = (running = new AbortController());
  comparing?.abort();
  comparing = null;
  showBusy();
  if (!served && !(await connect())) {
    running = null;
    showBusy();
    return;
  }
  showError("");
  if (!chat) conversation = [];
  if (conversation.length) failed?.remove();
  else $("turns").replaceChildren();
  const earlier = conversation;
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, ...earlier, { role: "user", content: settings.prompt }];
  const answer = new Answer(chat ? "Model" : "Continuation");
  failed = showExchange(chat ? "You" : "Prompt", settings.prompt, answer);
  $("turns").parentElement.scrollTop = 0;  // the end
  $("turns").parentElement.scrollIntoView({ block: "nearest" });
  $("speed-plain").value = 0;
  $("speed-plain-text").textContent = settings.compare ? "after the answer" : "–";
  $("verdict").textContent = "";
  $("status").textContent = "Waiting for the first token…";
  if (chat) form.elements.prompt.value = "";
  const keepAnswer = () => {  // a stopped one too
    if (!answer.text || !answer.element.isConnected) return;  // New chat has taken it away
    failed = null;
    if (chat) conversation = [...earlier, messages.at(-1), { role: "assistant", content: answer.text }];
  };
  let own = null;
  try {
    own = await follow(settings, messages, answer, ending.signal);
    keepAnswer();
    const end = own.finish === "length" ? "the most that the settings allow" : `ended by the model${settings.stop ? " or the stop text" : ""}`;
    $("status").textContent = `Done: ${plural(own.count, "token")}, ${end}.`;
  } catch (error) {
    $("status").textContent = "";
    $("speed-plain-text").textContent = "–";
    if (error.name === "AbortError") {
      keepAnswer();
      if (answer.element.isConnected) $("status").textContent = `Stopped after ${plural(answer.tokens.length, "token")}.`;
    } else {
      showProblem(error, "The connection broke");
    }
    if (failed?.isConnected && !form.elements.prompt.value) form.elements.prompt.value = settings.prompt;
  }
  running = null;
  showBusy();
  if (own && settings.compare) await compare(settings, messages, own);
}

/** Show an answer as it comes. */
async function follow(settings, messages, answer, signal) {
  const levels = levelsOf(settings.hierarchy);
  const pace = new Pace(), drafts = new Drafts(levels), rounds = new Rounds(levels);
  let finish = "stop";
  showLegend(levels);
  for await (const chunk of ask(settings, bodyOf(settings, messages), signal)) {
    pace.add(chunk);
    if (chunk.round && chunk.tokens.length) {
      drafts.add(chunk.round);
      rounds.add(chunk);
    }
    const origin = { round: chunk.round && rounds.count, drafts: chunk.round ?? [] };
    for (const token of chunk.tokens) answer.add({ ...token, ...origin }, levels);
    if (chunk.tokens.length) $("status").textContent = "Writing…";
    if (pace.speed) showSpeed(pace.speed, undefined);
    finish = chunk.finish ?? finish;
  }
  return { text: answer.text, count: pace.count, speed: pace.speed, finish };
}

/** The levels of a hierarchy by its name; the default's is "". */
function levelsOf(name) {
  return new Levels(served.levels[name || served.hierarchies[0]]);
}

/** Measures tokens per second after the first chunk, as they reach this page. */
const FEW_TOKENS = 12;  // whose speed says little

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

/** Decode the same prompt by the target alone, and compare speed and text; a new prompt ends it. */
async function compare(settings, messages, own) {
  const ending = (comparing = new AbortController()), pace = new Pace();
  let text = "";
  showBusy();
  $("verdict").textContent = "Decoding the same prompt plainly…";
  try {
    const body = bodyOf(settings, messages, { speculative: false, return_levels: false });
    for await (const chunk of ask(settings, body, ending.signal)) {
      pace.add(chunk);
      text += chunk.text;
      showSpeed(own.speed, pace.speed);
    }
    $("verdict").textContent = verdictOn(own, pace, Number(settings.temperature) ? null : text === own.text);
  } catch (error) {
    if (comparing !== ending) return;  // of an earlier prompt
    $("verdict").textContent = "Plain decoding did not end.";
    if (error.name !== "AbortError") showProblem(error, "The connection broke");
  }
  comparing = null;
  showBusy();
}

/** Say how much faster it was than plain decoding, and whether the texts are equal (null: by chance). */
function verdictOn(own, plain, equal) {
  const same = equal === null ? "" : equal ? " The text is the same." : " The texts differ.";
  if (!own.speed || !plain.speed || Math.min(own.count, plain.count) < FEW_TOKENS) {
    return `Too short to compare speeds.${same}`;
  }
  const ratio = own.speed / plain.speed;
  const slower = ratio < 1 ? " Here drafts saved no time." : "";
  return `${ratio.toFixed(2)} × plain decoding.${same}${slower}`;
}

form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
form.addEventListener("change", showMode);
$("access").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await connect()) form.elements.prompt.focus();
});
$("stop").addEventListener("click", stop);
$("clear").addEventListener("click", clear);
$("share").addEventListener("click", share);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
  if (event.key === "Escape") stop();
});
$("turns").addEventListener("mouseover", (event) => {
  const span = event.target.closest(".token");
  if (span) point(span);
});
$("turns").parentElement.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) { event.preventDefault(); move(step); }
});
start();
