"""Steps without their host: captured steps, compiled layers, and the loop against one written by hand."""

import contextlib
import itertools
import types
import warnings
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stringpe import encoding
from stringpe.data.order import Place
from stringpe.encoding import param_groups
from stringpe.io import checkpoint as checkpoints
from stringpe.models.depth import surface_normals
from stringpe.recipes.overrides import override
from stringpe.seeds import derive
from stringpe.tasks import create
from stringpe.training import capture, train
from stringpe.training.capture import CapturedStep, cuda_graph, prefetch
from stringpe.training.loop import cosine
from task_recipes import FAMILIES

CPU = torch.device("cpu")


def by_hand(recipe):
    """The weights after a run of the recipe, trained by the few lines that anyone would write."""
    task = create(recipe)
    torch.manual_seed(derive(recipe.seed, "model"))
    model = task.model().train()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.numel() > 0)
    o = recipe.optim
    groups = param_groups(model, lr=o.lr, weight_decay=o.weight_decay, encoding_lr_scale=o.encoding_lr_scale)
    optimiser = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    rates = [group["lr"] for group in optimiser.param_groups]
    torch.manual_seed(derive(recipe.seed, "train", 0))
    batches = task.batches(0, Place())
    losses = []
    for step in range(recipe.loop.steps):
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * cosine(step, recipe.loop.steps, o.warmup_steps)
        loss = task.loss(model, next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return model.state_dict(), losses


@pytest.mark.parametrize("encoding", ["absolute", "rope_mixed", "cayley"])
def test_the_loop_is_the_loop_written_by_hand_bit_for_bit(changed, tmp_path, encoding):
    recipe = changed(
        model={"encoding": encoding, "dropout": 0.1, "drop_path": 0.1},
        augment={"mixup": 0.5, "crop": 0.5, "flip": True},
        loop={"eval_every": 0, "save_every": 100},
    )
    wanted, losses = by_hand(recipe)
    train(recipe, tmp_path, quiet=True)
    _, weights = checkpoints.read_model(tmp_path)
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    window = torch.zeros(())
    for loss in losses[:4]:
        window += torch.tensor(loss)
    first = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    assert f'"loss": {window.item() / 4}' in first


class Trainer:
    """A step on one weight, written as the loop's is: in place, from tensors that stay."""

    def __init__(self):
        self.weight, self.calls, self.read = torch.zeros(2), 0, set()

    def step(self, batch):
        self.calls += 1
        self.read.add(batch["x"].data_ptr())
        self.weight.mul_(0.5).add_(batch["x"])


def replayed(run):
    """A graph that records what is called and runs nothing until it is replayed."""
    return run


def test_a_captured_step_takes_every_step_once():
    plain, captured = Trainer(), Trainer()
    step = CapturedStep(captured.step, CPU, graph=replayed)
    for i in range(10):
        batch = {"x": torch.tensor([float(i), 1.0])}
        plain.step(batch)
        step(batch)
        assert torch.equal(plain.weight, captured.weight)
    assert captured.calls == 10
    assert step.replay is not None


def test_a_captured_step_reads_from_tensors_of_its_own():
    trainer = Trainer()
    step = CapturedStep(trainer.step, CPU, graph=replayed)
    batch = {"x": torch.ones(2)}
    for _ in range(5):
        step(batch)
    step({"x": torch.full((2,), 3.0)})
    assert trainer.read == {step.batch["x"].data_ptr()}  # in the first steps, too: what was compiled for it is captured
    assert batch["x"].data_ptr() not in trainer.read
    assert step.batch["x"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "other", [{"x": torch.ones(1)}, {"x": torch.ones(2).double()}, {"x": torch.ones(2), "y": torch.ones(2)}, {}]
)
def test_a_batch_of_another_form_ends_the_capturing(other):
    """It would be broadcast or converted into the tensors that stay, or leave the last batch in them."""
    trainer, seen = Trainer(), []
    step = CapturedStep(lambda batch: seen.append(dict(batch)), CPU, graph=replayed)
    for _ in range(5):
        step({"x": torch.zeros(2)})
    with pytest.warns(RuntimeWarning, match="run one by one, because this batch has another form than the first"):
        step(other)
    assert seen[-1] is not step.batch
    assert all(torch.equal(seen[-1][name], other[name]) for name in other)
    assert seen[-1].keys() == other.keys()
    step.step = trainer.step
    step({"x": torch.ones(2)})
    assert trainer.weight.tolist() == [1.0, 1.0]


def test_a_step_that_cannot_be_captured_goes_on_as_it_is_written():
    plain, other = Trainer(), Trainer()

    def refuse(run):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    step = CapturedStep(other.step, CPU, graph=refuse)
    batches = [{"x": torch.tensor([float(i), 1.0])} for i in range(8)]
    for batch in batches:
        plain.step(batch)
    with pytest.warns(RuntimeWarning, match="runs uncaptured: operation not permitted when stream is capturing$"):
        list(map(step, batches))
    assert torch.equal(plain.weight, other.weight)


def test_gradients_that_a_failed_capture_leaves_are_forgotten(changed, tmp_path):
    from stringpe.training.launch import create_accelerator
    from stringpe.training.loop import Run

    recipe = changed(model={"dropout": 0.0, "drop_path": 0.0})
    runs = [Run(recipe, create(recipe), tmp_path, create_accelerator(recipe), quiet=True) for _ in range(2)]

    def refuse(run):
        def fail():
            raise RuntimeError("capturable is False")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs[1].optimizer, "step", fail)
            run()

    runs[1].descend = CapturedStep(runs[1]._descend, CPU, graph=refuse)
    batches = [b for b, _ in zip(runs[0].task.batches(0, Place()), range(6), strict=False)]

    def train_both():
        for run, (i, batch) in itertools.product(runs, enumerate(batches)):
            run.step(i, batch)

    with pytest.warns(RuntimeWarning, match="runs uncaptured: capturable is False"):
        train_both()
    wanted, found = (run.bare.state_dict() for run in runs)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_what_a_captured_step_writes_to_stays_in_place(changed, tmp_path):
    from stringpe.training.launch import create_accelerator
    from stringpe.training.loop import Run

    recipe = changed(optim={"ema": 0.9})  # evaluates after 6 steps, saves after 5
    run = Run(recipe, create(recipe), tmp_path, create_accelerator(recipe), quiet=True)

    def places():
        return [t.data_ptr() for t in (run.window, *run.bare.parameters(), *run.ema.average.values()) if t.numel()]

    before = places()
    run.train()
    assert places() == before


