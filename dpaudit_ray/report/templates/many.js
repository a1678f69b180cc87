
const source = document.getElementById("numbers");
if (source) {
  const { map, audits } = JSON.parse(source.textContent);
  const NS = "http://www.w3.org/2000/svg";
  const drawn = (parent, name, attributes = {}, text = "") => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return parent.appendChild(element);
  };
  const added = (parent, name, text = "") => {
    const element = document.createElement(name);
    element.textContent = text;
    return parent.appendChild(element);
  };
  const clear = (element) => { while (element.firstChild) element.firstChild.remove(); };

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
  }

  // The figures of one audit.
  const W = 420, H = 210, EDGE = 44;
  const frame = (parent, title, [low, high], [bottom, top]) => {
    const figure = added(parent, "figure");
    added(figure, "figcaption", title);
    const svg = drawn(figure, "svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": title });
    const x = (value) => EDGE + (W - EDGE - 8) * (value - low) / (high - low || 1);
    const y = (value) => H - 24 - (H - 34) * (value - bottom) / (top - bottom || 1);
    drawn(svg, "path", { d: `M${EDGE} 8V${H - 24}H${W - 8}`, class: "axis" });
    for (const value of [low, high]) drawn(svg, "text", { x: x(value), y: H - 8, "text-anchor": value === low ? "start" : "end" }, String(value));
    for (const value of [bottom, top]) drawn(svg, "text", { x: EDGE - 4, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(3)));
    return [svg, x, y];
  };
  const line = ([svg, x, y], xs, ys, kind) => {
    const points = xs.map((value, at) => ys[at] === null ? null : `${x(value)} ${y(ys[at])}`).filter(Boolean);
    if (points.length) drawn(svg, "path", { d: `M${points.join("L")}`, class: kind });
  };
  const steps = (parent, audit) => {
    const finite = [...audit.bounds, ...audit.claims].filter((value) => value !== null);
    const ends = [audit.steps[0], audit.steps[audit.steps.length - 1]];
    const axes = frame(parent, "ε by step: shown (line), claimed (dashed)", ends, [0, Math.max(...finite, 0)]);
    line(axes, audit.steps, audit.claims, "claim");
    line(axes, audit.steps, audit.bounds, "bound");
  };
  const histogram = (parent, [ends, outside, inside]) => {
    const axes = frame(parent, "Scores: with canary (line), without (dashed)", ends, [0, Math.max(...outside, ...inside)]);
    const width = (ends[1] - ends[0]) / inside.length;
    for (const [counts, kind] of [[outside, "claim"], [inside, "bound"]]) {
      const xs = counts.flatMap((_, at) => [ends[0] + at * width, ends[0] + (at + 1) * width]);
      line(axes, xs, counts.flatMap((count) => [count, count]), kind);
    }
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
    pictures.className = "map";
    if (audit.steps) steps(pictures, audit);
    if (audit.scores) histogram(pictures, audit.scores);
    const listed = audit.estimates.map(([name, mu, epsilon, mark]) => `${name}: ε ${epsilon ?? "–"}${mark}${mu === null ? "" : `, μ ${mu}`}`);
    added(chosen, "p", `At the last step, each alone: ${listed.join("; ") || "nothing"}.`).className = "small";
    chosen.scrollIntoView({ block: "nearest" });
  };
  addEventListener("hashchange", choose);
  choose();
}
