"""Towers that start from runs of retrieval, detection and classification, and from checkpoints of transformers."""

import io
import json
import shutil
import tarfile
from dataclasses import replace

import pytest
import torch
import transformers
from PIL import Image

from detection_toy import toy_recipe
from stringpe.data.order import Place
from stringpe.io.checkpoint import model_folder, read_model
from stringpe.models.owl_checkpoints import load_owl
from stringpe.models.tokenizer import Tokenizer
from stringpe.models.vit import ViT
from stringpe.recipes.overrides import override
from stringpe.recipes.schema import Augment, Data, Loss, Text
from stringpe.tasks import create
from stringpe.tasks.detection2d import Detection2D
from stringpe.tasks.load import load_run
from stringpe.tasks.retrieval import Retrieval
from stringpe.tasks.warm_start import load_weights, resample, start_folder, start_towers, start_vit
from stringpe.training import compare, evaluate, train


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return toy_recipe(tmp_path_factory.mktemp("pictures"))


def captioned(path, count=8):
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            file = io.BytesIO()
            Image.new("RGB", (32, 32), (30 * i, 0, 99)).save(file, "png")
            texts = json.dumps({"captions": [f"a red ball number {i}", "the green box"]}).encode()
            for kind, content in (("png", file.getvalue()), ("json", texts)):
                entry = tarfile.TarInfo(f"{i:04d}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return str(path)


@pytest.fixture(scope="module")
def retrieval(recipe, tmp_path_factory):
    """Runs of retrieval under runs/{encoding}/seed{seed}, with the towers of the detection recipe at 32 px."""
    folder = tmp_path_factory.mktemp("retrieval")
    shard = captioned(folder / "captions.tar")
    for encoding, pool in (("rope", "mean"), ("absolute", "mean"), ("cayley", "map")):
        asked = replace(
            recipe,
            name="captions",
            task="retrieval",
            seed=3,
            model=replace(recipe.model, encoding=encoding, pool=pool),
            data=Data(source="shards", image_size=32, train=shard, val=shard),
            loss=Loss(kind="siglip"),
        )
        train(override(asked, ["augment.mosaic=", "loop.steps=2"]), folder / "runs" / encoding / "seed3", quiet=True)
    return folder / "runs"


@pytest.mark.parametrize("encoding", ["rope", "absolute", "cayley"])
def test_a_detector_takes_over_the_towers_of_retrieval(recipe, retrieval, encoding):
    changes = [f"model.encoding={encoding}", "seed=3", f"model.start={retrieval}/{{encoding}}/seed{{seed}}"]
    task = Detection2D(override(recipe, changes))
    model = task.model()
    old, weights = read_model(retrieval / encoding / "seed3")
    for name, tensor in model.state_dict().items():
        if name.startswith(("image.", "text.")) and name != "image.absolute.weight":
            assert torch.equal(tensor, weights[name]), name
    assert task.tokenizer.to_json() == (model_folder(retrieval / encoding / "seed3") / "tokenizer.json").read_text()
    if old.model.pool == "mean":  # its projection is made for tokens too
        assert torch.equal(model.class_head.project.weight, weights["projection.weight"])
    if encoding == "absolute":  # a table of 4 × 4 patches, read at 8 × 8
        table = weights["image.absolute.weight"].view(4, 4, -1)
        found = model.image.absolute.weight.view(8, 8, -1)
        assert torch.allclose(found[0, 0], table[0, 0], atol=1e-6)
        between = (0.75 * table[1] + 0.25 * table[0])[0]  # row 2 of 8 lies a quarter above row 1 of 4
        assert torch.allclose(found[2, 0], between, atol=1e-5)


def test_a_start_trains_and_is_not_needed_afterwards(recipe, retrieval, tmp_path):
    shutil.copytree(retrieval / "rope", tmp_path / "rope")
    asked = override(recipe, ["seed=3", f"model.start={tmp_path}/{{encoding}}/seed{{seed}}", "loop.steps=2"])
    outcome = train(asked, tmp_path / "run", quiet=True)
    shutil.rmtree(tmp_path / "rope")
    assert evaluate(tmp_path / "run")["AP"] == pytest.approx(outcome["metrics"]["AP"], abs=1e-6)
    model, own, _ = load_run(tmp_path / "run")
    assert own.data.image_size == 64
    weights = read_model(tmp_path / "run")[1]
    assert torch.equal(model.class_head.project.weight, weights["class_head.project.weight"])
    # A detector is a start, too: all of it.
    again = Detection2D(override(recipe, [f"model.start={tmp_path / 'run'}"])).model()
    assert torch.equal(again.box_head.layers[2].weight, weights["box_head.layers.2.weight"])


@pytest.mark.slow
def test_every_row_of_a_comparison_starts_from_its_like(recipe, retrieval, tmp_path, capsys):
    changes = ["seed=3", f"model.start={retrieval}/{{encoding}}/seed{{seed}}", "loop.steps=1", "optim.lr=0"]
    compare(override(recipe, changes), ["absolute", "rope"], 1, tmp_path, jobs=1)
    for encoding in ("absolute", "rope"):
        weights = read_model(tmp_path / "runs" / encoding / "seed3")[1]
        start = read_model(retrieval / encoding / "seed3")[1]
        name = "image.blocks.0.mlp.0.weight"
        assert torch.equal(weights[name], start[name])
    assert "| absolute |" in capsys.readouterr().out


def test_other_towers_are_refused(recipe, retrieval, tmp_path):
    def model(*changes):
        return Detection2D(override(recipe, [f"model.start={retrieval}/rope/seed3", *changes])).model()

    with pytest.raises(ValueError, match=r"other towers .*model.dim=32 there, 64 here; text.width=24 there, 8 here"):
        model("model.dim=64", "text.width=8")
    with pytest.raises(ValueError, match=r"model.encoding=rope there, circulant here"):
        model("model.encoding=circulant")
    with pytest.raises(ValueError, match=r"stands for .*nothing/7, which is not a folder: train that run first"):
        start_folder(override(recipe, [f"model.start={tmp_path}/nothing/{{seed}}", "seed=7"]))
    with pytest.raises(ValueError, match=r"model.start can hold {encoding}, {seed} and {depth}, got 'runs/{name}'"):
        start_folder(override(recipe, ["model.start=runs/{name}"]))


def test_a_2d_run_starts_a_3d_one(retrieval):
    """The same rule as for a policy's encoder: the plane is kept, and depth changes nothing at first."""
    model, old, parts = load_run(retrieval / "cayley" / "seed3")
    weights = model.state_dict()
    asked = override(old, ["model.depth=lift", f"model.start={retrieval}/cayley/seed3"])
    model = Retrieval.build(asked, parts)
    start_towers(model, asked, retrieval / "cayley" / "seed3")
    assert torch.equal(model.image.patch.weight, weights["image.patch.weight"])
    assert torch.equal(model.image.lift.scale, torch.zeros_like(model.image.lift.scale))
    name = "blocks.0.attention.encoding.frequencies.weight"
    assert torch.equal(model.image.state_dict()[name][:, :2], weights[f"image.{name}"])


def test_another_vocabulary_is_refused(retrieval, tmp_path):
    old = read_model(retrieval / "cayley" / "seed3")[0]
    Tokenizer.train(["other words altogether"], vocab=270).save(tmp_path / "tokenizer.json")
    asked = override(old, [f"model.start={retrieval}/cayley/seed3", f"text.tokenizer={tmp_path}/tokenizer.json"])
    with pytest.raises(ValueError, match=r"leave text.tokenizer empty, to use that run's"):
        Retrieval(asked).model()


def test_weights_of_another_shape_are_refused_in_words(retrieval):
    model, old, parts = load_run(retrieval / "rope" / "seed3")
    other = Retrieval.build(override(old, ["model.dim=16"]), parts)
    with pytest.raises(ValueError, match=r"weights of there are not those of its recipe .* there, .* by the"):
        load_weights(other, model.state_dict(), "there")
    weights = model.state_dict()
    del weights["projection.bias"]
    with pytest.raises(ValueError, match=r"they lack projection.bias"):
        load_weights(model, weights, "there")


@pytest.fixture(scope="module")
def named(recipe, tmp_path_factory):
    """Runs of classification under {encoding}, with the image tower of the detection recipe at 32 px."""
    folder = tmp_path_factory.mktemp("named")
    for encoding in ("cayley", "absolute"):
        asked = replace(
            recipe,
            task="classification",
            model=replace(recipe.model, encoding=encoding),
            data=Data(source="synthetic", image_size=32, num_classes=3, train_size=8, val_size=8),
            text=Text(),
            loss=Loss(),
        )
        train(override(asked, ["augment.mosaic=", "loop.steps=2", "loop.batch_size=4"]), folder / encoding, quiet=True)
    return folder


@pytest.mark.parametrize("encoding", ["cayley", "absolute"])
@pytest.mark.parametrize("pool", ["mean", "map"])
def test_the_image_tower_of_a_classifier_is_taken_over(recipe, retrieval, named, encoding, pool):
    changes = [f"model.encoding={encoding}", f"model.start={named}/{{encoding}}"]
    weights = read_model(named / encoding)[1]
    captions = read_model(retrieval / "rope" / "seed3")[0].data
    pairs = replace(recipe, task="retrieval", data=captions, loss=Loss(kind="siglip"), augment=Augment())
    pairs = replace(pairs, model=replace(pairs.model, pool=pool))
    for task in (Detection2D(override(recipe, changes)), Retrieval(override(pairs, changes))):
        torch.manual_seed(4)
        model = task.model()
        for name, tensor in model.image.state_dict().items():
            if name != "absolute.weight" and not name.startswith("map_pool."):
                assert torch.equal(tensor, weights[name]), name
        if encoding == "absolute":
            size = task.recipe.data.image_size // 8
            wanted = resample(weights["absolute.weight"], (4, 4), (size, size))
            assert torch.equal(model.image.absolute.weight, wanted)
        task.loss(model, next(task.batches(0, Place()))).backward()


def test_retrieval_goes_on_from_retrieval(retrieval):
    old, weights = read_model(retrieval / "cayley" / "seed3")
    task = Retrieval(override(old, [f"model.start={retrieval}/{{encoding}}/seed{{seed}}", "text.vocab=999"]))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in task.model().state_dict().items())
    own = (model_folder(retrieval / "cayley" / "seed3") / "tokenizer.json").read_text()
    assert task.feed.tokenizer.to_json() == own


