"""Naming the shape of a point cloud, in any pose.

A cloud is cut into groups of neighbouring points. The groups are the tokens, and their centres are the coordinates:
real numbers in three dimensions, which lie on no grid.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ..data.clouds import Clouds, class_names, draw_rotations, load_clouds, stretch, turn
from ..data.loader import Columns, Memory, shares, tensors, training_batches
from ..data.order import Batch, Order, Place
from ..data.transforms import uniforms
from ..models.initialise import Initialisation, initialise_by_name
from ..models.points import PointTransformer
from ..recipes.schema import Recipe
from ..seeds import generator
from .base import Parts, Sample, Task, average, sum_batches
from .classification import Classification, cross_entropy, hits, soft_targets

MOVE = 4.0
"""How far test clouds, whose radius is 1, move on every axis for the metric `moved`."""
_MODEL_KEYS = (
    *("dim", "layers", "heads", "mlp_ratio", "attention", "encoding", "encoding_options", "share_layers", "dropout"),
    *("drop_path", "init", "pool"),
)


class Shapes(Task):
    """Classification of point clouds. top1: clouds as they are. turned: each cloud in another, random pose; left out if
    `data.pose` removes the pose. moved: all clouds moved by `MOVE`."""

    capturable = True
    metric_name = "shapes named"
    meanings = Task.meanings | {
        "turned": "the same as top1, with every cloud in another, random pose",
        "moved": "the same as top1, with all clouds moved by four radii",
    }
    common = (
        *("name", "task", "seed", "data.source", *(f"model.{name}" for name in _MODEL_KEYS)),
        *(key for key in Task.common if key.startswith(("optim.", "loop."))),
    )
    losses = Classification.losses
    reads = ("loss.kind", "loss.label_smoothing")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.clouds = load_clouds(recipe.data, "train")

    @property
    def examples(self) -> int:
        return len(self.clouds["label"])

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        settings = recipe.model
        model = PointTransformer(
            dim=settings.dim,
            layers=settings.layers,
            num_heads=settings.heads,
            num_classes=recipe.data.num_classes,
            encoding=settings.encoding,
            encoding_options=settings.options,
            share_layers=settings.share_layers,
            pool=settings.pool,
            attention=settings.attention,
            mlp_ratio=settings.mlp_ratio,
            dropout=settings.dropout,
            drop_path=settings.drop_path,
        )
        initialise_by_name(model, recipe.seed, Initialisation(settings.init))
        return model

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        order = Order(self.examples, self.recipe.loop.batch_size, self.recipe.seed)
        return training_batches(Memory(self.clouds), order, start, place, partial(self._augment, place))

    def _augment(self, place: Place, clouds: Columns, step: int) -> Batch:
        """A step's clouds, turned and stretched."""
        seed, size, augment = self.recipe.seed, self.recipe.loop.batch_size, self.recipe.augment
        batch = tensors(clouds)
        if augment.turn != "none":  # drawn for the whole batch, so that the number of processes changes nothing
            rotation = place.part(draw_rotations(size, augment.turn, generator(seed, "turn", step)))
            batch["points"], batch["centres"] = turn(batch["points"], batch["centres"], rotation)
        if augment.stretch:
            factor = 1 + augment.stretch * (2 * uniforms(seed, step, size, place, 3, "stretch") - 1)
            batch["points"], batch["centres"] = stretch(batch["points"], batch["centres"], factor)
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        target = soft_targets(batch["label"], self.recipe.data.num_classes, self.recipe.loss.label_smoothing)
        return cross_entropy(model(batch["points"], batch["centres"]), target, self.recipe.loss).mean()

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        clouds = load_clouds(self.recipe.data, "val")
        count, seed = len(clouds["label"]), self.recipe.data.seed
        poses = draw_rotations(count, "any", generator(seed, "poses"))
        sums = (
            self._score(model, {n: t[index].to(place.device) for n, t in clouds.items()}, poses[index], weight)
            for index, weight in shares(count, self.recipe.loop.eval_batch, place)
        )
        return average(sum_batches(sums), place)

    def _score(self, model: nn.Module, clouds: Clouds, pose: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """The sums of every metric over the clouds of a batch, those with the weight 0 left out."""
        points, centres, label = clouds["points"], clouds["centres"], clouds["label"]
        logits = model(points, centres)
        target = soft_targets(label, logits.shape[-1], 0.0)
        scores = {
            "top1": hits(logits, label, 1),
            "moved": hits(model(points + MOVE, centres + MOVE), label, 1),
            "loss": cross_entropy(logits, target, self.recipe.loss),
            "count": torch.ones_like(label),
        }
        if self.recipe.data.pose == "stored":
            scores["turned"] = hits(model(*turn(points, centres, pose.to(points.device))), label, 1)
        return {name: (value.double() * weight.to(points.device)).sum() for name, value in scores.items()}

    def samples(self, count: int) -> list[Sample]:
        clouds, names = load_clouds(self.recipe.data, "val"), class_names(self.recipe.data)
        first = zip(clouds["points"][:count], clouds["label"][:count].tolist(), strict=True)
        return [Sample(draw_cloud(points.flatten(0, 1)), names[label]) for points, label in first]


def draw_cloud(points: Tensor, side: int = 96) -> Tensor:
    """A cloud (n, 3) within the unit ball, seen along its third axis: uint8 (side, side, 3), near points darker."""
    place = ((points[:, :2] + 1) / 2 * (side - 1)).round().long().clamp(0, side - 1)
    shade = (160 * (1 - points[:, 2].clamp(-1, 1)) / 2).to(torch.uint8)
    order = points[:, 2].argsort()  # the nearest is drawn last
    image = torch.full((side, side, 3), 255, dtype=torch.uint8)
    for (x, y), grey in zip(place[order].tolist(), shade[order].tolist(), strict=True):
        image[side - 1 - y, x] = grey
    return image
