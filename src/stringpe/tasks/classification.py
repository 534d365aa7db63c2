"""Naming the one thing that an image shows."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..data.labelled import LabelledBatches
from ..data.order import Batch, Place
from ..data.transforms import to_bytes
from ..recipes.schema import Recipe
from .backbone import backbone, start_new
from .base import Parts, Sample, Task, average
from .objective import CLASS_LOSSES, cross_entropy, mixup, soft_targets, weighted_sums


class Classification(Task):
    """Image classification with a ViT: sigmoid or softmax cross-entropy, mixup, top-1 and top-5."""

    reads = ("loss.kind", "loss.label_smoothing", "loss.head_bias")
    capturable = True

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        if recipe.loss.kind not in CLASS_LOSSES:
            raise ValueError(f"loss.kind is one of {', '.join(CLASS_LOSSES)}, got {recipe.loss.kind!r}")
        self.feed = LabelledBatches(recipe)

    @property
    def examples(self) -> int:
        return self.feed.examples

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        data, bias = recipe.data, recipe.loss.head_bias
        model = backbone(recipe.model, image_size=data.image_size, num_classes=data.num_classes, head_bias=bias)
        start_new(model, recipe)
        return model

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        recipe = self.recipe
        for step, batch in enumerate(self.feed.train(start, place), start):
            target = soft_targets(batch["label"], recipe.data.num_classes, recipe.loss.label_smoothing)
            image = batch["image"]
            if recipe.augment.mixup:
                image, target = mixup(image, target, recipe.augment.mixup, recipe.seed, step)
            yield {"image": image, "target": target}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch["image"]), batch["target"], self.recipe.loss).mean()

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        sums: dict[str, Tensor] = {}
        for batch in self.feed.val(place, self.recipe.loop.eval_batch):
            more = weighted_sums(model(batch["image"]), batch["label"], batch["weight"], self.recipe.loss)
            sums = {name: sums.get(name, torch.zeros_like(value)) + value for name, value in more.items()}
        return average(sums, place)

    def samples(self, count: int) -> list[Sample]:
        batch = next(self.feed.val(Place(), count))
        images = to_bytes(batch["image"]).permute(0, 2, 3, 1)
        return [Sample(i, f"class {c}") for i, c in zip(images[:count], batch["label"].tolist(), strict=False)]

    def counters(self) -> dict[str, float]:
        return {"corrupt": float(self.feed.corrupt)} if self.feed.corrupt else {}
