"use strict";
// The picture once per model, with the weights of the chosen patch laid over it. Move over a picture to choose.
const [rows, columns] = data.grid, [width, height] = data.size, scale = Math.max(1, Math.round(320 / Math.max(width, height)));
const maps = Object.fromEntries(Object.entries(data.maps).map(([name, text]) =>
  [name, new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer)]));
const make = (kind, properties) => Object.assign(document.createElement(kind), properties);
const main = document.getElementById("main");
const picture = new Image();
const canvases = {}, captions = {};
const patches = rows * columns;
let chosen = Math.floor(rows / 2) * columns + Math.floor(columns / 2), variant = 0;

// The colour of a weight by its share of the largest: from nothing over dark red and orange to yellow.
const colour = share => `rgba(${Math.min(255, 150 + 150 * share)}, ${210 * share * share}, 20, ${0.9 * share})`;

const explanation = make("p");
explanation.textContent = "Move the pointer over a picture to choose a patch. It is outlined, and its attention weights colour all patches:";
main.before(explanation, makeLegend());
if (data.variants.length > 1) main.before(makeSlider());

for (const name of Object.keys(maps)) {
  const figure = make("figure"), caption = make("figcaption", { textContent: name });
  const canvas = make("canvas", { width: width * scale, height: height * scale });
  canvas.onpointermove = event => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / box.width * columns);
    const row = Math.floor((event.clientY - box.top) / box.height * rows);
    if (row >= 0 && row < rows && column >= 0 && column < columns) { chosen = row * columns + column; draw(); }
  };
  figure.style.width = `${canvas.width + 2}px`;  // as wide as the picture and its border, however long the caption
  figure.append(canvas, caption);
  main.append(figure);
  canvases[name] = canvas;
  captions[name] = caption;
}
if (data.note) document.body.append(make("p", { className: "hint", textContent: data.note }));

function makeLegend() {
  const legend = make("p", { className: "legend" }), bar = make("span", { className: "bar" });
  bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(colour)}), #777`;
  legend.append("0", bar, "the largest weight of this patch");
  return legend;
}

function makeSlider() {
  const slider = make("input", { type: "range", min: 0, max: data.variants.length - 1, value: 0, id: "variant" });
  const name = make("label", { htmlFor: "variant", id: "variant-name", textContent: data.variants[0] });
  slider.oninput = () => { variant = Number(slider.value); name.textContent = data.variants[variant]; draw(); };
  const line = make("p");
  line.append(slider, name);
  return line;
}

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
      context.fillStyle = colour(weight / largest);
      context.fillRect((i % columns) * w, Math.floor(i / columns) * h, w, h);
    });
    context.strokeStyle = "#0df";
    context.lineWidth = 2;
    context.strokeRect((chosen % columns) * w, Math.floor(chosen / columns) * h, w, h);
    canvas.dataset.chosen = chosen;
    canvas.dataset.largest = largest;
    const first = maps[name].subarray(chosen * patches, (chosen + 1) * patches);
    canvas.dataset.change = weights.reduce((most, weight, i) => Math.max(most, Math.abs(weight - first[i])), 0) / first.reduce((a, b) => Math.max(a, b), 1e-12);
    captions[name].textContent = variant === 0 ? name : `${name}: weights changed by up to ${(100 * canvas.dataset.change).toFixed(2)} %`;
  }
}
picture.onload = draw;
picture.src = data.image;
