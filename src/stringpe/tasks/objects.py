"""Naming the object at a queried place, in RGB or RGB-D frames of the procedural world.

A query is a pixel; the answer is the kind of the object seen there, one of `scenes.kinds()`. Some kinds have a similar
shape and differ in size (a cup and a bin, an orange and a ball). An RGB image reveals size only through the context, so
depth matters.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import scenes
from ..data.loader import Columns, Memory, shares, tensors, training_batches
from ..data.order import Batch, Order, Place
from ..data.scene_frames import FrameColumns, draw_places, load_frames, with_room
from ..data.transforms import to_bytes, to_unit, uniforms
from ..io.checkpoint import read_model
from ..models.frozen import load_frozen
from ..models.initialise import draw_classifier
from ..recipes.schema import Recipe
from ..seeds import generator
from .base import Parts, Sample, Task, average, sum_batches, with_one_layer
from .build import backbone, frozen_backbone, set_initial_weights
from .classification import Classification, cross_entropy, soft_targets, weighted_sums


class PlaceClassifier(nn.Module):
    """A ViT and a linear classifier, which is applied to the ViT's features at queried places: patch tokens, with
    bilinear interpolation between patches. With `model.freeze`, the ViT takes RGB and is not trained: see
    `stringpe.models.frozen`."""

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        make = frozen_backbone if recipe.model.freeze else backbone
        self.vit = make(recipe.model, image_size=recipe.data.image_size)
        self.head = nn.Linear(self.vit.dim, classes)
        self.head_bias = recipe.loss.head_bias
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_classifier(self.head, self.head_bias)

    def forward(self, image: Tensor, depth: Tensor | None, query: Tensor) -> Tensor:
        """Logits (b, q, classes) for queries (b, q, 2), x and y in [−1, 1] from corner to corner of the image."""
        features = self.vit.features(image, depth)
        grid = features.tokens.mT.unflatten(2, features.size)  # (b, dim, rows, columns)
        x = F.grid_sample(grid.float(), query[:, None], align_corners=False, padding_mode="border")  # (b, dim, 1, q)
        return self.head(x[:, :, 0].mT)


class Objects(Task):
    """Object naming by place: `data.queries` places per frame, with every object of a frame equally likely. top1: with
    cameras as in training. far, with data.cameras=near: the same rooms, seen from farther away than in training."""

    capturable = True

    metric_name = "objects named"
    meanings = Task.meanings | {
        "far": "the share of objects named correctly from cameras that stand farther away than in training"
    }
    losses = Classification.losses
    reads = ("loss.kind", "loss.label_smoothing", "loss.head_bias", "model.start", "model.freeze", "model.lora")

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        if bool(recipe.model.freeze) != bool(recipe.model.start):
            raise ValueError(
                "a frozen ViT needs trained weights to start from: give both model.start and model.freeze, or none"
            )
        if recipe.model.lora and not recipe.model.freeze:
            raise ValueError(f"model.lora={recipe.model.lora} is for a frozen ViT: set model.freeze=backbone")
        PlaceClassifier(with_one_layer(recipe), 1)

    @classmethod
    def measures(cls, recipe: Recipe, metric: str) -> bool:
        return super().measures(recipe, metric) and (metric != "far" or recipe.data.cameras == "near")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.classes = len(scenes.kinds())
        self.depth = recipe.model.depth != "none"
        self.frames = load_frames(recipe.data, "train", recipe.data.cameras)

    @property
    def examples(self) -> int:
        return len(self.frames["rgb"])

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        model = PlaceClassifier(recipe, len(scenes.kinds()))
        set_initial_weights(model, recipe)
        return model

    def start(self, model: nn.Module, folder: Path) -> None:
        """Take the ViT, which stays frozen, and the classifier of another run of this task."""
        assert isinstance(model, PlaceClassifier)
        old, weights = read_model(folder)
        if old.task != "objects":
            raise ValueError(f"model.start={folder} is a run of the task {old.task}: a run of objects is needed")
        vit = {name.removeprefix("vit."): tensor for name, tensor in weights.items() if name.startswith("vit.")}
        load_frozen(model.vit, vit, f"model.start={folder}")
        model.head.load_state_dict({"weight": weights["head.weight"], "bias": weights["head.bias"]})

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        order = Order(self.examples, self.recipe.loop.batch_size, self.recipe.seed)
        return training_batches(Memory(self.frames), order, start, place, partial(self._prepare, place))

    def _prepare(self, place: Place, frames: Columns, step: int) -> Batch:
        """A step's frames with their queries, some of them mirrored."""
        recipe = self.recipe
        u = uniforms(recipe.seed, step, recipe.loop.batch_size, place, recipe.data.queries + 1, "queries")
        return mirror(make_queries(tensors(frames), u[:, 1:]), (u[:, 0] < 0.5) & recipe.augment.flip)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        target = soft_targets(batch["label"], self.classes, self.recipe.loss.label_smoothing)
        return cross_entropy(self._logits(model, batch), target, self.recipe.loss).mean()

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        metrics = self._measure(model, place, "val")
        if self.recipe.data.cameras == "near":
            metrics["far"] = self._measure(model, place, "far")["top1"]
        return metrics

    def _measure(self, model: nn.Module, place: Place, split: str) -> dict[str, float]:
        sums = (
            weighted_sums(
                self._logits(model, batch), batch["label"], weight[:, None].expand_as(batch["label"]), self.recipe.loss
            )
            for batch, weight in self._validation(place, self.recipe.loop.eval_batch, split)
        )
        return average(sum_batches(sums), place)

    def samples(self, count: int) -> list[Sample]:
        batch, _ = next(self._validation(Place(), count))
        samples = []
        for image, query, label in zip(batch["image"], batch["query"], batch["label"], strict=True):
            pixels = to_bytes(image).permute(1, 2, 0)
            samples.append(Sample(_draw_cross(pixels, query[0]), scenes.kinds()[int(label[0])]))
        return samples[:count]

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["image"], batch["depth"] if self.depth else None, batch["query"])
        return logits

    def _validation(self, place: Place, size: int, split: str = "val") -> Iterator[tuple[Batch, Tensor]]:
        frames = load_frames(self.recipe.data, split, self.recipe.data.cameras)
        count = len(frames["rgb"])
        u = torch.rand(count, self.recipe.data.queries, generator=generator(self.recipe.data.seed, "val queries"))
        for index, weight in shares(count, size, place):
            chosen = {name: t[index].to(place.device) for name, t in frames.items()}
            yield make_queries(chosen, u[index].to(place.device)), weight.to(place.device)


