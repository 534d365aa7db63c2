"""Out of Python, and the same numbers there."""

import sys
from dataclasses import replace

import pytest
import torch
from host_families import FAMILIES

import stringpe
from cases import perturbed
from stringpe.cli import main as cli
from stringpe.export import _image_size, _name_outputs, _run, bake, export
from stringpe.hosts import attached_layers
from stringpe.pretrained import save_pretrained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),  # torch's exporter, on itself
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


def host(library, name, **options):
    family = next(f for f in FAMILIES if (f.package, f.name) == (library, name))
    model = family.model(**options)
    stringpe.attach(model, "cayley")
    for _, layer in attached_layers(model):
        perturbed(layer.encoding, 0.3)
    return model


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_vit_with_depth_takes_any_batch_and_size(to, tmp_path):
    torch.manual_seed(0)
    model = perturbed(stringpe.vit("vit_test_patch8", encoding="cayley", coord_dim=3, num_classes=5, pool="cls"), 0.1)
    done = export(model, tmp_path / "model", to=to, size=32)
    assert done.any_size
    assert done.difference <= 1e-4
    if to == "onnx":
        assert _names(done.path) == (["image", "depth"], ["logits"])


def _names(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]


def test_outputs_have_the_names_that_the_model_gives_them():
    from collections import namedtuple

    from transformers.modeling_outputs import BaseModelOutputWithPooling

    one, two = torch.zeros(1), torch.ones(1)
    found = BaseModelOutputWithPooling(last_hidden_state=one, pooler_output=two)
    headless = stringpe.vit("vit_test_patch8", num_classes=0)
    assert list(_name_outputs(found, headless)) == ["last_hidden_state", "pooler_output"]
    assert list(_name_outputs(namedtuple("Found", "boxes scores")(one, two), headless)) == ["boxes", "scores"]
    assert list(_name_outputs((one, None, two), headless)) == ["output_0", "output_2"]
    assert list(_name_outputs(one, headless)) == ["features"]


def test_hosts_of_one_size_and_of_any(tmp_path):
    fixed = export(host("transformers", "ViT"), tmp_path / "fixed.pt2", to="torch-export")
    assert not fixed.any_size
    assert fixed.difference <= 1e-4
    free = export(host("timm", "DINOv3", dynamic_img_size=True), tmp_path / "free.onnx", size=(32, 48))
    assert free.any_size
    assert free.difference <= 1e-4


def test_what_is_exported_has_nothing_to_solve(tmp_path):
    model = bake(host("timm", "ViT"))
    assert all(isinstance(layer.encoding.basis, stringpe.basis.Identity) for _, layer in attached_layers(model))
    family = FAMILIES[0]
    normed = stringpe.attach(family.model(qk_norm=True), "cayley")
    before = normed(torch.ones(1, 3, 32, 32))
    baked = bake(normed)
    assert all(isinstance(layer.encoding.basis, stringpe.basis.GivenBasis) for _, layer in attached_layers(baked))
    torch.testing.assert_close(baked(torch.ones(1, 3, 32, 32)), before)


