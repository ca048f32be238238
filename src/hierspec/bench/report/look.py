"""How the page looks and how its tables sort: all of it inside the page."""

from __future__ import annotations

from hierspec.plotting.figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILION

# What a dark page puts in the place of the pictures' colours; they say theirs in style attributes.
_DARK = "".join(
    f'.chart [style*="{kind}: {colour.lower()}"]{{{kind}:var(--{name})!important}}'
    for colour, name in (("#ffffff", "paper"), (INK, "ink"), (GREY, "soft"), (PALE, "pale"))
    for kind in ("fill", "stroke")
)

CSS = f"""
:root{{color-scheme:light dark;--paper:#fff;--ink:{INK};--soft:#666;--pale:{PALE};--line:#c9ced6;
--note:#fff6dd;--good:#00694d;--bad:#b04a00}}
@media(prefers-color-scheme:dark){{:root{{--paper:#15181c;--ink:#e6e8ea;--soft:#a5acb5;
--pale:#2a2f36;--line:#3a4048;--note:#3a3010;--good:#5fd3b0;--bad:#ff9a5c}}{_DARK}}}
body{{margin:1.5rem auto;max-width:82rem;padding:0 1rem;font:15px/1.45 system-ui,sans-serif;
background:var(--paper);color:var(--ink)}}
h1{{font-size:1.6rem;margin:0 0 .4rem}}h2{{font-size:1.25rem;margin:2.2rem 0 .5rem;
border-top:1px solid var(--line);padding-top:1rem}}h3{{font-size:1rem;margin:1.4rem 0 .3rem}}
a{{color:inherit}}nav a{{margin-right:1rem}}small,.soft{{color:var(--soft)}}
.note{{background:var(--note);border-left:4px solid {ORANGE};padding:.5rem .9rem;margin:.6rem 0}}
.alarm{{border-left-color:{VERMILION};font-weight:600}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;margin:.4rem 0 1rem;font-size:.9rem}}
th,td{{padding:.22rem .42rem;text-align:right;vertical-align:top;
font-variant-numeric:tabular-nums;border-bottom:1px solid var(--pale);white-space:nowrap}}
th:first-child,td:first-child,td.words{{text-align:left}}td.words{{white-space:normal}}
th{{font-weight:600;vertical-align:bottom}}
th button{{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer;
text-align:inherit;white-space:normal}}
th[aria-sort=ascending] button::after{{content:" ▲"}}
th[aria-sort=descending] button::after{{content:" ▼"}}
.sortable{{font-size:.85rem}}.sortable td:first-child{{min-width:11.5rem}}
.sortable th{{min-width:3.9rem}}tr.plain td{{background:var(--pale)}}
tr.skipped td{{color:var(--soft)}}
.dot{{display:inline-block;width:.65em;height:.65em;border-radius:50%;margin-right:.45em}}
.plain .dot{{background:{GREY}}}.planned .dot{{background:{BLUE}}}.paper .dot{{background:{GREEN}}}
.baseline .dot{{background:{ORANGE}}}.peer .dot{{background:{PURPLE}}}
.badge{{border:1px solid currentColor;border-radius:.6em;padding:0 .45em;font-size:.8em;
margin-left:.5em}}.good{{color:var(--good)}}.bad{{color:var(--bad);font-weight:600}}
figure{{margin:1rem 0;break-inside:avoid}}figure svg{{max-width:100%;height:auto}}
.chart *{{stroke-linejoin:round;stroke-linecap:butt}}
pre{{background:var(--pale);padding:.6rem .8rem;overflow-x:auto;font-size:.82rem;
white-space:pre-wrap;overflow-wrap:anywhere}}
summary{{cursor:pointer}}details{{margin:.3rem 0}}details table{{margin-left:1rem}}
@media print{{:root{{color-scheme:light;--paper:#fff;--ink:{INK};--soft:#666;--pale:{PALE};
--line:#c9ced6;--note:#fff6dd;--good:#00694d;--bad:#b04a00}}body{{max-width:none;font-size:11px}}
nav{{display:none}}.scroll{{overflow:visible}}tr{{break-inside:avoid}}}}
"""

# Sorts by data-value; rows without one stay below, whichever way the others are turned.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => row.cells[i] && row.cells[i].dataset.value;
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    const words = head.dataset.kind === "words";
    const down = head.hasAttribute("aria-sort")
      ? head.getAttribute("aria-sort") === "ascending" : head.dataset.first === "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows];
    rows.sort((a, b) => {
      const x = value(a, i), y = value(b, i);
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return (words ? x.localeCompare(y) : x - y) * (down ? -1 : 1);
    });
    body.append(...rows);
  }));
}
"""
