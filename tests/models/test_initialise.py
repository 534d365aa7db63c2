import pytest
import torch
from torch import nn

import stringpe
from stringpe import ViT
from stringpe.models.contrastive import Contrastive
from stringpe.models.initialise import (
    WEIGHTS,
    Initialisation,
    initialise,
    initialise_by_name,
    measure_signal,
    weight_std,
)
from stringpe.models.owl import OwlViT
from stringpe.models.owl3d import START, Detector3D
from stringpe.models.points import PointTransformer
from stringpe.models.text import TextTower
from stringpe.robots.policies.base import Net, Spec
from stringpe.robots.policies.diffusion_policy import DiffusionPolicy
from stringpe.robots.policies.energy_policy import EnergyPolicy
from stringpe.robots.policies.observer import ImageEncoder

ENCODINGS = ["absolute", "sincos", "none", "rope", "rope_mixed", "cayley", "circulant", "general", "liere"]
SIZES = {  # dim, layers, heads
    "8 × 256": (256, 8, 4),
    "12 × 192": (192, 12, 3),
    "as wide as base": (768, 3, 12),
}


def tower(encoding="cayley", size=(32, 2, 2), **options):
    dim, layers, heads = size
    options = {"patch_size": 8, "image_size": 64} | options
    return ViT(dim=dim, layers=layers, num_heads=heads, encoding=encoding, **options)


def text():
    return TextTower(vocab=20, dim=16, layers=1, num_heads=2, context=8, width=12)


def policy(kind, vit):
    spec = Spec(("top", "wrist"), 3, 4, 16, 10.0)
    return kind(
        ImageEncoder(vit), spec, Net(dim=32, num_heads=2, encoder_layers=1, decoder_layers=2, chunk=6, execute=3)
    )


MODELS = {
    "classification": lambda encoding: tower(encoding, num_classes=3, pool="map", registers=2),
    "depth": lambda encoding: tower(encoding, depth="channel", stem="conv", pool="cls"),
    "retrieval": lambda encoding: Contrastive(tower(encoding), text()),
    "detection": lambda encoding: OwlViT(tower(encoding), text()),
    "detection in 3D": lambda encoding: Detector3D(tower(encoding), text(), factor=10),
    "diffusion policy": lambda encoding: policy(DiffusionPolicy, tower(encoding, patch_size=4, image_size=16)),
    "energy policy": lambda encoding: policy(EnergyPolicy, tower(encoding, patch_size=4, image_size=16)),
}


def photographs(count=4, side=64, seed=0):
    """Images in [−1, 1] with the spectrum of photographs, amplitude 1 / frequency, and their spread of 0.55."""
    dice = torch.Generator().manual_seed(seed)
    frequency = torch.fft.fftfreq(side)[:, None].hypot(torch.fft.rfftfreq(side)).clamp(min=0.5 / side)
    noise = torch.fft.rfft2(torch.randn(count, 3, side, side, generator=dice))
    image = torch.fft.irfft2(noise / frequency, s=(side, side))
    return image / image.std() * 0.55


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.slow
def test_tokens_keep_their_own_signal_through_all_blocks(encoding, size):
    """Truncated normals of 0.02 keep it, a Xavier start does not: it is what held back every model trained from it."""
    torch.manual_seed(0)
    model, image = tower(encoding, SIZES[size]), photographs()
    found = measure_signal(model, image)
    assert found.kept > 0.8
    assert found.growth < 2.5
    if encoding != "sincos":  # half of which is the same for all patches of so small a grid
        assert found.own > 0.7
    initialise(model, Initialisation("xavier"))
    lost = measure_signal(model, image)
    assert lost.kept < 0.7
    assert lost.growth > found.growth * 1.4


@pytest.mark.parametrize("dim", [16, 32, 64, 128, 192, 256, 768])
def test_attention_says_something_at_the_start_whatever_the_width(dim):
    """What attention adds to a token, relative to what they read: 0.02 alone makes it 0.01 at 32 channels, and such
    models stay for hundreds of steps where they cannot use positions."""
    torch.manual_seed(0)
    attention = tower("none", (dim, 1, 2)).blocks[0].attention
    tokens = torch.randn(400, 1, dim)  # one token, which attends to itself: its value and nothing else
    share = float(attention(tokens).detach().std())
    assert 0.07 < share < 1.1


