"""The benchmarks run, and what they compare computes the same thing."""

import json
import re
import weakref

import pytest
import torch

from stringpe import bench, testing
from stringpe.bench import models, op, timing
from stringpe.bench.alternatives import (
    ALTERNATIVES,
    cayley_matmul,
    cayley_solve,
    complex_numbers,
    find_peers,
    rotate_half,
)
from stringpe.bench.results import markdown
from stringpe.bench.timing import LeftOut, Timing

CPU = torch.device("cpu")
SMALL = op.Shape(2, 3, 5, 8)


def test_the_ways_have_the_scores_of_ours():
    """In their own layouts: what counts is q·k. The basis is the way's own; without one, all must agree."""
    job = op.OpInputs(SMALL, torch.float64, CPU)
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


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_the_ways_keep_norms_and_give_gradients(name):
    job = op.OpInputs(SMALL, torch.float32, CPU)
    q, _ = ALTERNATIVES[name](job.q, job.k, job.coords, job.frequencies, job.skew)
    torch.testing.assert_close(q.norm(dim=-1), job.q.norm(dim=-1), rtol=1e-4, atol=1e-4)
    row = job.row(name, ALTERNATIVES[name], floor=1.0)
    assert row.both.median > 0
    assert row.both == row.both_call  # no graph on a CPU


@pytest.mark.parametrize("way", ["absolute", *models.builders()])
@pytest.mark.slow
def test_every_model_trains_and_folds(way):
    sizes = {"size": "vit_test_patch16", "batch": 2, "image_size": 32, "seconds": 0.0}
    rows = list(models.vit_rows([way], CPU, modes=("eager",), dtype=torch.float32, **sizes))
    assert rows[0].train.median > 0
    low, median, high = rows[0].inference.ratio
    assert 0 < low <= median <= high


@pytest.fixture
def uncompiled(monkeypatch):
    """The rows of compiled ways, without the time that the compiler takes."""
    monkeypatch.setattr(torch, "compile", lambda way, **_: way)


@pytest.mark.slow
def test_a_run_writes_json_markdown_and_a_plot_and_adds_to_them(tmp_path, monkeypatch, uncompiled):
    monkeypatch.setitem(bench.results.OP_SHAPES, "cpu", [SMALL])
    bench.run(["op"], out=tmp_path, device="cpu")
    kept = json.loads((tmp_path / "bench.json").read_text())
    ways = [row["way"] for row in kept["op"]]
    assert [way for way in ways if not way.endswith(", compiled")] == ["ours", *ALTERNATIVES, *find_peers()]
    assert [way for way in ways if way.endswith(", compiled")] == [
        "rotate-half, compiled", "Cayley, P by matmul on tokens, compiled"
    ]  # fmt: skip
    assert kept["runs"][0]["torch"] == torch.__version__
    page = (tmp_path / "bench.md").read_text()
    assert "## Rotating q and k" in page
    assert (tmp_path / "bench.png").stat().st_size > 1000
    again = bench.run(["op"], out=tmp_path, device="cpu")
    assert len(again["op"]) == 2 * len(kept["op"])
    assert markdown(again).count("ours (torch)") == 2


@pytest.fixture
def once(monkeypatch, uncompiled):
    """Everything is called once, and takes a millisecond; `memory` tells whether it gave something back."""

    def measure(run, device, calls):
        return Timing(1.0, 1.0, 1.0, 1, memory=float(run() is not None))

    monkeypatch.setattr(op, "measure", measure)
    monkeypatch.setattr(models, "measure", measure)


@pytest.mark.slow
def test_growth_covers_its_axes(monkeypatch):
    monkeypatch.setattr(op, "measure", lambda run, device, calls: Timing(1.0, 1.0, 1.0, 1))
    found = list(op.measure_growth(torch.float32, CPU))
    assert {axis for axis, _, _ in found} == {"n", "c", "h", "d"}
    assert all(isinstance(row, op.OpRow) for _, _, row in found)


@pytest.mark.slow
def test_every_attention_layer_is_measured_training_and_folded(once):
    found = list(models.block_rows(CPU, dim=16, heads=2, batch=1, tokens=3, dtype=torch.float32))
    assert [row.way for row in found] == ["no encoding", *models.builders()]
    assert all((row.train.memory, row.inference.memory) == (0.0, 1.0) for row in found)  # a step gives nothing back


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


