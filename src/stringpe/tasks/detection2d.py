"""Finding what texts name, with a box around each: OWL-ViT on COCO, LVIS or the procedural world (section 4.2, in
2D)."""

import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.boxes2d import BoxedPictures, load_boxes2d, load_squares, validation_squares
from ..data.mosaic import Plan, draw_mosaics, parse_shares, plan_mosaics
from ..data.order import Batch, MixedOrder, Order, Place
from ..data.queries import CLIP_TEMPLATES, draw_queries, prompt_tokens, prompts
from ..data.transforms import colour, to_unit, uniforms
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
from .base import Parts, Sample, Task, broadcast
from .build import build_detector
from .text_task import TextTask
from .warm_start import OWL_CONFIG, choose_tokenizer, is_owl, load_weights, read_owl_config

TOP = 300
"""How many pairs of token and class the results of an image hold."""

_FEW = 1024  # prompts that are read in every step whether asked for or not, which saves waiting for the device
_PART = 512  # prompts read at a time in evaluation
_OWL_CONTEXT = 16  # what transformers leaves out of a configuration


class Detection2D(TextTask):
    """Open-vocabulary detection with the loss, mosaics, negatives and prompts of OWL-ViT; AP and AP50 as COCO's.

    The validation set may have other classes than the training set: they are asked for by their names."""

    metric = "AP"
    metric_name = "AP"
    counted = False
    meanings = Task.meanings | {
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
        if recipe.model.depth != "none":
            raise ValueError(f"detection2d sees RGB alone: set model.depth=none, got {recipe.model.depth!r}")
        if recipe.data.negatives < 0:
            raise ValueError(f"data.negatives is a number of classes, got {recipe.data.negatives}")
        self.shares = parse_shares(recipe.augment.mosaic)
        self.train_set = load_boxes2d(recipe.data, "train")
        mixed = recipe.data.source == "coco"
        self.mix = parse_mix(recipe.data.mix, len(self.train_set.sizes)) if mixed else []

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
    def check_model(cls, recipe: Recipe) -> None:
        if read_owl_config(recipe) is None:  # else the towers are those of transformers
            super().check_model(recipe)

    def start(self, model: nn.Module, folder: Path) -> None:
        if self.parts.config is None:
            super().start(model, folder)
        elif is_owl(folder):
            model.load_state_dict(load_owl(folder).state_dict())
        else:  # a run of ours that started from transformers
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
        drawn = load_squares(self.train_set, (p.picture for p in ahead), place)
        for step, planned, (pixels, index) in zip(steps, plans, drawn, strict=False):
            made = planned._replace(picture=index)  # another picture where one cannot be decoded
            image, truth = draw_mosaics(pixels, pictures, made, recipe.augment)
            u = uniforms(recipe.seed, step, recipe.loop.batch_size, place, 2 * classes + 3, "detection")
            image = to_unit(image)
            if recipe.augment.colour:
                image = colour(image, u[:, -3:], recipe.augment.colour)
            yield {"image": image, **self._ask(truth, made, weight, u[:, :classes], u[:, classes:-3])}

    def _order(self) -> Order | MixedOrder:
        batch, seed = self.recipe.loop.batch_size, self.recipe.seed
        if not self.mix:
            return Order(self.examples, batch, seed)
        return MixedOrder(self.train_set.sizes, self.mix, batch, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        tokens, index = self._tokens(batch["image"].device), batch["query"]
        if len(tokens) > _FEW:
            asked, index = index.unique(return_inverse=True)
            tokens = tokens[asked]
        found: Detections = model(batch["image"], tokens, index=index, mask=batch["mask"])
        truth = Truth(batch["boxes"], batch["labels"], batch["valid"], batch["crowd"])
        masks = {name: batch[name] for name in ("mask", "exhaustive")}
        return detection_loss(found, truth, **masks, positives=self.recipe.loss.positives).total

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        """AP needs the boxes of all images, so those of all processes are gathered, and process 0 matches them."""
        boxes, coco = self.predictions(model, place), self.val_set.coco
        found: dict[str, float] = {}
        if place.rank == 0:
            found = average_precision(coco.dataset(), boxes, lvis=coco.lvis)
            if self.results is not None:
                write_json(self.results, boxes)
        found = broadcast(found, place)
        names = ("AP", "AP50", "AP75", *(("APr", "APc", "APf") if coco.lvis else ()))
        return {name: max(found.get(name, 0.0), 0.0) for name in names} | {"count": float(len(self.val_set))}

    def predictions(self, model: nn.Module, place: Place) -> list[dict[str, Any]]:
        """The `TOP` best pairs of box and class of every validation image, as COCO's results; the same in all
        processes."""
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
        shown = []
        for pixels, index, _ in itertools.islice(validation_squares(split, count, Place()), 1):
            for image, i in zip(pixels, index.tolist(), strict=True):
                picture = split.coco.pictures[i]
                side = max(picture.width, picture.height) / split.side
                boxes = [tuple(v / side for v in box) for box in picture.boxes]
                names = sorted({split.coco.names[c] for c in picture.labels})
                shown.append(Sample(outline_boxes(image, boxes), ", ".join(names) or "nothing"))
        return shown[:count]

    def counters(self) -> dict[str, float]:
        problems = len(self.train_set.problems) + len(self.val_set.problems)
        found = {"left_out": problems, "truncated": self.tokenizer.truncated}
        return {name: float(number) for name, number in found.items() if number}

    def _ask(self, truth: Truth, made: Plan, weight: Tensor, u: Tensor, v: Tensor) -> Batch:
        """Queries (as numbers of prompts), mask, truth, and which queries are annotated in full. Classes that are not
        there are drawn among those of the image's data set; what another set alone annotates is not known of it."""
        split, sets = self.train_set, self.train_set.sets(made.picture)
        negative = None if split.negative is None else _any_in_mosaic(split.negative[made.picture], made, u)
        unknown = ~split.covers[sets]
        if split.partial is not None:
            unknown |= split.partial[made.picture]
        partial = _any_in_mosaic(unknown, made, u) if len(split.sizes) > 1 or split.partial is not None else None
        first = sets[made.place == 0]  # of every image
        asked = draw_queries(truth, weight[first].to(u.device), self.recipe.data.negatives, u, negative)
        template = (v.gather(1, asked.classes) * len(CLIP_TEMPLATES)).long().clamp(max=len(CLIP_TEMPLATES) - 1)
        exhaustive = torch.ones_like(asked.mask) if partial is None else ~partial.gather(1, asked.classes)
        boxes, labels, valid, crowd = asked.truth
        return {
            "query": asked.classes * len(CLIP_TEMPLATES) + template,
            "mask": asked.mask,
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
        """Query embeddings (classes, e) of the validation classes, whose logits are means over the templates. Read by
        whole calls of the model, beside one image: a wrapped model can do nothing else."""
        tokens = prompt_tokens(self.tokenizer, self.val_set.coco.names, self.context, CLIP_TEMPLATES)
        parts = tokens.flatten(0, 1).to(image.device).split(_PART)
        read = torch.cat([model(image, part).queries for part in parts])
        return read.unflatten(0, (-1, len(CLIP_TEMPLATES))).mean(1)


def pick_best(found: Detections, number: Tensor, top: int = TOP) -> Tensor:
    """(b, k, 7) float64: the image's number (b,), class, score, and box as cxcywh of the best k pairs of token and
    class. Class 0 is an ordinary class: there is none for the background."""
    classes = found.logits.shape[2]
    score, place = found.logits.float().sigmoid().flatten(1).topk(min(top, found.logits[0].numel()), dim=1)
    boxes = found.boxes.gather(1, (place // classes)[..., None].expand(-1, -1, 4))
    head = torch.stack([number[:, None].expand_as(place), place % classes, score], -1)
    return torch.cat([head.double(), boxes.double()], -1)


def mark_duplicates(rows: Tensor, threshold: float) -> Tensor:
    """What `pick_best` found (b, k, 7), with the score −1 where a better box of the same class in the same image
    overlaps by an IoU of more than `threshold`; 1 marks none."""
    if threshold >= 1:
        return rows
    rows = rows.clone()
    for row in rows:
        apart = row[:, 1:2] * 4  # boxes lie in [0, 1], or not far from it
        kept = nms(to_corners(row[:, 3:]) + apart, row[:, 2], threshold)
        dropped = torch.ones(len(row), dtype=torch.bool, device=row.device).index_fill(0, kept, False)
        row[dropped, 2] = -1.0
    return rows


def to_results(rows: Tensor, pictures: Any, ids: tuple[int, ...]) -> list[dict[str, Any]]:
    """COCO's results from what `pick_best` found (n, k, 7): boxes as x, y, w, h in pixels of the pictures, without
    padding; what has a negative score is left out."""
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
    """The shares of the data sets in training from `data.mix`, "0.8 0.2"; empty for those of their sizes."""
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
    """(sets, classes): in how many boxes of a data set a class is."""
    pictures, classes = split.pictures, len(split.coco.names)
    parts = zip(pictures.labels.split(split.sizes), pictures.valid.split(split.sizes), strict=True)
    return torch.stack([torch.bincount(label[valid], minlength=classes).float() for label, valid in parts])


def _any_in_mosaic(table: Tensor, made: Plan, like: Tensor) -> Tensor:
    """(b, classes): what the table (u, classes) says of any of an image's tiles."""
    found = torch.zeros(like.shape, dtype=torch.float32).index_add_(0, made.image, table.float())
    return (found > 0).to(like.device)
