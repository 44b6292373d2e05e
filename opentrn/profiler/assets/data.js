// Reads a profile out of its script element: base64, deflate, then a header and columns.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

async function unpack(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = await new Response(stream).arrayBuffer();
  const length = new DataView(raw).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, length)));
  const columns = {};
  for (const [name, [kind, first, count]] of Object.entries(header.columns)) {
    columns[name] = new TYPES[kind](raw, 4 + length + first, count);
  }
  return prepared(header, columns);
}

function prepared(data, column) {
  const count = column.start.length;
  const tracks = data.tracks.map((name) => ({ name, kind: kindOf(name), first: 0, last: 0 }));
  for (let n = 0; n < count; n += 1) {
    const track = tracks[column.track[n]];
    if (track.last === 0) track.first = n;
    track.last = n + 1;
  }
  for (const track of tracks) track.busy = busySums(column, track);
  const seat = new Uint32Array(count);
  for (let n = 0; n < count; n += 1) seat[column.row[n]] = n;
  const onPath = new Uint8Array(count);
  for (const row of column.path_row) onPath[seat[row]] = 1;
  return { ...data, column, count, lanes: tracks, seat, onPath, ticks: data.total / data.tick };
}

// Busy ticks before each event of a track: how full a pixel is can then be told without a loop.
function busySums(column, track) {
  const sums = new Float64Array(track.last - track.first + 1);
  for (let n = track.first; n < track.last; n += 1) {
    sums[n - track.first + 1] = sums[n - track.first] + column.end[n] - column.start[n];
  }
  return sums;
}

// The first event of [first, last) whose `values` entry is above `at`.
function above(values, first, last, at) {
  while (first < last) {
    const middle = (first + last) >>> 1;
    if (values[middle] > at) last = middle;
    else first = middle + 1;
  }
  return first;
}

// Ticks for which a track is busy before the time `at`.
function busyBefore(data, track, at) {
  const n = above(data.column.start, track.first, track.last, at);
  const full = track.busy[n - track.first];
  if (n === track.first) return 0;
  return full - Math.max(0, data.column.end[n - 1] - at);
}

// The event of a track at the time `at`, or the nearest within `slack` ticks; -1 when there is none.
function eventAt(data, track, at, slack) {
  const { start, end } = data.column;
  const n = above(start, track.first, track.last, at);
  if (n > track.first && end[n - 1] >= at) return n - 1;
  const before = n > track.first ? at - end[n - 1] : Infinity;
  const after = n < track.last ? start[n] - at : Infinity;
  if (Math.min(before, after) > slack) return -1;
  return before <= after ? n - 1 : n;
}
