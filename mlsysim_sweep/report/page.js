"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const palette = ["#1f77b4", "#e07b00", "#2e9e44", "#c93c3c", "#8a63c9", "#8c564b", "#d35fae",
  "#7f7f7f", "#a5a520", "#17a9bd"];
const colorOf = (i) => palette[i % palette.length];
const style = () => getComputedStyle(document.documentElement);
const inked = (name) => style().getPropertyValue(name).trim();

function fitted(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
}

function legend(id) {
  const box = document.getElementById(id);
  data.color.values.forEach((name, i) => {
    const entry = document.createElement("span");
    entry.textContent = name;
    entry.style.setProperty("--dot", colorOf(i));
    box.append(entry);
  });
}

// --- scatter -------------------------------------------------------------------------------------

const scatter = data.scatter;
const scatterCanvas = document.getElementById("scatter");
const scatterTip = document.getElementById("scatter-tip");
let frame = null, pinned = null, hovered = null;

function at(point) {
  return [frame.left + point[0] * frame.w, frame.top + (1 - point[1]) * frame.h];
}

function drawScatter() {
  const { pen, width, height } = fitted(scatterCanvas);
  frame = { left: 64, top: 12, w: width - 84, h: height - 60 };
  const [nx, ny] = scatter.bins;
  const most = Math.max(1, ...scatter.cells.map((cell) => cell[2]));
  for (const [i, j, count] of scatter.cells) {
    const strength = 0.08 + 0.5 * Math.log1p(count) / Math.log1p(most);
    pen.fillStyle = `rgba(${inked("--shade")}, ${strength})`;
    const [x0, x1] = [i, i + 1].map((k) => Math.round(frame.left + k / nx * frame.w));
    const [y0, y1] = [j + 1, j].map((k) => Math.round(frame.top + (1 - k / ny) * frame.h));
    pen.fillRect(x0, y0, x1 - x0, y1 - y0);
  }
  pen.strokeStyle = inked("--line");
  pen.strokeRect(frame.left, frame.top, frame.w, frame.h);
  pen.fillStyle = inked("--soft");
  pen.textAlign = "center";
  scatter.x.ticks.forEach((tick, k) => {
    if (width < 500 && (k + scatter.x.ticks.length) % 2 === 0) return;
    pen.fillText(scatter.x.labels[k], frame.left + tick * frame.w, height - 30);
  });
  pen.fillText(scatter.x.name, frame.left + frame.w / 2, height - 10);
  pen.textAlign = "right";
  scatter.y.ticks.forEach((tick, k) => {
    pen.fillText(scatter.y.labels[k], frame.left - 6, frame.top + (1 - tick) * frame.h + 4);
  });
  pen.save();
  pen.translate(11, frame.top + frame.h / 2);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(scatter.y.name, 0, 0);
  pen.restore();
  scatter.points.forEach((point, i) => {
    if (point[0] === null || point[1] === null) return;
    const [x, y] = at(point);
    const strong = i === pinned || i === hovered;
    pen.beginPath();
    pen.arc(x, y, strong ? 7 : 4, 0, 2 * Math.PI);
    pen.fillStyle = colorOf(point[2]);
    pen.fill();
    pen.strokeStyle = strong ? inked("--ink") : inked("--panel");
    pen.lineWidth = strong ? 2 : 1;
    pen.stroke();
  });
  pen.lineWidth = 1;
}

function nearest(event) {
  const box = scatterCanvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let best = null, least = 18 ** 2;
  scatter.points.forEach((point, i) => {
    if (point[0] === null || point[1] === null) return;
    const [px, py] = at(point);
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least) { least = distance; best = i; }
  });
  return best;
}

function showTip(i) {
  scatterTip.hidden = i === null;
  if (i === null) return;
  scatterTip.textContent = scatter.columns.map((name, k) => `${name}  ${scatter.texts[i][k]}`)
    .join("\n");
  const [x, y] = at(scatter.points[i]);
  const width = scatterTip.offsetWidth;
  const fits = x + 14 + width < scatterCanvas.clientWidth;
  scatterTip.style.left = `${Math.max(0, fits ? x + 14 : x - 14 - width)}px`;
  scatterTip.style.top = `${Math.max(0, y - scatterTip.offsetHeight / 2)}px`;
}

function pin(i) {
  pinned = i;
  document.querySelectorAll("#front tbody tr").forEach((row) => {
    row.classList.toggle("pinned", i !== null && Number(row.dataset.index) === i);
  });
  drawScatter();
  showTip(i);
}

scatterCanvas.addEventListener("pointermove", (event) => {
  const found = nearest(event);
  if (found === hovered) return;
  hovered = found;
  drawScatter();
  showTip(found === null ? pinned : found);
});
scatterCanvas.addEventListener("pointerleave", () => {
  hovered = null;
  drawScatter();
  showTip(pinned);
});
scatterCanvas.addEventListener("click", (event) => pin(nearest(event)));

// --- table ---------------------------------------------------------------------------------------

const table = document.getElementById("front");
const body = table.tBodies[0];
[...body.rows].forEach((row, i) => {
  row.dataset.index = i;
  row.addEventListener("click", () => pin(i));
});
let sorted = { column: null, up: true };

function keyed(row, column) {
  const text = row.cells[column].dataset.value;
  const number = Number(text);
  return text !== "" && !Number.isNaN(number) ? number : text;
}

