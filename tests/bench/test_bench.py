"""The benchmarks run, and what they compare computes the same thing."""

import json

import pytest
import torch

from stringpe import bench, testing
from stringpe.bench import models, op, timing
from stringpe.bench.report import markdown
from stringpe.bench.timing import Timing
from stringpe.bench.ways import WAYS, cayley_matmul, cayley_solve, complex_numbers, peers, rotate_half

CPU = torch.device("cpu")
SMALL = op.Shape(2, 3, 5, 8)


def test_the_ways_have_the_scores_of_ours():
    """In their own layouts: what counts is q·k. The basis is the way's own; without one, all must agree."""
    job = op.Job(SMALL, torch.float64, CPU)
    arguments = (job.q, job.k, job.coords, job.frequencies, job.skew)
    q, k = op.ours(*arguments)
    truth = q @ k.mT
    q, k = rotate_half(*arguments)
    assert testing.relative_error(q @ k.mT, truth) < testing.tolerance(torch.float32)  # its angles are float32 products
    interleaved = [t.unflatten(-1, (2, -1)).mT.flatten(-2) for t in (job.q, job.k)]
    q, k = complex_numbers(*interleaved, *arguments[2:])
    assert testing.relative_error(q @ k.mT, truth) < testing.tolerance(torch.float32)  # its angles are float32 products
    one, other = cayley_matmul(*arguments), cayley_solve(*arguments)
    for a, b in zip(one, other, strict=True):
        assert testing.relative_error(a, b) < 1e-5
    assert testing.relative_error(one[0] @ one[1].mT, truth) > 1e-2


@pytest.mark.parametrize("name", WAYS)
def test_the_ways_keep_norms_and_give_gradients(name):
    job = op.Job(SMALL, torch.float32, CPU)
    q, _ = WAYS[name](job.q, job.k, job.coords, job.frequencies, job.skew)
    torch.testing.assert_close(q.norm(dim=-1), job.q.norm(dim=-1), rtol=1e-4, atol=1e-4)
    row = job.row(name, WAYS[name], floor=1.0)
    assert row.both.median > 0
    assert row.both == row.both_call  # no graph on a CPU


@pytest.mark.parametrize("way", ["absolute", *models.builders()])
def test_every_model_trains_and_folds(way):
    sizes = {"size": "vit_test_patch16", "batch": 2, "image_size": 32, "seconds": 0.0}
    rows = list(models.vit_rows([way], CPU, modes=("eager",), dtype=torch.float32, **sizes))
    assert rows[0].train.median > 0
    low, median, high = rows[0].inference.ratio
    assert 0 < low <= median <= high


def test_a_run_writes_json_markdown_and_a_plot_and_adds_to_them(tmp_path, monkeypatch):
    monkeypatch.setitem(bench.report.OP_SHAPES, "cpu", [SMALL])
    bench.run(["op"], out=tmp_path, device="cpu", compiled=False)
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [row["way"] for row in kept["op"]] == ["ours", *WAYS, *peers()]
    assert kept["runs"][0]["torch"] == torch.__version__
    page = (tmp_path / "bench.md").read_text()
    assert "## Rotating q and k" in page
    assert (tmp_path / "bench.png").stat().st_size > 1000
    again = bench.run(["op"], out=tmp_path, device="cpu", compiled=False)
    assert len(again["op"]) == 2 * len(kept["op"])
    assert markdown(again).count("ours (torch)") == 2


def test_growth_covers_its_axes(monkeypatch):
    monkeypatch.setattr(op, "measure", lambda run, device, calls: Timing(1.0, 1.0, 1.0, 1))
    assert {axis for axis, _, _ in op.growth(torch.float32, CPU)} == {"n", "c", "h", "d"}


def test_timing_is_per_call(monkeypatch):
    calls = []

    def clock(run):
        run()
        return 10.0

    monkeypatch.setattr(timing, "_cpu_milliseconds", clock)
    result = timing.measure(lambda: calls.append(1), CPU, seconds=0.1, calls=5)
    assert (result.median, result.low, result.high) == (2.0, 2.0, 2.0)
    assert result.repeats == 10  # a tenth of a second, at ten milliseconds a sample
    assert len(calls) == 3 + 5 + 10 * 5


def test_timing_in_turns_takes_the_drift_out(monkeypatch):
    heat = [1.0]
    cost = {"base": 10.0, "run": 15.0}

    def clock(run):
        heat[0] *= 1.01
        return heat[0] * cost[run()[0]]

    monkeypatch.setattr(timing, "_cpu_milliseconds", clock)
    result = timing.measure_in_turns(lambda: "base", lambda: "run", CPU, seconds=0.5, calls=1)
    assert result.repeats == 19
    assert all(abs(r - 1.5 * 1.01) < 1e-9 for r in result.ratio)
    assert result.high / result.low > 1.05


def test_a_peer_that_fails_to_import_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    (tmp_path / "liger_kernel").mkdir()
    (tmp_path / "liger_kernel" / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "Liger (one table)" not in peers()
    assert "liger_kernel.transformers.rope is installed but fails to import (built for" in capsys.readouterr().err
