import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from stringpe.io import checkpoint as checkpoints
from stringpe.recipes.overrides import override
from stringpe.tasks import create
from stringpe.training import evaluate, train
from stringpe.training.launch import create_accelerator
from stringpe.training.loop import Run, Stopped, constant, cosine


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_everything(toy, tmp_path):
    outcome = train(toy, tmp_path, quiet=True)
    assert {p.name for p in tmp_path.iterdir()} == {
        ".lock", "checkpoints", "metrics.jsonl", "recipe.json", "result.json", "summary.csv"
    }  # fmt: skip
    assert [p.name for p in checkpoints.list_checkpoints(tmp_path)] == ["000010", "000012"]  # 000005 is pruned
    inside = {str(p.relative_to(tmp_path / "checkpoints/000012")) for p in tmp_path.glob("checkpoints/000012/*/*")}
    assert {"pretrained_model/config.json", "pretrained_model/model.safetensors"} <= inside
    assert not [name for name in inside if not name.endswith((".json", ".safetensors"))]
    assert [row["step"] for row in lines(tmp_path)] == [4, 6, 8, 12, 12]
    assert outcome["metrics"]["count"] == 50
    header, row = (tmp_path / "summary.csv").read_text().splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=False))["encoding"] == "rope_mixed"


def test_a_finished_run_is_only_read(toy, changed, tmp_path):
    first = train(toy, tmp_path, quiet=True)
    stamp = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
    assert train(toy, tmp_path, quiet=True) == json.loads(json.dumps(first))
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match=r"another recipe \(optim.lr: 0.003, 0.1\)"):
        train(changed(optim={"lr": 0.1}), tmp_path)


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


@pytest.mark.slow
def test_the_model_learns_where_spots_lie(changed, tmp_path):
    loop = {"batch_size": 64, "steps": 200, "eval_every": 0, "save_every": 1000}
    data = {"train_size": 2048, "val_size": 256}
    model = {"dim": 32, "dropout": 0.0, "drop_path": 0.0}
    recipe = changed(loop=loop, data=data, model=model, optim={"lr": 5e-3, "weight_decay": 0.0})
    assert train(recipe, tmp_path, quiet=True)["metrics"]["top1"] > 0.5


@pytest.mark.slow
def test_nobody_learns_it_without_positions(changed, tmp_path):
    loop = {"batch_size": 64, "steps": 120, "eval_every": 0, "save_every": 1000}
    data = {"train_size": 2048, "val_size": 256}
    recipe = changed(loop=loop, data=data, model={"encoding": "none", "dim": 32}, optim={"lr": 5e-3})
    assert train(recipe, tmp_path, quiet=True)["metrics"]["top1"] < 0.4


def test_accumulation_changes_nothing_but_memory(changed, tmp_path):
    calm = {"dropout": 0.0, "drop_path": 0.0}
    whole = train(changed(model=calm), tmp_path / "a", quiet=True)
    parts = train(changed(model=calm, loop={"accumulate": 4}), tmp_path / "b", quiet=True)
    assert parts["metrics"]["loss"] == pytest.approx(whole["metrics"]["loss"], abs=1e-5)


def test_the_encoding_learns_at_its_own_rate(changed, tmp_path):
    train(changed(optim={"encoding_lr_scale": 0.0}), tmp_path, quiet=True)
    steps = [load_file(p / "pretrained_model/model.safetensors") for p in checkpoints.list_checkpoints(tmp_path)]
    own = [name for name in steps[0] if ".encoding." in name]
    assert own
    for name in steps[0]:
        same = torch.equal(steps[0][name], steps[1][name])
        assert same == (name in own or steps[0][name].numel() == 0), name


def test_the_average_is_what_is_evaluated_and_published(changed, tmp_path):
    recipe = changed(optim={"ema": 0.5})
    outcome = train(recipe, tmp_path, quiet=True)
    last = checkpoints.list_checkpoints(tmp_path)[-1]
    published = load_file(last / "pretrained_model/model.safetensors")
    raw = load_file(last / "training_state/weights.safetensors")
    assert not torch.equal(published["head.weight"], raw["head.weight"])
    again = evaluate(tmp_path)
    assert again["loss"] == pytest.approx(outcome["metrics"]["loss"], rel=1e-9)
    assert again["interval"][0] <= again["top1"] <= again["interval"][1]


def test_evaluate_takes_overrides_and_refuses_an_empty_folder(toy, tmp_path):
    train(toy, tmp_path / "run", quiet=True)
    assert evaluate(tmp_path / "run" / "checkpoints" / "000010", ["data.val_size=20"])["count"] == 20
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        evaluate(tmp_path)


