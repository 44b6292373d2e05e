// The memory map: every tile as a rectangle, its life across and its bytes of a partition upwards.
// Where tiles lie beside each other, in other partitions, each range of partitions has a lane.

const LANE = 90;  // pixels of a lane, where there are several

class Memory {
  constructor(data) {
    this.data = data;
    this.maps = ["sbuf", "psum"].map((space, number) => ({ space, number, canvas: $(space), height: space === "sbuf" ? 250 : 130 }));
    const { column } = data;
    for (const map of this.maps) {
      map.tiles = [];
      for (let n = 0; n < column.tile_space.length; n += 1) if (column.tile_space[n] === map.number) map.tiles.push(n);
      map.lanes = [...new Set(map.tiles.map((n) => column.tile_partition[n]))].sort((a, b) => a - b);
      if (map.lanes.length > 1) map.height = Math.max(map.height, LANE * map.lanes.length);
      map.size = this.shownSize(map);
      map.canvas.hidden = !map.tiles.length;
    }
    const peak = data.memory.peaks;
    const used = ["sbuf", "psum"].filter((space) => peak[space][1]);
    const share = (space) => `${space.toUpperCase()} ${bytesText(peak[space][1])} of ${bytesText(data.memory.sizes[space])} in a partition, at ${timeText(peak[space][0])}`;
    $("memory-said").textContent = data.column.tile_space.length ? `fullest: ${used.map(share).join("; ")}. Click to see what is alive.` : "no tile on the chip";
    this.at = Math.round((peak.sbuf[1] ? peak.sbuf[0] : peak.psum[0]) / data.tick);
    this.listen();
    this.draw();
    this.list();
  }

  // A memory that is not used to its end is drawn as far as it is used, and says so.
  shownSize(map) {
    const { column, memory } = this.data;
    let top = 0;
    for (const n of map.tiles) top = Math.max(top, column.tile_address[n] + column.tile_bytes[n]);
    const size = memory.sizes[map.space];
    return top && top < 0.6 * size ? Math.min(size, Math.ceil((1.12 * top) / 1024) * 1024) : size;
  }

  // Which lanes a tile has bytes in.
  lanesOf(map, n) {
    const { column } = this.data;
    const first = column.tile_partition[n];
    return map.lanes.map((start, lane) => [start, lane]).filter(([start]) => first <= start && start < first + column.tile_partitions[n]).map(([, lane]) => lane);
  }

  draw() {
    for (const map of this.maps) this.drawMap(map);
  }

  drawMap(map) {
    const { data } = this;
    const { column } = data;
    const scale = window.devicePixelRatio || 1;
    const wide = map.canvas.parentElement.clientWidth;
    map.canvas.width = Math.round(wide * scale);
    map.canvas.height = Math.round(map.height * scale);
    map.canvas.style.height = `${map.height}px`;
    const pen = map.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const quiet = colour("quiet");
    map.width = wide - LEFT - 12;
    map.x = (ticks) => LEFT + (ticks / (data.ticks || 1)) * map.width;
    map.lane = (map.height - 28) / Math.max(1, map.lanes.length);
    map.y = (address, lane) => map.height - 14 - lane * map.lane - (address / map.size) * (map.lane - (map.lanes.length > 1 ? 6 : 0));
    const tones = ["tensor", "vector", "scalar", "gpsimd", "dma", "sync"].map(colour);
    const card = colour("card");
    map.lanes.forEach((start, lane) => this.drawLane(pen, map, lane, quiet));
    for (const n of map.tiles) for (const lane of this.lanesOf(map, n)) this.drawTile(pen, map, n, lane, tones, card);
    const at = map.x(this.at);
    pen.strokeStyle = colour("text");
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(at, 4);
    pen.lineTo(at, map.height - 4);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawLane(pen, map, lane, quiet) {
    const { data } = this;
    pen.fillStyle = colour("soft");
    pen.globalAlpha = 0.5;
    pen.fillRect(LEFT, map.y(map.size, lane), map.width, map.y(0, lane) - map.y(map.size, lane));
    pen.globalAlpha = 1;
    pen.fillStyle = quiet;
    pen.textAlign = "right";
    const name = map.lanes.length > 1 ? `${map.space.toUpperCase()} ${map.lanes[lane]}\u2026` : map.space.toUpperCase();
    pen.fillText(name, LEFT - 12, (map.y(0, lane) + map.y(map.size, lane)) / 2);
    pen.fillText("0", LEFT - 12, map.y(0, lane));
    if (lane < map.lanes.length - 1) return;
    pen.fillText(bytesText(map.size), LEFT - 12, map.y(map.size, lane));
    const beside = map.lanes.length > 1 ? "a lane for each first partition; " : "";
    if (map.size < data.memory.sizes[map.space]) {
      pen.fillText(`${beside}shown up to ${bytesText(map.size)} of ${bytesText(data.memory.sizes[map.space])}`, LEFT + map.width - 6, map.y(map.size, lane) + 9);
    }
  }

  drawTile(pen, map, n, lane, tones, card) {
    const { column, memory } = this.data;
    const x = map.x(column.tile_begin[n]);
    const right = map.x(column.tile_end[n]);
    const y = map.y(column.tile_address[n] + column.tile_bytes[n], lane);
    const high = map.y(column.tile_address[n], lane) - y;
    pen.fillStyle = tones[column.tile_place[n] % tones.length];
    pen.globalAlpha = n === this.hovered ? 1 : 0.72;
    pen.fillRect(x, y, Math.max(right - x, 0.8), Math.max(high, 0.8));
    pen.globalAlpha = 1;
    if (right - x > 4 && high > 3) {
      pen.strokeStyle = card;
      pen.strokeRect(x, y, right - x, high);
    }
    if (right - x <= 60 || high <= 14) return;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, right - x - 4, high);
    pen.clip();
    pen.fillStyle = document.documentElement.dataset.theme === "dark" ? "#10141b" : "#fff";
    pen.textAlign = "left";
    pen.fillText(memory.names[column.tile_name[n]], x + 5, y + high / 2);
    pen.restore();
  }

