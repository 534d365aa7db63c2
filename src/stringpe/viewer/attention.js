"use strict";
// The picture once per model, with the weights of the chosen patch laid over it. Move over a picture to choose.
const [rows, columns] = data.grid, [width, height] = data.size, scale = Math.max(1, Math.round(320 / Math.max(width, height)));
const maps = Object.fromEntries(Object.entries(data.maps).map(([name, text]) =>
  [name, new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)]));
const main = document.getElementById("main");
const picture = new Image();
const canvases = {};
let chosen = Math.floor(rows / 2) * columns + Math.floor(columns / 2);

for (const name of Object.keys(maps)) {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  const canvas = Object.assign(document.createElement("canvas"), { width: width * scale, height: height * scale });
  canvas.onpointermove = event => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    const row = Math.floor((event.clientY - box.top) / box.height * rows);
    if (row >= 0 && row < rows && column >= 0 && column < columns) { chosen = row * columns + column; draw(); }
  };
  caption.textContent = name;
  figure.append(canvas, caption);
  main.append(figure);
  canvases[name] = canvas;
}
const hint = Object.assign(document.createElement("p"), { className: "hint" });
hint.textContent = "Red: where the outlined patch looks, relative to its largest weight. Move over a picture to choose a patch.";
document.body.append(hint);

function draw() {
  for (const [name, canvas] of Object.entries(canvases)) {
    const context = canvas.getContext("2d"), w = canvas.width / columns, h = canvas.height / rows;
    const weights = maps[name].subarray(chosen * rows * columns, (chosen + 1) * rows * columns);
    const largest = weights.reduce((a, b) => Math.max(a, b), 1e-12);
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    weights.forEach((weight, i) => {
      context.fillStyle = `rgba(230, 30, 0, ${0.75 * weight / largest})`;
      context.fillRect((i % columns) * w, Math.floor(i / columns) * h, w, h);
    });
    context.strokeStyle = "#06f";
    context.lineWidth = 2;
    context.strokeRect((chosen % columns) * w, Math.floor(chosen / columns) * h, w, h);
    canvas.dataset.chosen = chosen;
    canvas.dataset.largest = largest;
  }
}
picture.onload = draw;
picture.src = data.image;
