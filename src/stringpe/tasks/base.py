"""What the loop trains: data, model, loss and evaluation, behind one abstract class that knows nothing of the loop."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ..catalogue import find, option_names
from ..data.order import Batch, Place
from ..data.sources import keys_read, refuse_unread
from ..encoding import param_groups
from ..io.checkpoint import TOKENIZER
from ..io.files import read_json
from ..models.tokenizer import Tokenizer
from ..recipes.rules import check_keys, check_values
from ..recipes.schema import Loop, Model, Optim, OptionValue, Recipe
from .build import backbone, build_text_tower
from .warm_start import read_owl_config, start_folder, start_towers

Value = TypeVar("Value")

_GROUPS: dict[str, Any] = {"model": Model, "optim": Optim, "loop": Loop}
_KEYS = tuple(f"{group}.{field.name}" for group, owner in _GROUPS.items() for field in fields(owner))
_KEYS_OF_SOME_TASKS = (
    "model.start", "model.freeze", "model.lora", "model.box_centre", "optim.text_lr_scale",
    "loop.eval_points", "loop.eval_nms", "loop.eval_sizes", "loop.seeds",
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A picture of the data for people to look at: uint8 (h, w, 3), and what it shows."""

    image: Tensor
    caption: str


@dataclass(frozen=True)
class Parts:
    """What a model is built from besides its recipe. Checkpoints hold it.

    tokenizer: of a model that reads texts. config: of a model, or a part of one, that came from transformers, its
    configuration there. spec: what the weights of a policy say about its robot."""

    tokenizer: Tokenizer | None = None
    config: Mapping[str, Any] | None = None
    spec: Any = None


