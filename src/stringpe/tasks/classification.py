"""Classifying images; with the losses, mixup and counts of right answers that other classifiers use as well."""

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.labelled_batches import LabelledBatches
from ..data.order import Batch, Place
from ..data.transforms import to_bytes
from ..recipes.schema import Loss, Recipe
from ..seeds import derive
from .base import Parts, Sample, Task, average, sum_batches
from .build import backbone, set_initial_weights


class Classification(Task):
    """Image classification with a ViT: sigmoid or softmax cross-entropy, mixup, top-1 and top-5.

    top1_96, …, with loop.eval_sizes: the same on the validation images resized to 96 pixels per side, with no more
    detail than at data.image_size."""

    losses = ("softmax", "sigmoid")
    reads = ("loss.kind", "loss.label_smoothing", "loss.head_bias", "loop.eval_sizes")
    capturable = True

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.feed = LabelledBatches(recipe)

    @property
    def examples(self) -> int:
        return self.feed.examples

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        data, bias = recipe.data, recipe.loss.head_bias
        model = backbone(recipe.model, image_size=data.image_size, num_classes=data.num_classes, head_bias=bias)
        set_initial_weights(model, recipe)
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

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        super().check_task(recipe)
        for side in parse_sizes(recipe.loop.eval_sizes):
            if side % recipe.model.patch_size:
                patch = recipe.model.patch_size
                raise ValueError(f"loop.eval_sizes must be multiples of model.patch_size={patch}, got {side}")

    @classmethod
    def meaning(cls, metric: str) -> str:
        name, _, side = metric.partition("_")
        if name == cls.metric and side.isdecimal():
            return f"{super().meaning(name)}, on images of {side} pixels per side"
        return super().meaning(metric)

    @classmethod
    def measures(cls, recipe: Recipe, metric: str) -> bool:
        name, _, side = metric.partition("_")
        if name == cls.metric and side:
            return side in map(str, parse_sizes(recipe.loop.eval_sizes))
        return super().measures(recipe, metric)

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        metrics = self._measure(model, place, 0)
        for side in parse_sizes(self.recipe.loop.eval_sizes):
            metrics[f"top1_{side}"] = self._measure(model, place, side)["top1"]
        return metrics

    def _measure(self, model: nn.Module, place: Place, side: int) -> dict[str, float]:
        """Metrics on images resized to that many pixels per side, in batches of about as many pixels as without; 0
        leaves images as they are."""
        size = self.recipe.loop.eval_batch
        if side:
            size = max(1, size * self.recipe.data.image_size**2 // side**2)
        sums = (
            weighted_sums(model(resize(batch["image"], side)), batch["label"], batch["weight"], self.recipe.loss)
            for batch in self.feed.val(place, size)
        )
        return average(sum_batches(sums), place)

    def samples(self, count: int) -> list[Sample]:
        batch = next(self.feed.val(Place(), count))
        images = to_bytes(batch["image"]).permute(0, 2, 3, 1)
        return [Sample(i, f"class {c}") for i, c in zip(images[:count], batch["label"].tolist(), strict=False)]

    def counters(self) -> dict[str, float]:
        return {"corrupt": float(self.feed.corrupt)} if self.feed.corrupt else {}


def parse_sizes(text: str) -> list[int]:
    """Sides of images, in pixels, from a text like "96 128"."""
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"loop.eval_sizes holds sides of images in pixels, for example '96 128'; got {text!r}")
    return [int(word) for word in words]


def resize(image: Tensor, side: int) -> Tensor:
    """Images (b, 3, S, S) of that side, by bilinear interpolation, smoothed where they shrink; 0 changes nothing."""
    return F.interpolate(image, (side, side), mode="bilinear", antialias=True) if side else image


def soft_targets(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """One-hot (…, classes) of labels (…), with `smoothing` of the mass spread evenly."""
    one_hot = F.one_hot(labels, classes).float()
    return one_hot * (1 - smoothing) + smoothing / classes if smoothing else one_hot


def cross_entropy(logits: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """Loss of every example: softmax cross-entropy, or the sum of one sigmoid cross-entropy per class."""
    logits = logits.float()
    if loss.kind == "softmax":
        return -(target * logits.log_softmax(-1)).sum(-1)
    assert loss.kind == "sigmoid"
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)


def mixup(image: Tensor, target: Tensor, alpha: float, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """λ · example + (1 − λ) · its neighbour, λ ~ Beta(α, α) once per batch.

    Neighbours are examples 0 and 1, 2 and 3, …: the batch is in random order already, and pairs stay together however
    it is divided among processes."""
    if len(image) % 2:
        raise ValueError(f"mixup pairs neighbours, so a process needs an even batch, got {len(image)}")
    share = random.Random(derive(seed, "mixup", step)).betavariate(alpha, alpha)
    return image.lerp(_neighbours(image), 1 - share), target.lerp(_neighbours(target), 1 - share)


def hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label (…) is among the k largest logits (…, classes)."""
    largest = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return (largest == labels[..., None]).any(-1)


def _neighbours(x: Tensor) -> Tensor:
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def weighted_sums(logits: Tensor, labels: Tensor, weight: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Sums of top-1, top-5, loss and count over examples that count (weight 1) and padding that does not (0)."""
    target = soft_targets(labels, logits.shape[-1], 0.0)
    by_example = {
        "top1": hits(logits, labels, 1),
        "top5": hits(logits, labels, 5),
        "loss": cross_entropy(logits, target, loss),
        "count": torch.ones_like(weight),
    }
    return {name: (value.double() * weight).sum() for name, value in by_example.items()}
