"use strict";
const copy = document.getElementById("copy");
copy.addEventListener("click", async () => {
  const sentence = document.getElementById("sentence");
  getSelection().selectAllChildren(sentence);
  let copied = false;
  try { await navigator.clipboard.writeText(sentence.textContent); copied = true; } catch { copied = document.execCommand("copy"); }
  copy.textContent = copied ? "Copied" : "Selected";
});
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
const heads = Array.from(table.tHead.rows[0].cells, (head) => head.innerText.trim().toLowerCase());
const texts = rows.map((row) => row.textContent.toLowerCase());
const filter = document.getElementById("filter");
const facets = Array.from(document.querySelectorAll(".facet"));
const matches = (row, text, word) => {
  const [key, wanted] = word.split("=");
  const column = wanted ? heads.indexOf(key) : -1;
  return column < 0 ? text.includes(word) : row.cells[column].textContent.trim().toLowerCase() === wanted;
};
const original = Array.from(rows);
const narrow = () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  const wanted = facets.filter((facet) => facet.checked).map((facet) => facet.value);
  original.forEach((row, at) => {
    const facet = !facets.length || wanted.includes(row.cells[1].textContent.trim());
    row.hidden = !(facet && words.every((word) => matches(row, texts[at], word)));
  });
  const out = new Set(original.filter((row) => row.hidden).map((row) => row.querySelector("a").getAttribute("href")));
  for (const cell of document.querySelectorAll(".cell")) cell.classList.toggle("out", out.has(cell.getAttribute("href")));
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
};
filter?.addEventListener("input", narrow);
for (const facet of facets) facet.addEventListener("change", narrow);
const open = () => { const aim = location.hash && document.getElementById(location.hash.slice(1)); if (aim?.tagName === "DETAILS") aim.open = true; };
addEventListener("hashchange", open); open();
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
