// Numbers as people read them, and elements made without markup.

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(made.style, value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...inside.filter((one) => one !== null && one !== undefined));
  return made;
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

function scaled(value, steps, ratio, suffix = "") {
  let step = 0;
  let rest = value;
  while (step < steps.length - 1 && Math.abs(rest) >= 0.9995 * ratio) {
    rest /= ratio;
    step += 1;
  }
  return `${digits(rest)} ${steps[step]}${suffix}`;
}

const timeText = (ns) => scaled(ns, ["ns", "µs", "ms", "s"], 1000);

// A time among others that lie `step` ns apart: as many decimals as tell them apart.
function timeAmong(ns, step, span) {
  const [unit, size] = span >= 1e9 ? ["s", 1e9] : span >= 1e6 ? ["ms", 1e6] : span >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)));
  return `${(ns / size).toFixed(decimals)} ${unit}`;
}

const bytesText = (n) => scaled(n, ["B", "KiB", "MiB", "GiB", "TiB"], 1024).replace(/\.00 B$/, " B");
const rateText = (n) => scaled(n, ["B", "KB", "MB", "GB", "TB"], 1000, "/s");
const flopsText = (n, per = "") => scaled(n, ["FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"], 1000, per);

function shareText(share) {
  const whole = share === 0 || (share >= 0.0995 && share < 0.995) || share > 0.9995;
  return `${(100 * share).toFixed(whole ? 0 : 1)} %`;
}

const countText = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 2 });

function valueText(value, unit) {
  if (typeof value !== "number") return String(value);
  if (unit === "s") return timeText(value * 1e9);
  if (unit === "B") return bytesText(value);
  if (unit === "B/s") return rateText(value);
  if (unit === "FLOP") return flopsText(value);
  if (unit === "%") return `${digits(value)} %`;
  return unit ? `${countText(value)} ${unit}` : countText(value);
}

const baseName = (path) => path.split(/[\\/]/).pop();
const placeText = (place) => (place[0] ? `${baseName(place[0])}:${place[1]}` : "no source line");

const CAUSES = { done: "after its last", start: "its own start-up", "dma rings": "full DMA rings", "own result": "its own result", other: "other" };
const causeText = (cause) => CAUSES[cause] || (cause === "dma issue" ? "issue of its transfers" : cause);

function colour(name) {
  const key = { "dma issue": "issue", "dma rings": "dma", "own result": "latency", "other core": "sync", start: "latency", other: "latency", unknown: "latency", done: "soft" }[name] || name;
  return getComputedStyle(document.documentElement).getPropertyValue(`--${key}`).trim() || "#888";
}

const kindOf = (track) => (track.startsWith("dma") ? "dma" : track);