def test_the_command_exports_a_saved_model(monkeypatch, tmp_path, capsys):
    import timm

    build = {"model_name": "vit_tiny_patch16_224", "img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 2}
    save_pretrained(stringpe.lift(timm.create_model(**build)), tmp_path, build=build)
    monkeypatch.setattr(sys, "argv", ["stringpe", "export", str(tmp_path), "--to", "torch-export"])
    cli.main()
    assert "any batch, this size only" in capsys.readouterr().out
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert program(torch.randn(3, 3, 32, 32), torch.rand(3, 32, 32))[0].shape == (3, 1000)


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_the_command_exports_siglip2_as_a_function_of_images(to, monkeypatch, tmp_path, capsys):
    """It takes patches, a mask and their grid; the file takes an image, in any batch, and names its outputs."""
    from host_families import _patches

    family = next(f for f in FAMILIES if f.name == "SigLIP2")
    model = host("transformers", "SigLIP2")
    save_pretrained(model, tmp_path)
    monkeypatch.setattr(sys, "argv", ["stringpe", "export", str(tmp_path), "--to", to, "--size", "48"])
    cli.main()
    assert "any batch, this size only" in capsys.readouterr().out
    image = torch.randn(3, 3, 48, 48)
    wanted = family.output(model(**_patches(image)))  # on a larger grid than its table, with padding
    if to == "onnx":
        assert _names(tmp_path / "model.onnx") == (["image"], ["last_hidden_state", "pooler_output"])
        found = _run(tmp_path / "model.onnx", to, (image,))[0]
    else:
        found = torch.export.load(tmp_path / "model.pt2").module()(image)[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert model.embeddings.resize_positional_embeddings.__module__.startswith("transformers.")  # ours is a copy


@pytest.mark.parametrize(("task", "answer"), [("classification", (1, 4)), ("objects", (1, 32))])
def test_a_run_is_exported_without_its_data(task, answer, tmp_path):
    from stringpe.io.checkpoint import Checkpoint, write
    from stringpe.recipes.schema import Data, Model, Recipe
    from stringpe.tasks import task_class
    from stringpe.tasks.base import Parts
    from stringpe.tasks.load import load_vit

    recipe = Recipe(
        task=task,
        model=replace(Model(), dim=32, layers=1, heads=2, patch_size=8, depth="lift"),
        data=Data(source="shards", train="gone.tar", image_size=32, num_classes=4),
    )
    model = task_class(task).build(recipe, Parts()).eval()
    vit = getattr(model, "vit", model)
    state = {"state": {}, "param_groups": []}
    write(tmp_path, Checkpoint(1, recipe, model.state_dict(), None, state, {"cpu": torch.zeros(1)}, {}), keep=1)
    found, size = load_vit(tmp_path)
    assert size == 32
    image, depth = torch.randn(1, 3, 32, 32), torch.rand(1, 32, 32)
    assert found(image, depth).shape == answer
    assert torch.equal(found.features(image, depth).pooled, vit.features(image, depth).pooled)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value, tmp_path):
    model = stringpe.vit("vit_test_patch8", encoding="cayley", num_classes=5)
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight[3, 4] = value
    with pytest.raises(ValueError, match=r"not finite numbers: blocks\.1\.attention\.qkv\.weight"):
        export(model, tmp_path / "model.pt2", to="torch-export", size=16)
    assert not (tmp_path / "model.pt2").exists()


def test_outputs_that_are_not_finite_are_refused(tmp_path):
    model = stringpe.vit("vit_test_patch8", encoding="cayley", num_classes=5)
    with torch.no_grad():
        model.head.weight.fill_(3e38)  # finite, and its sums are not
    with pytest.raises(ValueError, match="output 0 of this model is not finite"):
        export(model, tmp_path / "model.pt2", to="torch-export", size=16)


def test_a_file_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    model = perturbed(stringpe.vit("vit_test_patch8", encoding="cayley", num_classes=5), 0.1)
    monkeypatch.setattr("stringpe.export._run", lambda path, to, inputs: [torch.full((3, 5), float("nan"))])
    with pytest.raises(ValueError, match="does not compute what the model does"):
        export(model, tmp_path / "model.pt2", to="torch-export", size=16)
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize(
    ("library", "name"), [("transformers", "CLIP"), ("transformers", "Depth Anything"), ("open_clip", "CLIP")]
)
def test_larger_models_say_which_images_they_are_made_for(library, name):
    assert _image_size(host(library, name), None) == (32, 32)


def test_a_model_that_needs_more_than_an_image_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"this CLIPModel cannot be called so .*export an image tower"):
        export(host("transformers", "CLIP"), tmp_path / "x", to="torch-export")


def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(ValueError, match="onnx or torch-export"):
        export(host("timm", "ViT"), tmp_path / "x", to="tensorrt")
    with pytest.raises(ValueError, match="called with an image"):
        export(torch.nn.Linear(3, 3), tmp_path / "x", size=32)
    with pytest.raises(ValueError, match=r"pass size=224 \(--size 224\)"):
        export(stringpe.vit("vit_test_patch8"), tmp_path / "x")


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_an_error_before_the_model_is_traced(monkeypatch, package, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("stringpe.export.bake", lambda model: pytest.fail("work was done before the check"))
    with pytest.raises(ModuleNotFoundError, match=package):
        export(stringpe.vit("vit_test_patch8"), tmp_path / "model.onnx", size=32)
