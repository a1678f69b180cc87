
// Draws charts from numbers, and saves each as SVG, PNG or CSV. Nothing is loaded.
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
const brief = (value) => value === null ? "–" : String(+value.toPrecision(4));

// Saving.
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "opacity", "font-family", "font-size", "font-weight"];
const standalone = (svg) => {
  const copied = svg.cloneNode(true);
  const [from, to] = [svg, copied].map((each) => [each, ...each.querySelectorAll("*")]);
  from.forEach((element, at) => {
    const computed = getComputedStyle(element);
    for (const name of STYLES) to[at].style.setProperty(name, computed.getPropertyValue(name));
  });
  copied.querySelectorAll(".near").forEach((mark) => mark.remove());
  const { width, height } = svg.viewBox.baseVal;
  copied.setAttribute("xmlns", NS);
  copied.setAttribute("width", width);
  copied.setAttribute("height", height);
  copied.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copied);
};
const save = (name, content, type) => {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
const savePng = (name, svg) => {
  const image = new Image();
  image.onload = () => {
    const { width, height } = svg.viewBox.baseVal;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, blob, "image/png"));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
};
const quoted = (value) => /[",\n]/.test(value ?? "") ? `"${String(value).replace(/"/g, '""')}"` : value ?? "";
const buttons = (figure, svg, name, head, rows) => {
  const line = added(figure, "p");
  line.className = "save";
  const file = name.replace(/[^\w.-]+/g, "-").slice(0, 80) || "chart";
  const actions = {
    SVG: () => save(`${file}.svg`, standalone(svg), "image/svg+xml"),
    PNG: () => savePng(`${file}.png`, svg),
    CSV: () => save(`${file}.csv`, [head, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n", "text/csv"),
  };
  for (const [kind, action] of Object.entries(actions)) {
    const button = added(line, "button", kind);
    button.type = "button";
    button.setAttribute("aria-label", `Save as ${kind}: ${name}`);
    button.addEventListener("click", action);
  }
};

// Tooltips.
const tip = added(document.body, "div");
tip.className = "tip";
tip.hidden = true;
const hint = (svg, points, across = 1) => {
  const mark = drawn(svg, "circle", { r: 4, class: "near", visibility: "hidden" });
  const hide = () => { tip.hidden = true; mark.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const at = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let nearest = null, least = 40 ** 2;
    for (const point of points) {
      const distance = across * (point.x - at[0]) ** 2 + (point.y - at[1]) ** 2;
      if (distance < least) [nearest, least] = [point, distance];
    }
    if (!nearest) return hide();
    mark.setAttribute("cx", nearest.x);
    mark.setAttribute("cy", nearest.y);
    mark.setAttribute("visibility", "visible");
    tip.textContent = nearest.text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 4) + scrollX}px`;
    tip.style.top = `${event.clientY + 14 + scrollY}px`;
  });
  svg.addEventListener("pointerleave", hide);
};

// Lines, steps, points and bands on two axes.
const W = 440, H = 250, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 40;
const ticksOf = ([low, high], logarithmic) => {
  if (logarithmic) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first) / 5));
    const powers = [];
    for (let power = first; power <= last; power += every) powers.push(10 ** power);
    return powers.length > 1 ? powers : [low, high];
  }
  const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => unit * factor >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) ticks.push(at * step);
  return ticks;
};
const rangeOf = (values, logarithmic, from_zero) => {
  const usable = values.filter((value) => value !== null && (!logarithmic || value > 0));
  if (!usable.length) return logarithmic ? [0.1, 1] : [0, 1];
  let low = Math.min(...usable), high = Math.max(...usable);
  if (from_zero && !logarithmic) low = Math.min(low, 0);
  if (low === high) [low, high] = logarithmic ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
  return [low, high];
};
const chart = (parent, spec, name = spec.title) => {
  const figure = added(parent, "figure");
  if (spec.title) added(figure, "figcaption", spec.title);
  const height = H + 17 * spec.series.length;
  const svg = drawn(figure, "svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": name });
  const log = { x: spec.log.includes("x"), y: spec.log.includes("y") };
  const xs = rangeOf(spec.series.flatMap((each) => each.x), log.x, false);
  const ys = rangeOf(spec.series.flatMap((each) => [...each.y, ...(each.low ?? []), ...(each.high ?? [])]), log.y, true);
  const place = (value, [low, high], logarithmic) => logarithmic
    ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const x = (value) => LEFT + (W - LEFT - RIGHT) * place(value, xs, log.x);
  const y = (value) => H - BOTTOM - (H - BOTTOM - TOP) * place(value, ys, log.y);
  for (const value of ticksOf(ys, log.y)) {
    drawn(svg, "path", { d: `M${LEFT} ${y(value)}H${W - RIGHT}`, class: "grid" });
    drawn(svg, "text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, brief(value));
  }
  for (const value of ticksOf(xs, log.x)) {
    drawn(svg, "path", { d: `M${x(value)} ${H - BOTTOM}v4`, class: "axis" });
    drawn(svg, "text", { x: x(value), y: H - BOTTOM + 16, "text-anchor": "middle" }, brief(value));
  }
  drawn(svg, "path", { d: `M${LEFT} ${TOP}V${H - BOTTOM}H${W - RIGHT}`, class: "axis" });
  drawn(svg, "text", { x: (LEFT + W - RIGHT) / 2, y: H - 8, "text-anchor": "middle", class: "key" }, spec.x);
  drawn(svg, "text", { x: 12, y: (TOP + H - BOTTOM) / 2, "text-anchor": "middle", class: "key", transform: `rotate(-90 12 ${(TOP + H - BOTTOM) / 2})` }, spec.y);
  const points = [];
  let colour = 0;
  spec.series.forEach((series, row) => {
    const shade = series.kind === "claim" ? "claim" : series.kind === "alarm" ? "alarm" : `c${colour++ % 6}`;
    const seen = series.x.map((value, at) => [value, series.y[at], at])
      .filter(([left, up]) => left !== null && up !== null && (!log.x || left > 0) && (!log.y || up > 0));
    if (series.low) {
      const banded = seen.filter(([, , at]) => series.low[at] !== null && series.high[at] !== null && (!log.y || series.low[at] > 0));
      const edge = (ends) => banded.map(([value, , at]) => `${x(value)} ${y(ends[at])}`);
      if (banded.length > 1) drawn(svg, "path", { d: `M${edge(series.high).join("L")}L${edge(series.low).reverse().join("L")}Z`, class: `band ${shade}` });
    }
    const line = seen.map(([left, up]) => `${x(left).toFixed(1)} ${y(up).toFixed(1)}`);
    if (line.length === 1 && series.kind === "claim") drawn(svg, "path", { d: `M${LEFT} ${y(seen[0][1])}H${W - RIGHT}`, class: `line ${shade}` });
    else if (line.length && series.kind !== "alarm") drawn(svg, "path", { d: `M${line.join("L")}`, class: `line ${shade}` });
    if (["line", "alarm"].includes(series.kind) && seen.length <= 60) {
      for (const [left, up] of seen) drawn(svg, "circle", { cx: x(left), cy: y(up), r: series.kind === "alarm" ? 5 : 2.5, class: `dot ${shade}` });
    }
    for (const [left, up] of seen) points.push({ x: x(left), y: y(up), text: `${series.name}: ${spec.x} ${brief(left)}, ${spec.y.split(" at ")[0]} ${brief(up)}` });
    const base = H + 17 * row + 6;
    drawn(svg, "path", { d: `M${LEFT} ${base}h22`, class: `line ${shade}` });
    drawn(svg, "text", { x: LEFT + 28, y: base + 4 }, series.name.length > 62 ? `${series.name.slice(0, 61)}…` : series.name);
  });
  hint(svg, points);
  const rows = spec.series.flatMap((each) => each.x.map((value, at) => [each.name, value, each.y[at], each.low?.[at] ?? "", each.high?.[at] ?? ""]));
  buttons(figure, svg, name, ["series", spec.x, spec.y, "low", "high"], rows);
};

