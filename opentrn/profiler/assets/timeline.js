// The timeline: a row for each engine and DMA queue, drawn as events or, from afar, as how full they are.

const LEFT = 108;
const TOP = 26;

class Timeline {
  constructor(data, shown) {
    this.data = data;
    this.shown = shown; // called with an event number when one is chosen
    this.canvas = $("lanes");
    this.map = $("minimap");
    this.begin = 0;
    this.end = data.ticks || 1;
    this.chosen = -1;
    this.hovered = -1;
    this.rows = this.layout();
    this.listen();
    this.draw();
  }

  layout() {
    const rows = [{ path: true, y: TOP, height: 16, name: "critical path" }];
    let y = TOP + 24;
    for (const track of this.data.lanes) {
      const extra = / \(\d+\)$/.test(track.name);
      const height = extra ? 12 : 24;
      if (extra) y -= 4;
      rows.push({ track, y, height, name: extra ? "" : track.name });
      y += height + 5;
    }
    for (const [name, points] of Object.entries(this.data.counters)) {
      rows.push({ points, y: y + 4, height: 30, name: { sbuf_bytes: "SBUF in use", psum_banks: "PSUM banks" }[name] || name, counter: name, most: Math.max(1e-9, ...points.map((p) => p[1])) });
      y += 40;
    }
    this.height = y + 6;
    return rows;
  }

  x(ticks) { return LEFT + ((ticks - this.begin) / (this.end - this.begin)) * this.width; }
  ticks(x) { return this.begin + ((x - LEFT) / this.width) * (this.end - this.begin); }

