// How an answer is shown: its tokens and who wrote them, the rounds, the bars of each level.

const $ = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** The levels of a hierarchy, smallest first, the target last: their classes, marks and words. */
class Levels {
  constructor(names) { this.names = names; }
  get target() { return this.names.at(-1); }
  index(name) { return this.names.indexOf(name); }
  suffix(name) {
    const index = this.index(name);
    return index < 0 || name === this.target ? "target" : String(index % 6);
  }
  mark(name) { return name === this.target ? "T" : String(this.index(name) + 1); }
  /** Say who drafted a token and who verified it. */
  describe(token) {
    const quoted = JSON.stringify(token.text);
    const round = token.round ? `, round ${token.round}` : "";
    if (this.index(token.level) < 0) return `${quoted}: the server does not say who wrote it.`;
    if (token.level === this.target) return `${quoted}: written by the target, ${this.target}${round}.`;
    // A round may leave levels out; each of the others verifies the one below it.
    const takesPart = (name) => name === this.target || token.drafts.some((draft) => draft.level === name);
    const above = this.names.slice(this.index(token.level) + 1).filter(takesPart);
    return `${quoted}: drafted by ${token.level}, verified by ${above.join(", then ")}${round}.`;
  }
}

function showLegend(levels) {
  $("legend").replaceChildren(...levels.names.map((name) => {
    const item = make("li");
    const sample = make("span", `by by-${levels.suffix(name)}`, name);
    sample.dataset.mark = levels.mark(name);
    item.append(sample, name === levels.target ? " (the target)" : "");
    return item;
  }));
}

/** The text of one answer, a span a token. */
class Answer {
  constructor(who) {
    this.element = make("div", "turn");
    this.element.append(make("span", "who", who));
    this.tokens = [];
  }
  add(token, levels) {
    this.tokens.push(token);
    if (!token.text) return;  // a part of a character, or held back for a stop text
    const span = make("span", `token by by-${levels.suffix(token.level)}`, token.text);
    span.dataset[token.text.endsWith("\n") ? "first" : "mark"] = levels.mark(token.level);
    span.about = levels.describe(token);
    this.element.append(span);
  }
  get text() { return this.tokens.map((token) => token.text).join(""); }
}

/** A prompt and its answer, which stand and go together. */
function showExchange(who, prompt, answer) {
  const exchange = make("div"), turn = make("div", "turn given", prompt);
  turn.prepend(make("span", "who", who));
  exchange.append(turn, answer.element);
  $("turns").append(exchange);
  return exchange;
}

/** Mark a token and say who wrote it. */
function point(span) {
  $("turns").querySelector(".at")?.classList.remove("at");
  if (!span) return;
  span.classList.add("at");
  $("about").textContent = span.about;
  const area = $("turns").parentElement, box = span.getBoundingClientRect(), frame = area.getBoundingClientRect();
  if (box.bottom > frame.bottom) area.scrollTop += box.bottom - frame.bottom;
  if (box.top < frame.top) area.scrollTop -= frame.top - box.top;
}

/** Point at the next token in reading order, or at the previous one. */
function move(step) {
  const all = [...$("turns").querySelectorAll(".token")];
  const current = all.findIndex((span) => span.classList.contains("at"));
  const next = current < 0 ? (step > 0 ? 0 : all.length - 1) : current + step;
  if (all[next]) point(all[next]);
}

/** How many drafted tokens were kept: a bar for each level. */
class Drafts {
  constructor(levels) {
    this.levels = levels;
    this.totals = new Map();
    this.bars = new Map();
    $("levels").replaceChildren();
    if (levels.names.length < 2) $("levels").append(make("p", "quiet", "This hierarchy drafts nothing."));
  }
  add(round) {
    for (const { level, drafted, kept } of round) {
      const sum = this.totals.get(level) ?? { drafted: 0, kept: 0 };
      sum.drafted += drafted;
      sum.kept += kept;
      this.totals.set(level, sum);
      this.bar(level, sum);
    }
  }
  bar(level, { drafted, kept }) {
    let parts = this.bars.get(level);
    if (!parts) {
      const row = make("div", "level"), name = make("div", "name"), share = make("span");
      name.append(make("span", "", level), share);
      const bar = make("div", `bar fill-${this.levels.suffix(level)}`), fill = make("div");
      bar.setAttribute("role", "meter");
      bar.setAttribute("aria-label", `drafts of ${level} that were kept`);
      bar.setAttribute("aria-valuemin", "0");
      bar.setAttribute("aria-valuemax", "100");
      bar.append(fill);
      row.append(name, bar);
      row.dataset.order = this.levels.index(level);
      const next = [...$("levels").children].find((other) => Number(other.dataset.order) > Number(row.dataset.order));
      $("levels").insertBefore(row, next ?? null);
      this.bars.set(level, (parts = { share, bar, fill }));
    }
    const percent = drafted ? Math.round((100 * kept) / drafted) : 0;
    parts.share.textContent = `${percent} % (${kept} of ${drafted})`;
    parts.fill.style.width = `${percent}%`;
    parts.bar.setAttribute("aria-valuenow", String(percent));
    parts.bar.setAttribute("aria-valuetext", parts.share.textContent);
  }
}

