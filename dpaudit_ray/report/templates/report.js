"use strict";
const table = document.getElementById("overview");
const rows = Array.from(table.tBodies[0].rows);
const value = (row, column) => {
  const text = row.cells[column].innerText.trim();
  const figure = parseFloat(text.replace(/,/g, ""));
  return text === "–" ? -Infinity : Number.isNaN(figure) ? text : figure;
};
Array.from(table.tHead.rows[0].cells).forEach((head, column) => head.addEventListener("click", () => {
  const down = head.getAttribute("aria-sort") !== "descending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  rows.sort((a, b) => {
    const [x, y] = [value(a, column), value(b, column)];
    const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}));
document.getElementById("filter")?.addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of rows) row.hidden = !words.every((word) => row.innerText.toLowerCase().includes(word));
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
});
const open = () => { const aim = location.hash && document.getElementById(location.hash.slice(1)); if (aim?.tagName === "DETAILS") aim.open = true; };
addEventListener("hashchange", open); open();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
