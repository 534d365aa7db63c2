from dataclasses import replace

import pytest
import torch

from stringpe import recipes, scenes, tasks
from stringpe.data import scene_frames
from stringpe.data.cache import forget_all
from stringpe.data.order import Place
from stringpe.io.checkpoint import read_model
from stringpe.models.blocks import Layers
from stringpe.recipes.overrides import override
from stringpe.recipes.schema import Augment, Data, Loop, Model, Recipe
from stringpe.tasks.load import open_run
from stringpe.tasks.objects import Objects, make_queries, mirror
from stringpe.training import train
from stringpe.training.comparison import compare


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    return Recipe(
        name="rooms",
        task="objects",
        model=Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope", depth="lift"),
        data=Data(source="scenes", image_size=32, train_size=24, val_size=8, queries=6, cache=cache),
        augment=Augment(flip=True),
        loop=Loop(batch_size=8, steps=3, log_every=1),
    )


@pytest.fixture(scope="module")
def task(recipe):
    return Objects(recipe)


def test_the_answer_is_the_kind_of_the_object_under_the_query(recipe):
    found = scene_frames.load_frames(recipe.data, "train")
    u = torch.rand(len(found["rgb"]), 6)
    batch = make_queries(found, u)
    side = 32
    pixel = ((batch["query"] + 1) / 2 * side - 0.5).round().long()
    for b in range(len(u)):
        for q in range(6):
            x, y = pixel[b, q]
            slot = int(found["instance"][b, y, x]) - 1
            assert slot >= 0
            assert found["kind"][b, slot] == batch["label"][b, q]
    rendered = scenes.render(scenes.sample(0, 1), (side, side))  # frame 0 of the training world
    assert (found["rgb"][0] - rendered.rgb[0] * 255).abs().max() <= 1
    assert torch.allclose(found["depth"][0].float(), rendered.depth[0], rtol=1e-3)


def test_every_object_is_asked_about_equally_often():
    chosen = {
        "rgb": torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
        "depth": torch.ones(1, 8, 8).half(),
        "instance": torch.zeros(1, 8, 8, dtype=torch.uint8),
        "kind": torch.tensor([[5, 9, -1]], dtype=torch.int16),
    }
    chosen["instance"][0, :4] = 1  # a large object, a small one, and one that shows too little
    chosen["instance"][0, 5, 5] = 2
    chosen["instance"][0, 6, 6] = 3
    label = make_queries(chosen, torch.rand(1, 4000))["label"]
    assert set(label.unique().tolist()) == {5, 9}
    assert abs((label == 5).float().mean() - 0.5) < 0.05


def test_a_mirror_moves_pixels_and_queries_together(recipe):
    batch = make_queries(scene_frames.load_frames(recipe.data, "train"), torch.rand(24, 3))
    turned = mirror(batch, torch.ones(24, dtype=torch.bool))
    assert torch.equal(turned["image"].flip(-1), batch["image"])
    assert torch.equal(turned["query"][..., 0], -batch["query"][..., 0])
    assert all(torch.equal(mirror(batch, torch.zeros(24, dtype=torch.bool))[k], batch[k]) for k in batch)


def test_batches_depend_on_seed_and_step_alone(task):
    whole = task.batches(0, Place())
    steps = [next(whole) for _ in range(3)]
    halves = [next(task.batches(2, Place(r, 2))) for r in range(2)]
    for name in steps[2]:
        assert torch.equal(torch.cat([h[name] for h in halves]), steps[2][name])


def test_splits_share_no_room(recipe):
    train_frames, val_frames = (scene_frames.load_frames(recipe.data, split) for split in ("train", "val"))
    assert not torch.equal(train_frames["rgb"][0], val_frames["rgb"][0])


def test_frames_are_made_once(recipe, monkeypatch):
    scene_frames.load_frames(recipe.data, "train")
    forget_all()

    def refuse(*args, **kwargs):
        raise AssertionError("rendered again")

    monkeypatch.setattr(scene_frames.scenes, "render", refuse)
    assert len(scene_frames.load_frames(recipe.data, "train")["rgb"]) > 0


VARIANTS = [("cayley", "lift"), ("none", "lift"), ("absolute", "lift"), ("rope", "none")]


@pytest.mark.parametrize(("encoding", "depth"), VARIANTS)
def test_rgb_and_rgbd_models_train(recipe, tmp_path, encoding, depth):
    asked = override(recipe, [f"model.encoding={encoding}", f"model.depth={depth}"])
    outcome = train(asked, tmp_path, quiet=True)
    assert outcome["metrics"]["count"] > 30
    assert 0 <= outcome["metrics"]["top1"] <= outcome["metrics"]["top5"] <= 1


def test_depth_reaches_the_answer_only_where_it_should(task, recipe):
    torch.manual_seed(0)
    batch = next(task.batches(0, Place()))
    for depth, sees in (("lift", True), ("none", False)):
        other = Objects(replace(recipe, model=replace(recipe.model, depth=depth)))
        model = other.model()
        torch.nn.init.normal_(model.head.weight)
        nearer = batch | {"depth": batch["depth"] * torch.linspace(0.5, 1, 32)}
        same = torch.allclose(other._logits(model, batch), other._logits(model, nearer))
        assert same != sees


