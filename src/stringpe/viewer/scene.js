"use strict";
// A cloud of points and boxes, drawn into pixels with a depth buffer: no WebGL, so that it works everywhere.
const floats = text => new Float32Array(bytes(text).buffer);
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const make = (kind, properties) => Object.assign(document.createElement(kind), properties);
const COLOUR = { true: [0, 160, 0], predicted: [0, 90, 255] };
const NEAR = 0.05;  // metres; what is nearer to the eye is not drawn
const LARGEST = 100;  // pixels that a point covers at most, per side
const BEHIND = 0.02;  // how far behind a surface a line still counts as on it, relative to its distance

const view = { yaw: 0, pitch: 0, zoom: 1, chosen: -1, names: true, shown: { true: true, predicted: true } };
let frame, points, colours, count, middle, scale;

const main = document.getElementById("main");
const canvas = make("canvas", { width: 800, height: 600, id: "view" });
const side = make("aside");
main.append(canvas, side);
const context = canvas.getContext("2d");
const chooser = make("select", { id: "frame" });
data.frames.forEach((_, number) => chooser.append(new Option(`frame ${number + 1} of ${data.frames.length}`, number)));
chooser.onchange = () => choose(Number(chooser.value));

function choose(number) {
  frame = data.frames[number];
  points = floats(frame.points);
  colours = bytes(frame.colours);
  count = points.length / 3;
  middle = [0, 1, 2].map(axis => {
    const sorted = points.filter((_, i) => i % 3 === axis).sort();
    return sorted.length ? sorted[sorted.length >> 1] : 0;
  });
  const [width, height] = frame.size, [fx, fy] = frame.intrinsics;
  scale = Math.min(canvas.width * fx / width, canvas.height * fy / height);  // the whole picture fits the canvas
  view.chosen = -1;
  list();
  reset();
}

function reset() {
  Object.assign(view, { yaw: 0, pitch: 0, zoom: 1 });
  draw();
}

// From the camera frame (x right, y down, z forward) to pixels and the distance along the line of sight. The view is
// the camera's own at first. It turns around the middle of the cloud, and zooming moves the eye towards that middle.
function project([x, y, z]) {
  const [a, b, c] = turn(x - middle[0], y - middle[1], z - middle[2]);
  return toPixels([a + middle[0] / view.zoom, b + middle[1] / view.zoom, c + middle[2] / view.zoom]);
}

function turn(a, b, c) {
  const cy = Math.cos(view.yaw), sy = Math.sin(view.yaw), cp = Math.cos(view.pitch), sp = Math.sin(view.pitch);
  const depth = -sy * a + cy * c;
  return [cy * a + sy * c, cp * b - sp * depth, sp * b + cp * depth];
}

function toPixels([x, y, z]) {
  const [width, height] = frame.size, [fx, fy, cx, cy] = frame.intrinsics;
  return [
    canvas.width / 2 + scale * (x / z + (cx - width / 2) / fx),
    canvas.height / 2 + scale * (y / z + (cy - height / 2) / fy),
    z,
  ];
}

function draw() {
  const nearest = drawPoints();
  let drawn = 0;
  const labels = [];
  frame.boxes.forEach((box, number) => {
    if (!view.shown[box.kind] || (view.chosen >= 0 && view.chosen !== number)) return;
    drawBox(box, view.chosen === number ? 3 : 1.5, nearest);
    if (view.names) labels.push(box);
    drawn += 1;
  });
  drawNames(labels);
  canvas.dataset.boxes = drawn;
  canvas.dataset.points = count;
}

// Draws the cloud, and returns the distance of the nearest point per pixel.
function drawPoints() {
  const { width, height } = canvas, image = context.createImageData(width, height);
  const nearest = new Float32Array(width * height).fill(Infinity);
  const pixels = new Uint32Array(image.data.buffer).fill(0xfff2f2f2);
  // A point covers as much as its pixel does of a surface at that distance, and more in a view that is turned, where
  // surfaces that the camera saw at a grazing angle would fall apart.
  const spread = view.yaw || view.pitch ? 1.6 : 1;
  for (let i = 0; i < count; i++) {
    const [u, v, z] = project(points.subarray(3 * i, 3 * i + 3));
    if (!(z > NEAR)) continue;
    const reach = spread * scale * points[3 * i + 2] / z;
    const columns = Math.min(LARGEST, Math.ceil(reach / frame.intrinsics[0])), rows = Math.min(LARGEST, Math.ceil(reach / frame.intrinsics[1]));
    const left = Math.round(u - columns / 2), top = Math.round(v - rows / 2);
    const colour = 0xff000000 | colours[3 * i + 2] << 16 | colours[3 * i + 1] << 8 | colours[3 * i];
    for (let row = Math.max(0, top); row < Math.min(height, top + rows); row++) {
      for (let column = Math.max(0, left); column < Math.min(width, left + columns); column++) {
        const at = row * width + column;
        if (z < nearest[at]) { nearest[at] = z; pixels[at] = colour; }
      }
    }
  }
  context.putImageData(image, 0, 0);
  return nearest;
}

