"use strict";
// A cloud of points and boxes, drawn into pixels with a depth buffer: no WebGL, so that it works everywhere.
const floats = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const COLOUR = { true: [0, 160, 0], predicted: [0, 90, 255] };
let frame, points, colours, count, middle;

function choose(number) {
  frame = data.frames[number];
  points = floats(frame.points);
  colours = bytes(frame.colours);
  count = points.length / 3;
  middle = [0, 1, 2].map(axis => {
    const sorted = points.filter((_, i) => i % 3 === axis).sort();
    return sorted.length ? sorted[sorted.length >> 1] : 0;
  });
  view.chosen = -1;
  list();
  draw();
}
const view = { yaw: 0, pitch: 0, zoom: 1, chosen: -1, shown: { true: true, predicted: true } };

const main = document.getElementById("main");
const canvas = Object.assign(document.createElement("canvas"), { width: 720, height: 560, id: "view" });
const side = document.createElement("aside");
main.append(canvas, side);
const context = canvas.getContext("2d");
const chooser = Object.assign(document.createElement("select"), { id: "frame" });
data.frames.forEach((_, number) => chooser.append(new Option(`frame ${number + 1} of ${data.frames.length}`, number)));
chooser.onchange = () => choose(Number(chooser.value));

// From the camera frame (x right, y down, z forward) to pixels: turn around the middle of the cloud, then project.
function project(x, y, z) {
  const [a, b, c] = [x - middle[0], y - middle[1], z - middle[2]];
  const cy = Math.cos(view.yaw), sy = Math.sin(view.yaw), cp = Math.cos(view.pitch), sp = Math.sin(view.pitch);
  const x1 = cy * a + sy * c, z1 = -sy * a + cy * c;
  const y1 = cp * b - sp * z1, z2 = sp * b + cp * z1 + middle[2] / view.zoom;
  const f = 0.9 * canvas.height;
  return [canvas.width / 2 + f * x1 / z2, canvas.height / 2 + f * y1 / z2, z2];
}

function draw() {
  const { width, height } = canvas, image = context.createImageData(width, height), pixels = image.data;
  const nearest = new Float32Array(width * height).fill(Infinity);
  pixels.fill(255);
  const put = (u, v, z, r, g, b) => {
    if (u < 0 || v < 0 || u >= width || v >= height) return;
    const i = v * width + u;
    if (z >= nearest[i]) return;
    nearest[i] = z;
    pixels[4 * i] = r; pixels[4 * i + 1] = g; pixels[4 * i + 2] = b;
  };
  for (let i = 0; i < count; i++) {
    const [u, v, z] = project(points[3 * i], points[3 * i + 1], points[3 * i + 2]);
    if (z <= 0.05) continue;
    // As large as its pixel is on a surface at that depth, so that surfaces close up when they come nearer.
    const size = Math.min(16, Math.ceil(0.9 * height * points[3 * i + 2] / frame.focal / z) + 1);
    for (let dv = 0; dv < size; dv++) for (let du = 0; du < size; du++)
      put(Math.round(u) + du, Math.round(v) + dv, z, colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]);
  }
  context.putImageData(image, 0, 0);
  let drawn = 0;
  frame.boxes.forEach((box, number) => {
    if (!view.shown[box.kind] || (view.chosen >= 0 && view.chosen !== number)) return;
    const ends = box.corners.map(([x, y, z]) => project(x, y, z));
    context.strokeStyle = `rgb(${COLOUR[box.kind]})`;
    context.lineWidth = view.chosen === number ? 3 : 1.5;
    context.beginPath();
    for (const [i, j] of data.edges) {
      if (ends[i][2] <= 0.05 || ends[j][2] <= 0.05) continue;
      context.moveTo(ends[i][0], ends[i][1]);
      context.lineTo(ends[j][0], ends[j][1]);
    }
    context.stroke();
    drawn += 1;
  });
  canvas.dataset.boxes = drawn;
  canvas.dataset.points = count;
}

function list() {
  side.replaceChildren();
  if (data.frames.length > 1) side.append(chooser);
  if (frame.caption) side.append(Object.assign(document.createElement("p"), { textContent: frame.caption, id: "caption" }));
  for (const kind of ["true", "predicted"]) {
    const members = frame.boxes.map((box, number) => ({ ...box, number })).filter(box => box.kind === kind);
    if (!members.length) continue;
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: view.shown[kind], id: `show-${kind}` });
    box.onchange = () => { view.shown[kind] = box.checked; draw(); };
    const label = document.createElement("label");
    label.append(box, ` ${members.length} ${kind}`);
    const rows = document.createElement("ul");
    for (const member of members) {
      const row = document.createElement("li");
      row.className = kind + (view.chosen === member.number ? " chosen" : "");
      row.textContent = member.label + (member.score === null ? "" : ` ${member.score.toFixed(2)}`);
      row.onclick = () => { view.chosen = view.chosen === member.number ? -1 : member.number; list(); draw(); };
      rows.append(row);
    }
    side.append(label, rows);
  }
  const hint = Object.assign(document.createElement("p"), { className: "hint" });
  hint.textContent = "Drag to turn, scroll to come nearer, click a name to see its box alone.";
  side.append(hint);
}

let last = null;
canvas.onpointerdown = event => { last = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); };
canvas.onpointerup = () => { last = null; };
canvas.onpointermove = event => {
  if (!last) return;
  view.yaw += (event.clientX - last[0]) / 200;
  view.pitch = Math.max(-1.5, Math.min(1.5, view.pitch - (event.clientY - last[1]) / 200));
  last = [event.clientX, event.clientY];
  draw();
};
canvas.onwheel = event => { event.preventDefault(); view.zoom *= Math.exp(-event.deltaY / 800); draw(); };
choose(0);
