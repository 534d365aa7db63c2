"""Finding the objects that texts name, and a box around each of them: OWL-ViT on COCO, LVIS or the procedural world
(section 4.2 of the paper, in 2D)."""

import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.boxes2d import BoxedPictures, load_boxes2d, load_squares, validation_squares
from ..data.mosaic import Plan, draw_mosaics, parse_shares, plan_mosaics
from ..data.order import Batch, MixedOrder, Order, Place
from ..data.queries import CLIP_TEMPLATES, draw_queries, prompt_tokens, prompts
from ..data.transforms import change_colours, to_unit, uniforms
from ..geometry.boxes import nms, to_corners
from ..geometry.square import from_square
from ..io.checkpoint import read_model
from ..io.files import write_json
from ..metrics.average_precision import average_precision
from ..models.owl import Detections, OwlViT
from ..models.owl_checkpoints import empty_owl, load_owl
from ..models.owl_loss import Truth, detection_loss
from ..models.tokenizer import Tokenizer
from ..recipes.schema import Recipe
from .base import Parts, Sample, Task, TextTask, broadcast
from .build import build_detector
from .warm_start import OWL_CONFIG, choose_tokenizer, is_owl, load_weights, read_owl_config

TOP = 300
"""The most pairs of token and class that the results of an image hold."""

_ENCODE_ALL = 1024  # up to this many prompts, every step encodes all: choosing the batch's would wait for the device
_PROMPTS_STEP = 256  # more prompts are encoded in multiples of these: compiled layers then see few sizes
_PROMPTS_PER_CALL = 512  # in evaluation
_OWL_CONTEXT = 16  # transformers' default, which it leaves out of a configuration


