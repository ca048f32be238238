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
    $("turns").append(this.element);
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

function showPrompt(who, text) {
  const turn = make("div", "turn given", text);
  turn.prepend(make("span", "who", who));
  $("turns").append(turn);
}

/** Mark a token and say who wrote it. */
function point(span) {
  $("turns").querySelector(".at")?.classList.remove("at");
  if (!span) return;
  span.classList.add("at");
  $("about").textContent = span.about;
  const area = $("turns"), box = span.getBoundingClientRect(), frame = area.getBoundingClientRect();
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

/** How many drafted tokens were kept: a bar for each level, a column for each round. */
class Drafts {
  constructor(levels) {
    this.levels = levels;
    this.totals = new Map();
    this.bars = new Map();
    this.rounds = 0;
    $("rounds").replaceChildren();
    $("levels").replaceChildren();
    if (levels.names.length < 2) $("levels").append(make("p", "quiet", "This hierarchy drafts nothing."));
  }
  add(round, written) {
    this.rounds += 1;
    const column = make("li");
    const words = [];
    for (const { level, drafted, kept } of round) {
      const sum = this.totals.get(level) ?? { drafted: 0, kept: 0 };
      sum.drafted += drafted;
      sum.kept += kept;
      this.totals.set(level, sum);
      const fill = `fill-${this.levels.suffix(level)}`;
      for (let i = 0; i < drafted; i++) column.append(make("span", `cell ${fill} ${i < kept ? "kept" : "lost"}`));
      words.push(`${level} drafted ${drafted}, kept ${kept}, thrown away ${drafted - kept}`);
      this.bar(level, sum);
    }
    const own = written.filter((token) => token.level === this.levels.target).length;
    for (let i = 0; i < own; i++) column.append(make("span", "cell own fill-target"));
    words.push(`${plural(own, "token")} of the target's own`);
    column.title = `Round ${this.rounds}: ${words.join("; ")}`;
    column.setAttribute("aria-label", column.title);
    $("rounds").append(column);
    const area = $("rounds").parentElement;
    if (area !== document.activeElement) area.scrollLeft = area.scrollWidth;
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

function showError(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message : "";
}
