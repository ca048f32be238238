// Sorts by data-value; rows without one stay below, whichever way the others are turned.
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