def test_a_peer_that_fails_to_import_is_left_out_and_named(tmp_path, monkeypatch, once):
    (tmp_path / "liger_kernel").mkdir()
    (tmp_path / "liger_kernel" / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(op, "ALTERNATIVES", {})
    found = [row for row in op.rows(SMALL, torch.float32, CPU) if isinstance(row, LeftOut)]
    assert found == [LeftOut("Liger (one table)", str(SMALL), "RuntimeError: built for another torch")]


def without_memory(q, k, coords, frequencies, skew):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.02 GiB.\nUse less.")


def test_a_way_without_memory_is_left_out_and_the_others_go_on(tmp_path, monkeypatch, once):
    monkeypatch.setitem(bench.results.OP_SHAPES, "cpu", [SMALL])
    monkeypatch.setattr(op, "ALTERNATIVES", {"greedy": without_memory, "rotate-half": rotate_half})
    monkeypatch.setattr(op, "find_peers", dict)
    bench.run(["op"], out=tmp_path, device="cpu")
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [row["way"] for row in kept["op"]] == ["ours", "rotate-half", "rotate-half, compiled"]
    why = "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB."
    assert kept["left_out"] == [{"part": "op", "way": "greedy", "where": str(SMALL), "why": why}]
    assert f"| greedy | {SMALL} | {why} |" in (tmp_path / "bench.md").read_text()


def test_a_shape_without_memory_is_left_out_whole(monkeypatch):
    def full(shape, dtype, device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(op, "OpInputs", full)
    why = "OutOfMemoryError: CUDA out of memory."
    assert list(op.rows(SMALL, torch.float32, CPU)) == [LeftOut("every way", str(SMALL), why)]
    assert {row for _, _, row in op.measure_growth(torch.float32, CPU)} > {
        LeftOut("ours", "(1, 12, 64, 64), 3 coordinates", why)
    }


def test_a_model_that_fails_is_left_out_and_the_next_is_the_base(monkeypatch):
    def built(way, size, device, vit_of=models.vit_of):
        if way == "absolute":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return vit_of(way, size, device)

    monkeypatch.setattr(models, "vit_of", built)
    sizes = {"size": "vit_test_patch16", "batch": 2, "image_size": 32, "seconds": 0.0}
    ways = ["absolute", "ours, rope", "ours, cayley"]
    left, *rows = models.vit_rows(ways, CPU, modes=("eager",), dtype=torch.float32, **sizes)
    assert left == LeftOut("absolute", "eager", "OutOfMemoryError: CUDA out of memory.")
    assert [row.way for row in rows] == ways[1:]
    assert all(row.train.ratio for row in rows)
    with pytest.raises(ValueError, match="there is no way 'cayly': ways are absolute; ours, rope"):
        next(models.vit_rows(["cayly"], CPU))


def test_nothing_measured_is_no_page_that_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(bench.results.OP_SHAPES, "cpu", [SMALL])
    monkeypatch.setattr(op, "OpInputs", without_memory)
    results = bench.run(["op"], out=tmp_path, device="cpu")
    assert "op" not in results
    assert "every way" in (tmp_path / "bench.md").read_text()


def test_an_interrupted_run_leaves_what_it_measured_and_the_next_adds_to_it(tmp_path, monkeypatch, once):
    def interrupt(q, k, coords, frequencies, skew):
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.results.OP_SHAPES, "cpu", [SMALL])
    monkeypatch.setattr(op, "find_peers", dict)
    monkeypatch.setattr(op, "ALTERNATIVES", {"rotate-half": rotate_half, "stopped": interrupt})
    with pytest.raises(KeyboardInterrupt):
        bench.run(["op"], out=tmp_path, device="cpu")
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [row["way"] for row in kept["op"]] == ["ours", "rotate-half", "rotate-half, compiled"]
    assert "| rotate-half " in (tmp_path / "bench.md").read_text()
    monkeypatch.setattr(op, "ALTERNATIVES", {"rotate-half": rotate_half})
    again = bench.run(["op"], out=tmp_path, device="cpu")
    assert again["op"][:3] == kept["op"]
    assert [row["way"] for row in again["op"]] == 2 * ["ours", "rotate-half", "rotate-half, compiled"]
    assert len(again["runs"]) == 2


def test_what_waits_for_the_device_is_not_captured(monkeypatch):
    """On a GPU, a capture that fails spoils the allocator: it must not be tried."""
    mode = ["default"]

    def waiting():
        if mode[0] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda name: mode.__setitem__(0, name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: pytest.fail("captured"))
    assert timing.capture(waiting, torch.device("cuda")) is None
    assert mode == ["default"]
    with pytest.raises(torch.OutOfMemoryError):
        timing.capture(lambda: without_memory(*[None] * 5), torch.device("cuda"))
    assert mode == ["default"]


def test_memory_is_given_back_between_ways(monkeypatch):
    """All that a way made is gone when the next one starts, with the frames of a failure and the cycles in them."""
    alive = []

    def measured():
        tensor = torch.zeros(3)
        cycle = [tensor]
        cycle.append(cycle)
        alive.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(None))
    assert isinstance(timing.attempt("first", "here", torch.device("cuda"), measured), LeftOut)
    assert (
        timing.attempt("second", "here", torch.device("cuda"), lambda: [ref and ref() for ref in alive]) == [None] * 3
    )


