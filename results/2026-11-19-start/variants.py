"""The first steps of boxes in 3D, with the settings of before, or with parts of the model's start changed.

    python variants.py PART[+PART…] STEPS [key=value …]

PART: now, nothing changed; raw, plain metres in the depth channel; scaleC,S, depth as (d − C) / S; text, embed or pool,
the text tower's layers and embeddings, its embeddings, or its pooling at std 0.02; head, the class head's projection
as torch starts it and smaller weights in the box head's last layer; decay, weight decay on the text tower's tables.
Prints the mean loss of every 50 steps. The runs are 1,000 steps long, on 20,000 frames, and are cut off after STEPS.
"""

import itertools
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from stringpe import recipes
from stringpe.data.order import Place
from stringpe.tasks import create
from stringpe.tasks.detection3d import Detection3D
from stringpe.training.capture import prefetch
from stringpe.training.launch import create_accelerator
from stringpe.training.loop import Run

BEFORE = ("model.encoding=cayley", "optim.beta2=0.999", "optim.warmup_steps=100", "data.train_size=20000")
BEFORE += ("loop.steps=1000",)


class Changed(Detection3D):
    altered: frozenset[str] = frozenset()

    def model(self) -> nn.Module:
        model = super().model()
        with torch.no_grad():
            self._change(model)
        return model

    def _change(self, model: nn.Module) -> None:
        for part in self.altered:
            if part == "raw" or part.startswith("scale"):
                numbers = [0.0, 1.0] if part == "raw" else [float(v) for v in part[5:].split(",")]
                model.image.depth_channel.scale.copy_(torch.tensor(numbers))
        for name, layer in model.text.named_modules():
            pool = "map_pool" in name or "projection" in name
            if isinstance(layer, nn.Linear) and ("text" in self.altered or ("pool" in self.altered and pool)):
                nn.init.trunc_normal_(layer.weight, std=0.02)
        if self.altered & {"text", "embed"}:
            nn.init.normal_(model.text.embedding.weight, std=0.02)
            nn.init.normal_(model.text.absolute.weight, std=0.02)
        if "head" in self.altered:
            nn.init.kaiming_uniform_(model.class_head.project.weight, a=5**0.5)
            nn.init.trunc_normal_(model.box_head.mlp[4].weight, std=0.0071)

    def parameter_groups(self, model: nn.Module) -> list[dict]:
        groups = super().parameter_groups(model)
        if "decay" in self.altered:
            text = model.text
            moved = {id(p) for p in (text.embedding.weight, text.absolute.weight, text.map_pool.query)}
            decay = next(group for group in groups if group["weight_decay"] > 0)
            for group in groups:
                if group is not decay:
                    decay["params"] += [p for p in group["params"] if id(p) in moved]
                    group["params"] = [p for p in group["params"] if id(p) not in moved]
        return groups


def main() -> None:
    Changed.altered = frozenset(sys.argv[1].split("+"))
    recipe = recipes.load("scenes_detection3d", [*BEFORE, *sys.argv[3:]])
    task = create(recipe)
    task.__class__ = Changed
    with tempfile.TemporaryDirectory() as folder:
        run = Run(recipe, task, Path(folder), create_accelerator(recipe), quiet=True)
        batches = prefetch(task.batches(0, Place(device=run.place.device)), run.place.device)
        before = 0.0
        for step, batch in enumerate(itertools.islice(batches, int(sys.argv[2])), 1):
            run.step(step - 1, batch)
            if step % 50 == 0:
                now = float(run.window[0])
                print(f"steps {step - 49} to {step}: loss {(now - before) / 50:.3f}", flush=True)
                before = now


if __name__ == "__main__":
    main()
