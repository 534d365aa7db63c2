"""Does a recipe learn on a GPU what it learns without the GPU's shortcuts? Each way of taking a step is added in turn.

    python benchmarks/learning.py scenes_detection3d model.encoding=cayley loop.steps=1000 --ways plain all
    python benchmarks/learning.py tiny_imagenet100 data.train=… data.val=… model.encoding=absolute loop.epochs=20

All ways start from the same weights and see the same batches, so that their losses differ by rounding alone at first,
and by noise later. A way whose curve stays above that of `plain` has a fault. Prints the mean loss of every tenth of
the run, the metric at the end and the milliseconds per step, as a Markdown table.
"""

import argparse
import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from stringpe import recipes
from stringpe.data.order import Place
from stringpe.io.table import markdown_table
from stringpe.models import owl_loss
from stringpe.recipes.schema import Recipe
from stringpe.rotate import use_backend
from stringpe.tasks import create
from stringpe.training.capture import prefetch
from stringpe.training.launch import create_accelerator
from stringpe.training.loop import Run

WAYS = {
    "plain": (),
    "kernels": ("kernels",),
    "matching": ("matching",),
    "compiled": ("compile",),
    "captured": ("compile", "capture"),
    "all": ("kernels", "matching", "compile", "capture"),
}
"""By name, what is on: our kernels for rotations, the kernel that matches objects, compiled layers, captured steps."""
PARTS = 10  # of a run, for each of which the mean loss is shown


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("recipe")
    words.add_argument("changes", nargs="*", metavar="key=value")
    words.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = words.parse_args()
    recipe = recipes.load(given.recipe, given.changes)
    rows = []
    for name in given.ways:
        rows.append((name, *train_one_way(recipe, WAYS[name])))
        print(" ".join(rows[-1]), flush=True)
    head = ("way", *(f"{100 * (i + 1) // PARTS} %" for i in range(PARTS)), "metric (%)", "ms per step")
    print(markdown_table(head, rows))


def train_one_way(recipe: Recipe, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Mean loss of each part of the run, the metric at its end, and milliseconds per step."""
    recipe = replace(recipe, loop=replace(recipe.loop, compile="compile" in parts))
    with contextlib.ExitStack() as stack:
        if "kernels" not in parts:
            stack.enter_context(use_backend("torch"))
        if "matching" not in parts:
            stack.enter_context(_swapped(owl_loss, "_matches_on_device", lambda cost: False))
        task = create(recipe)
        task.capturable = task.capturable and "capture" in parts
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        run = Run(recipe, task, Path(folder), create_accelerator(recipe), quiet=True)
        batches = prefetch(task.batches(0, Place(device=run.place.device)), run.place.device)
        means, before, done, began = [], 0.0, 0, time.perf_counter()
        for step, batch in enumerate(itertools.islice(batches, run.total)):
            run.step(step, batch)
            if (step + 1) * PARTS // run.total > step * PARTS // run.total:  # a tenth ends here
                so_far = float(run.window[0])
                means.append(f"{(so_far - before) / (step + 1 - done):.3f}")
                print(f"steps {done + 1} to {step + 1}: loss {means[-1]}", flush=True)
                before, done = so_far, step + 1
        milliseconds = 1e3 * (time.perf_counter() - began) / run.total
        metric = run.evaluate()[task.metric]
    torch._dynamo.reset()
    return (*means, f"{100 * metric:.2f}", f"{milliseconds:.1f}")


@contextlib.contextmanager
def _swapped(module: object, name: str, value: Callable[..., object]):  # type: ignore[no-untyped-def]
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


if __name__ == "__main__":
    main()