def test_the_floor_is_the_faster_of_a_call_and_a_replay(monkeypatch):
    job = op.OpInputs(SMALL, torch.float32, CPU)
    for replay, call in ((0.777, 0.507), (0.006, 0.013)):
        timings = tuple(Timing(t, t, t, 1) for t in (replay, call))
        monkeypatch.setattr(job, "_time", lambda run, timings=timings: timings)
        assert job.floor() == min(replay, call)


@pytest.mark.parametrize("case", ["tiny_imagenet100", "diffusion policy", "ViT-S/16 at 224 px"])
@pytest.mark.slow
def test_the_training_loop_is_measured_beside_a_plain_one(case):
    from stringpe.bench import train

    chunk = ["policy.chunk=10"] if case == "diffusion policy" else []
    (row,) = train.rows(CPU, (case,), ["data.image_size=32", "model.patch_size=16", *chunk], seconds=0.0)
    assert isinstance(row, train.TrainRow), row
    low, median, high = row.loop.ratio
    assert 0 < low <= median <= high
    assert row.images_per_second == pytest.approx(1e3 * row.batch / row.loop.median)
    assert row.flops > 1e5
    assert (row.kernels, row.batch_kernels, row.utilisation) == (None, None, None)  # a GPU's
    assert (row.timm is not None) == (case == "ViT-S/16 at 224 px")
    assert row.timm is None or row.timm > 0


def test_the_products_of_a_step_are_counted_once_and_ours_with_them():
    """One linear layer of a task: 2 n m k forward, and twice that backward."""
    from stringpe.bench.train import count_flops

    class Product:
        def model(self):
            return torch.nn.Linear(5, 7, bias=False)

        def loss(self, model, batch):
            return model(batch["x"]).sum()

    x = torch.randn(3, 5, requires_grad=True)
    assert count_flops(Product(), {"x": x}, CPU) == 3 * 2 * 3 * 5 * 7


def test_kernels_are_told_apart_by_their_names():
    from stringpe.bench.train import sum_kinds

    times = {
        "nvjet_hsh_128x256_64x4": 4.0,
        "void pytorch_flash::flash_fwd_kernel<...>": 2.0,
        "backward_kernel": 1.0,
        "triton_per_fused_native_layer_norm_3": 0.5,
        "void at::native::multi_tensor_apply_kernel<..., FusedAdamMathFunctor>": 0.25,
        "Memcpy DtoD (Device -> Device)": 0.125,
        "void at::native::vectorized_elementwise_kernel<...>": 0.0625,
        "sm90_xmma_gemm_bf16": 3.0,
        "sm90_xmma_wgrad_implicit_gemm_bf16": 1.5,
    }
    kinds = sum_kinds(times)
    assert kinds == {
        "products": 7.0, "attention": 2.0, "convolutions": 1.5, "rotation": 1.0, "compiled": 0.5, "optimiser": 0.25,
        "copies": 0.125, "other": 0.0625,
    }  # fmt: skip
    assert next(iter(kinds)) == "products"


def test_the_table_of_training_and_an_unknown_case(tmp_path, monkeypatch):
    from stringpe.bench import train

    row = train.TrainRow(
        "tiny", "cayley", 8, Timing(2.0, 1.9, 2.1, 7, ratio=(0.9, 1.0, 1.1)), 2.0, 1.5, 4000.0, 1e9, 0.42,
        kinds={"products": 1.25, "rotation": 0.25}, plain_kinds={"products": 1.125}, batch_kernels=0.375,
    )  # fmt: skip
    monkeypatch.setattr(train, "rows", lambda device, names: iter([row]))
    bench.run(["train"], out=tmp_path, device="cpu")
    page = (tmp_path / "bench.md").read_text()
    assert "## Training" in page
    assert re.search(r"1.500 \| +0.375 \|", page), page
    assert "42.0 %" in page
    assert re.search(r"tiny, our loop +\| +1.25 \| +0.25 \|", page), page
    assert re.search(r"tiny, plain loop +\| +1.12 \| +0.00 \|", page), page
    monkeypatch.undo()
    with pytest.raises(ValueError, match="there is no training benchmark named 'tinny'"):
        next(train.rows(CPU, ("tinny",)))
