"""A recipe's keys: what a task declares to read is what a run reads, and everything else is refused."""

import dataclasses
import sys
from contextlib import contextmanager
from dataclasses import fields

import pytest

from stringpe import recipes, tasks
from stringpe.data import fingerprints, sources
from stringpe.data.cache import forget_all
from stringpe.recipes.overrides import keys, override
from stringpe.recipes.rules import is_read
from stringpe.recipes.schema import Recipe
from stringpe.training import train
from task_recipes import FAMILIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*image encoder starts at random",
        "ignore::ResourceWarning",  # a stream that is left leaves its file open
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]

GROUPS = {f.name: type(getattr(Recipe(), f.name)) for f in fields(Recipe) if dataclasses.is_dataclass(f.default)}
_NOT_READERS = (dataclasses.__file__, fingerprints.__file__, "<string>")
_CHECKS = {
    "check_task",
    "check_named_options",
    "_leaves",
    "start_recipe",
    "start_files",
    "fill_in",
    "mark_data",
    "check_source",
    "refuse_unread",
    "keys_read",
}
"""Copies, comparisons, digests, checks, and the search for what a run starts from look at every recipe."""
_SEEDS = "loop.seeds"  # looked at by the loop of every task, and refused where it is not 1 and not declared


@contextmanager
def recorded():
    """The keys of every recipe that are read inside."""
    found = set()

    def patch(owner, prefix):
        names = {f.name for f in fields(owner)} - set(GROUPS)

        def read(self, name):
            caller = sys._getframe(1).f_code
            if (
                name in names
                and caller.co_filename not in _NOT_READERS
                and _CHECKS.isdisjoint(caller.co_qualname.split("."))
            ):
                found.add(prefix + name)
            return object.__getattribute__(self, name)

        owner.__getattribute__ = read

    for name, owner in GROUPS.items():
        patch(owner, f"{name}.")
    patch(Recipe, "")
    try:
        yield found
    finally:
        for owner in (*GROUPS.values(), Recipe):
            del owner.__getattribute__


SOURCES = {
    "classification": {"synthetic", "shards", "folder", "stream"},  # huggingface reads what folder does
    "objects": {"scenes"},
    "retrieval": {"scenes", "shards", "folder", "stream"},
    "detection2d": {"coco", "scenes"},
    "detection3d": {"scenes", "one_object", "omni3d"},
    "policy": {"demos"},
    "relations": {"points"},
    "shapes": {"clouds"},
}


LOOKED_AT = {
    # Looked at in code that several sources share, without any effect for this one.
    ("classification", "synthetic"): {"data.in_memory", "data.train", "data.val"},
    ("classification", "folder"): {"data.cache"},
    ("retrieval", "scenes"): {"data.in_memory", "data.train"},
    ("retrieval", "shards"): {"data.in_memory"},
    ("retrieval", "folder"): {"data.in_memory"},
    ("detection2d", "scenes"): {"data.workers"},
}
UNREAD = {
    # Augmentations of classification that one way of loading has and another has not.
    ("classification", "synthetic"): {"augment.randaugment", "augment.magnitude"},
    ("classification", "stream"): {"augment.colour"},
    ("policy", "diffusion"): {"policy.trials"},  # needs policy.simulate
    ("policy", "energy"): {"policy.trials"},
    ("relations", "points"): {"loop.epochs", "optim.ema_power"},  # of runs without loop.steps, and with optim.ema
}


@pytest.mark.parametrize("task", tasks.names())
def test_what_is_declared_is_what_is_read_and_what_is_measured_has_a_meaning(task, tmp_path):
    declared, read, kind_of_task = {}, {}, tasks.task_class(task)
    for number, recipe in enumerate(FAMILIES[task](tmp_path)):
        kind = recipe.policy.kind if task == "policy" else recipe.data.source
        forget_all()  # a set that this process keeps is not read again
        with recorded() as found:
            metrics = train(recipe, tmp_path / f"run{number}", quiet=True)["metrics"]
        assert [name for name in metrics if not kind_of_task.meaning(name) and not name.startswith("seed")] == []
        patterns = kind_of_task.keys(recipe)
        declared[kind] = {key for key in keys() if is_read(key, patterns)}
        read[kind] = read.get(kind, set()) | found
    assert set(read) == SOURCES[task] or task == "policy"
    clean = {kind: set() for kind in read}
    more = {kind: read[kind] - declared[kind] - LOOKED_AT.get((task, kind), set()) - {_SEEDS} for kind in read}
    assert more == clean, "read, not declared"
    fewer = {kind: declared[kind] - read[kind] - UNREAD.get((task, kind), set()) for kind in read}
    assert fewer == clean, "declared, not read"


def test_every_task_is_tested():
    assert set(FAMILIES) == set(tasks.names())
    for task in tasks.names():
        assert set(sources.SERVES[task]) - {"huggingface"} == SOURCES[task]


LOSSES = {name: tasks.task_class(name).losses for name in tasks.names() if tasks.task_class(name).losses}


def test_every_task_that_reads_the_kind_of_loss_says_which_there_are():
    assert set(LOSSES) == {name for name in tasks.names() if "loss.kind" in tasks.task_class(name).reads}


@pytest.mark.parametrize("task", LOSSES)
def test_a_loss_that_a_task_does_not_have_is_refused_before_its_data_is_asked_for(task):
    (recipe, *_) = (recipe for recipe in map(recipes.load, recipes.names()) if recipe.task == task)
    with pytest.raises(ValueError, match=rf"loss.kind of the task {task} is {' or '.join(LOSSES[task])}, got 'hinge'"):
        tasks.check(override(recipe, ["loss.kind=hinge"]))


@pytest.mark.parametrize("name", recipes.names())
def test_shipped_recipes_hold_nothing_that_is_not_read(name):
    tasks.check(recipes.load(name))
