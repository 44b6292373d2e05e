// Bars of what each resource does, the shares of the critical path, and the roofline.

function bars(parts) {
  const bar = make("div", { class: "bar" });
  for (const [name, share, title, faint] of parts) {
    if (share <= 0.0005) continue;
    bar.append(make("i", { title, style: { width: `${100 * share}%`, background: colour(name), opacity: faint ? 0.3 : 1 } }));
  }
  return bar;
}

function drawBusy(data) {
  const total = data.summary.metrics.total_time.value || 1;
  const box = make("div", { class: "rows" });
  const causes = new Set();
  for (const lane of data.resources) {
    const stem = lane === "dma" ? "dma" : `${lane}_engine`;
    const metric = data.summary.metrics[`${stem}_active_time_percent`];
    const share = (metric ? metric.value : 0) / 100;
    const idle = Object.entries(data.summary.idle[lane] || {}).sort((a, b) => b[1] - a[1]);
    if (!share && !idle.length) continue;
    for (const [cause] of idle) causes.add(cause);
    const parts = [[lane, share, `active ${shareText(share)}`], ...idle.map(([cause, seconds]) => [cause, seconds / total, `idle ${shareText(seconds / total)}: waiting for ${causeText(cause)}`, true])];
    box.append(make("span", {}, lane), bars(parts), make("span", { class: "n" }, shareText(share)));
  }
  const legend = make("div", { class: "legend" }, "solid: active; pale: idle, in the colour of what it waits for");
  for (const cause of causes) legend.append(make("span", {}, make("i", { class: "dot", style: { background: colour(cause), opacity: 0.5 } }), causeText(cause)));
  $("busy").replaceChildren(box, legend);
}

function drawPathShares(data) {
  const shares = Object.entries(data.summary.critical_path).sort((a, b) => b[1] - a[1]);
  const whole = bars(shares.map(([name, share]) => [name, share, `${name} ${shareText(share)}`]));
  whole.style.height = "26px";
  const legend = make("div", { class: "legend" });
  for (const [name, share] of shares) legend.append(make("span", {}, make("i", { class: "dot", style: { background: colour(name) } }), `${name} ${shareText(share)}`));
  const lines = make("tbody");
  const total = data.summary.metrics.total_time.value || 1;
  for (const line of data.summary.top_lines.slice(0, 7)) {
    lines.append(make("tr", {}, make("td", { class: "n" }, shareText(line.critical_path / total)), make("td", { class: "code" }, line.file ? `${baseName(line.file)}:${line.line}` : "no source line"), make("td", { class: "code quiet" }, line.text)));
  }
  const note = make("p", { class: "quiet", style: { margin: "0 0 10px" } }, "What the end of the program had to wait for, one thing after the other.");
  $("paths").replaceChildren(note, whole, legend, make("table", { style: { marginTop: "12px" } }, lines));
}

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...inside) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

