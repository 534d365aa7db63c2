import json
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from policy_toy import ENERGY, RECIPE, batch
from safetensors.torch import load_file, save_file
from stand_in import demonstration
from tower_files import write_tower

from stringpe import robots, tasks
from stringpe.cli.main import main
from stringpe.data.place import Place
from stringpe.io.checkpoint import digest_weights, model_folder, read_model
from stringpe.models.vit import ViT
from stringpe.recipes.overrides import override
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.pack import pack
from stringpe.robots.data.writer import Writer
from stringpe.robots.policies.base import Spec
from stringpe.robots.policies.vision_tower import load_tower, read_tower_config
from stringpe.tasks.build import start_vit
from stringpe.tasks.policy_model import image_encoder, load_policy, new_policy
from stringpe.training.launch import evaluate, train

RANDOM = "image encoder starts at random"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(f"ignore:.*{RANDOM}")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "reach"
    with Writer(path, fps=10) as writer:
        for seed in range(8):
            writer.add(demonstration(seed, depth=True), task=f"reach {seed % 2}", seed=seed)
    return path


@pytest.fixture
def recipe(folder, tmp_path):
    return replace(RECIPE, data=replace(RECIPE.data, train=str(folder), cache=str(tmp_path / "cache")))


def test_trains_evaluates_and_acts(recipe, tmp_path):
    outcome = train(recipe, tmp_path / "run", quiet=True)
    assert 0 <= outcome["metrics"]["near"] <= 1
    assert outcome["metrics"]["error"] > 0
    again = evaluate(tmp_path / "run")
    for name in ("near", "error", "loss"):  # the averaged weights, with the same noise
        assert again[name] == pytest.approx(outcome["metrics"][name], rel=1e-4)
    policy = load_policy(tmp_path / "run")
    assert policy.spec == Spec(("top",), 2, 2, 16, 10.0, ("reach 0", "reach 1"))
    action = policy.select_action({k: v[0] for k, v in demonstration(3).items() if k != "action"})
    demos = tasks.create(recipe).demos
    assert (action >= demos.action.amin(0).numpy() - 1e-5).all()
    assert (action <= demos.action.amax(0).numpy() + 1e-5).all()
    config = json.loads((tmp_path / "run/checkpoints/000006/pretrained_model/config.json").read_text())
    assert config["policy"]["kind"] == "diffusion"


@pytest.mark.parametrize("changes", [ENERGY, ["model.depth=lift+normals", "model.encoding=circulant"]])
def test_other_kinds_train_through_the_same_loop(recipe, tmp_path, changes):
    short = override(recipe, [*changes, "loop.steps=2", "loop.eval_every=0"])
    assert train(short, tmp_path / "run", quiet=True)["metrics"]["count"] == 8


