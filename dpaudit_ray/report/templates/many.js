
const source = document.getElementById("numbers");
if (source) {
  const { map, audits } = JSON.parse(source.textContent);
  // The map of all audits.
  const CELL = 24, LEFT = map.down ? 74 : 4, TOP = map.across ? 46 : 4;
  const cells = new Map();
  for (const [title, places] of map.panels) {
    const figure = added(document.getElementById("map"), "figure");
    if (title) added(figure, "figcaption", title);
    const width = LEFT + CELL * map.columns.length + 4, height = TOP + CELL * map.rows.length + 4;
    const svg = drawn(figure, "svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    if (map.across) drawn(svg, "text", { x: 2, y: 12, class: "key" }, `${map.down} ↓   ${map.across} →`);
    if (map.across) map.columns.forEach((value, at) => {
      drawn(svg, "text", { x: LEFT + CELL * (at + 0.5), y: 34, "text-anchor": "middle" }, value.slice(0, 4));
    });
    if (map.down) map.rows.forEach((value, at) => {
      drawn(svg, "text", { x: LEFT - 6, y: TOP + CELL * at + 16, "text-anchor": "end" }, value.slice(0, 10));
    });
    for (const [index, column, row] of places) {
      const audit = audits[index];
      const link = drawn(svg, "a", { href: `#${audit.id}`, class: `cell ${audit.verdict.toLowerCase()}` });
      const about = `${audit.label}: ${audit.verdict}, ${audit.epsilon}`;
      link.setAttribute("aria-label", about);
      drawn(link, "title", {}, about);
      const x = LEFT + CELL * column, y = TOP + CELL * row;
      const depth = 0.12 + 0.78 * Math.min(Math.max(audit.ratio ?? 0, 0), 1);
      drawn(link, "rect", { x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 3, "fill-opacity": depth });
      drawn(link, "text", { x: x + CELL / 2, y: y + 16, "text-anchor": "middle" }, audit.verdict[0]);
      cells.set(audit.id, link);
    }
    const rows = places.map(([index, column, row]) => [audits[index].label, map.columns[column], map.rows[row], audits[index].verdict, audits[index].epsilon, audits[index].ratio]);
    buttons(figure, svg, `Map of all audits ${title}`, ["audit", map.across, map.down, "verdict", "measured", "ratio"], rows);
  }

  // The figures of one audit.
  const steps = (parent, audit) => chart(parent, {
    title: "Bound by step", x: "step", y: "ε", log: "",
    series: [{ name: "claim", kind: "claim", x: audit.steps, y: audit.claims }, { name: "lower bound", kind: "line", x: audit.steps, y: audit.bounds }],
  }, `Bounds of ${audit.label}`);
  const histogram = (parent, audit) => {
    const [[low, high], ...counts] = audit.scores;
    const width = (high - low) / counts[0].length;
    const xs = counts[0].flatMap((_, at) => [low + at * width, low + (at + 1) * width]);
    const series = ["without the canary", "with the canary"].map((name, at) => ({ name, kind: "step", x: xs, y: counts[at].flatMap((count) => [count, count]) }));
    chart(parent, { title: "Scores at the last step", x: "score", y: "trials", log: "", series }, `Scores of ${audit.label}`);
  };
  const chosen = document.getElementById("chosen");
  const choose = () => {
    const audit = audits.find((each) => each.id === location.hash.slice(1));
    document.querySelector(".cell.now")?.classList.remove("now");
    if (!audit) return;
    cells.get(audit.id)?.classList.add("now");
    clear(chosen);
    chosen.hidden = false;
    const head = added(chosen, "h3", audit.label);
    const tag = added(chosen, "p", audit.verdict);
    tag.className = `tag ${audit.verdict.toLowerCase()}`;
    head.append(" ", tag);
    added(chosen, "p", `${audit.epsilon}.`);
    added(chosen, "p", `${audit.reason}.`);
    if (audit.hits) {
      const [guesses, rate, low, high] = audit.hits;
      added(chosen, "p", `${rate} % of ${guesses} guesses are right (${low} to ${high} %).`);
    }
    const pictures = added(chosen, "div");
    pictures.className = "charts";
    if (audit.steps) steps(pictures, audit);
    if (audit.scores) histogram(pictures, audit);
    const listed = audit.estimates.map(([name, mu, epsilon, mark]) => `${name}: ε ${epsilon ?? "–"}${mark}${mu === null ? "" : `, μ ${mu}`}`);
    added(chosen, "p", `At the last step, each alone: ${listed.join("; ") || "nothing"}.`).className = "small";
    chosen.scrollIntoView({ block: "nearest" });
  };
  addEventListener("hashchange", choose);
  choose();
}
