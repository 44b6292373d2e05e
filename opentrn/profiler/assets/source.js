// The source with the time of each line.

function drawSource(data) {
  const total = data.total / 1e9 || 1;
  const found = data.files.map((file, number) => {
    const box = make("div", { class: "src code" });
    box.append(make("div", { class: "row quiet" }, make("span", { class: "n" }, "path"), make("span", {}, ""), make("span", { class: "n" }, "busy"), make("span", { class: "n" }, "count"), make("span", { class: "n" }, ""), make("span", {}, "")));
    const busiest = Math.max(1e-12, ...file.lines.map((line) => (line.length > 2 ? line[3] : 0)));
    let last = 0;
    for (const line of file.lines) {
      if (last && line[0] !== last + 1) box.append(make("div", { class: "gap" }, `⋯ ${line[0] - last - 1} lines`));
      last = line[0];
      box.append(sourceRow(data, line, total, busiest));
    }
    const share = make("span", { class: "quiet" }, `  ${shareText(file.path / total)} of the critical path`);
    const card = make("details", { class: "card flush file" }, make("summary", { title: file.file }, make("b", {}, baseName(file.file)), share), box);
    card.open = number === 0 || file.path / total >= 0.2;
    return card;
  });
  $("files").replaceChildren(...(found.length ? found : [make("p", { class: "quiet" }, "No event of this program knows its source line.")]));
}

function sourceRow(data, line, total, busiest) {
  const [number, text, path, busy, count, resource, flops, bytes] = line;
  if (line.length === 2) {
    return make("div", { class: "row" }, make("span"), make("span"), make("span"), make("span"), make("span", { class: "n number" }, number), make("span", {}, text));
  }
  const tone = colour(resource);
  const work = [flops ? flopsText(flops) : "", bytes ? `${bytesText(bytes)} moved` : ""].filter(Boolean).join(", ");
  const title = `${shareText(path / total)} of the critical path, ${timeText(path * 1e9)}; busy ${timeText(busy * 1e9)} on all resources, mostly ${resource}${work ? `; ${work}` : ""}`;
  const bar = make("span", { class: "bars" }, make("i", { style: { width: `${(100 * busy) / busiest}%`, background: tone } }));
  const row = make("div", { class: "row hot", title }, make("span", { class: "n" }, shareText(path / total)), bar, make("span", { class: "n" }, timeText(busy * 1e9)), make("span", { class: "n" }, countText(count)), make("span", { class: "n number" }, number), make("span", {}, text));
  row.style.setProperty("--heat", tone);
  row.style.setProperty("--share", Math.min(1, (path / total) * 2));
  return row;
}