def test_queries_read_the_patch_under_them(recipe):
    """A change in one patch's pixels moves that place's answer most when tokens do not talk to each other."""
    task = Objects(replace(recipe, model=replace(recipe.model, depth="none")))
    model = task.model()
    model.vit.blocks = Layers()
    torch.nn.init.normal_(model.head.weight)
    image = torch.zeros(1, 3, 32, 32)
    centres = torch.tensor([[[-0.75, -0.75], [0.75, 0.25]]])  # of patches (row 0, column 0) and (row 2, column 3)
    before = model(image, None, centres)
    image[:, :, 16:24, 24:32] = torch.randn(3, 8, 8)
    change = (model(image, None, centres) - before).abs().amax(-1)[0]
    assert change[0] == 0
    assert change[1] > 0


def test_samples_show_the_query(task):
    sample = task.samples(3)[0]
    assert sample.image.shape == (32, 32, 3)
    assert (sample.image == torch.tensor([255, 0, 0], dtype=torch.uint8)).all(-1).any()
    assert sample.caption in scenes.kinds()


def test_other_sources_are_refused(recipe):
    with pytest.raises(ValueError, match=r"data.source=shards does not serve the task objects: It takes scenes"):
        tasks.create(replace(recipe, data=replace(recipe.data, source="shards")))
    with pytest.raises(ValueError, match=r"needs data.train_size and data.val_size"):
        scene_frames.load_frames(replace(recipe.data, train_size=0), "train")


def frozen_recipes(tmp_path):
    """Tiny versions of `scenes_frozen_small` and of the RGB recipe that it starts from."""
    own = [f"data.cache={tmp_path / 'cache'}", "data.train_size=24", "data.val_size=12", "data.image_size=16"]
    own += ["model.dim=32", "model.heads=2", "model.layers=1", "loop.steps=4", "loop.batch_size=8"]
    return recipes.load("scenes_frozen_small", own), recipes.load("scenes_rgb_small", own)


def test_one_command_trains_the_rgb_model_and_then_lifts_it(tmp_path, monkeypatch):
    lifted, rgb = frozen_recipes(tmp_path)
    design = recipes.load_design("scenes_frozen_small")
    monkeypatch.setattr("stringpe.recipes.load", lambda name: {"scenes_rgb_small": rgb}[name])
    found = compare(lifted, seeds=1, out=tmp_path / "out", design=design, jobs=1, costs=False, quiet=True)
    assert len(found.summaries) == len(design.rows)
    assert {finding.name for finding in found.findings} >= {"Cayley-STRING − RoPE-Mixed", "depth − RGB"}
    (start,) = (tmp_path / "cache" / "starts").iterdir()
    _, old = read_model(start)
    for run in (tmp_path / "out" / "runs").iterdir():
        _, new = read_model(run / "seed0")
        for name, tensor in old.items():
            same = new.get(name, new.get(name.replace("qkv.weight", "qkv.parametrizations.weight.original")))
            assert torch.equal(same, tensor) == name.startswith("vit."), (run.name, name)  # the head alone moved
    again = open_run(tmp_path / "out" / "runs" / "rope_mixed-model.lora-2" / "seed0")[1]
    assert again.vit.blocks[0].attention.qkv.parametrizations.weight[0].up.any()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.freeze="], "give both model.start and model.freeze, or none"),
        (["model.freeze=qk"], "model.freeze of this task is backbone or backbone\\+basis, got 'qk'"),
        (["model.depth=channel"], "model.depth is none or lift, got 'channel'"),
        (["model.freeze=", "model.start=", "model.lora=2"], "model.lora=2 is for a frozen ViT"),
        (["model.encoding=none"], "set model.depth=none"),
    ],
)
def test_mistakes_with_a_frozen_model_are_answered_in_words(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        tasks.check(override(frozen_recipes(tmp_path)[0], changes))


def test_models_of_near_cameras_are_also_tested_from_far_away(recipe):
    near = Objects(override(recipe, ["data.cameras=near"]))
    torch.manual_seed(0)
    model = near.model().eval()
    torch.nn.init.normal_(model.head.weight)
    with torch.no_grad():
        found, plain = near.evaluate(model, Place()), Objects(recipe).evaluate(model, Place())
    assert "far" not in plain
    assert 0 <= found["far"] <= 1
    frames = {split: scene_frames.load_frames(near.recipe.data, split, "near") for split in ("val", "far")}
    assert frames["far"]["depth"].float().mean() > frames["val"]["depth"].float().mean()
    assert not torch.equal(scene_frames.load_frames(recipe.data, "val")["rgb"][:4], frames["val"]["rgb"][:4])
    design = recipes.load_design("scenes_objects_far")
    assert [column.metric for column in design.columns] == ["", "far"]