// A bar for each audit, with its claim.
const bars = (parent, spec, name) => {
  const figure = added(parent, "figure");
  const width = Math.min(640, parent.clientWidth || 640), row = 36, height = row * spec.rows.length + 44;
  const svg = drawn(figure, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, class: "bars" });
  const ends = rangeOf(spec.rows.flatMap(([, mean, claim, , repeated]) => [mean, claim, ...repeated]), false, true);
  const x = (value) => 4 + (width - 16) * value / (ends[1] || 1);
  for (const value of ticksOf(ends, false)) {
    drawn(svg, "path", { d: `M${x(value)} 0V${height - 40}`, class: "grid" });
    drawn(svg, "text", { x: x(value), y: height - 24, "text-anchor": value === 0 ? "start" : "middle" }, brief(value));
  }
  drawn(svg, "text", { x: width / 2, y: height - 6, "text-anchor": "middle", class: "key" }, `${spec.x}: bar = lower bound, mark = claim`);
  const points = [];
  spec.rows.forEach(([label, mean, claim, kind, repeated], at) => {
    const top = row * at;
    const text = kind ? `${label} (${kind})` : `${label} (no bound yet)`;
    drawn(svg, "text", { x: 4, y: top + 13 }, text.length > width / 6 ? `${text.slice(0, width / 6 - 1)}…` : text);
    const shade = kind === "above its claim" ? "alarm" : "c0";
    drawn(svg, "rect", { x: 4, y: top + 18, width: Math.max(x(mean ?? 0) - 4, 1), height: 12, class: `bar ${shade}` });
    if (claim !== null) drawn(svg, "path", { d: `M${x(claim)} ${top + 15}v18`, class: "mark" });
    for (const value of repeated) drawn(svg, "circle", { cx: x(value), cy: top + 24, r: 2.5, class: "dot c1" });
    const about = `${label}: ε ≥ ${brief(mean)}${kind ? `, ${kind}` : ""}; claim ${brief(claim)}`;
    for (const value of [mean, claim]) if (value !== null) points.push({ x: x(value), y: top + 24, text: about });
  });
  hint(svg, points, 1e-4);  // anywhere in its row
  const rows = spec.rows.map(([label, mean, claim, kind, repeated]) => [label, mean, claim, kind, repeated.join(" ")]);
  buttons(figure, svg, name, ["audit", "lower bound", "claim", "assumes", "repetitions"], rows);
};
const charts = JSON.parse(document.getElementById("charts").textContent);
for (const section of document.querySelectorAll("[data-charts]")) {
  for (const spec of charts[section.dataset.charts] ?? []) {
    const name = [section.getAttribute("aria-label"), spec.title].filter(Boolean).join(": ");
    if (spec.rows) bars(section, spec, name); else chart(section, spec, name);
  }
}

// Dark or light, as the reader's system has it until they choose.
const dark = document.getElementById("dark");
const prefers = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (prefers.matches ? "dark" : "light")) === "dark";
const label = () => { dark.textContent = isDark() ? "Light" : "Dark"; };
dark.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; label(); });
prefers.addEventListener("change", label);
label();
