"use strict";
// The cameras of a rollout side by side, with one slider for all of them; a list chooses the rollout.
const main = document.getElementById("main");
const make = (kind, properties) => Object.assign(document.createElement(kind), properties);
const chooser = make("select", { id: "rollout" });
data.rollouts.forEach((rollout, number) => chooser.append(new Option(`${number + 1} of ${data.rollouts.length}: ${rollout.caption}`, number)));
if (data.rollouts.length > 1) document.body.insertBefore(chooser, main);
const slider = make("input", { type: "range", min: 0, id: "frame" });
const play = make("button", { textContent: "play", id: "play" });
const controls = make("p");
controls.append(play, slider);
const caption = make("p", { id: "caption" });
document.body.append(controls, caption);
let cameras, pictures, length, timer = null;

function choose(number) {
  cameras = data.rollouts[number].cameras;
  main.replaceChildren();
  pictures = Object.fromEntries(Object.keys(cameras).map(name => {
    const figure = document.createElement("figure"), image = make("img", { width: 384, alt: name });
    figure.append(image, make("figcaption", { textContent: name }));
    main.append(figure);
    return [name, image];
  }));
  length = Object.values(cameras)[0].length;
  slider.max = length - 1;
  slider.value = 0;
  show();
}

function show() {
  const i = Number(slider.value);
  for (const name in pictures) pictures[name].src = `data:image/png;base64,${cameras[name][i]}`;
  caption.textContent = `frame ${i + 1} of ${length}. ${data.rollouts[Number(chooser.value)].caption}`;
}

play.onclick = () => {
  if (timer) { clearInterval(timer); timer = null; play.textContent = "play"; return; }
  play.textContent = "stop";
  timer = setInterval(() => { slider.value = (Number(slider.value) + 1) % length; show(); }, 100);
};
slider.oninput = show;
chooser.onchange = () => choose(Number(chooser.value));
choose(0);