def test_bf16_trains(changed, tmp_path):
    outcome = train(changed(loop={"precision": "bf16", "steps": 4}), tmp_path, quiet=True)
    assert math.isfinite(outcome["metrics"]["loss"])
    weights = load_file(checkpoints.list_checkpoints(tmp_path)[-1] / "pretrained_model/model.safetensors")
    assert {t.dtype for t in weights.values()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler asks activations for it
@pytest.mark.slow
def test_compiled_training_agrees(changed, tmp_path, monkeypatch):
    whole = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **how: whole(self, backend="aot_eager", **how)
    )  # no C++ compiler
    calm = {"dropout": 0.0, "drop_path": 0.0}
    plain = train(changed(model=calm, loop={"steps": 3}), tmp_path / "a", quiet=True)
    compiled = train(changed(model=calm, loop={"steps": 3, "compile": True}), tmp_path / "b", quiet=True)
    assert compiled["metrics"]["loss"] == pytest.approx(plain["metrics"]["loss"], abs=1e-4)


class Row(torch.nn.Module):
    """A layer that is compiled anew for every name."""

    def __init__(self, name):
        super().__init__()
        self.name, self.part = name, torch.nn.Identity()  # a layer has parts

    def forward(self, x):
        return self.part(x) + len(self.name + "!") if self.name < "m" else x


def test_many_rows_of_one_process_stay_compiled(monkeypatch):
    """Beyond its limit of 8 forms of one layer, torch goes on without compiling."""
    import torch._dynamo

    from stringpe.training.compiling import compile_model

    graphs = []
    whole = torch.nn.Module.compile
    count = lambda graph, _: graphs.append(graph) or graph.forward  # noqa: E731
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: whole(self, backend=count, **how))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8):  # not by monkeypatch, which would leave the name undefined
        for name in "abcdefghijkl":
            model = torch.nn.Sequential(torch.nn.ModuleList([Row(name)]))
            compile_model(model)
            model[0][0](torch.zeros(2))
    assert len(graphs) == 12


def test_training_keeps_off_the_attention_whose_gradients_may_be_nan(toy, tmp_path):
    torch.backends.cuda.enable_cudnn_sdp(True)
    train(toy, tmp_path, quiet=True)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def go_back(out):
    """Take a finished run back to its checkpoint before the last."""
    (out / "result.json").unlink()
    shutil.rmtree(checkpoints.list_checkpoints(out)[-1])


def test_shared_encodings_are_saved_and_resumed(changed, tmp_path):
    recipe = changed(model={"share_layers": True}, loop={"steps": 10})
    whole = train(recipe, tmp_path / "a", quiet=True)
    train(recipe, tmp_path / "b", quiet=True)
    go_back(tmp_path / "b")
    assert train(recipe, tmp_path / "b", quiet=True)["metrics"] == whole["metrics"]


def test_a_run_begun_on_a_gpu_goes_on_as_this_device_does(toy, tmp_path):
    """The groups in a checkpoint say how the optimiser ran where it was saved: fused and captured, on a GPU."""
    whole = train(toy, tmp_path, quiet=True)
    go_back(tmp_path)
    groups = checkpoints.list_checkpoints(tmp_path)[-1] / "training_state/optimizer.json"
    there = [group | {"fused": True, "capturable": True} for group in json.loads(groups.read_text())]
    groups.write_text(json.dumps(there))
    assert train(toy, tmp_path, quiet=True)["metrics"] == whole["metrics"]
    last = checkpoints.list_checkpoints(tmp_path)[-1] / "training_state/optimizer.json"
    assert {(group["fused"], group["capturable"]) for group in json.loads(last.read_text())} == {(None, False)}


def test_a_run_says_how_far_it_is(changed, tmp_path, capsys):
    train(changed(loop={"steps": 4}), tmp_path)
    assert "toy rope_mixed seed 0: 4 / 4 steps" in capsys.readouterr().err


def test_batches_that_do_not_divide_are_refused(changed, tmp_path):
    with pytest.raises(ValueError, match=r"16 examples per step do not divide into loop.accumulate=3"):
        train(changed(loop={"accumulate": 3}), tmp_path)
    with pytest.raises(ValueError, match=r"loop.precision is one of 'no', 'bf16', got 'fp8'"):
        train(changed(loop={"precision": "fp8"}), tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run(changed, tmp_path):
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) before step 4: lower optim.lr"):
        train(changed(optim={"lr": 1e30, "clip": 0.0, "warmup_steps": 0}), tmp_path, quiet=True)


def test_stopped_says_so_and_has_its_own_status():
    stop = Stopped("stopped by SIGTERM after step 3")
    assert (stop.code, str(stop)) == (143, "stopped by SIGTERM after step 3")