def make_queries(chosen: FrameColumns, u: Tensor) -> Batch:
    """The batch of chosen frames: image in [−1, 1], depth, query (b, q, 2) and label (b, q). `draw_places` draws the
    queries by uniforms u (b, q)."""
    instance, side = chosen["instance"].flatten(1).long(), chosen["rgb"].shape[-1]
    place = draw_places(chosen, u)  # (b, q)
    query = torch.stack([place % side, place // side], -1)
    return {
        "image": to_unit(chosen["rgb"]),
        "depth": chosen["depth"].float(),
        "query": (query + 0.5) / side * 2 - 1,
        "label": with_room(chosen["kind"]).gather(1, instance.gather(1, place)),
    }


def mirror(batch: Batch, chosen: Tensor) -> Batch:
    """The batch with the chosen (b,) frames mirrored left to right."""
    image = torch.where(chosen[:, None, None, None], batch["image"].flip(-1), batch["image"])
    depth = torch.where(chosen[:, None, None], batch["depth"].flip(-1), batch["depth"])
    x, y = batch["query"].unbind(-1)
    query = torch.stack([torch.where(chosen[:, None], -x, x), y], -1)
    return {"image": image, "depth": depth, "query": query, "label": batch["label"]}


def _draw_cross(image: Tensor, query: Tensor) -> Tensor:
    """uint8 (h, w, 3) with a red cross at the query."""
    side = image.shape[0]
    column, row = (((query + 1) / 2 * side - 0.5).round().long().clamp(0, side - 1)).tolist()
    out = image.clone()
    for d in (-3, -2, 2, 3):  # the centre stays free, to show what is queried
        for r, c in ((row + d, column), (row, column + d)):
            if 0 <= r < side and 0 <= c < side:
                out[r, c] = torch.tensor([255, 0, 0], dtype=torch.uint8)
    return out
