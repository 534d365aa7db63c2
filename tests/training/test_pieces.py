"""The small parts of the loop: order, schedule, average, generators, files, log, clock."""

import json
import os
import random

import numpy
import pytest
import torch

from stringpe.data.order import Order, derive
from stringpe.io.files import new_folder, write_json
from stringpe.recipes.overrides import override
from stringpe.tasks import create
from stringpe.training.costs import Clock, peak_bytes, reset_peak
from stringpe.training.launch import create_accelerator
from stringpe.training.log import Log
from stringpe.training.loop import Run, constant, cosine
from stringpe.training.state import Ema, restore_generators, save_generators


def test_an_epoch_takes_every_example_once_even_where_batches_span_epochs():
    order = Order(10, 4, seed=3)
    seen = torch.cat([order(step) for step in range(5)])
    assert sorted(seen[:10].tolist()) == list(range(10))
    assert sorted(seen[10:].tolist()) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist()


def test_the_order_is_a_function_of_seed_and_step_and_processes_share_it():
    order = Order(50, 8, seed=1)
    later = order(17)
    assert torch.equal(Order(50, 8, seed=1)(17), later)
    assert torch.equal(torch.cat([order(17, r, 4) for r in range(4)]), later)
    assert not torch.equal(Order(50, 8, seed=2)(17), later)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="training set is empty"):
        Order(0, 8, 0)


def test_derived_seeds_differ_and_fit():
    seeds = {derive(s, what, i) for s in range(5) for what in ("a", "b") for i in range(20)}
    assert len(seeds) == 200
    assert all(0 <= s < 2**63 for s in seeds)


def test_warm_up_and_cosine():
    assert [cosine(s, 100, 10) for s in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert cosine(10, 100, 10) == 1.0
    assert cosine(55, 100, 10) == pytest.approx(0.5)
    assert 0 < cosine(99, 100, 10) < 1e-3
    assert [constant(s, 100, 10) for s in (0, 4, 9, 50, 99)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    assert constant(0, 100, 0) == 1


def test_the_schedule_is_the_recipes(toy, tmp_path):
    """Without decay, the last step is taken at the full rate."""
    moved = {}
    for schedule in ("cosine", "constant"):
        recipe = override(toy, [f"optim.schedule={schedule}", "optim.warmup_steps=0", "loop.steps=3"])
        run = Run(recipe, create(recipe), tmp_path / schedule, create_accelerator(recipe), quiet=True)
        run.train()
        moved[schedule] = run.optimizer.param_groups[0]["lr"]
    assert moved["constant"] == pytest.approx(toy.optim.lr)
    assert moved["cosine"] == pytest.approx(toy.optim.lr * cosine(2, 3, 0))
    with pytest.raises(ValueError, match=r"optim.schedule is one of 'cosine', 'constant', got 'linear'"):
        override(toy, ["optim.schedule=linear"])


def test_the_average_follows_the_formula_and_swaps():
    layer = torch.nn.Linear(2, 1, bias=False)
    start = layer.weight.detach().clone()
    ema = Ema(layer, decay=0.9)
    with torch.no_grad():
        layer.weight += 1
    ema.update(step=0)  # decay 1/10 at the first step
    assert torch.allclose(ema.average["weight"], start + 0.9)
    with torch.no_grad():
        layer.weight += 1
    ema.update(step=1000)
    with ema.swapped():
        assert torch.allclose(layer.weight, start + 0.9 * 0.9 + 0.1 * 2)
    assert torch.allclose(layer.weight, start + 2)


def test_generators_come_back_exactly():
    random.gauss(0, 1)  # leaves a second value waiting, which is part of the state
    numpy.random.seed(0)  # noqa: NPY002
    numpy.random.randn()  # noqa: NPY002
    state = save_generators(torch.device("cpu"))

    def draw():
        return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), numpy.random.randn()  # noqa: NPY002

    first = draw()
    draw()
    restore_generators(state, torch.device("cpu"))
    assert draw() == first
    assert all(isinstance(t, torch.Tensor) for t in state.values())


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fails():
        with new_folder(tmp_path / "5") as draft:
            (draft / "half").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not (tmp_path / "5").exists()
    with new_folder(tmp_path / "5") as draft:
        (draft / "all").write_text("x")
    assert os.listdir(tmp_path) == ["5"]  # the stale draft is gone too
    assert (tmp_path / "5" / "all").read_text() == "x"


def test_json_replaces_in_one_step(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 2}
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_log_drops_what_came_after_the_checkpoint(tmp_path):
    with Log(tmp_path, "t", 10, quiet=True) as log:
        log.write(1, {"loss": 1.0})
        position = log.position()
        log.write(2, {"loss": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1]) == {"step": 2, "loss": None}
    with Log(tmp_path, "t", 10, quiet=True, position=position) as log:
        log.write(2, {"loss": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_plain_lines_are_sparse(tmp_path, capsys):
    with Log(tmp_path, "title", 100, quiet=False) as log:
        for step in range(1, 101):
            log.show(step, {"loss": 0.25})
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("title: 1 / 100 steps")
    assert last.startswith("title: 100 / 100 steps")
    assert first.count("loss 0.25") == last.count("loss 0.25") == 1


def test_the_clock_leaves_out_the_first_window():
    clock = Clock()
    assert clock.milliseconds() is None
    clock._windows = [500.0]
    assert clock.milliseconds() == 500.0
    clock._windows += [10.0, 12.0, 11.0]
    assert clock.milliseconds() == 11.0


def test_peak_memory_sees_a_large_tensor_and_forgets_it():
    device = torch.device("cpu")
    reset_peak(device)
    before = peak_bytes(device)
    held = torch.ones(50_000_000)
    assert peak_bytes(device) - before > 150e6
    del held
    reset_peak(device)
    assert peak_bytes(device) - before < 100e6
