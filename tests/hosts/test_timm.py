"""As timm citizens: the registry, and what timm's training script asks of a model."""

import copy
import pickle

import pytest
import timm
import timm.optim
import timm.utils
import torch
from host_families import images

import stringpe
import stringpe.timm
from stringpe.hosts import attached_layers

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.mark.parametrize("name", stringpe.names())
def test_create_model_by_tag(name):
    model = timm.create_model(f"vit_base_patch16_224.string_{name}", **SMALL)
    assert [layer.encoding.name for _, layer in attached_layers(model)] == [name] * 2
    assert model.pos_embed is None
    assert model(images()).shape == (2, 5)
    assert model.pretrained_cfg["tag"] == f"string_{name}"
    assert model.pretrained_cfg["input_size"] == (3, 224, 224)


def test_timm_lists_them_and_its_own_models_stay():
    assert "vit_base_patch16_224.string_cayley" in timm.list_models("vit_base_patch16_224.*", include_tags=True)
    assert timm.is_model("vit_base_patch16_224")
    plain = timm.create_model("vit_base_patch16_224", **SMALL)
    assert not list(attached_layers(plain))
    assert plain.pretrained_cfg["tag"] != "string_cayley"
    with pytest.raises(ValueError, match="no weights for string_cayley"):
        timm.create_model("vit_base_patch16_224.string_cayley", pretrained=True, **SMALL)


def test_options_reach_the_encoding():
    model = timm.create_model(
        "vit_tiny_patch16_224.string_circulant", **SMALL, coord_dim=3, encoding_options={"block_size": 8}
    )
    assert next(attached_layers(model))[1].encoding.basis.block_size == 8
    depth = torch.rand(2, 32, 32)
    assert model(images(), depth=depth).shape == (2, 5)


def test_what_a_training_script_does():
    """Optimiser groups, checkpointing, an averaged copy, another head, features, another resolution."""
    torch.manual_seed(0)
    model = timm.create_model("vit_base_patch16_224.string_cayley", **SMALL, drop_path_rate=0.1, patch_drop_rate=0.25)
    model.set_grad_checkpointing(True)
    optimiser = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.05, layer_decay=0.75)
    own = {id(p) for _, layer in attached_layers(model) for p in layer.encoding.parameters()}
    decayed = {id(p) for group in optimiser.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    assert own
    assert not own & decayed
    assert {id(p) for group in optimiser.param_groups for p in group["params"]} >= own
    average = timm.utils.ModelEmaV3(model)
    target = torch.tensor([0, 3])
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images()), target)
        loss.backward()
        optimiser.step()
        average.update(model)
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(images()), model(images()))
    features, levels = model.forward_intermediates(images(), indices=2)
    assert torch.equal(model.forward_head(features), model(images()))
    assert levels[0].shape == (2, 32, 4, 4)
    model.reset_classifier(7)
    assert model(images()).shape == (2, 7)
    model.set_input_size((48, 32))
    assert model(images((48, 32))).shape == (2, 7)
    assert copy.deepcopy(model)(images((48, 32))).shape == (2, 7)


def test_feature_maps_have_the_shapes_of_timm():
    model = timm.create_model("vit_base_patch16_224.string_cayley", **SMALL, features_only=True, out_indices=(0, 1))
    assert [f.shape for f in model(images())] == [(2, 32, 4, 4)] * 2