  find(map, event) {
    const { column } = this.data;
    const box = map.canvas.getBoundingClientRect();
    const at = ((event.clientX - box.left - LEFT) / map.width) * this.data.ticks;
    const up = map.height - 14 - (event.clientY - box.top);
    const lane = Math.min(map.lanes.length - 1, Math.max(0, Math.floor(up / map.lane)));
    const address = ((map.y(0, lane) - (event.clientY - box.top)) / (map.y(0, lane) - map.y(map.size, lane))) * map.size;
    const slack = (this.data.ticks / map.width) * 2;
    return map.tiles.findLast((n) => this.lanesOf(map, n).includes(lane) && column.tile_begin[n] <= at + slack && column.tile_end[n] >= at - slack && column.tile_address[n] <= address && address < column.tile_address[n] + column.tile_bytes[n]) ?? -1;
  }

  listen() {
    this.stop = new AbortController();
    const { signal } = this.stop;
    for (const map of this.maps) {
      map.canvas.addEventListener("pointermove", (event) => this.hover(map, event), { signal });
      map.canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; this.hovered = -1; this.draw(); }, { signal });
      map.canvas.addEventListener("click", (event) => {
        this.at = Math.min(this.data.ticks, Math.max(0, ((event.offsetX - LEFT) / map.width) * this.data.ticks));
        this.draw();
        this.list();
      }, { signal });
    }
    window.addEventListener("resize", () => this.draw(), { signal });
  }

  hover(map, event) {
    const n = this.find(map, event);
    const tip = $("tip");
    tip.hidden = n < 0;
    if (n !== this.hovered) { this.hovered = n; this.drawMap(map); }
    if (n < 0) return;
    const { column, tick, memory, places } = this.data;
    const place = places[column.tile_place[n]];
    const list = make("dl");
    const rows = [
      ["place", `${bytesText(column.tile_bytes[n])} from ${countText(column.tile_address[n])} on, in ${column.tile_partitions[n]} partitions from ${column.tile_partition[n]} on`],
      ["alive", `${timeText(column.tile_begin[n] * tick)} to ${timeText(column.tile_end[n] * tick)}`],
    ];
    for (const [key, value] of rows) list.append(make("dt", {}, key), make("dd", {}, value));
    tip.replaceChildren(make("b", {}, memory.names[column.tile_name[n]]), make("span", { class: "code" }, place[0] ? `${placeText(place)}  ${place[2]}` : "no source line"), list);
    placeTip(tip, event);
  }

  // The tiles alive at the marked time, largest first.
  list() {
    const { column, memory, places, tick } = this.data;
    const alive = [];
    for (let n = 0; n < column.tile_space.length; n += 1) if (column.tile_begin[n] <= this.at && this.at < column.tile_end[n]) alive.push(n);
    alive.sort((a, b) => column.tile_space[a] - column.tile_space[b] || column.tile_bytes[b] - column.tile_bytes[a] || column.tile_address[a] - column.tile_address[b]);
    if (!alive.length) { $("tiles").replaceChildren(); return; }
    const body = make("tbody");
    for (const n of alive.slice(0, 200)) {
      const place = places[column.tile_place[n]];
      body.append(make("tr", {},
        make("td", {}, ["SBUF", "PSUM"][column.tile_space[n]]),
        make("td", { class: "n" }, `${column.tile_partition[n]} to ${column.tile_partition[n] + column.tile_partitions[n] - 1}`),
        make("td", { class: "n" }, countText(column.tile_address[n])),
        make("td", { class: "n" }, bytesText(column.tile_bytes[n])), make("td", { class: "code still" }, memory.names[column.tile_name[n]]),
        make("td", { class: "code quiet" }, place[0] ? `${placeText(place)}  ${place[2]}` : "")));
    }
    const head = make("tr", {}, make("th", {}, "memory"), make("th", { class: "n" }, "partitions"), make("th", { class: "n" }, "address"), make("th", { class: "n" }, "of a partition"), make("th", {}, "tile"), make("th", {}, "made at"));
    const more = alive.length > 200 ? ` (the largest 200 of ${alive.length})` : "";
    $("tiles").replaceChildren(make("div", { class: "card scroll" }, make("b", {}, `${alive.length} tile${alive.length === 1 ? "" : "s"} alive at ${timeText(this.at * tick)}${more}`), make("table", {}, make("thead", {}, head), body)));
  }
}
