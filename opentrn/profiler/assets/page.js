// Puts the page together, for one profile at a time.

const KINDS = { engine: "Bound by an engine", dma: "Bound by DMA", latency: "Bound by latency", dependency: "Bound by dependencies", none: "Empty" };
let current = null;

function drawOverview(data) {
  const { summary } = data;
  const value = (name) => (summary.metrics[name] ? valueText(summary.metrics[name].value, summary.metrics[name].unit) : "–");
  const box = make("div", { class: "card" });
  const grades = make("div", { class: "grades", role: "img", "aria-label": "How sure the time is" });
  for (const [name, share] of Object.entries(summary.grades)) grades.append(make("i", { title: `${name} ${shareText(share)}`, style: { width: `${100 * share}%`, background: colour(name) } }));
  const said = Object.entries(summary.grades).map(([name, share]) => `${shareText(share)} ${name}`).join(", ");
  box.append(make("div", { class: "verdict" },
    make("div", { class: "time" }, timeText(data.total), make("small", {}, "device time of one core, predicted")),
    make("div", {}, make("div", { class: "bound" }, make("b", {}, KINDS[summary.bound.kind]), ": ", summary.bound.reason.replaceAll("%", " %"), "."), grades, make("div", { class: "quiet" }, said ? `the time rests on facts that are ${said}` : ""))));
  const facts = make("div", { class: "facts" });
  const rows = [
    ["roofline", value("roofline_percent"), `at best ${value("roofline_time")}`], ["MFU", value("mfu_estimated_percent"), value("model_flops")],
    ["MBU", value("mbu_estimated_percent"), `${value("hbm_read_bytes")} in, ${value("hbm_write_bytes")} out`],
    ["DMA while active", value("dma_bandwidth"), `${value("dma_transfer_count")} transfers of ${value("dma_transfer_average_bytes")}`],
    ["reloads", value("hbm_reload_bytes"), `spills ${value("spill_save_bytes")} out, ${value("spill_reload_bytes")} back`], ["SBUF peak", value("sbuf_peak_percent"), value("sbuf_peak_bytes")],
  ];
  for (const [name, main, more] of rows) facts.append(make("div", { class: "fact" }, make("span", {}, name), make("b", {}, main), make("i", {}, more)));
  box.append(facts);
  const assumed = Object.entries(summary.assumed || {}).map(([fact, text]) => make("div", { class: "assumed" }, make("b", {}, "Assumed for this run: "), `${fact} = ${text}`));
  $("overview").replaceChildren(...assumed, box);
}

function drawAdvice(data) {
  const cards = data.summary.advice.map((one) => {
    const gain = one.predicted_gain >= 0.01 ? make("div", { class: "gain" }, `−${shareText(one.predicted_gain)}`, make("small", {}, "predicted")) : make("div", { class: "none" }, "–");
    const place = one.line ? make("p", { class: "code" }, one.line) : null;
    const seen = one.seen[0].toUpperCase() + one.seen.slice(1);
    return make("div", { class: "advice" }, gain, make("div", {}, make("p", {}, make("b", {}, `${seen}.`)), make("p", {}, `${one.remedy[0].toUpperCase()}${one.remedy.slice(1)}.`), place));
  });
  for (const one of data.summary.findings || []) {
    const place = one.at ? make("p", { class: "code" }, `${one.at.file.split("/").pop()}:${one.at.line}`) : null;
    const fault = one.fault ? `${one.fault[0].toUpperCase()}${one.fault.slice(1)} on the chip. ` : "";
    cards.push(make("div", { class: "advice" }, make("div", { class: "none" }, "!"), make("div", {}, make("p", {}, make("b", {}, `${one.what}.`)), make("p", {}, `${fault}${one.fix}.`), place)));
  }
  $("advices").replaceChildren(...(cards.length ? cards : [make("div", { class: "card quiet" }, "No remedy of those known here applies.")]));
}