/**
 * The rounds, a column each: above the line the tokens that it wrote, below it how many drafted
 * tokens of each level were thrown away, and by which plan it ran.
 */
class Rounds {
  constructor(levels) {
    this.levels = levels;
    this.drafting = levels.names.slice(0, -1);
    this.count = this.most = 0;
    this.plans = new Map();
    $("rounds").replaceChildren();
    $("key-of-rounds").replaceChildren(
      make("li", "", "A column is one call of the target:"),
      ...this.drafting.map((name) => this.item("kept", name, "", `drafted by ${name}, kept`)),
      this.item("own", levels.target, "", "the target's own token"),
      ...(this.drafting.length ? [this.item("lost", this.drafting[0], "2", "drafted and thrown away, how many")] : []),
    );
    this.scale(4);
  }
  item(kind, level, text, words) {
    const item = make("li");
    item.append(make("span", `cell ${kind} fill-${this.levels.suffix(level)}`, text), words);
    return item;
  }
  /** Make room for so many tokens in a round. */
  scale(most) {
    const step = [1, 2, 5, 10, 20, 50].find((step) => most / step <= 3) ?? 100;
    this.most = step * Math.ceil(most / step);
    $("picture").style.setProperty("--most", this.most);
    $("picture").style.setProperty("--step", step);
    const ticks = make("div", "written");
    for (let n = 0; n <= this.most; n += step) {
      const tick = make("span", "tick", n || "tokens");
      tick.style.setProperty("--at", n);
      ticks.append(tick);
    }
    const rows = this.drafting.map((name) => {
      const row = make("span", `row fill-${this.levels.suffix(name)}`, name);
      row.title = `drafted by ${name} and thrown away`;
      return row;
    });
    $("axis").replaceChildren(ticks, ...rows, make("span", "row", "plan"), make("span", "row", "round"));
  }
  add({ round, tokens, plan }) {
    this.count += 1;
    if (tokens.length > this.most) this.scale(tokens.length);
    const column = make("li"), written = make("div", "written"), words = [];
    for (const { level } of tokens) {
      written.append(make("span", `cell ${level === this.levels.target ? "own" : "kept"} fill-${this.levels.suffix(level)}`));
    }
    const lost = this.drafting.map((name) => {
      const { drafted, kept } = round.find(({ level }) => level === name) ?? { drafted: 0, kept: 0 };
      if (drafted) words.push(`${name} drafted ${drafted}, kept ${kept}, thrown away ${drafted - kept}`);
      const row = make("span", "row");
      if (drafted > kept) row.append(make("span", `cell lost fill-${this.levels.suffix(name)}`, drafted - kept));
      return row;
    });
    const own = tokens.filter(({ level }) => level === this.levels.target).length;
    words.push(`${plural(own, "token")} of the target's own`);
    if (plan) words.push(`plan ${plan}`);
    const number = this.count === 1 || this.count % 10 === 0 ? this.count : "";
    column.append(written, ...lost, make("span", "row", plan && this.letter(plan)), make("span", "row", number));
    column.title = `Round ${this.count}: ${words.join("; ")}`;
    column.setAttribute("aria-label", column.title);
    $("rounds").append(column);
  }
  /** The letter that stands for a plan, beside its name and how often it ran. */
  letter(plan) {
    let known = this.plans.get(plan);
    if (!known) {
      const item = make("li"), letter = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[this.plans.size] ?? "…";
      const words = make("span");
      item.append(make("b", "letter", letter), words);
      $("key-of-rounds").append(item);
      this.plans.set(plan, (known = { letter, words, count: 0 }));
    }
    known.count += 1;
    known.words.textContent = `${plan}: ${plural(known.count, "round")}`;
    return known.letter;
  }
}

/** Show tokens per second of this hierarchy and of plain decoding, on one scale. */
function showSpeed(own, plain) {
  const fastest = Math.max(own ?? 0, plain ?? 0, 1e-9);
  for (const [name, speed] of [["own", own], ["plain", plain]]) {
    if (speed === undefined) continue;
    $(`speed-${name}`).max = fastest;
    $(`speed-${name}`).value = speed;
    $(`speed-${name}-text`).textContent = `${speed.toFixed(1)} tokens/s`;
  }
  if (own !== undefined) $("speed-own").max = fastest;
}

function showError(message) {
  $("error").hidden = !message;
  $("error").textContent = message;
}