// The edges of a box, faint where a surface hides them.
function drawBox(box, width, nearest) {
  const corners = box.corners.map(([x, y, z]) => {
    const turned = turn(x - middle[0], y - middle[1], z - middle[2]);
    return turned.map((value, axis) => value + middle[axis] / view.zoom);
  });
  const hidden = new Path2D(), visible = new Path2D();
  for (const [i, j] of data.edges) {
    const ends = cutNear(corners[i], corners[j]);
    if (ends) trace(ends.map(toPixels), nearest, hidden, visible);
  }
  context.strokeStyle = `rgb(${COLOUR[box.kind]})`;
  context.lineWidth = width;
  context.globalAlpha = 0.3;
  context.stroke(hidden);
  context.globalAlpha = 1;
  context.stroke(visible);
}

// The part of a line that lies in front of the eye, or null.
function cutNear(start, end) {
  if (start[2] < NEAR && end[2] < NEAR) return null;
  const share = (NEAR - start[2]) / (end[2] - start[2]);
  const cut = start.map((value, axis) => value + share * (end[axis] - value));
  return start[2] < NEAR ? [cut, end] : end[2] < NEAR ? [start, cut] : [start, end];
}

// Adds a line to two paths, piece by piece: to `hidden` where the cloud is nearer, else to `visible`.
function trace([[u0, v0, z0], [u1, v1, z1]], nearest, hidden, visible) {
  const { width, height } = canvas;
  const pieces = Math.min(2000, Math.ceil(Math.max(Math.abs(u1 - u0), Math.abs(v1 - v0)) / 2));
  let path = null;
  for (let i = 0; i < pieces; i++) {
    const share = (i + 0.5) / pieces, z = 1 / ((1 - share) / z0 + share / z1);
    const u = Math.floor(u0 + share * (u1 - u0)), v = Math.floor(v0 + share * (v1 - v0));
    const inside = u >= 0 && v >= 0 && u < width && v < height;
    const next = inside && nearest[v * width + u] < z * (1 - BEHIND) ? hidden : visible;
    if (next !== path) next.moveTo(u0 + i / pieces * (u1 - u0), v0 + i / pieces * (v1 - v0));
    next.lineTo(u0 + (i + 1) / pieces * (u1 - u0), v0 + (i + 1) / pieces * (v1 - v0));
    path = next;
  }
}

// The name of each box: of a true one above it, of a predicted one below it. A name that would cover another moves on,
// and is left out if it would come so far from its box that nobody knows whose name it is.
function drawNames(boxes) {
  context.font = "13px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.strokeStyle = "rgba(255, 255, 255, 0.85)";
  context.lineWidth = 4;
  const taken = [];
  for (const box of boxes) {
    const ends = box.corners.map(project);
    if (ends.some(([, , z]) => z < NEAR)) continue;
    const above = box.kind === "true", step = above ? -16 : 16;
    const width = context.measureText(describe(box)).width;
    let u = ends.reduce((sum, end) => sum + end[0], 0) / ends.length;
    if (u < 0 || u > canvas.width) continue;
    u = Math.max(width / 2 + 4, Math.min(canvas.width - width / 2 - 4, u));
    const covers = other => Math.abs(other.v - v) < 15 && Math.abs(other.u - u) < (other.width + width) / 2;
    let v = above ? Math.min(...ends.map(end => end[1])) - 10 : Math.max(...ends.map(end => end[1])) + 10;
    for (let tries = 0; tries < 3 && taken.some(covers); tries++) v += step;
    if (taken.some(covers) || v < 8 || v > canvas.height - 8) continue;
    taken.push({ u, v, width });
    context.strokeText(describe(box), u, v);
    context.fillStyle = `rgb(${COLOUR[box.kind].map(part => 0.8 * part)})`;
    context.fillText(describe(box), u, v);
  }
}

const describe = box => box.label + (box.score === null ? "" : ` ${box.score.toFixed(2)}`);

function list() {
  side.replaceChildren();
  if (data.frames.length > 1) side.append(chooser);
  if (frame.caption) side.append(make("p", { textContent: frame.caption, id: "caption" }));
  const hint = "Drag to turn, scroll to come nearer, double-click to go back to the camera's view." +
    (frame.boxes.length ? " Click a name in the list to see its box alone." : "");
  side.append(make("p", { className: "hint", textContent: hint }));
  if (frame.boxes.length) side.append(checkbox("show-names", "names in the picture", view, "names"));
  for (const kind of ["true", "predicted"]) {
    const members = frame.boxes.map((box, number) => ({ ...box, number })).filter(box => box.kind === kind);
    if (!members.length) continue;
    side.append(checkbox(`show-${kind}`, `${members.length} ${kind} ${members.length === 1 ? "box" : "boxes"}`, view.shown, kind));
    const rows = make("ul");
    for (const member of members) {
      const row = make("li", { textContent: describe(member) });
      row.className = kind + (view.chosen === member.number ? " chosen" : "");
      row.onclick = () => { view.chosen = view.chosen === member.number ? -1 : member.number; list(); draw(); };
      rows.append(row);
    }
    side.append(rows);
  }
}

// A box to tick that sets `holder[key]`.
function checkbox(id, text, holder, key) {
  const box = make("input", { type: "checkbox", checked: holder[key], id });
  box.onchange = () => { holder[key] = box.checked; draw(); };
  const label = make("label");
  label.append(box, ` ${text}`);
  return label;
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
canvas.ondblclick = reset;
choose(0);
