// What is seen of an answer: its tokens, who wrote them, the rounds, the bars.

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
    const at = this.index(name);
    return at < 0 || name === this.target ? "target" : String(at % 6);
  }
  mark(name) { return name === this.target ? "T" : String(this.index(name) + 1); }
  /** Who drafted a token and who verified it. */
  story(token) {
    const shown = JSON.stringify(token.text);
    const round = token.round ? `, round ${token.round}` : "";
    if (this.index(token.level) < 0) return `${shown}: the server does not say who wrote it.`;
    if (token.level === this.target) return `${shown}: written by the target, ${this.target}${round}.`;
    // A round may leave levels out; those in it verify what stands below them.
    const there = (name) => name === this.target || token.drafts.some((one) => one.level === name);
    const above = this.names.slice(this.index(token.level) + 1).filter(there);
    return `${shown}: drafted by ${token.level}, verified by ${above.join(", then ")}${round}.`;
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

/** The text of one answer, and the one token of it that is pointed at. */
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
    span.about = levels.story(token);
    this.element.append(span);
  }
  get text() { return this.tokens.map((token) => token.text).join(""); }
}

function showGiven(who, text) {
  const turn = make("div", "turn given", text);
  turn.prepend(make("span", "who", who));
  $("turns").append(turn);
}

/** Say who wrote a token. */
function point(span) {
  $("turns").querySelector(".at")?.classList.remove("at");
  if (!span) return;
  span.classList.add("at");
  $("about").textContent = span.about;
  const area = $("turns"), box = span.getBoundingClientRect(), frame = area.getBoundingClientRect();
  if (box.bottom > frame.bottom) area.scrollTop += box.bottom - frame.bottom;
  if (box.top < frame.top) area.scrollTop -= frame.top - box.top;
}

/** The next token in reading order, or the one before. */
function move(step) {
  const all = [...$("turns").querySelectorAll(".token")];
  const at = all.findIndex((span) => span.classList.contains("at"));
  const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step;
  if (all[next]) point(all[next]);
}

/** What became of drafts: a bar a level, a column a round. */
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
      const row = make("div", "level"), name = make("div", "name"), said = make("span");
      name.append(make("span", "", level), said);
      const bar = make("div", `bar fill-${this.levels.suffix(level)}`), fill = make("div");
      bar.setAttribute("role", "meter");
      bar.setAttribute("aria-label", `drafts of ${level} that were kept`);
      bar.setAttribute("aria-valuemin", "0");
      bar.setAttribute("aria-valuemax", "100");
      bar.append(fill);
      row.append(name, bar);
      row.dataset.order = this.levels.index(level);
      const after = [...$("levels").children].find((one) => Number(one.dataset.order) > Number(row.dataset.order));
      $("levels").insertBefore(row, after ?? null);
      this.bars.set(level, (parts = { said, bar, fill }));
    }
    const share = drafted ? Math.round((100 * kept) / drafted) : 0;
    parts.said.textContent = `${share} % (${kept} of ${drafted})`;
    parts.fill.style.width = `${share}%`;
    parts.bar.setAttribute("aria-valuenow", String(share));
    parts.bar.setAttribute("aria-valuetext", parts.said.textContent);
  }
}

/** Tokens per second of the two ways, on one scale. */
function showSpeed(own, plain) {
  const most = Math.max(own ?? 0, plain ?? 0, 1e-9);
  for (const [name, speed] of [["own", own], ["plain", plain]]) {
    if (speed === undefined) continue;
    $(`speed-${name}`).max = most;
    $(`speed-${name}`).value = speed;
    $(`speed-${name}-text`).textContent = `${speed.toFixed(1)} tokens/s`;
  }
  if (own !== undefined) $("speed-own").max = most;
}

function showError(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message : "";
}