class Task(ABC):
    """The data, model, loss and evaluation of one recipe."""

    metric: ClassVar[str] = "top1"
    """The entry of `evaluate` that tables show: a share in [0, 1], the larger the better."""
    metric_name: ClassVar[str] = "top-1 accuracy"
    counted: ClassVar[bool] = True
    """Whether the metric is the share of right cases among the "count" of `evaluate`, so that it has a Wilson
    interval."""
    meanings: ClassVar[dict[str, str]] = {
        "top1": "the share of validation cases whose first answer is right",
        "top5": "the share of validation cases with the right answer among the first five",
        "loss": "the loss on the validation set",
        "count": "the number of cases that the means are taken over",
    }
    """What the numbers of `evaluate` are, by name, for reports."""
    common: ClassVar[tuple[str, ...]] = (
        *("name", "task", "seed", "data.source", "data.image_size"),
        *(key for key in _KEYS if key not in _KEYS_OF_SOME_TASKS),
    )
    """Keys of a recipe that every task with a vision transformer reads."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Keys that this task reads besides the common ones and those that `data.sources` says its data and augmentation
    read, as patterns ("loss.kind", "text.*"). All others are refused when they are changed."""
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Of a task outside the package: what `data.source` can be, and the keys that each source reads. Tasks of the
    package are in the table of `data.sources`."""
    losses: ClassVar[tuple[str, ...]] = ()
    """What `loss.kind` can be, for tasks that read it."""
    config_file: ClassVar[str] = ""
    """The file of a checkpoint that holds `Parts.config`, for tasks whose models may have one."""
    results: Path | None = None
    """The file that `evaluate` writes its predictions to, for tasks that have a format for them; None writes nothing.
    Only the caller sets it: a recipe, which may come from somebody else, names no file to be written."""
    capturable: bool = False
    """Whether `loss` depends on nothing but the model, the batch and torch's own generator, with shapes that never
    change, so that a step can be captured and replayed."""
    stacks_seeds: ClassVar[bool] = False
    """Whether `loop.seeds` models can be trained in one step. Their metrics are then named "seed3/top1", …, beside the
    means over seeds, and each model's gradients, given by `gradients_by_seed`, are clipped by themselves."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @classmethod
    def keys(cls, recipe: Recipe) -> tuple[str, ...]:
        """Every key, as a pattern, that a run of this recipe reads."""
        if not cls.sources:
            return (*cls.common, *cls.reads, *keys_read(recipe.task, recipe.data))
        source = recipe.data.source
        if source not in cls.sources:
            raise ValueError(f"data.source for the task {recipe.task} is {' or '.join(cls.sources)}, got {source!r}")
        return (*cls.common, *cls.reads, *cls.sources[source])

    @classmethod
    def check(cls, recipe: Recipe, given: Iterable[str] | None = None) -> None:
        """Refuse a recipe that cannot be run as it says, before any data is read or made: values out of range, keys
        that nothing reads, and encodings and sizes of which no model can be built. given: keys, each of which must be
        read; by default those that differ from their defaults."""
        check_values(recipe)
        keys = cls.keys(recipe)  # a source that does not serve the task is refused here
        refuse_unread(recipe.task, recipe.data)
        check_keys(recipe, keys, f"the task {recipe.task} with data.source={recipe.data.source}", given)
        check_named_options(recipe.model.encoding_options, "model.encoding_options")
        if cls.losses and recipe.loss.kind not in cls.losses:
            kind = recipe.loss.kind
            raise ValueError(f"loss.kind of the task {recipe.task} is {' or '.join(cls.losses)}, got {kind!r}")
        if recipe.loop.seeds > 1 and not cls.stacks_seeds:
            raise ValueError(f"loop.seeds={recipe.loop.seeds}: the task {recipe.task} trains one seed per run")
        if recipe.loop.batch_size % recipe.loop.accumulate:
            raise ValueError(
                f"{recipe.loop.batch_size} examples per step do not divide into loop.accumulate="
                f"{recipe.loop.accumulate} parts: change it or loop.batch_size"
            )
        with torch.random.fork_rng(devices=()):
            try:
                cls.check_task(recipe)
            except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # of torch, for impossible sizes
                reason = str(error).partition("\n")[0]
                raise ValueError(
                    f"no model can be built with these sizes ({reason}): check model.* and text.*"
                ) from None

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        """Refuse what this task alone cannot do. By default, build a model of one layer, for the errors that a wrong
        encoding, option or size gives."""
        cls.build(with_one_layer(recipe), Parts())

    @classmethod
    def meaning(cls, metric: str) -> str:
        """What a number of `evaluate` is, by its name, or "" for a name that the task does not use. A number of one
        group of cases, "iou_trays", is explained by the name of the whole."""
        whole, _, group = metric.partition("_")
        if metric in cls.meanings or whole not in cls.meanings:
            return cls.meanings.get(metric, "")
        return f"the same as {whole}, of {group} alone"

    @classmethod
    def measures(cls, recipe: Recipe, metric: str) -> bool:
        """Whether a run of this recipe measures a number of that name."""
        return bool(cls.meaning(metric))

    @property
    @abstractmethod
    def examples(self) -> int:
        """Size of the training set."""

    @classmethod
    @abstractmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        """A new model, with random parameters from the global generator."""

    @cached_property
    def parts(self) -> Parts:
        """What this task's data and `model.start` say about its model."""
        return Parts()

    @classmethod
    def read_parts(cls, folder: Path, weights: Mapping[str, Tensor]) -> Parts:
        """What a checkpoint (its folder pretrained_model) holds for its model to be built."""
        tokenizer, config = folder / TOKENIZER, folder / cls.config_file
        return Parts(
            Tokenizer.load(tokenizer) if tokenizer.exists() else None, read_json(config) if config.is_file() else None
        )

    @classmethod
    def changes_to_reopen(cls, recipe: Recipe, folder: Path) -> list[str]:
        """Overrides that let the recipe of a run take from its checkpoint (the folder pretrained_model) what it took
        from other folders when it was trained, which may be gone."""
        return [f"model.start={folder}"] if recipe.model.start else []

    def model(self) -> nn.Module:
        """The model that training begins with: new, or started from the run that `model.start` names."""
        model = self.build(self.recipe, self.parts)
        folder = start_folder(self.recipe) if "model.start" in self.reads else None
        if folder is not None:
            self.start(model, folder)
        return model

    def start(self, model: nn.Module, folder: Path) -> None:
        """Let a new model take over what it can from a run, for tasks that read `model.start`."""
        raise NotImplementedError(f"{type(self).__name__} does not start from other runs")

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The groups of the optimiser: with and without weight decay, the encodings' own with a rate of their own."""
        o = self.recipe.optim
        return param_groups(model, lr=o.lr, weight_decay=o.weight_decay, encoding_lr_scale=o.encoding_lr_scale)

    @abstractmethod
    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        """This process's share of steps start, start + 1, …, endlessly. First dimension of every tensor: examples.

        Neither `start` nor the number of processes may change what step s sees."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss of a batch. Only call `model(…)`: it may be wrapped, and then has no other methods."""

    @abstractmethod
    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        """Metrics of the whole validation set, equal in every process, and the "count" of cases they are taken over.

        All processes must call the model equally often: sharded models communicate in every forward pass."""

    @abstractmethod
    def samples(self, count: int) -> list[Sample]:
        """Validation examples to look at."""

    def gradients_by_seed(self, model: nn.Module) -> list[list[Tensor]]:
        """The gradients of each of `loop.seeds` models, as views, for tasks that stack seeds."""
        raise NotImplementedError(f"{type(self).__name__} trains one seed per run")

    def counters(self) -> dict[str, float]:
        """What went wrong so far without stopping the run, for example {"corrupt": 3.0}."""
        return {}

    def figure(self, runs: Mapping[str, Path], out: Path) -> Path | None:
        """Draw what runs of this task (folders, by row of a comparison) predict, as a file in the folder `out`, for the
        report of a comparison; None where there is nothing to draw."""
        return None

    def files(self) -> dict[str, str]:
        """Texts that a checkpoint must hold for its weights to be used, by file name, for example a tokeniser."""
        tokenizer, config = self.parts.tokenizer, self.parts.config
        texts = {} if tokenizer is None else {TOKENIZER: tokenizer.to_json()}
        return texts if config is None else texts | {self.config_file: json.dumps(dict(config))}


