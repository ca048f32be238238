// Requests to the server and their answers: OpenAI's API, with the levels of every token.

const HERE = new URL(".", location.href);

/** An error whose message is the server's. */
class Refusal extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

function headers() {
  const fields = { "Content-Type": "application/json" }, key = $("key").value;
  if (/[^\x00-\xff]/.test(key)) throw new Refusal("No header can hold this key.", 401);  // "sk-…", as keys are shown
  if (key) fields.Authorization = `Bearer ${key}`;
  return fields;
}

/** The model that is served: {id, hierarchies, levels, chat_template}, the default hierarchy first. */
async function servedModel() {
  const response = await fetch(new URL("v1/models", HERE), { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).data[0];
}

async function refusal(response) {
  const text = await response.text();
  let message = text;
  try {
    const error = JSON.parse(text).error;
    message = error.message ?? error;
  } catch { /* not OpenAI's error object: show the text */ }
  return new Refusal(`${message || response.statusText} (HTTP ${response.status})`, response.status);
}

/** The body of a request, without fields that are empty in the form. */
function bodyOf(settings, conversation, changes = {}) {
  const body = { model: "default", stream: true, stream_options: { include_usage: true }, return_levels: true };
  for (const name of ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"]) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.stop) body.stop = settings.stop;
  // Plain decoding of the same prompt is asked for with { speculative: false } in changes.
  if (settings.hierarchy) body.hierarchy = settings.hierarchy;
  if (settings.mode === "chat") body.messages = conversation;
  else body.prompt = settings.prompt;
  return { ...body, ...changes };
}

/** Send a request and yield its chunks: {text, tokens: [{text, level}], round, plan, finish, usage}. */
async function* ask(settings, body, signal) {
  const path = settings.mode === "chat" ? "v1/chat/completions" : "v1/completions";
  const response = await fetch(new URL(path, HERE), {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await refusal(response);
  let ended = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") { ended = true; break; }
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(event.error.message ?? String(event.error));
    const chunk = chunkOf(event);
    ended ||= Boolean(chunk.finish);
    yield chunk;
  }
  if (!ended) throw new Refusal("The server ended the answer before it was complete.");
}

/** The data of server-sent events, however the network cuts them. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Convert a chunk of either endpoint to one form; with levels, a chunk is a round of the target. */
function chunkOf(event) {
  const choice = event.choices?.[0];
  const text = choice?.text ?? choice?.delta?.content ?? "";
  const tokens = [...(event.hierspec?.tokens ?? [])];
  const textOfTokens = tokens.map((token) => token.text).join("");
  // The rest was held back for a stop text; without levels it is the whole text.
  if (text.length > textOfTokens.length) tokens.push({ text: text.slice(textOfTokens.length), level: null });
  const round = event.hierspec?.drafts?.map((draft) => ({
    level: draft.level, drafted: draft.num_draft_tokens, kept: draft.num_accepted_tokens,
  }));
  return { text, tokens, round, plan: event.hierspec?.plan, finish: choice?.finish_reason, usage: event.usage };
}