function drawRoof(data) {
  const roof = data.roofline;
  const [wide, high, left, bottom, top, right] = [620, 330, 62, 44, 16, 18];
  const intensity = roof.bytes ? roof.flops / roof.bytes : 0;
  const peak = Math.max(...Object.values(roof.peaks));
  const xs = [Math.min(1, intensity ? intensity / 3 : 1), Math.max(3000, intensity * 3)].map(Math.log10);
  const ys = [Math.min(peak / 1e4, roof.rate ? roof.rate / 3 : peak), peak * 2].map(Math.log10);
  const x = (value) => left + ((Math.log10(value) - xs[0]) / (xs[1] - xs[0])) * (wide - left - right);
  const y = (value) => high - bottom - ((Math.log10(value) - ys[0]) / (ys[1] - ys[0])) * (high - bottom - top);
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, width: "100%", role: "img", "aria-label": "Roofline of one core" });
  for (let power = Math.ceil(xs[0]); power <= xs[1]; power += 1) {
    svg.append(draw("line", { x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: high - bottom, stroke: "var(--soft)" }), draw("text", { x: x(10 ** power), y: high - bottom + 18, "text-anchor": "middle" }, countText(10 ** power)));
  }
  for (let power = Math.ceil(ys[0]); power <= ys[1]; power += 1) {
    svg.append(draw("line", { x1: left, x2: wide - right, y1: y(10 ** power), y2: y(10 ** power), stroke: "var(--soft)" }), draw("text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, flopsText(10 ** power).replace(".00", "").replace("FLOP", "")));
  }
  svg.append(draw("text", { x: (left + wide - right) / 2, y: high - 6, "text-anchor": "middle" }, "FLOP for each byte of HBM traffic"), draw("text", { x: 4, y: 10 }, "FLOP/s"));
  const edge = [10 ** xs[0], 10 ** xs[1]];
  const slope = (bandwidth, most, style) => {
    const from = Math.max(edge[0], 10 ** ys[0] / bandwidth);
    const ridge = most / bandwidth;
    return draw("polyline", { points: `${x(from)},${y(from * bandwidth)} ${x(ridge)},${y(most)}`, fill: "none", ...style });
  };
  const own = roof.peaks[roof.dtype] || roof.peaks.bfloat16;
  // The first of the wanted heights at which a label touches no other one and no roof.
  const taken = [];
  const roofs = Object.values(roof.peaks).map(y);
  const fits = (at) => taken.every((other) => Math.abs(at - other) >= 16) && roofs.every((line) => Math.abs(at - 4 - line) >= 8);
  const free = (...wanted) => {
    const found = wanted.find(fits) ?? wanted[0];
    taken.push(found);
    return found;
  };
  for (const [name, value] of Object.entries(roof.peaks)) {
    const mine = value === own;
    svg.append(draw("line", { x1: x(Math.min(edge[1], value / roof.bandwidth)), x2: wide - right, y1: y(value), y2: y(value), stroke: mine ? "var(--text)" : "var(--quiet)", "stroke-width": mine ? 2 : 1, "stroke-dasharray": mine ? "" : "4 4" }));
    svg.append(draw("text", { x: wide - right - 4, y: free(y(value) - 6, y(value) + 15), "text-anchor": "end", class: mine ? "strong" : "" }, `${name} ${flopsText(value, "/s")}`));
  }
  svg.append(slope(roof.bandwidth, own, { stroke: "var(--text)", "stroke-width": 2 }));
  const label = 10 ** xs[0] * 1.3;
  const under = Math.min(high - bottom - 8, y(Math.max(label * roof.bandwidth, 10 ** ys[0])) + 22);
  svg.append(draw("text", { x: x(label) + 22, y: under, class: "strong halo" }, `HBM ${rateText(roof.bandwidth)}`));
  if (intensity && roof.rate) {
    const least = Math.min(own, intensity * roof.bandwidth);
    svg.append(draw("line", { x1: x(intensity), x2: x(intensity), y1: y(roof.rate), y2: y(least), stroke: "var(--accent)", "stroke-dasharray": "3 3" }));
    svg.append(draw("circle", { cx: x(intensity), cy: y(least), r: 4, fill: "none", stroke: "var(--accent)", "stroke-width": 2 }), draw("circle", { cx: x(intensity), cy: y(roof.rate), r: 6, fill: "var(--accent)" }));
    const end = x(intensity) > wide - 210;
    svg.append(draw("text", { x: end ? wide - right - 4 : x(intensity) + 12, y: free(...[end ? 30 : 18, 24, 36, 42, 48, 54, 60].map((step) => y(roof.rate) + step)), "text-anchor": end ? "end" : "start", class: "strong halo" }, `${flopsText(roof.rate, "/s")}, ${shareText(roof.rate / least)} of the roof`));
  }
  const side = intensity < own / roof.bandwidth ? "memory" : "compute";
  const ridge = data.summary.metrics.peak_flops_bandwidth_ratio;
  const other = ridge ? ` The metrics' ridge, at ${countText(Math.round(ridge.value))}, counts a whole HBM stack for the core.` : "";
  const said = intensity ? `${digits(intensity)} FLOP for each byte: the ${side} side of the ridge at ${digits(own / roof.bandwidth)}, with what one core's DMA engines carry.${other}` : "This program does no arithmetic on the Tensor Engine, or moves no byte of HBM: it has no place under the roof.";
  $("roof").replaceChildren(svg, make("p", { class: "quiet", style: { margin: "6px 0 0" } }, said));
}