class TextTask(Task):
    """A task with language: its model has an image tower, its part named `image`, and a text tower, its part named
    `text`, which can start from another run and learn at a rate of its own."""

    reads: ClassVar[tuple[str, ...]] = ("text.*", "model.start", "optim.text_lr_scale")

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        check_named_options(recipe.text.encoding_options, "text.encoding_options")
        if read_owl_config(recipe) is not None:
            raise ValueError(
                f"model.start={recipe.model.start} holds an OWL-ViT or OWLv2 of transformers, from which only the task "
                f"detection2d can start"
            )
        backbone(with_one_layer(recipe).model, image_size=recipe.data.image_size)
        build_text_tower(with_one_layer(recipe), vocab=2, padding=0)

    @classmethod
    def changes_to_reopen(cls, recipe: Recipe, folder: Path) -> list[str]:
        tokenizer = folder / TOKENIZER
        return [*super().changes_to_reopen(recipe, folder), *([f"text.tokenizer={tokenizer}"] * tokenizer.exists())]

    def start(self, model: nn.Module, folder: Path) -> None:
        start_towers(model, self.recipe, folder)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The groups of every task, with the text tower's parameters in groups of their own, at `optim.text_lr_scale`
        of the rate."""
        groups, scale = super().parameter_groups(model), self.recipe.optim.text_lr_scale
        tower = getattr(model, "text", None)
        if scale == 1 or not isinstance(tower, nn.Module):
            return groups
        in_tower = {id(p) for p in tower.parameters()}
        split = []
        for group in groups:
            text = [p for p in group["params"] if id(p) in in_tower]
            rest = [p for p in group["params"] if id(p) not in in_tower]
            split += [group | {"params": rest}] if rest else []
            scaled = {"name": f"text {group['name']}", "params": text, "lr": group["lr"] * scale}
            split += [group | scaled] if text else []
        return split


def with_one_layer(recipe: Recipe) -> Recipe:
    """The recipe with towers of one layer, which show whether a model can be built and are built quickly."""
    return replace(recipe, model=replace(recipe.model, layers=1), text=replace(recipe.text, layers=1))


def check_named_options(options: Mapping[str, OptionValue], key: str) -> None:
    """Refuse options for one encoding, "circulant.block_size", that it does not have, whatever the recipe's own is."""
    for name in options:
        encoding, dot, option = name.partition(".")
        known = option_names(find(encoding).factory) if dot else None
        if known is not None and option not in known:
            raise ValueError(f"{key}.{name}: {encoding} has no option {option!r}; it has {', '.join(sorted(known))}")


def sum_batches(batches: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Sums over all batches, from those of each batch."""
    totals: dict[str, Tensor] = {}
    for sums in batches:
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return totals


def sum_processes(sums: Mapping[str, Tensor], place: Place) -> dict[str, float]:
    """Sums over all processes, from those of each process; every process must have the same names."""
    totals = {}
    for name, value in sums.items():
        if place.world > 1:
            value = value.clone()
            torch.distributed.all_reduce(value)
        totals[name] = float(value)
    return totals


def average(sums: Mapping[str, Tensor], place: Place) -> dict[str, float]:
    """Means over the cases of all processes, from sums and their "count", which is kept."""
    totals = sum_processes(sums, place)
    count = totals.pop("count")
    return {name: value / max(count, 1) for name, value in totals.items()} | {"count": count}


def broadcast(value: Value, place: Place) -> Value:
    """The value that process 0 has, in every process."""
    if place.world == 1:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def gather(rows: list[Value], place: Place) -> list[Value]:
    """The rows of all processes together, in every process."""
    if place.world == 1:
        return rows
    parts: list[list[Value]] = [[] for _ in range(place.world)]
    torch.distributed.all_gather_object(parts, rows)
    return [row for part in parts for row in part]