  surface(canvas, height) {
    const scale = window.devicePixelRatio || 1;
    const wide = canvas.parentElement.clientWidth;
    canvas.width = Math.round(wide * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, wide, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.wide = wide;
    this.width = wide - LEFT - 12;
    return pen;
  }

  draw() {
    const pen = this.surface(this.canvas, this.height);
    this.paint = Object.fromEntries(["text", "quiet", "line", "soft", "card", "accent", "latency", "dma issue", ...this.data.resources].map((name) => [name, colour(name)]));
    this.axis(pen);
    for (const row of this.rows) {
      pen.fillStyle = this.paint.quiet;
      pen.textAlign = "right";
      pen.fillText(row.name, LEFT - 12, row.y + row.height / 2);
      pen.save();
      pen.beginPath();
      pen.rect(LEFT, row.y - 3, this.width, row.height + 6);
      pen.clip();
      if (row.path) this.drawPath(pen, row);
      else if (row.points) this.drawCounter(pen, row);
      else this.drawTrack(pen, row);
      pen.restore();
    }
    this.drawChain(pen);
    this.drawMap();
    const { tick } = this.data;
    const fine = ((this.end - this.begin) * tick) / 100;
    const [from, to] = [this.begin, this.end].map((at) => timeAmong(at * tick, fine, this.end * tick));
    $("range").textContent = `${from} to ${to} of ${timeText(this.data.total)} · ${countText(this.data.count)} events`;
  }

  axis(pen) {
    const span = (this.end - this.begin) * this.data.tick;
    const rough = span / Math.max(3, this.width / 130);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    pen.textAlign = "center";
    for (let at = Math.ceil((this.begin * this.data.tick) / step) * step; at <= this.end * this.data.tick; at += step) {
      const x = Math.round(this.x(at / this.data.tick)) + 0.5;
      pen.strokeStyle = this.paint.soft;
      pen.beginPath();
      pen.moveTo(x, TOP - 4);
      pen.lineTo(x, this.height);
      pen.stroke();
      pen.fillStyle = this.paint.quiet;
      pen.fillText(timeAmong(at, step, this.end * this.data.tick), Math.min(x, this.wide - 34), 12);
    }
  }

  drawTrack(pen, row) {
    const { data } = this;
    const { start, end } = data.column;
    const { track, y, height } = row;
    pen.fillStyle = this.paint.soft;
    pen.globalAlpha = 0.55;
    pen.fillRect(LEFT, y, this.width, height);
    const first = Math.max(track.first, above(start, track.first, track.last, this.begin) - 1);
    const last = above(start, track.first, track.last, this.end);
    if (last - first > 2 * this.width) this.drawFull(pen, row);
    else {
      for (let n = first; n < last; n += 1) {
        const x = this.x(start[n]);
        const wide = Math.max(this.x(end[n]) - x, 0.7);
        if (x + wide < LEFT) continue;
        this.drawEvent(pen, n, x, wide, row);
      }
    }
    pen.globalAlpha = 1;
  }

  // From afar: each pixel as opaque as the track is busy in it.
  drawFull(pen, row) {
    pen.fillStyle = this.paint[row.track.kind];
    let before = busyBefore(this.data, row.track, this.begin);
    for (let x = 0; x < this.width; x += 1) {
      const at = this.ticks(LEFT + x + 1);
      const now = busyBefore(this.data, row.track, at);
      const share = (now - before) / (at - this.ticks(LEFT + x));
      before = now;
      if (share <= 0.002) continue;
      pen.globalAlpha = 0.18 + 0.82 * Math.min(1, share);
      pen.fillRect(LEFT + x, row.y, 1.3, row.height);
    }
  }

  drawEvent(pen, n, x, wide, row) {
    const { data } = this;
    const name = data.names[data.column.name[n]];
    const issue = name.endsWith("(issue)");
    pen.fillStyle = issue ? this.paint["dma issue"] : this.paint[row.track.kind] || this.paint.sync;
    const full = data.onPath[n] || n === this.chosen || n === this.hovered;
    pen.globalAlpha = full ? 1 : 0.62;
    const gap = wide > 3 ? 0.6 : 0;
    pen.fillRect(x, row.y, wide - gap, row.height);
    pen.globalAlpha = 1;
    if (n === this.chosen || n === this.hovered) {
      pen.strokeStyle = this.paint.text;
      pen.lineWidth = 1.5;
      pen.strokeRect(x, row.y - 0.5, Math.max(wide - gap, 2), row.height + 1);
    }
    if (wide < 46 || row.height < 16) return;
    pen.save();
    pen.beginPath();
    pen.rect(x, row.y, wide - 4, row.height);
    pen.clip();
    const dark = document.documentElement.dataset.theme === "dark";
    pen.fillStyle = full && !issue && !dark ? "#fff" : full && dark ? "#10141b" : this.paint.text;
    pen.textAlign = "left";
    pen.fillText(name, Math.max(x, LEFT) + 5, row.y + row.height / 2 + 0.5);
    pen.restore();
  }

  drawPath(pen, row) {
    const { path_begin: begin, path_end: end, path_kind: kind } = this.data.column;
    const kinds = this.data.path.kinds.map((name) => colour(name));
    let drawn = -1;
    for (let n = above(end, 0, end.length, this.begin); n < begin.length && begin[n] < this.end; n += 1) {
      const x = this.x(begin[n]);
      const right = this.x(end[n]);
      if (right - Math.max(x, drawn) < 0.4) continue;
      pen.fillStyle = kinds[kind[n]];
      pen.fillRect(Math.max(x, drawn), row.y, right - Math.max(x, drawn), row.height);
      drawn = right;
    }
  }

  drawCounter(pen, row) {
    const { tick } = this.data;
    pen.fillStyle = row.counter === "psum_banks" ? this.paint.gpsimd : this.paint.accent;
    pen.globalAlpha = 0.35;
    pen.beginPath();
    pen.moveTo(LEFT, row.y + row.height);
    let last = 0;
    for (const [time, value] of row.points) {
      const x = this.x(time / tick);
      pen.lineTo(x, row.y + row.height * (1 - last / row.most));
      last = value;
      pen.lineTo(x, row.y + row.height * (1 - last / row.most));
    }
    pen.lineTo(LEFT + this.width, row.y + row.height * (1 - last / row.most));
    pen.lineTo(LEFT + this.width, row.y + row.height);
    pen.fill();
    pen.globalAlpha = 1;
    pen.fillStyle = this.paint.quiet;
    pen.textAlign = "left";
    const most = row.counter === "sbuf_bytes" ? bytesText(row.most) : countText(row.most);
    pen.fillText(`at most ${most}`, LEFT + 6, row.y + 7);
  }

  // The chain of waits behind the chosen event.
  drawChain(pen) {
    if (this.chosen < 0) return;
    const { column } = this.data;
    pen.strokeStyle = this.paint.text;
    pen.lineWidth = 1.7;
    let n = this.chosen;
    for (let hops = 0; hops < 40 && column.before[n] >= 0; hops += 1) {
      const before = column.before[n];
      const from = this.rowOf(before);
      const to = this.rowOf(n);
      const x0 = this.x(column.end[before]);
      const x1 = this.x(column.start[n]);
      if (x1 < LEFT || x0 < LEFT || x0 > this.wide) { n = before; continue; }
      const y0 = from.y + from.height / 2;
      const y1 = to.y + to.height / 2;
      const bend = Math.max(10, Math.abs(x1 - x0) / 2);
      pen.globalAlpha = Math.max(0.35, 1 - hops * 0.05);
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      pen.stroke();
      n = before;
    }
    pen.globalAlpha = 1;
  }

  rowOf(n) { return this.rows[this.data.column.track[n] + 1]; }

  drawMap() {
    const keep = [this.begin, this.end];
    const pen = this.surface(this.map, 46);
    [this.begin, this.end] = [0, this.data.ticks || 1];
    const own = this.rows.filter((row) => row.track && row.name);
    const height = Math.max(2, Math.floor(36 / Math.max(1, own.length)));
    own.forEach((row, n) => this.drawFull(pen, { track: row.track, y: 5 + n * height, height: height - 1 }));
    pen.globalAlpha = 1;
    const [a, b] = keep.map((at) => this.x(at));
    pen.fillStyle = this.paint.quiet;
    pen.globalAlpha = 0.25;
    pen.fillRect(LEFT, 0, a - LEFT, 46);
    pen.fillRect(b, 0, LEFT + this.width - b, 46);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.paint.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(a, 1, Math.max(2, b - a), 44);
    pen.fillStyle = this.paint.quiet;
    pen.textAlign = "right";
    pen.fillText("overview", LEFT - 12, 23);
    [this.begin, this.end] = keep;
  }

  // ------------------------------------------------------------ moving about

  show(begin, end) {
    const whole = this.data.ticks || 1;
    const span = Math.min(whole, Math.max(end - begin, Math.min(whole, 20)));
    this.begin = Math.min(Math.max(0, begin), whole - span);
    this.end = this.begin + span;
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  zoom(factor, at = (this.begin + this.end) / 2) {
    this.show(at - (at - this.begin) * factor, at + (this.end - at) * factor);
  }

  move(share) {
    const step = (this.end - this.begin) * share;
    this.show(this.begin + step, this.end + step);
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = this.rows.find((one) => one.track && y >= one.y - 2 && y <= one.y + one.height + 2);
    if (!row || x < LEFT) return -1;
    const slack = ((this.end - this.begin) / this.width) * 3;
    return eventAt(this.data, row.track, this.ticks(x), slack);
  }

  choose(n) {
    this.chosen = n;
    if (n >= 0) {
      const { start, end } = this.data.column;
      if (end[n] < this.begin || start[n] > this.end) this.show(start[n] - (this.end - this.begin) / 2, start[n] + (this.end - this.begin) / 2);
    }
    this.shown(n);
    this.later();
  }

  listen() {
    this.stop = new AbortController();
    const on = (where, what, act, more = {}) => where.addEventListener(what, act, { signal: this.stop.signal, ...more });
    on(this.canvas, "wheel", (event) => this.wheel(event), { passive: false });
    on(this.canvas, "pointerdown", (event) => this.drag(event));
    on(this.canvas, "pointermove", (event) => this.hover(event));
    on(this.canvas, "pointerleave", () => { this.hovered = -1; $("tip").hidden = true; this.later(); });
    on(this.canvas, "dblclick", (event) => this.zoom(0.4, this.ticks(event.offsetX)));
    on(this.map, "pointerdown", (event) => this.brush(event));
    on($("zoom-in"), "click", () => this.zoom(0.5));
    on($("zoom-out"), "click", () => this.zoom(2));
    on($("zoom-all"), "click", () => this.show(0, this.data.ticks));
    on(window, "keydown", (event) => this.key(event));
    on(window, "resize", () => this.later());
    on(window, "scroll", () => { $("tip").hidden = true; });
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 300), this.ticks(event.offsetX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      this.move((event.deltaX || event.deltaY) / this.width);
    }
  }

  key(event) {
    if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { w: () => this.zoom(0.7), s: () => this.zoom(1.4), a: () => this.move(-0.2), d: () => this.move(0.2), Escape: () => this.choose(-1) }[event.key];
    if (act) act();
  }

  drag(event) {
    const from = { x: event.clientX, begin: this.begin, end: this.end, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
    const move = (now) => {
      const ticks = ((from.x - now.clientX) / this.width) * (from.end - from.begin);
      if (Math.abs(now.clientX - from.x) > 3) from.moved = true;
      if (from.moved) { this.canvas.classList.add("held"); this.show(from.begin + ticks, from.end + ticks); }
    };
    const up = (now) => {
      this.canvas.classList.remove("held");
      this.canvas.removeEventListener("pointermove", move);
      this.canvas.removeEventListener("pointerup", up);
      if (!from.moved) this.choose(this.find(now));
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", up);
  }

  brush(event) {
    const whole = this.data.ticks || 1;
    const at = (x) => Math.min(whole, Math.max(0, ((x - this.map.getBoundingClientRect().left - LEFT) / this.width) * whole));
    const from = at(event.clientX);
    this.map.setPointerCapture(event.pointerId);
    const move = (now) => { const to = at(now.clientX); if (Math.abs(to - from) > whole / 500) this.show(Math.min(from, to), Math.max(from, to)); };
    const up = (now) => {
      this.map.removeEventListener("pointermove", move);
      this.map.removeEventListener("pointerup", up);
      if (Math.abs(at(now.clientX) - from) <= whole / 500) this.show(from - (this.end - this.begin) / 2, from + (this.end - this.begin) / 2);
    };
    this.map.addEventListener("pointermove", move);
    this.map.addEventListener("pointerup", up);
  }

  hover(event) {
    const n = this.find(event);
    const tip = $("tip");
    tip.hidden = n < 0;
    if (n >= 0) {
      tip.replaceChildren(...eventWords(this.data, n));
      placeTip(tip, event);
    }
    if (n !== this.hovered) { this.hovered = n; this.later(); }
  }
}

function placeTip(tip, event) {
  const wide = tip.offsetWidth;
  const high = tip.offsetHeight;
  tip.style.left = `${Math.min(event.clientX + 16, innerWidth - wide - 8)}px`;
  tip.style.top = `${event.clientY + 18 + high > innerHeight ? event.clientY - high - 12 : event.clientY + 18}px`;
}

const REASONS = ["", "its engine", "a result of its own engine", "another engine's result", "a transfer", "the DMA engines", "HBM bandwidth", "a memory port", "another core", "something else"];

function eventWords(data, n) {
  const { column, tick } = data;
  const place = data.places[column.place[n]];
  const lasts = (column.end[n] - column.start[n]) * tick;
  const rows = [["from", `${timeText(column.start[n] * tick)}, for ${timeText(lasts)}`]];
  if (column.done[n] > column.end[n]) rows.push(["written", `${timeText((column.done[n] - column.end[n]) * tick)} later`]);
  const moved = Math.max(column.read[n], column.written[n]);
  if (moved) rows.push(["bytes", `${bytesText(column.read[n])} read, ${bytesText(column.written[n])} written${data.moves[column.move[n]] ? `, ${data.moves[column.move[n]]}` : ""}`]);
  if (moved && kindOf(data.tracks[column.track[n]]) === "dma" && lasts) rows.push(["rate", rateText(moved / lasts * 1e9)]);
  if (column.flops[n]) rows.push(["work", `${flopsText(column.flops[n])}${lasts ? `, ${flopsText(column.flops[n] / lasts * 1e9, "/s")}` : ""}`]);
  if (column.reason[n]) {
    const before = column.before[n];
    const what = before >= 0 ? `: ${data.names[column.name[before]]} of ${placeText(data.places[column.place[before]])}` : "";
    rows.push(["waited for", `${REASONS[column.reason[n]]}${what}`]);
  }
  if (column.wait[n] > 0) rows.push(["idle before", timeText(column.wait[n])]);
  rows.push(["known", `${data.grades[column.grade[n]]}${data.onPath[n] ? "; on the critical path" : ""}`]);
  const list = make("dl");
  for (const [key, value] of rows) list.append(make("dt", {}, key), make("dd", {}, value));
  return [
    make("b", {}, data.names[column.name[n]]), ` on ${data.tracks[column.track[n]]}`,
    make("span", { class: "code line" }, place[0] ? `${placeText(place)}  ${place[2]}` : "no source line"), list,
  ];
}