function drawMetrics(data) {
  const body = make("tbody");
  const wanted = $("filter").value.trim().toLowerCase();
  for (const [name, metric] of Object.entries(data.summary.metrics)) {
    const meaning = data.meanings[name] || "";
    if (wanted && !`${name} ${meaning}`.toLowerCase().includes(wanted)) continue;
    body.append(make("tr", {}, make("td", { class: "code" }, name), make("td", { class: "n" }, valueText(metric.value, metric.unit)), make("td", { class: "quiet still" }, data.counted.includes(name) ? "counted" : "timed"), make("td", { class: "quiet" }, meaning)));
  }
  const grades = Object.entries(data.summary.grades).map(([name, share]) => `${shareText(share)} ${name}`).join(", ");
  const note = make("p", { class: "quiet", style: { margin: "0 0 8px" } }, `Counted: exact, from the program. Timed: rests on the timing model${grades ? `, that is on facts that are ${grades}` : ""}.`);
  const absent = Object.entries(data.summary.absent).map(([name, why]) => make("div", {}, make("code", {}, name), ` is not there: ${why}`));
  $("table").replaceChildren(make("div", { class: "card scroll" }, note, make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "metric"), make("th", { class: "n" }, "value"), make("th", {}, "how"), make("th", {}, "meaning"))), body), make("div", { class: "absent quiet" }, ...absent)));
}

function showEvent(data, timeline, n) {
  const box = $("event");
  if (n < 0) { box.replaceChildren("Point at an event to see its line, its bytes and what it waited for; click to keep it and to see the chain of waits behind it."); return; }
  const chain = make("ol");
  let before = data.column.before[n];
  for (let hops = 0; hops < 8 && before >= 0; hops += 1) {
    const number = before;
    const place = data.places[data.column.place[number]];
    chain.append(make("li", {}, make("button", { type: "button", onclick: () => timeline.choose(number) }, `${data.names[data.column.name[number]]} on ${data.tracks[data.column.track[number]]}`), ` until ${timeText(data.column.end[number] * data.tick)}, `, make("span", { class: "code" }, placeText(place))));
    before = data.column.before[number];
  }
  const behind = chain.children.length ? make("div", {}, make("div", {}, "It waited for, back in time:"), chain) : null;
  box.replaceChildren(make("div", { class: "chosen" }, make("div", {}, ...eventWords(data, n)), behind));
}

function drawAll(data) {
  if (current) { current.timeline.stop.abort(); current.memory.stop.abort(); }
  $("name").textContent = data.program;
  $("target").textContent = `on ${data.target}`;
  drawOverview(data);
  drawAdvice(data);
  drawBusy(data);
  drawRoof(data);
  drawPathShares(data);
  drawSource(data);
  drawMetrics(data);
  const timeline = new Timeline(data, (n) => showEvent(data, timeline, n));
  current = { data, timeline, memory: new Memory(data) };
  showEvent(data, timeline, -1);
}

async function open(number) {
  const held = document.querySelectorAll('script[type="application/x-opentrn"]');
  drawAll(await unpack(held[number].textContent));
  document.documentElement.dataset.ready = String(number);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  if (current) drawAll(current.data);
}

function begin() {
  const held = [...document.querySelectorAll('script[type="application/x-opentrn"]')];
  const asked = new URLSearchParams(location.hash.slice(1)).get("theme");
  theme(asked || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("filter").addEventListener("input", () => current && drawMetrics(current.data));
  const kernels = $("kernels");
  held.forEach((one, number) => {
    const [name, time] = JSON.parse(one.dataset.about);
    kernels.append(make("option", { value: number }, `${number}: ${name}, ${time}`));
  });
  kernels.hidden = held.length < 2;
  kernels.addEventListener("change", () => open(Number(kernels.value)));
  if (!held.length) { $("main").replaceChildren(make("p", {}, "No kernel ran.")); return; }
  if (!("DecompressionStream" in window)) { $("main").replaceChildren(make("p", {}, "This page needs a browser of 2023 or newer.")); return; }
  open(0);
}

begin();
