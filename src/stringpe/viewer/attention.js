"use strict";
// The picture once per model, with the weights of the chosen patch laid over it. Move over a picture to choose.
const [rows, columns] = data.grid, [width, height] = data.size, scale = Math.max(1, Math.round(320 / Math.max(width, height)));
const maps = Object.fromEntries(Object.entries(data.maps).map(([name, text]) =>
  [name, new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)]));
const main = document.getElementById("main");
const picture = new Image();
const canvases = {}, captions = {};
const patches = rows * columns;
let chosen = Math.floor(rows / 2) * columns + Math.floor(columns / 2), variant = 0;

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
  captions[name] = caption;
}
if (data.variants.length > 1) {
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: data.variants.length - 1, value: 0, id: "variant" });
  const name = Object.assign(document.createElement("label"), { htmlFor: "variant", id: "variant-name" });
  slider.oninput = () => { variant = Number(slider.value); name.textContent = data.variants[variant]; draw(); };
  name.textContent = data.variants[0];
  document.body.append(slider, name);
}
if (data.note) document.body.append(Object.assign(document.createElement("p"), { textContent: data.note }));
const hint = Object.assign(document.createElement("p"), { className: "hint" });
hint.textContent = "Bright: where the outlined patch looks, relative to its largest weight. Move over a picture to choose a patch.";
document.body.append(hint);

function draw() {
  for (const [name, canvas] of Object.entries(canvases)) {
    const context = canvas.getContext("2d"), w = canvas.width / columns, h = canvas.height / rows;
    const weights = maps[name].subarray((variant * patches + chosen) * patches, (variant * patches + chosen + 1) * patches);
    const largest = weights.reduce((a, b) => Math.max(a, b), 1e-12);
    context.imageSmoothingEnabled = false;
    context.filter = "grayscale(1) brightness(0.6)";
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    context.filter = "none";
    weights.forEach((weight, i) => {
      const share = weight / largest;  // from dark red over orange to yellow
      context.fillStyle = `rgba(${Math.min(255, 150 + 150 * share)}, ${210 * share * share}, 20, ${0.9 * share})`;
      context.fillRect((i % columns) * w, Math.floor(i / columns) * h, w, h);
    });
    context.strokeStyle = "#0df";
    context.lineWidth = 2;
    context.strokeRect((chosen % columns) * w, Math.floor(chosen / columns) * h, w, h);
    canvas.dataset.chosen = chosen;
    canvas.dataset.largest = largest;
    const first = maps[name].subarray(chosen * patches, (chosen + 1) * patches);
    canvas.dataset.change = weights.reduce((most, weight, i) => Math.max(most, Math.abs(weight - first[i])), 0) / first.reduce((a, b) => Math.max(a, b), 1e-12);
    if (data.variants.length > 1) captions[name].textContent = `${name}: weights changed by ${(100 * canvas.dataset.change).toFixed(2)} % at most`;
  }
}
picture.onload = draw;
picture.src = data.image;