def test_towers_that_do_not_fit_are_refused(recipe, named):
    with pytest.raises(ValueError, match=r"other towers .*\(model.dim=32 there, 64 here\)"):
        Detection2D(override(recipe, [f"model.start={named}/cayley", "model.encoding=cayley", "model.dim=64"])).model()
    asked = read_model(named / "cayley")[0]
    with pytest.raises(ValueError, match=r"model.start=.* would change nothing: the task classification"):
        create(override(asked, [f"model.start={named}/cayley"]))


def test_a_table_read_at_its_own_patches_is_itself():
    table = torch.randn(12, 5)
    assert torch.allclose(resample(table, (3, 4), (3, 4)), table, atol=1e-6)


@pytest.mark.parametrize("kind", ["owlvit", "owlv2"])
def test_a_checkpoint_of_transformers_trains(recipe, kind, tmp_path):
    names = {
        "owlvit": ("OwlViTConfig", "OwlViTForObjectDetection"),
        "owlv2": ("Owlv2Config", "Owlv2ForObjectDetection"),
    }
    config_type, model_type = (getattr(transformers, name) for name in names[kind])
    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer = Tokenizer.train(["a photo of a red ball"], vocab=300)
    config = config_type(
        text_config=tiny | {"vocab_size": len(tokenizer), "max_position_embeddings": 12},
        vision_config=tiny | {"image_size": 64, "patch_size": 16},
        projection_dim=32,
    )
    folder = tmp_path / "owl"
    model_type(config).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    start = load_owl(folder).state_dict()
    outcome = train(override(recipe, [f"model.start={folder}", "optim.lr=1e-3"]), tmp_path / "run", quiet=True)
    _, weights = read_model(tmp_path / "run")
    same = [name for name in weights if torch.equal(weights[name], start[name])]
    assert all("position_ids" in name for name in same), same
    shutil.rmtree(folder)
    assert evaluate(tmp_path / "run")["AP"] == pytest.approx(outcome["metrics"]["AP"], abs=1e-6)
    assert load_run(tmp_path / "run").model.context == 12


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
