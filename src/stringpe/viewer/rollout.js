"use strict";
// The cameras of a rollout side by side, with one slider for all of them.
const main = document.getElementById("main");
const names = Object.keys(data.cameras), length = data.cameras[names[0]].length;
const pictures = names.map(name => {
  const figure = document.createElement("figure"), image = document.createElement("img");
  image.width = 256;
  image.alt = name;
  figure.append(image, Object.assign(document.createElement("figcaption"), { textContent: name }));
  main.append(figure);
  return image;
});
const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: length - 1, value: 0, id: "frame" });
slider.style.width = "30rem";
const play = Object.assign(document.createElement("button"), { textContent: "play", id: "play" });
const caption = document.createElement("p");
document.body.append(play, slider, caption);

function show() {
  const i = Number(slider.value);
  names.forEach((name, k) => { pictures[k].src = `data:image/png;base64,${data.cameras[name][i]}`; });
  caption.textContent = `frame ${i + 1} of ${length}. ${data.caption}`;
}
let timer = null;
play.onclick = () => {
  if (timer) { clearInterval(timer); timer = null; play.textContent = "play"; return; }
  play.textContent = "stop";
  timer = setInterval(() => { slider.value = (Number(slider.value) + 1) % length; show(); }, 100);
};
slider.oninput = show;
show();
