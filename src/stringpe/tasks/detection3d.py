"""Finding named objects in RGB or RGB-D images, with an oriented 3D box around each: section 4.2 of the paper."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..coords import Calibration
from ..data.boxes3d import BoxedFrames, load_boxes3d
from ..data.loader import Columns, Memory, shares, tensors, training_batches
from ..data.order import Batch, Order, Place
from ..data.queries import prompt_tokens, prompts
from ..data.transforms import change_colours, to_unit, uniforms
from ..io.files import write_json
from ..metrics import average_precision3d as ap3d
from ..metrics.average_precision3d import Matched, Truths
from ..models.owl3d import CENTRES, Detector3D, Predictions3D, assign, best_boxes, detection3d_loss
from ..models.tokenizer import Tokenizer
from ..recipes.schema import Recipe
from .base import Parts, Sample, Task, TextTask, gather, sum_batches, sum_processes
from .build import build_detector
from .warm_start import choose_tokenizer


class Detection3D(TextTask):
    """OWL-ViT with boxes in 3D. Queries are the names of all labels. The targets of an image are, in training,
    `data.queries` of its objects, drawn anew in every step (12 in the paper), and all of them in evaluation.

    iou, the number of the paper's tables: the mean over all objects of the validation set of the exact IoU with the
    prediction that the Hungarian matching of training assigns to the object (0 for an object without one).
    iou_monte_carlo: the same by the paper's estimate, with `loop.eval_points` points per box. ap, ap15, ap25 and ap50:
    AP3D of the 100 best pairs of token and name of an image. iou_living, …: iou of each group of frames.
    """

    metric = "iou"
    metric_name = "mean 3D IoU"
    counted = False
    meanings: ClassVar = {
        "count": Task.meanings["count"],
        "iou": "the mean IoU, in 3D, of every object with the prediction that is matched to it",
        "iou_monte_carlo": "the same, estimated from random points",
        "ap": "average precision in 3D, the mean over IoU thresholds from 0.05 to 0.50",
        "ap15": "average precision in 3D at an IoU of 0.15",
        "ap25": "average precision in 3D at an IoU of 0.25",
        "ap50": "average precision in 3D at an IoU of 0.50",
    }
    reads = (*TextTask.reads, "loss.factor", "loop.eval_points", "model.box_centre")
    capturable = True

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.depth = recipe.model.depth != "none"
        self.train_set = load_boxes3d(recipe.data, "train", self.depth)
        self.names = self.train_set.names

    @property
    def examples(self) -> int:
        return len(self.train_set)

    @cached_property
    def val_set(self) -> BoxedFrames:
        frames = load_boxes3d(self.recipe.data, "val", self.depth)
        if frames.names != self.names:
            other = sorted(set(frames.names) ^ set(self.names))
            raise ValueError(f"data.train and data.val must have the same categories; only one has {', '.join(other)}")
        return frames

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return choose_tokenizer(self.recipe, [text for row in prompts(self.names) for text in row])

    @cached_property
    def queries(self) -> Tensor:
        """Tokens (names, templates, n)."""
        return prompt_tokens(self.tokenizer, self.names, self.recipe.text.context)

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        assert parts.tokenizer is not None
        return build_detector(partial(Detector3D, centre=recipe.model.box_centre), recipe, parts.tokenizer)

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        super().check_task(recipe)
        centre, depth = recipe.model.box_centre, recipe.model.depth
        if centre not in CENTRES:
            raise ValueError(f"model.box_centre is {' or '.join(CENTRES)}, got {centre!r}")
        if centre == "point" and depth == "none":
            raise ValueError("model.box_centre=point needs depth to place patches: set model.depth, or use absolute")

    @classmethod
    def measures(cls, recipe: Recipe, metric: str) -> bool:
        return super().measures(recipe, metric) and (metric != "iou_monte_carlo" or recipe.loop.eval_points > 0)

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.tokenizer)

    def files(self) -> dict[str, str]:
        return super().files() | {NAMES: json.dumps(self.names)}

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        """Image, depth, label (b, queries), box, intrinsics, and the number of the step's template, b times."""
        order = Order(self.examples, self.recipe.loop.batch_size, self.recipe.seed)
        loader = Memory(self.train_set.columns())
        return training_batches(loader, order, start, place, partial(self._prepare, place))

    def _prepare(self, place: Place, columns: Columns, step: int) -> Batch:
        """A step's images, augmented, with the objects drawn for it, and the number of the template that names them."""
        recipe, size, rows = self.recipe, self.recipe.loop.batch_size, tensors(columns)
        table = uniforms(recipe.seed, step, size, Place(), _COLUMNS + rows["label"].shape[1], "detection3d")
        template, u = int(table[0, 0] * self.queries.shape[1]), place.part(table)
        label = rows["label"].masked_fill(rows["ignore"], -1)
        label, box = choose_objects(label, rows["box"], u[:, _COLUMNS:], recipe.data.queries)
        image = change_colours(to_unit(rows["rgb"]), u[:, 6:9], recipe.augment.colour)
        batch = {"image": image, "depth": rows["depth"].float(), "label": label, "box": box}
        batch["intrinsics"] = rows["intrinsics"]
        batch = mirror(batch, (u[:, 9] < 0.5) & recipe.augment.flip, rows["width"])
        return {**batch, "template": torch.full((len(label),), template, device=label.device)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        queries = self._queries(batch["image"].device)
        named = queries.index_select(1, batch["template"][:1])[:, 0]  # (names, n); no value leaves the device
        predictions = find_boxes(model, self.recipe, batch, named)
        return detection3d_loss(predictions, batch["label"], batch["box"]).total

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        frames = self.val_set
        sums: list[dict[str, Tensor]] = []
        matched: list[tuple[int, Matched]] = []
        entries: list[dict[str, Any]] = []
        for index, weight in shares(len(frames), self.recipe.loop.eval_batch, place):
            batch = frames.batch(index, place.device)
            predictions = self.predict(model, batch)
            counted = (batch["label"] >= 0) & ~batch["ignore"] & (weight > 0).to(place.device)[:, None]
            sums.append(self._sums(predictions, batch, counted))
            real = int(weight.sum())
            best = best_boxes(predictions)[:real]
            matched += zip(index.tolist(), ap3d.match(best, split_truths(batch)[:real]), strict=False)
            if self.results is not None:
                entries += frames.results(best, index)
        if self.results is not None:
            entries = gather(entries, place)
            if place.rank == 0:
                write_json(self.results, entries)
        # In the order of the set, so that equal scores are ranked the same with any number of processes.
        ordered = sorted(gather(matched, place), key=lambda pair: pair[0])
        overall = ap3d.accumulate([image for _, image in ordered])
        precision = {"ap": overall.ap, **{f"ap{round(100 * t)}": overall.at.get(t, 0.0) for t in ap3d.SHOWN}}
        totals = sum_processes(sum_batches(sums), place)
        count = totals.pop("count")
        in_group = {f"iou_{name}": number for name, number in self._count_objects().items()}
        means = {name: total / max(in_group.get(name, count), 1) for name, total in totals.items()}
        return {**means, **{name: 0.0 if math.isnan(v) else v for name, v in precision.items()}, "count": count}

    def samples(self, count: int) -> list[Sample]:
        from ..geometry.draw_boxes import GREEN, outline_boxes3d

        frames = self.val_set
        samples = []
        for i in range(min(count, len(frames))):
            real = frames.label[i] >= 0
            picture = outline_boxes3d(frames.rgb[i], frames.intrinsics[i], [(frames.box[i][real], GREEN)])
            objects = int(real.sum())
            caption = "1 object" if objects == 1 else f"{objects} objects"
            if len(frames.groups) > 1:
                caption += f", {frames.groups[int(frames.group[i])]}"
            samples.append(Sample(picture, caption))
        return samples

    def figure(self, runs: Mapping[str, Path], out: Path) -> Path | None:
        from .detection3d_figures import draw_figure

        return draw_figure(runs, out / "figure.png")

    def counters(self) -> dict[str, float]:
        problems = len(self.train_set.problems)
        return {"problems": float(problems)} if problems else {}

    def predict(self, model: nn.Module, batch: Batch) -> Predictions3D:
        """What the model predicts for a batch of images when it is asked for every name of the data set."""
        return find_boxes(model, self.recipe, batch, self._queries(batch["image"].device))

    def _queries(self, device: torch.device) -> Tensor:
        if self.queries.device != device:
            self.queries = self.queries.to(device)
        return self.queries

    def _sums(self, predictions: Predictions3D, batch: Batch, counted: Tensor) -> dict[str, Tensor]:
        """Sums of IoU over all objects and over those of each group, and the "count" of objects. counted: (b, m), which
        objects count."""
        label = batch["label"].masked_fill(~counted, -1)
        matched = assign(predictions, label, batch["box"])
        pairs = (matched >= 0).nonzero(as_tuple=True)
        predicted, target = predictions.boxes[pairs[0], matched[pairs]], batch["box"][pairs]
        iou, points = ap3d.paired_iou(predicted, target), self.recipe.loop.eval_points
        sums = {"iou": iou.sum(), "count": counted.sum().double()}
        if points:
            sums["iou_monte_carlo"] = ap3d.paired_iou(predicted, target, points=points).sum()
        group = batch["group"][pairs[0]]
        for number, name in enumerate(self._count_objects()):
            sums[f"iou_{name}"] = iou[group == number].sum()
        return sums

    def _count_objects(self) -> dict[str, int]:
        """The number of objects in each group of the validation set; empty where there is only one group."""
        frames = self.val_set
        objects = ((frames.label >= 0) & ~frames.ignore).sum(1)
        groups = frames.groups if len(frames.groups) > 1 else ()
        return {name: int(objects[frames.group == number].sum()) for number, name in enumerate(groups)}


NAMES = "names.json"
"""File of a checkpoint: the names that the model was trained to find."""

_COLUMNS = 10  # uniforms per image: 0 draws the template, 6 to 8 colours, 9 the flip


def find_boxes(model: nn.Module, recipe: Recipe, batch: Batch, queries: Tensor) -> Predictions3D:
    """What a model of this recipe predicts for a batch of frames: from RGB, depth if it takes depth, and the cameras if
    it places centres relative to points."""
    camera = {}
    if recipe.model.box_centre == "point":
        camera["calibration"] = Calibration(batch["intrinsics"], torch.eye(4, device=batch["intrinsics"].device))
    depth = None if recipe.model.depth == "none" else batch["depth"]
    predictions: Predictions3D = model(batch["image"], depth, queries, **camera)
    return predictions


def choose_objects(label: Tensor, box: Tensor, u: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """At most `most` = q objects per image, drawn by uniforms u (b, m): label (b, q), −1 where an image has fewer, and
    box (b, q, 12)."""
    order = torch.where(label >= 0, u, 2.0).argsort(1)[:, :most]
    return label.gather(1, order), box.gather(1, order[..., None].expand(-1, -1, 12))


def mirror(batch: Batch, which: Tensor, width: Tensor) -> Batch:
    """The batch with the images of `which` (b,) mirrored left to right, together with their boxes and cameras. Padding,
    the columns from `width` (b,) on, stays in place. A mirrored box has the rotation M R diag(−1, 1, 1): the mirror M,
    and a flip of the box's first axis, along which objects are symmetric more often than along the others."""
    column = torch.arange(batch["depth"].shape[-1], device=width.device).expand(len(width), -1)
    mirrored = which[:, None] & (column < width[:, None])
    column = torch.where(mirrored, width[:, None] - 1 - column, column)[:, None]  # (b, 1, S)
    image = batch["image"].gather(3, column[:, None].expand_as(batch["image"]))
    depth = batch["depth"].gather(2, column.expand_as(batch["depth"]))
    # M negates x and diag(−1, 1, 1) the first column: in that column x keeps its sign, and y and z change theirs.
    signs = _signs(batch["box"].device)
    box = torch.where(which[:, None, None], batch["box"] * signs, batch["box"])
    intrinsics = batch["intrinsics"].clone()
    intrinsics[:, 0, 2] = torch.where(which, width - intrinsics[:, 0, 2], intrinsics[:, 0, 2])
    return {**batch, "image": image, "depth": depth, "box": box, "intrinsics": intrinsics}


@lru_cache(maxsize=4)
def _signs(device: torch.device) -> Tensor:
    return torch.tensor([-1.0, 1, 1, 1, -1, -1, -1, 1, 1, 1, 1, 1], device=device)


def split_truths(batch: Batch) -> list[Truths]:
    """The objects of each image of a batch, without padding."""
    rows = []
    for box, label, ignore in zip(batch["box"], batch["label"], batch["ignore"], strict=True):
        real = label >= 0
        rows.append(Truths(box[real], label[real], ignore[real]))
    return rows