class Detection2D(TextTask):
    """Open-vocabulary detection with the loss, mosaics, negatives and prompts of OWL-ViT; AP and AP50 as COCO's.

    The validation set may have other classes than the training set, because classes are asked for by their names."""

    metric = "AP"
    metric_name = "AP"
    counted = False
    meanings: ClassVar = {
        "count": Task.meanings["count"],
        "AP": "COCO's average precision, the mean over classes and over IoU thresholds from 0.50 to 0.95",
        "AP50": "average precision at an IoU of 0.50",
        "AP75": "average precision at an IoU of 0.75",
        "APr": "AP of LVIS's rare classes",
        "APc": "AP of LVIS's common classes",
        "APf": "AP of LVIS's frequent classes",
    }
    config_file = OWL_CONFIG
    reads = (*TextTask.reads, "loss.factor", "loss.positives", "loop.eval_nms")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.shares = parse_shares(recipe.augment.mosaic)
        self.train_set = load_boxes2d(recipe.data, "train")
        mixed = recipe.data.source == "coco"
        self.mix = parse_mix(recipe.data.mix, len(self.train_set.sizes)) if mixed else []
        # Mosaics hold another number of objects in every step; queries and prompts that are chosen, of those.
        classes = len(self.train_set.coco.names)
        asks_all = classes <= recipe.data.negatives and classes * len(CLIP_TEMPLATES) <= _ENCODE_ALL
        self.capturable = asks_all and len(self.shares) == 1

    @property
    def examples(self) -> int:
        return len(self.train_set)

    @cached_property
    def val_set(self) -> BoxedPictures:
        return load_boxes2d(self.recipe.data, "val")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        names = self.train_set.coco.names
        return choose_tokenizer(self.recipe, [text for row in prompts(names, CLIP_TEMPLATES) for text in row])

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        if parts.config is not None:
            return empty_owl(parts.config)
        assert parts.tokenizer is not None
        return build_detector(OwlViT, recipe, parts.tokenizer)

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        if recipe.model.depth != "none":
            raise ValueError(f"detection2d sees RGB alone: set model.depth=none, got {recipe.model.depth!r}")
        if read_owl_config(recipe) is None:  # else the towers are those of transformers
            super().check_task(recipe)

    def start(self, model: nn.Module, folder: Path) -> None:
        if self.parts.config is None:
            super().start(model, folder)
        elif is_owl(folder):
            model.load_state_dict(load_owl(folder).state_dict())
        else:  # a run of stringpe that started from a model of transformers
            load_weights(model, read_model(folder)[1], str(folder))

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.tokenizer, read_owl_config(self.recipe))

    @property
    def context(self) -> int:
        """The longest text that the model reads, in tokens."""
        if self.parts.config is None:
            return self.recipe.text.context
        return int(self.parts.config.get("text_config", {}).get("max_position_embeddings", _OWL_CONTEXT))

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        recipe, pictures = self.recipe, self.train_set.pictures.to(place.device)
        order, sizes = self._order(), self.train_set.sizes
        classes = len(self.train_set.coco.names)
        weight = _count_boxes(self.train_set)
        steps = itertools.count(start)
        mosaics = (plan_mosaics(order, step, place, self.shares, sizes) for step in itertools.count(start))
        ahead, plans = itertools.tee(mosaics)
        squares = load_squares(self.train_set, (p.picture for p in ahead), place)
        for step, planned, (pixels, index) in zip(steps, plans, squares, strict=False):
            plan = planned._replace(picture=index)  # another picture where one cannot be decoded
            image, truth = draw_mosaics(pixels, pictures, plan, recipe.augment)
            u = uniforms(recipe.seed, step, recipe.loop.batch_size, place, 2 * classes + 3, "detection")
            image = change_colours(to_unit(image), u[:, -3:], recipe.augment.colour)
            yield {"image": image, **self._choose_queries(truth, plan, weight, u[:, :classes], u[:, classes:-3])}

    def _order(self) -> Order | MixedOrder:
        batch, seed = self.recipe.loop.batch_size, self.recipe.seed
        if not self.mix:
            return Order(self.examples, batch, seed)
        return MixedOrder(self.train_set.sizes, self.mix, batch, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, index = self._tokens(batch["image"].device), batch["query"]
        if len(tokens) > _ENCODE_ALL:
            used, index = index.unique(return_inverse=True)
            tokens = tokens[F.pad(used, (0, -len(used) % _PROMPTS_STEP))]  # padding is prompt 0, which nobody asks for
        detections: Detections = model(batch["image"], tokens, index=index, mask=batch["mask"])
        truth = Truth(batch["boxes"], batch["labels"], batch["valid"], batch["crowd"])
        masks = {name: batch[name] for name in ("mask", "exhaustive")}
        return detection_loss(detections, truth, **masks, positives=self.recipe.loss.positives).total

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        """AP needs the boxes of all images, so they are gathered from all processes, and process 0 matches them."""
        boxes, coco = self.predictions(model, place), self.val_set.coco
        metrics: dict[str, float] = {}
        if place.rank == 0:
            metrics = average_precision(coco.dataset(), boxes, lvis=coco.lvis)
            if self.results is not None:
                write_json(self.results, boxes)
        metrics = broadcast(metrics, place)
        names = ("AP", "AP50", "AP75", *(("APr", "APc", "APf") if coco.lvis else ()))
        return {name: max(metrics.get(name, 0.0), 0.0) for name in names} | {"count": float(len(self.val_set))}

    def predictions(self, model: nn.Module, place: Place) -> list[dict[str, Any]]:
        """The `TOP` best pairs of box and class of every validation image, in the format of COCO's results; the same in
        all processes."""
        coco = self.val_set.coco
        queries: Tensor | None = None
        parts: list[Tensor] = []
        for pixels, index, weight in validation_squares(self.val_set, self.recipe.loop.eval_batch, place):
            image = to_unit(pixels)
            if queries is None:
                queries = self._queries(model, image[:1])
            number = torch.where(weight > 0, index, -1).to(place.device)
            best = pick_best(model(image, queries=queries), number)
            parts.append(mark_duplicates(best, self.recipe.loop.eval_nms))
        rows = place.gather_rows(torch.cat(parts)).cpu()
        return to_results(rows, coco.pictures, coco.ids)

    def samples(self, count: int) -> list[Sample]:
        from ..geometry.draw_boxes import outline_boxes

        split = self.val_set
        samples = []
        for pixels, index, _ in itertools.islice(validation_squares(split, count, Place()), 1):
            for image, i in zip(pixels, index.tolist(), strict=True):
                picture = split.coco.pictures[i]
                side = max(picture.width, picture.height) / split.side
                boxes = [tuple(v / side for v in box) for box in picture.boxes]
                names = sorted({split.coco.names[c] for c in picture.labels})
                samples.append(Sample(outline_boxes(image, boxes), ", ".join(names) or "nothing"))
        return samples[:count]

    def counters(self) -> dict[str, float]:
        problems = len(self.train_set.problems) + len(self.val_set.problems)
        counts = {"left_out": problems, "truncated": self.tokenizer.truncated}
        return {name: float(count) for name, count in counts.items() if count}

    def _choose_queries(self, truth: Truth, plan: Plan, weight: Tensor, u: Tensor, v: Tensor) -> Batch:
        """Every image's queries (as numbers of prompts), their mask, the truth, and which queries are annotated in
        full. Absent classes are drawn from those of the image's data set; of classes that only another data set
        annotates, nothing is known."""
        split, sets = self.train_set, self.train_set.sets(plan.picture)
        negative = None if split.negative is None else _any_in_mosaic(split.negative[plan.picture], plan, u)
        unknown = ~split.covers[sets]
        if split.partial is not None:
            unknown |= split.partial[plan.picture]
        partial = _any_in_mosaic(unknown, plan, u) if len(split.sizes) > 1 or split.partial is not None else None
        first = sets[plan.place == 0]  # the data set of every image's first tile
        queries = draw_queries(truth, weight[first].to(u.device), self.recipe.data.negatives, u, negative)
        template = (v.gather(1, queries.classes) * len(CLIP_TEMPLATES)).long().clamp(max=len(CLIP_TEMPLATES) - 1)
        exhaustive = torch.ones_like(queries.mask) if partial is None else ~partial.gather(1, queries.classes)
        boxes, labels, valid, crowd = queries.truth
        return {
            "query": queries.classes * len(CLIP_TEMPLATES) + template,
            "mask": queries.mask,
            "exhaustive": exhaustive,
            "boxes": boxes,
            "labels": labels,
            "valid": valid,
            "crowd": crowd,
        }

    def _tokens(self, device: torch.device) -> Tensor:
        """Every class in every template, (classes · templates, n)."""
        if self._prompts.device != device:
            self._prompts = self._prompts.to(device)
        return self._prompts

    @cached_property
    def _prompts(self) -> Tensor:
        names = self.train_set.coco.names
        return prompt_tokens(self.tokenizer, names, self.context, CLIP_TEMPLATES).flatten(0, 1)

    def _queries(self, model: nn.Module, image: Tensor) -> Tensor:
        """Query embeddings (classes, e) of the validation classes: means over the templates, which makes the logits
        means as well. The texts are encoded by whole calls of the model, together with one image, because a wrapped
        model offers nothing else."""
        tokens = prompt_tokens(self.tokenizer, self.val_set.coco.names, self.context, CLIP_TEMPLATES)
        parts = tokens.flatten(0, 1).to(image.device).split(_PROMPTS_PER_CALL)
        queries = torch.cat([model(image, part).queries for part in parts])
        return queries.unflatten(0, (-1, len(CLIP_TEMPLATES))).mean(1)


def pick_best(detections: Detections, number: Tensor, top: int = TOP) -> Tensor:
    """The best k = `top` pairs of token and class of every image, (b, k, 7) float64: the image's number (b,), class,
    score, and box as cxcywh. Class 0 is an ordinary class: there is no class for the background."""
    classes = detections.logits.shape[2]
    score, pair = detections.logits.float().sigmoid().flatten(1).topk(min(top, detections.logits[0].numel()), dim=1)
    boxes = detections.boxes.gather(1, (pair // classes)[..., None].expand(-1, -1, 4))
    head = torch.stack([number[:, None].expand_as(pair), pair % classes, score], -1)
    return torch.cat([head.double(), boxes.double()], -1)


def mark_duplicates(rows: Tensor, threshold: float) -> Tensor:
    """The rows (b, k, 7) of `pick_best`, with the score −1 where a better box of the same class in the same image
    overlaps by an IoU of more than `threshold`; a threshold of 1 marks no box."""
    if threshold >= 1:
        return rows
    rows = rows.clone()
    for row in rows:
        best = nms(to_corners(row[:, 3:]), row[:, 2], threshold, row[:, 1])
        duplicate = torch.ones(len(row), dtype=torch.bool, device=row.device).index_fill(0, best, False)
        row[duplicate, 2] = -1.0
    return rows


def to_results(rows: Tensor, pictures: Any, ids: tuple[int, ...]) -> list[dict[str, Any]]:
    """The rows (n, k, 7) of `pick_best` in the format of COCO's results: boxes as x, y, w, h in pixels of the pictures,
    without padding. Images with a negative number and boxes with a negative score are left out."""
    results = []
    for row in rows:
        number = int(row[0, 0])
        if number < 0:
            continue
        picture = pictures[number]
        corners = from_square(row[:, 3:], float(picture.width), float(picture.height))
        extent = torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], -1).tolist()
        for (_, label, score), box in zip(row[:, :3].tolist(), extent, strict=True):
            if score < 0:
                continue
            results.append(
                {"image_id": picture.id, "category_id": ids[int(label)], "bbox": box, "score": score},
            )
    return results


def parse_mix(text: str, sets: int) -> list[float]:
    """The shares of the data sets in training, from the text of `data.mix`: "0.8 0.2". An empty text gives an empty
    list, which stands for shares in proportion to the sizes of the data sets."""
    if not text:
        return []
    try:
        shares = [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        shares = []
    if len(shares) != sets or sets < 2 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"data.mix holds the shares of the data sets of data.train, which add up to 1: '0.8 0.2' for two; got "
            f"{text!r} for {sets}"
        )
    return shares


def _count_boxes(split: BoxedPictures) -> Tensor:
    """(sets, classes): how many boxes of each class a data set has."""
    pictures, classes = split.pictures, len(split.coco.names)
    parts = zip(pictures.labels.split(split.sizes), pictures.valid.split(split.sizes), strict=True)
    return torch.stack([torch.bincount(label[valid], minlength=classes).float() for label, valid in parts])


def _any_in_mosaic(table: Tensor, plan: Plan, like: Tensor) -> Tensor:
    """(b, classes): whether the table (u, classes) is true for any of an image's tiles. like: a tensor of the result's
    shape and device."""
    tiles = torch.zeros(like.shape, dtype=torch.float32).index_add_(0, plan.image, table.float())
    return (tiles > 0).to(like.device)