@pytest.mark.parametrize(
    ("inputs", "std"), [(3, 3**-0.5), (16, 0.25), (32, 0.16), (64, 0.08), (128, 0.04), (256, 0.02), (3072, 0.02)]
)
def test_the_start_of_a_linear_layer_follows_from_its_inputs(inputs, std):
    torch.manual_seed(0)
    linear = nn.Linear(inputs, 2000)
    initialise(linear)
    assert weight_std(inputs) == pytest.approx(std)
    assert float(linear.weight.detach().std()) == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("weights", ["depth_scaled", "width_scaled"])
def test_scaled_starts_hardly_grow_the_stream_of_wide_models(weights):
    torch.manual_seed(0)
    model, image = tower("rope", (768, 3, 12)), photographs()
    initialise(model, Initialisation(weights))
    found = measure_signal(model, image)
    assert found.kept > 0.9
    assert found.growth < 1.4


def test_measuring_changes_nothing():
    model, image = tower("cayley", drop_path=0.5).train(), photographs(2)
    first = measure_signal(model, image)
    assert model.training
    assert not model.blocks[0]._forward_pre_hooks
    assert not model.blocks[-1]._forward_hooks
    assert measure_signal(model, image) == first


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_one_seed_agree_in_all_parameters_that_they_share(kind):
    """Whatever the encoding draws, and whatever was drawn before."""
    made = {}
    for encoding in ENCODINGS:
        if kind == "depth" and encoding == "liere":
            continue
        model = MODELS[kind](encoding)
        initialise_by_name(model, 7)
        made[encoding] = dict(model.named_parameters())
    everything = {name for parameters in made.values() for name in parameters}
    for name in everything:
        same = [parameters[name] for parameters in made.values() if name in parameters]
        groups: dict[torch.Size, torch.Tensor] = {}  # frequencies of different encodings may differ in shape
        for parameter in same:
            assert torch.equal(groups.setdefault(parameter.shape, parameter), parameter), name
    shared = {n for n in everything if all(n in parameters for parameters in made.values())}
    assert set(made["none"]) == shared  # a model without positions has nothing of its own


@pytest.mark.parametrize("encoding", ["rope_mixed", "cayley", "circulant", "general", "liere"])
def test_encodings_of_different_layers_differ(encoding):
    model = tower(encoding)
    initialise_by_name(model, 0)
    first, second = (dict(block.attention.encoding.named_parameters()) for block in model.blocks)
    drawn = [name for name in first if first[name].any()]  # S of a Cayley basis is zero in all of them
    assert drawn
    assert not any(torch.equal(first[name], second[name]) for name in drawn)


def test_another_seed_is_another_model_and_the_global_generator_is_left_alone():
    model = tower(num_classes=3)
    torch.manual_seed(3)
    initialise_by_name(model, 0)
    after = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(4))
    weights = {name: p.clone() for name, p in model.named_parameters()}
    initialise_by_name(model, 1)
    assert not torch.equal(weights["blocks.0.mlp.0.weight"], model.blocks[0].mlp[0].weight)
    initialise_by_name(model, 0)
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())


def test_random_features_of_linear_attention_are_drawn_by_name_too():
    models = [tower(encoding, attention="linear") for encoding in ("rope", "cayley")]
    for model in models:
        initialise_by_name(model, 0)
    one, other = (model.blocks[1].attention.projection for model in models)
    assert torch.equal(one, other)
    assert not torch.equal(one, models[0].blocks[0].attention.projection)


@pytest.mark.parametrize("kind", MODELS)
def test_what_each_kind_of_parameter_starts_as(kind):
    torch.manual_seed(0)
    model = MODELS[kind]("absolute")
    built = {name: p.clone() for name, p in model.named_parameters()}
    initialise_by_name(model, 0)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if parameter.numel() < 256:
            continue
        spread, before = float(parameter.detach().std()), float(built[name].detach().std())
        assert spread == pytest.approx(before, rel=0.2), name  # built and started by name alike
        if name.startswith("blocks.") and parameter.ndim == 2:
            assert spread == pytest.approx(weight_std(parameter.shape[1]), rel=0.1), name