table.tHead.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const column = Number(button.dataset.column);
  sorted = { column, up: sorted.column === column ? !sorted.up : true };
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const [x, y] = [keyed(a, column), keyed(b, column)];
    const order = typeof x === "number" && typeof y === "number"
      ? x - y : String(x).localeCompare(String(y));
    return sorted.up ? order : -order;
  });
  body.append(...rows);
  table.querySelectorAll("th").forEach((head, i) => {
    if (i === column) head.setAttribute("aria-sort", sorted.up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
});

function csv() {
  const quoted = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const lines = [...body.rows].map((row) =>
    [...row.cells].map((cell) => quoted(cell.dataset.value)).join(","));
  return [table.dataset.heads, ...lines].join("\n") + "\n";
}

document.getElementById("copy").addEventListener("click", async (event) => {
  const button = event.target;
  try {
    await navigator.clipboard.writeText(csv());
    button.textContent = "Copied";
  } catch {
    const area = document.createElement("textarea");
    area.value = csv();
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Select and copy below";
    if (button.textContent === "Copied") area.remove();
  }
});

// --- heat map ------------------------------------------------------------------------------------

function drawHeat() {
  const box = document.getElementById("heat");
  if (!box) return;
  const heat = data.heat, made = document.createElement("table");
  const head = made.createTHead().insertRow();
  const added = (row, text) => {
    const cell = document.createElement("th");
    cell.textContent = text;
    row.append(cell);
  };
  added(head, "tp \\ pp");
  heat.pp.forEach((pp) => added(head, pp));
  const rows = made.createTBody();
  heat.tp.forEach((tp, i) => {
    const row = rows.insertRow();
    added(row, tp);
    heat.pp.forEach((_, j) => {
      const cell = row.insertCell(), place = heat.places[i][j];
      cell.textContent = heat.texts[i][j] ?? "";
      if (place !== null) cell.style.background = `rgba(${inked("--shade")}, ${0.08 + 0.6 * place})`;
    });
  });
  box.replaceChildren(made);
}

// --- parallel coordinates ------------------------------------------------------------------------

const parallel = data.parallel;
const linesCanvas = document.getElementById("lines");
let alone = null, span = null;

function drawLines() {
  const { pen, width, height } = fitted(linesCanvas);
  const count = parallel.axes.length;
  span = { left: 50, w: width - 100, top: 34, h: height - 60, count };
  const x = (k) => span.left + (count > 1 ? k / (count - 1) : 0.5) * span.w;
  const path = (line) => {
    pen.beginPath();
    line.forEach((value, k) => {
      if (value === null) return;
      pen.lineTo(x(k), span.top + (1 - value) * span.h);
    });
    pen.stroke();
  };
  pen.globalAlpha = alone === null ? 0.25 : 0.06;
  parallel.lines.forEach((line, i) => {
    pen.strokeStyle = colorOf(parallel.colors[i]);
    path(line);
  });
  pen.globalAlpha = 1;
  if (alone !== null) {
    pen.lineWidth = 3;
    pen.strokeStyle = colorOf(parallel.colors[alone]);
    path(parallel.lines[alone]);
    pen.lineWidth = 1;
  }
  pen.textAlign = "center";
  parallel.axes.forEach((axis, k) => {
    pen.strokeStyle = inked("--line");
    pen.strokeRect(x(k), span.top, 0.5, span.h);
    pen.fillStyle = inked("--soft");
    const short = width / count < 90 ? axis.name.slice(0, Math.max(3, width / count / 8)) : axis.name;
    pen.fillText(short, x(k), 12);
    pen.fillText(axis.ends[1], x(k), 28);
    pen.fillText(axis.ends[0], x(k), height - 10);
  });
}

linesCanvas.addEventListener("pointermove", (event) => {
  const box = linesCanvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const place = (x - span.left) / span.w * (span.count - 1);
  const k = Math.min(Math.max(Math.floor(place), 0), span.count - 2), share = place - k;
  let best = null, least = 12;
  parallel.lines.forEach((line, i) => {
    const [a, b] = [line[k], line[k + 1]];
    if (a == null || b == null) return;
    const distance = Math.abs(span.top + (1 - (a + (b - a) * share)) * span.h - y);
    if (distance < least) { least = distance; best = i; }
  });
  if (best !== alone) { alone = best; drawLines(); }
});
linesCanvas.addEventListener("pointerleave", () => { alone = null; drawLines(); });

// --- funnel bars ---------------------------------------------------------------------------------

function drawBars() {
  const cells = [...document.querySelectorAll("td[data-bar]")];
  const numbers = cells.map((cell) => Number(cell.textContent.replaceAll(",", "")));
  const most = Math.log1p(Math.max(1, ...numbers));
  cells.forEach((cell, i) => {
    const share = 100 * Math.log1p(numbers[i]) / most, ink = `rgba(${inked("--shade")}, 0.3)`;
    cell.style.backgroundImage = `linear-gradient(90deg, ${ink} ${share}%, transparent ${share}%)`;
  });
}

function drawAll() {
  drawScatter();
  drawHeat();
  drawLines();
  drawBars();
}

legend("scatter-legend");
legend("lines-legend");
drawAll();
window.addEventListener("resize", drawAll);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