def test_success_in_simulation_is_a_curve_over_training(recipe, tmp_path):
    simulated = override(recipe, ["policy.simulate=stand_in:Reach", "policy.trials=3", "loop.eval_every=3"])
    plain = train(recipe, tmp_path / "plain", quiet=True)
    found = train(simulated, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    curve = {line["step"]: line["val/success"] for line in lines if "val/success" in line}
    assert list(curve) == [3, 6]
    assert all(round(3 * share, 6) in (0, 1, 2, 3) for share in curve.values())
    assert found["metrics"]["loss"] == plain["metrics"]["loss"]  # trials take nothing from training
    assert "success" not in plain["metrics"]
    several = override(simulated, ["policy.simulate=stand_in:Reach, stand_in:Touch", "loop.eval_every=0"])
    both = train(several, tmp_path / "both", quiet=True)["metrics"]
    assert both["success_stand_in:Reach"] == found["metrics"]["success"]
    assert both["success"] == (both["success_stand_in:Reach"] + both["success_stand_in:Touch"]) / 2
    with pytest.raises(ValueError, match=r"policy.trials must be at least 1, got 0"):
        tasks.create(override(simulated, ["policy.trials=0"]))


def test_held_out_episodes_are_not_trained_on(recipe):
    task = tasks.create(recipe)
    episode = task.demos.episode[task.demos.seen]
    trained, validated = set(episode[task.train].tolist()), set(episode[task.held_out].tolist())
    assert len(validated) == 2
    assert trained | validated == set(range(8))
    assert not trained & validated
    other = tasks.create(replace(recipe, seed=5))
    torch.testing.assert_close(other.held_out, task.held_out)  # the same for every seed of a comparison


def test_batches_depend_on_the_step_alone(recipe):
    task = tasks.create(override(recipe, ["augment.shift=2", "augment.colour=0.2"]))
    stream = task.batches(0, Place())
    batches = [next(stream) for _ in range(3)]
    later = next(task.batches(2, Place()))
    halves = [next(task.batches(2, Place(rank, 2))) for rank in range(2)]
    assert batches[2].keys() == {"observation.state", "observation.images.top", "action", "task"}
    for key, value in batches[2].items():
        torch.testing.assert_close(later[key], value)
        torch.testing.assert_close(torch.cat([h[key] for h in halves]), value)


def test_a_pack_trains_as_its_folder(recipe, folder, tmp_path):
    path = pack(Dataset(folder), tmp_path / "reach.safetensors", size=16)
    first = next(tasks.create(recipe).batches(0, Place()))
    packed = next(tasks.create(override(recipe, [f"data.train={path}"])).batches(0, Place()))
    for key, value in first.items():
        torch.testing.assert_close(packed[key], value)
    both = tasks.create(override(recipe, [f"data.train={path},{folder}"]))
    assert int(both.demos.episode.max()) == 15
    assert both.demos.tasks == ("reach 0", "reach 1")


def test_an_encoder_at_random_is_warned_about(recipe, tmp_path):
    """Trap 32."""
    spec = Spec(("top",), 2, 2, 16, 10.0)
    with warnings.catch_warnings(), pytest.warns(UserWarning, match=RANDOM):
        new_policy(recipe, spec)
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_policy(override(recipe, [f"policy.encoder={tmp_path / 'run'}"]), spec)
        load_policy(tmp_path / "run")


def test_an_encoder_starts_from_a_checkpoint(recipe, tmp_path):
    train(override(recipe, ["loop.steps=2", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    trained = load_policy(tmp_path / "run").observer.encoder
    started = image_encoder(override(recipe, [f"policy.encoder={tmp_path / 'run'}"]))
    image = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(started(image, None), trained(image, None))
    with pytest.raises(ValueError, match=r"other towers .*model.dim=32 there, 64 here"):
        image_encoder(override(recipe, [f"policy.encoder={tmp_path / 'run'}", "model.dim=64"]))
    for other in ("absolute", "rope"):  # what has no learned weights of its own would be taken for anything
        with pytest.raises(ValueError, match=f"model.encoding={recipe.model.encoding} there, {other} here"):
            image_encoder(override(recipe, [f"policy.encoder={tmp_path / 'run'}", f"model.encoding={other}"]))
    with pytest.raises(ValueError, match="there is no checkpoint in nowhere"):
        image_encoder(override(recipe, ["policy.encoder=nowhere"]))
    own = str(tmp_path / "{encoding}" / "{seed}")  # every row of a comparison from its like
    (tmp_path / recipe.model.encoding).mkdir()
    (tmp_path / "run").rename(tmp_path / recipe.model.encoding / str(recipe.seed))
    torch.testing.assert_close(
        image_encoder(override(recipe, [f"policy.encoder={own}"]))(image, None), trained(image, None)
    )
    with pytest.raises(ValueError, match=r"policy\.encoder can hold \{encoding\}"):
        image_encoder(override(recipe, ["policy.encoder={row}"]))


def test_registers_may_be_new_to_an_encoder():
    sizes = {"dim": 32, "layers": 2, "num_heads": 2, "patch_size": 4, "encoding": "cayley"}
    plain, more = ViT(**sizes), ViT(**sizes, registers=3)
    before = more.prefix.clone()
    start_vit(more, {f"image.{k}": v for k, v in plain.state_dict().items()}, "there")
    torch.testing.assert_close(more.prefix, before)
    torch.testing.assert_close(more.patch.weight, plain.patch.weight)


def test_a_learned_table_is_read_at_the_encoders_own_patches():
    sizes = {"dim": 32, "layers": 1, "num_heads": 2, "patch_size": 4, "encoding": "absolute"}
    small, large = ViT(**sizes, image_size=16), ViT(**sizes, image_size=32)
    with torch.no_grad():  # a ramp, which interpolation keeps a ramp
        small.absolute.weight.copy_(torch.arange(4.0).repeat_interleave(4)[:, None].expand(16, 32))
    start_vit(large, {f"image.{k}": v for k, v in small.state_dict().items()}, "there")
    rows = large.absolute.weight.unflatten(0, (8, 8))
    torch.testing.assert_close(rows[1:7, 3, 0], torch.linspace(0.25, 2.75, 6))
    with pytest.raises(ValueError, match="holds no vision transformer like this one"):
        start_vit(large, {k: v for k, v in small.state_dict().items() if not k.startswith("absolute")}, "there")


@pytest.mark.parametrize("encoding", ["rope_mixed", "cayley", "circulant"])
def test_a_2d_encoder_becomes_3d_without_a_jump(encoding):
    sizes = {"dim": 32, "layers": 2, "num_heads": 2, "patch_size": 4, "encoding": encoding}
    flat, deep = ViT(**sizes), ViT(**sizes, coord_dim=3)
    start_vit(deep, {f"image.{k}": v for k, v in flat.state_dict().items()}, "there")
    image, depth = torch.randn(2, 3, 16, 16), 0.5 + torch.rand(2, 16, 16)
    torch.testing.assert_close(deep.features(image, depth).tokens, flat.features(image).tokens, rtol=1e-4, atol=1e-5)
    deep.features(image, depth).tokens.square().sum().backward()
    assert deep.lift.scale.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["siglip", "paligemma"])
def test_a_tower_of_transformers_is_attached_and_starts_as_it_is(recipe, tmp_path, kind):
    folder = tmp_path / kind
    tower = write_tower(folder, kind)
    image = torch.randn(2, 3, 16, 16)
    wanted = tower(image).last_hidden_state
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for encoding in ("absolute", "cayley"):
            changes = [f"policy.encoder={kind}:{folder}", f"model.encoding={encoding}"]
            encoder = image_encoder(override(recipe, changes)).eval()
            torch.testing.assert_close(encoder(image, None), wanted, rtol=1e-3, atol=1e-4)
    learned = ["model.encoding=rope", "model.encoding_options.learnable=true", "model.encoding_options.base=100"]
    for options, count in ((learned[:1], 2), (learned, 4)):  # a gate per layer, and what the paper learns: frequencies
        rope = image_encoder(override(recipe, [*changes, *options]))
        trained = [name for name, p in rope.named_parameters() if "frequencies" in name and p.requires_grad]
        assert len(trained) == count, trained
    policy = new_policy(override(recipe, changes), Spec(("top", "wrist"), 3, 4, 16, 10.0))
    loss = policy(batch())
    loss.backward()
    for wrong, text in ((["model.depth=normals"], "takes depth as the third"), (["data.image_size=32"], "takes 16 px")):
        with pytest.raises(ValueError, match=text):
            image_encoder(override(recipe, [*changes, *wrong]))
    with pytest.raises(ValueError, match="takes depth as the third coordinate of an attached encoding"):
        image_encoder(override(recipe, [*changes, "model.depth=lift", "model.encoding=absolute"]))


def test_a_tower_of_transformers_sees_depth_and_starts_as_its_2d_self(recipe, tmp_path):
    """The KUKA policies: a pretrained 2D encoder, with depth as third coordinate of Circulant-STRING."""
    tower = write_tower(tmp_path / "pali", "paligemma")
    changes = [f"policy.encoder=paligemma:{tmp_path / 'pali'}", "model.encoding=circulant", "model.depth=lift"]
    encoder = image_encoder(override(recipe, [*changes, "model.encoding_options.block_size=8"]))
    assert encoder.wants_depth
    image, depth = torch.randn(2, 3, 16, 16), 0.5 + torch.rand(2, 16, 16)
    seen = encoder(image, depth)
    torch.testing.assert_close(seen, tower(image).last_hidden_state, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        for parameter in encoder.model.depth_lift.parameters():
            parameter.add_(1.0)
        for name, parameter in encoder.named_parameters():
            if "frequencies" in name and parameter.shape[-1] == 1:  # the gates
                parameter.fill_(1.0)
    assert (encoder(image, depth) - encoder(image, depth + depth.flip(1))).abs().max() > 1e-3
    short = override(recipe, [*changes, "model.encoding_options.block_size=8", "loop.steps=1", "loop.eval_every=0"])
    train(short, tmp_path / "run", quiet=True)
    shutil.rmtree(tmp_path / "pali")  # a run holds all that acting and evaluating need
    policy = load_policy(tmp_path / "run")
    assert policy.observer.encoder.wants_depth
    assert evaluate(tmp_path / "run")["count"] == 8
    tuning = override(short, ["policy.encoder=", f"model.start={tmp_path / 'run'}"])
    started = tasks.create(tuning).model().eval()
    weights = started.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())


def test_weights_of_a_tower_are_found_under_all_names(tmp_path):
    """Published PaliGemmas have vision_tower.vision_model.…, in several files; others model.vision_tower.…"""
    tower = write_tower(tmp_path / "new", "paligemma")
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "new/config.json", tmp_path / "old")
    renamed = {f"vision_tower.vision_model.{k}": v.bfloat16() for k, v in tower.state_dict().items()}
    names = sorted(renamed)
    extra = {"language_model.model.layers.0.encoder.weight": torch.zeros(1)}
    save_file({n: renamed[n] for n in names[::2]} | extra, tmp_path / "old/model-00001-of-00002.safetensors")
    save_file({n: renamed[n] for n in names[1::2]}, tmp_path / "old/model-00002-of-00002.safetensors")
    for name, precision in (("new", 0), ("old", 0.01)):
        config = read_tower_config(tmp_path / name)
        found = load_tower(tmp_path / name, config).state_dict()
        for key, value in tower.state_dict().items():
            torch.testing.assert_close(found[key], value, atol=0, rtol=precision)
    (tmp_path / "old/model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lack .* other weights of the vision tower: get the whole model"):
        load_tower(tmp_path / "old", config)
    for content, text in (("{}", "holds a model of type 'None'"), ('{"model_type": "gemma"}', "of type 'gemma'")):
        (tmp_path / "old/config.json").write_text(content)
        with pytest.raises(ValueError, match=text):
            read_tower_config(tmp_path / "old")
    with pytest.raises(ValueError, match=r"there is no config.json in .*nowhere"):
        read_tower_config(tmp_path / "nowhere")


def test_pretraining_on_many_tasks_then_tuning_on_one(recipe, folder, tmp_path):
    other = tmp_path / "other"
    with Writer(other, fps=10) as writer:
        for seed in range(20, 24):
            writer.add(demonstration(seed, depth=True), task="reach it again", seed=seed)
    many = override(recipe, [f"data.train={folder},{other}", "loop.steps=2", "loop.eval_every=0"])
    train(many, tmp_path / "many", quiet=True)
    first = load_policy(tmp_path / "many")
    assert first.spec.tasks == ("reach 0", "reach 1", "reach it again")
    tuning = override(recipe, [f"data.train={other}", f"model.start={tmp_path / 'many'}", "loop.steps=1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # its encoder does not start at random
        started = tasks.create(tuning).model()
    assert started.spec.tasks == ("reach it again",)
    for name, value in first.state_dict().items():
        if name != "about":
            torch.testing.assert_close(started.state_dict()[name], value, msg=name)
    train(tuning, tmp_path / "one", quiet=True)
    shutil.rmtree(tmp_path / "many")
    assert evaluate(tmp_path / "one")["count"] > 0  # what it started from may be gone


def test_what_a_policy_cannot_start_from_is_refused(recipe, folder, tmp_path):
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    start = f"model.start={tmp_path / 'run'}"
    for changes, text in (
        (["policy.dim=64"], "are not those of its recipe"),
        (["model.encoding=rope"], "model.encoding=cayley there, rope here"),
        (["data.image_size=32"], "was trained with image_size=16, these demonstrations have 32"),
    ):
        with pytest.raises(ValueError, match=text):
            tasks.create(override(recipe, [start, *changes])).model()


def test_a_started_policy_keeps_its_scale_and_widens_its_range(recipe, tmp_path):
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    old, task = load_policy(tmp_path / "run"), tasks.create(override(recipe, [f"model.start={tmp_path / 'run'}"]))
    task.demos.action[0, 0] = 3.0
    task.demos.state.add_(5.0)
    new = task.model()
    task.demos.action[0, 0] = 0.0  # the set is shared by the tests of this process
    task.demos.state.sub_(5.0)
    torch.testing.assert_close(new.state_mean, old.state_mean)
    assert new.action_high[0] == 3
    assert new.action_high[1] == old.action_high[1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("policy.cameras=wrist", "no cameras wrist; it has top"),
        ("data.train=", "needs data.train=…, robot demonstrations, a data set's folder or a pack"),
        ("data.train=nowhere", "there is no data set at nowhere"),
        ("data.source=scenes", "data.source=scenes does not serve the task policy: It takes demos"),
        ("policy.held_out=0", "0 < policy.held_out < 1"),
    ],
)
def test_wrong_recipes_say_what_to_do(recipe, change, text):
    with pytest.raises(ValueError, match=text):
        tasks.create(override(recipe, [change]))


def test_an_unknown_kind_is_refused(recipe):
    with pytest.raises(ValueError, match=r"policy.kind is one of 'diffusion', 'energy', got 'flow'"):
        new_policy(override(recipe, ["policy.kind=flow"]), Spec(("top",), 2, 2, 16, 10.0))


def test_broken_episodes_are_counted_in_the_run(folder, recipe, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    sorted(copy.glob("data/*/*.parquet"))[1].write_bytes(b"PAR1")
    with pytest.warns(RuntimeWarning, match="are left out|were left out"):
        task = tasks.create(override(recipe, [f"data.train={copy}"]))
    assert task.counters() == {"broken_episodes": 1.0}


def test_samples_show_every_camera(recipe):
    shown = tasks.create(recipe).samples(3)
    assert len(shown) == 3
    assert shown[0].image.shape == (16, 16, 3)
    assert shown[0].caption.startswith("reach")


REACH = "stand_in:Reach"  # an environment of one's own, which spawned processes can import


def test_policies_are_compared_on_the_same_states(recipe, tmp_path, capsys):
    for name in ("rope", "cayley"):
        short = override(recipe, [f"model.encoding={name}", "loop.steps=1", "loop.eval_every=0"])
        train(short, tmp_path / "runs" / name, quiet=True)
    runs = [str(tmp_path / "runs" / name) for name in ("rope", "cayley")]
    out = tmp_path / "out"
    main(["eval", *runs, "noise=0", "--env", REACH, "--trials", "3", "--jobs", "1", "--videos", "1", "--out", str(out)])
    text = capsys.readouterr().out
    assert "| rope " in text
    assert "| cayley " in text
    assert f"{REACH}, noise=0: 3 trials each, initial states 1000000 to 1000002" in text
    assert (out / "table.md").read_text().strip() in text
    assert text.strip().endswith(f"report: {out / 'report.html'}")
    page = (out / "report.html").read_text()
    assert "<h2>What cannot be concluded</h2>" in page
    assert "Much about success itself: 3 trials leave wide intervals" in page
    assert re.search(r"cayley succeeds in \d+ % \(\d+ to \d+\), not shown to differ from rope", page)
    place = "stand_in-Reach-noise=0"
    infos = [json.loads((out / name / place / "eval_info.json").read_text()) for name in ("rope", "cayley")]
    assert [[e["seed"] for e in info["per_episode"]] for info in infos] == [[1_000_000, 1_000_001, 1_000_002]] * 2
    for info, run in zip(infos, runs, strict=True):
        assert info["weights"] == digest_weights(read_model(Path(run))[1])
        assert info["weights"][:8] in text
    with pytest.raises(SystemExit, match="eval takes one checkpoint, got 2; several need --env"):
        main(["eval", *runs])
    for option in (["--shifts"], ["--trials", "9"], ["--jobs", "1"], ["--videos", "0"]):
        with pytest.raises(SystemExit, match=f"{option[0]} is for policies in simulation: name the task with --env"):
            main(["eval", runs[0], *option])


def test_two_checkpoints_of_a_run_are_not_taken_for_one(recipe, tmp_path, capsys):
    """Fault N10: the folder of trials ignored the step, and the second policy got the trials of the first."""
    changes = ["loop.steps=2", "loop.save_every=1", "loop.eval_every=0", "optim.lr=0.1", "optim.warmup_steps=0"]
    train(override(recipe, changes), tmp_path / "run", quiet=True)
    steps = sorted((tmp_path / "run/checkpoints").iterdir())
    words = ["--env", REACH, "--trials", "2", "--jobs", "1", "--videos", "0"]
    main(["eval", *map(str, steps), *words])
    infos = [json.loads((tmp_path / f"run/eval/{s.name}/stand_in-Reach/eval_info.json").read_text()) for s in steps]
    assert infos[0]["weights"] != infos[1]["weights"]
    assert [e["sum_reward"] for e in infos[0]["per_episode"]] != [e["sum_reward"] for e in infos[1]["per_episode"]]


def test_weights_that_are_not_finite_are_refused(recipe, tmp_path):
    """Fault N11: they gave plausible numbers."""
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    path = model_folder(tmp_path / "run") / "model.safetensors"
    weights = load_file(path)
    weights["observer.camera"][0] = float("nan")
    save_file(weights, path)
    with pytest.raises(SystemExit, match=r"observer.camera hold NaN or infinity"):
        main(["eval", str(tmp_path / "run"), "--env", REACH, "--trials", "1", "--jobs", "1"])


def test_policies_are_tried_under_every_shift_of_several_tasks(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(robots, "shifts", {REACH: ({"noise": 1},), "stand_in:make": ()}.get)
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    out = tmp_path / "out"
    words = [
        "eval",
        str(tmp_path / "run"),
        "noise=0",
        "--trials",
        "2",
        "--jobs",
        "1",
        "--videos",
        "0",
        "--out",
        str(out),
    ]
    main([*words, "--shifts", "--env", REACH, "stand_in:make"])
    overview, *each = capsys.readouterr().out.strip().split("\n| policy")[-4:]
    settings = ("stand_in:Reach, noise=0", "stand_in:Reach, noise=1", "stand_in:make, noise=0")
    for setting, text in zip(settings, each, strict=True):
        assert f"| {setting} " in overview
        assert f"{setting}: 2 trials each" in text
    assert "noise=1" in (out / "success.svg").read_text()
    places = ["stand_in-Reach-noise=0", "stand_in-Reach-noise=1", "stand_in-make-noise=0"]
    assert sorted(p.name for p in (out / "run").iterdir()) == places


def test_a_task_without_shifts_says_so():
    with pytest.raises(ValueError, match="MugOnPlate has no shifts; these tasks have some: KukaPick"):
        robots.shifts("MugOnPlate")


def test_unknown_environments_and_other_checkpoints_are_refused(recipe, tmp_path, monkeypatch):
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    begun = []
    monkeypatch.setattr("stringpe.training.simulate.evaluate", lambda *_: begun.append(1))
    for tasks_ in (["KukaPik"], [REACH, "KukaPik"]):
        with pytest.raises(SystemExit, match="no task named 'KukaPik': did you mean 'KukaPick'"):
            main(["eval", str(tmp_path / "run"), "--env", *tasks_])
    with pytest.raises(SystemExit, match="there is no environment 'nowhere:make'"):
        main(["eval", str(tmp_path / "run"), "--env", "nowhere:make"])
    assert not begun
    with pytest.raises(SystemExit, match="there is no checkpoint in nowhere"):
        main(["eval", "nowhere", "--env", "KukaPick"])


def test_first_frames_are_scored_by_themselves(recipe):
    """A policy that is right at the beginning of every episode and off by the whole range everywhere else."""
    task = tasks.create(recipe)
    episode = task.demos.episode[task.demos.seen]
    for i in task.first.tolist():
        assert i == 0 or episode[i - 1] != episode[i]
    assert set(episode[task.first].tolist()) == set(episode[task.held_out].tolist())
    beginnings = task.demos.state[task.demos.seen[task.first]]
    spread = task.demos.action.amax(0) - task.demos.action.amin(0)

    def half_right(batch, predict=False):
        if not predict:
            return torch.zeros(())
        begins = (batch["observation.state"][:, None] == beginnings).all(-1).any(-1)
        return batch["action"] + torch.where(begins, 0.0, 1.0)[:, None, None] * spread

    found = task.evaluate(half_right, Place(0, 1, torch.device("cpu")))
    assert found["near_first"] == pytest.approx(1.0)
    assert found["error_first"] == pytest.approx(0.0, abs=1e-6)
    assert 0.5 < found["error"] < 1


def test_a_share_of_a_batch_comes_from_first_frames(recipe):
    demos = tasks.create(recipe).demos
    begins = [0, *(i for i in range(1, len(demos.episode)) if demos.episode[i] != demos.episode[i - 1])]
    begin = {tuple(row) for row in demos.state[begins].tolist()}
    place, shares = Place(0, 1, torch.device("cpu")), {}
    for first in (0.0, 0.5, 1.0):
        task = tasks.create(override(recipe, [f"policy.first={first}", "loop.batch_size=200"]))
        states = next(task.batches(0, place))["observation.state"].tolist()
        shares[first] = sum(tuple(state) in begin for state in states) / len(states)
    assert shares[0.0] < 0.2 < 0.4 < shares[0.5] < 0.7
    assert shares[1.0] == 1