def test_heads_start_where_their_recipes_say():
    owl, solid, both = (MODELS[k]("rope") for k in ("detection", "detection in 3D", "retrieval"))
    vit, policy = MODELS["classification"]("rope"), MODELS["diffusion policy"]("rope")
    for model in (owl, solid, both, vit, policy):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        initialise_by_name(model, 0)
    assert float(vit.head.weight.detach().std()) == pytest.approx(32**-0.5, rel=0.3)
    assert not owl.box_head.layers[2].weight.any()
    assert not owl.class_head.scale.weight.any()
    assert owl.class_head.shift.bias.sigmoid().item() == pytest.approx(0.01)
    assert solid.class_head.scale.bias.item() == pytest.approx(9)
    assert (solid.box_head(torch.randn(5, 32)) - torch.tensor(START)).abs().max() < 0.2
    assert (both.scale.exp().item(), both.bias.item()) == pytest.approx((10, -10))
    assert not policy.decoder.leave.weight.any()
    assert not policy.decoder.blocks[0].modulate.weight.any()
    assert not policy.observer.word.weight[0].any()  # padding says nothing


@pytest.mark.parametrize("name", ["images", "points"])
def test_a_classifier_passes_a_gradient_from_the_first_step_on(name):
    """From a classifier at zero the layers before it would get none."""
    if name == "images":
        model, inputs = tower("rope", num_classes=3), (torch.randn(4, 3, 32, 32),)
    else:
        model = PointTransformer(dim=32, layers=1, num_heads=2, num_classes=3, encoding="rope")
        inputs = (torch.randn(4, 8, 5, 3), torch.randn(4, 8, 3))
    initialise_by_name(model, 0)
    nn.functional.cross_entropy(model(*inputs), torch.arange(4) % 3).backward()
    first = [p.grad for n, p in model.named_parameters() if n.startswith("blocks.0") and p.ndim == 2]
    assert all(grad is not None and grad.any() for grad in first)


def test_a_trained_encoding_and_what_is_skipped_keep_their_values():
    trained = stringpe.cayley(head_dim=16, num_heads=2)
    nn.init.normal_(trained.basis.weight)
    before = trained.basis.weight.clone()
    model = tower(trained)
    assert torch.equal(model.blocks[0].attention.encoding.basis.weight, before)
    head = MODELS["detection"]("rope")
    weights = {name: p.clone() for name, p in head.image.named_parameters()}
    initialise_by_name(head, 5, skip=[head.image])
    assert all(torch.equal(weights[name], p) for name, p in head.image.named_parameters())


def test_the_patch_embedding_has_the_size_that_is_asked_for():
    image = torch.randn(8, 3, 64, 64)
    for gain in (0.25, 1.0):
        model = tower("none", (256, 1, 4))
        initialise(model, Initialisation(patch_gain=gain))
        assert measure_signal(model, image).before == pytest.approx(gain, rel=0.1)


def test_residual_branches_are_divided_by_the_root_of_their_number():
    plain, scaled = tower(size=(32, 3, 2)), tower(size=(32, 3, 2))
    initialise_by_name(plain, 0)
    initialise_by_name(scaled, 0, Initialisation("depth_scaled"))
    for one, other in zip(plain.blocks, scaled.blocks, strict=True):
        torch.testing.assert_close(other.attention.out.weight * 6**0.5, one.attention.out.weight)
        torch.testing.assert_close(other.mlp[-1].weight * 6**0.5, one.mlp[-1].weight)
        assert torch.equal(other.attention.qkv.weight, one.attention.qkv.weight)


def test_bad_starts_are_refused():
    with pytest.raises(ValueError, match=f"must start as one of {', '.join(WEIGHTS)}, got 'he'"):
        Initialisation("he")
    for gain in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be positive and finite"):
            Initialisation(patch_gain=gain)