def test_other_threads_may_allocate_while_a_step_is_captured(monkeypatch):
    """The one that pins the batches of workers does so at any time."""
    modes = []

    def graph(captured, stream=None, capture_error_mode="global"):
        modes.append((stream, capture_error_mode))
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: types.SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    cuda_graph(lambda: None)()
    assert modes == [(None, "thread_local")]


def test_the_first_steps_and_the_capture_share_a_stream(monkeypatch):
    """A gradient is accumulated on the stream where autograd first met its parameter."""
    streams, used = iter(["mine", "another"]), []
    monkeypatch.setattr(
        torch.cuda, "Stream", lambda device: types.SimpleNamespace(name=next(streams), wait_stream=used.append)
    )
    current = types.SimpleNamespace(name="current", wait_stream=lambda other: used.append(other))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda side: contextlib.nullcontext(used.append(side)))
    monkeypatch.setattr(capture, "_runs_and_waits", lambda run: run() is not None)
    monkeypatch.setattr(capture, "cuda_graph", lambda run, stream: used.append(stream) or run)
    step = CapturedStep(Trainer().step, torch.device("cuda"))
    for _ in range(5):
        step({"x": torch.ones(2)})
    assert {each.name for each in used} == {"mine", "current"}
    assert used[-1].name == "mine"


def test_batches_on_a_cpu_come_as_they_are():
    made = iter([{"x": torch.zeros(1)}, {"x": torch.ones(1)}])
    assert [b["x"].item() for b in prefetch(made, CPU)] == [0.0, 1.0]


class Constants(TorchDispatchMode):
    """Counts tensors that are made of Python's numbers. On a GPU the host waits until such a tensor is there."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.lift_fresh.default
        return func(*args, **(kwargs or {}))


def derivatives(loss):
    """Names of the operations that backward goes through."""
    seen, ahead = set(), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}


@pytest.mark.filterwarnings("ignore:the policy's image encoder starts at random:UserWarning")
@pytest.mark.parametrize("encoding", ["absolute", "sincos", "cayley", "circulant", "liere", "spherical", "outer"])
@pytest.mark.parametrize("family", ["classification", "objects", "detection2d", "detection3d", "policy"])
def test_a_step_makes_no_tensor_of_numbers(family, encoding, tmp_path):
    recipe = next(iter(FAMILIES[family](tmp_path)))
    recipe = replace(recipe, model=replace(recipe.model, encoding=encoding), augment=replace(recipe.augment, mosaic=""))
    task = create(override(recipe, ["data.negatives=57"] if family == "detection2d" else []))
    assert task.capturable
    model = task.model()
    first, second = itertools.islice(task.batches(0, Place()), 2)
    task.loss(model, first).backward()  # forms the constants that are kept
    with Constants() as constants:
        loss = task.loss(model, second)
        loss.backward()
    assert constants.count == 0
    assert not {name for name in derivatives(loss) if name.startswith("Prod")}  # it looks for zeros


def test_surface_normals_make_no_tensor_of_numbers():
    with Constants() as constants:
        surface_normals(torch.rand(2, 6, 8) + 1)
    assert constants.count == 0


def test_nothing_in_a_step_reads_a_value_from_the_device(changed, tmp_path, monkeypatch):
    """A tensor whose value the host asks for would make it wait: item, bool, float and tolist are counted."""
    from stringpe.training.launch import create_accelerator
    from stringpe.training.loop import Run

    recipe = changed(optim={"ema": 0.9}, augment={"mixup": 0.5, "crop": 0.5, "flip": True, "colour": 0.2})
    task = create(recipe)
    run = Run(recipe, task, tmp_path, create_accelerator(recipe), quiet=True)
    batches = [b for b, _ in zip(task.batches(0, run.place), range(3), strict=False)]
    run.step(0, batches[0])
    monkeypatch.setattr(encoding, "check_finite", lambda *_: None)  # coordinates are looked at on a CPU alone
    asked = []
    for name in ("item", "__bool__", "__float__", "__int__", "tolist", "__index__"):
        own = getattr(torch.Tensor, name)

        def counted(self, *args, own=own, name=name):
            asked.append((name, tuple(self.shape)))
            return own(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    for i in (1, 2):
        run.step(i, batches[i])
    # AdamW on a CPU keeps its step count there and reads it; the fused one of a GPU does not.
    assert [a for a in asked if a != ("item", ())] == []


def test_frozen_parameters_stay_frozen(changed, tmp_path):
    from stringpe.training.launch import create_accelerator
    from stringpe.training.loop import Run

    recipe = changed()
    task = create(recipe)
    make = task.model

    def frozen():
        model = make()
        model.patch.requires_grad_(False)
        return model

    task.model = frozen
    run = Run(recipe, task, tmp_path, create_accelerator(recipe), quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.step(0, next(task.batches(0, run.place)))
    assert not any(p.requires_grad for p in run.bare.patch.parameters())
