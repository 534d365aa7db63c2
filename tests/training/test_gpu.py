"""Captured steps on a GPU: the losses of the same run written as it is, and a run that goes on where it stopped."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stringpe import recipes
from stringpe.bench.train import RandomDemos
from stringpe.data.order import Place
from stringpe.io import checkpoint as checkpoints
from stringpe.recipes.overrides import override
from stringpe.tasks import create
from stringpe.training import train
from stringpe.training.capture import CapturedStep, prefetch
from stringpe.training.launch import create_accelerator
from stringpe.training.loop import Run
from task_recipes import FAMILIES

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # Torch's compiler looks at `.grad` of tensors that have none, and ignores the warning that this gives.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
STEPS = 12
NOISE = 2e-2  # of the loss: kernels that are compiled sum in another order, in bfloat16


def compiled(recipe, **model):
    """A short run of a recipe, compiled and in bfloat16, that depends on no dropout."""
    loop = replace(recipe.loop, compile=True, precision="bf16", steps=STEPS, save_every=5, keep=3, log_every=1)
    return replace(recipe, model=replace(recipe.model, dropout=0.0, drop_path=0.0, **model), loop=loop)


def losses(recipe, task, folder, *, captured):
    """The loss of every step, and whether the steps were captured."""
    run = Run(recipe, task, folder, create_accelerator(recipe), quiet=True)
    if not captured:
        run.descend = run._descend
    found = []
    batches = prefetch(task.batches(0, Place(device=run.place.device)), run.place.device)
    for step, batch in enumerate(itertools.islice(batches, STEPS)):
        run.step(step, batch)
        found.append(run.window.clone())
    sums = torch.stack(found)[:, 0].cpu()
    return sums.diff(prepend=sums.new_zeros(1)), isinstance(
        run.descend, CapturedStep
    ) and run.descend.replay is not None


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("policy", "relations", "retrieval")])
def test_captured_steps_give_the_losses_of_steps_as_written(family, tmp_path):
    own = ["augment.mosaic=", "data.negatives=57"] if family == "detection2d" else []  # steps of one form
    recipe = override(compiled(next(iter(FAMILIES[family](tmp_path)))), own)
    task = create(recipe)
    wanted, was_captured = losses(recipe, task, tmp_path / "a", captured=False)
    assert not was_captured
    found, was_captured = losses(recipe, task, tmp_path / "b", captured=True)
    assert was_captured
    torch.testing.assert_close(found, wanted, rtol=NOISE, atol=NOISE)


def test_a_captured_diffusion_policy_learns_as_one_whose_steps_are_not(tmp_path):
    """Its noise comes from torch's generator, which a graph advances in its own way: curves agree, not steps."""
    small = ["loop.compile=true", "loop.precision=bf16", "loop.batch_size=64", f"loop.steps={STEPS}"]
    recipe = override(recipes.load("aloha_small"), small)
    wanted, _ = losses(recipe, RandomDemos(recipe), tmp_path / "a", captured=False)
    found, was_captured = losses(recipe, RandomDemos(recipe), tmp_path / "b", captured=True)
    assert was_captured
    assert float(found[-4:].mean()) == pytest.approx(float(wanted[-4:].mean()), rel=0.15)
    assert found[-4:].mean() < found[:4].mean()


def test_a_captured_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    recipe = compiled(next(iter(FAMILIES["classification"](tmp_path))))
    train(recipe, tmp_path / "whole", quiet=True)
    write = checkpoints.write

    def stop(out, checkpoint, keep):
        write(out, checkpoint, keep=keep)
        if checkpoint.step == 5:
            raise InterruptedError

    monkeypatch.setattr(checkpoints, "write", stop)
    with pytest.raises(InterruptedError):
        train(recipe, tmp_path / "parts", quiet=True)
    monkeypatch.setattr(checkpoints, "write", write)
    train(recipe, tmp_path / "parts", quiet=True)
    (_, whole), (_, parts) = (checkpoints.read_model(tmp_path / name) for name in ("whole", "parts"))
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=NOISE, atol=2e-3)
    lines = Path(tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert sum('"loss"' in line and '"val/' not in line for line in lines) == STEPS
