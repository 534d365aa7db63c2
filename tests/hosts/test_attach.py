"""What does not depend on the family: encodings, norms, grouped heads, RoPE that stays, depth, errors."""

import copy

import pytest
import timm
import torch
from host_families import FAMILIES, PATCH, SIZE, VIT, encodings, find_family, images
from torch import nn

import stringpe
from cases import perturbed
from stringpe.basis import Identity, Interleaved
from stringpe.hosts import attached_layers


@pytest.mark.parametrize("name", stringpe.names())
def test_every_encoding_starts_as_the_same_function_and_learns(name):
    model = VIT.model()
    before = VIT.call(model, images())
    stringpe.attach(model, name)
    assert (VIT.call(model, images()) - before).abs().max() <= 1e-5
    VIT.call(model, images()).square().sum().backward()
    for encoding in encodings(model):
        assert all(p.grad.abs().max() > 0 for p in encoding.parameters())


def test_gates_open_in_training():
    """From 1e-7 to something that matters in a few steps, at the speed of the learning rate."""
    torch.manual_seed(0)
    model = stringpe.attach(VIT.model(), "cayley")
    skews = [encoding.basis.weight for encoding in encodings(model)]
    optimiser = torch.optim.AdamW(stringpe.param_groups(model, lr=1e-3, weight_decay=0.1, encoding_lr_scale=10.0))
    target = torch.tensor([1, 4])
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images()), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(encoding.frequencies.weight.abs().max() > 0.01 for encoding in encodings(model))
    assert all(skew.abs().max() > 0.01 for skew in skews)


@pytest.mark.parametrize("options", [{"sparsity": 3}, {"share_heads": True}, {"method": "solve"}, {"base": 10.0}])
def test_options_of_the_encoding(options):
    model = VIT.model()
    before = VIT.call(model, images())
    stringpe.attach(model, "cayley", **options)
    assert (VIT.call(model, images()) - before).abs().max() <= 1e-5


def test_units_decide_what_a_larger_image_is():
    small = {}
    for units in ("index", "centred", "normalised"):
        model = stringpe.attach(VIT.model(dynamic_img_size=True), units=units)
        VIT.call(model, images((64, 64)))
        small[units] = next(attached_layers(model))[1].token_coords[0].coords
    assert small["index"].amax() == 7
    assert small["centred"].amax() == 3.5
    assert small["normalised"].amax() < 1


def test_images_that_the_host_pads_to_whole_patches():
    model = VIT.model(dynamic_img_size=True, dynamic_img_pad=True)
    before = VIT.call(model, images((36, 44)))
    stringpe.attach(model, "cayley", coord_dim=3)
    assert (VIT.call(model, images((36, 44))) - before).abs().max() <= 1e-5
    with torch.no_grad():
        model.depth_lift.scale.fill_(1.0)
    depth = torch.full((2, 36, 44), 3.0)
    model(images((36, 44)), depth=depth)
    coords = next(attached_layers(model))[1].token_coords[0].coords
    assert coords.shape == (2, 5 * 6, 3)
    with pytest.raises(ValueError, match=r"one per pixel, \(2, 36, 44\)"):
        model(images((36, 44)), depth=torch.full((2, 40, 48), 3.0))
    torch.testing.assert_close(coords[..., 2], torch.full((2, 30), 3.0))  # padding is a hole, not a distance of zero


def test_depth_goes_with_its_patch_into_padded_windows():
    from timm.models.vision_transformer_sam import window_partition

    sam = find_family("timm", "SAM (windows)")
    model = stringpe.lift(sam.model())
    with torch.no_grad():
        model.depth_lift.scale.fill_(1.0)
    depth = torch.rand(2, 16) + 1
    model(images(), depth=depth)
    places = next(attached_layers(model))[1].token_coords[0]
    windows, _ = window_partition(depth.reshape(2, 4, 4, 1), 3)  # of 4 × 4 patches, padded to 6 × 6
    coords = places.of_windows(3, 3)
    assert torch.equal(coords[..., 2], windows.flatten(1))
    assert torch.equal(coords[..., :2], stringpe.coords.grid(3, 3).expand(8, -1, -1))


def test_a_tower_of_timm_in_open_clip():
    import open_clip

    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "timm_proj": "linear"}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    model = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text).eval()
    before = model.encode_image(images((224, 224)))
    stringpe.attach(model, "cayley")
    assert len(encodings(model)) == 12
    assert (model.encode_image(images((224, 224))) - before).abs().max() <= 1e-5


def test_a_lifted_model_without_depth_uses_all_its_parameters():
    """Under DDP a parameter without a gradient stops the second step."""
    model = stringpe.lift(VIT.model())
    VIT.call(model, images()).square().sum().backward()
    assert model.depth_lift.scale.grad == 0
    assert model.depth_lift.offset.grad == 0


@pytest.mark.parametrize("name", ["rope", "rope_mixed", "cayley", "general"])
@pytest.mark.parametrize("which", [f for f in FAMILIES if f.rope], ids=lambda f: f"{f.package} {f.name}")
def test_rope_stays_exactly_and_can_be_upgraded(which, name):
    model = which.model()
    before = which.call(model, images())
    stringpe.attach(model, name)
    assert (which.call(model, images()) - before).abs().max() <= 1e-5
    for encoding in encodings(model):
        assert encoding.frequencies().abs().max() > 0.1
        assert isinstance(encoding.frequencies.weight, nn.Parameter) == (name != "rope")
        stringpe.testing.check(encoding)
    if name in ("cayley", "general"):
        which.call(model, images()).square().sum().backward()
        scale = max(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
        assert all(e.basis.parameters() and _skew(e).grad.abs().max() > 1e-5 * scale for e in encodings(model))


@pytest.mark.parametrize("which", ["timm ViT", "timm RoPE-ViT axial", "transformers DINOv3"])
@pytest.mark.parametrize("learnable", [True, False])
def test_frequencies_of_rope_learn_if_asked(which, learnable):
    """Of a new RoPE behind its gate, and of the one that the model has."""
    one = find_family(*which.split(" ", 1))
    model = one.model()
    before = one.call(model, images())
    stringpe.attach(model, "rope", learnable=learnable)
    assert (one.call(model, images()) - before).abs().max() <= 1e-5
    one.call(model, images()).square().sum().backward()
    for encoding in encodings(model):
        theta = encoding.frequencies.inner if hasattr(encoding.frequencies, "inner") else encoding.frequencies
        assert isinstance(theta.weight, nn.Parameter) == learnable
        assert not learnable or theta.weight.grad.any()


def _skew(encoding):
    basis = encoding.basis.inner if isinstance(encoding.basis, Interleaved) else encoding.basis
    return basis.weight


def test_interleaved_layouts_fold_away():
    mixed = find_family("timm", "RoPE-ViT mixed")
    model = stringpe.attach(mixed.model(), "rope_mixed")
    assert all(isinstance(e.basis, Interleaved) for e in encodings(model))
    before = mixed.call(model, images())
    stringpe.fold(model)
    assert all(isinstance(e.basis, Identity) for e in encodings(model))
    torch.testing.assert_close(mixed.call(model, images()), before, atol=1e-5, rtol=0)


def test_rope_can_be_replaced():
    mixed = find_family("timm", "RoPE-ViT mixed")
    model = stringpe.attach(mixed.model(), "circulant", start="replace")
    assert not any("rope" in name for name, _ in model.named_parameters())
    assert (model.pos_embed[:, 1:] == 0).all()
    assert (model.pos_embed[:, :1] != 0).any() or model.no_embed_class
    with pytest.raises(ValueError, match="not those of a circulant basis"):
        stringpe.attach(mixed.model(), "circulant")
    with pytest.raises(ValueError, match="sets the frequencies: drop base"):
        stringpe.attach(mixed.model(), "cayley", base=10.0)


def test_training_coordinates_of_dinov3_are_drawn_anew():
    dino = find_family("transformers", "DINOv3")
    model = stringpe.attach(dino.model(pos_embed_rescale=2.0), "cayley")
    seen = []
    for training in (False, False, True, True):
        model.train(training)
        dino.call(model, images())
        seen.append(next(attached_layers(model))[1].token_coords[0].coords)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[2], seen[3])


def test_lift_is_the_2d_model_until_the_depth_layer_moves():
    torch.manual_seed(0)
    model = stringpe.lift(VIT.model(), "circulant", block_size=8)  # attaches first
    assert [call for call, _ in model.stringpe_calls] == ["attach", "lift"]
    depth = torch.rand(2, SIZE, SIZE) + 0.5
    depth[:, :PATCH] = float("nan")  # holes
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    nn.functional.cross_entropy(model(images(), depth=depth), torch.tensor([0, 1])).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    optimiser.step()
    assert model.depth_lift.scale.abs() > 1e-3
    assert (model(images(), depth=depth) - model(images())).abs().max() > 1e-6
    with pytest.raises(ValueError, match="encodings are 2D"):
        stringpe.lift(model)


def test_a_lifted_model_warns_once_of_depth_in_millimetres():
    model = stringpe.lift(VIT.model())
    depth = 1000 * (torch.rand(2, SIZE, SIZE) + 0.5)
    with pytest.warns(UserWarning, match="looks like millimetres.*divide it by 1000"):
        model(images(), depth=depth)
    model(images(), depth=depth)  # a warning would be an error


def test_coord_dim_3_attaches_and_lifts():
    model = stringpe.attach(VIT.model(), "cayley", coord_dim=3, start="replace")
    with torch.no_grad():
        model.depth_lift.scale.fill_(1.0)
    depth = torch.rand(2, SIZE, SIZE)
    patches = stringpe.coords.pool_depth(depth, PATCH).flatten(1)
    assert torch.equal(model(images(), depth=depth), model(images(), depth=patches))
    for wrong in ((2, 3), (3, 16), (1, SIZE, SIZE), (2, SIZE - 1, SIZE), (2, 2 * SIZE, 2 * SIZE), (2, 1, SIZE, SIZE)):
        with pytest.raises(ValueError, match=r"one value per patch, \(2, 16\) or one per pixel, \(2, 32, 32\)"):
            model(images(), depth=torch.rand(wrong))
    for whole in (depth.int(), patches.short()):
        with pytest.raises(ValueError, match=r"depth is in metres.*depth\.float\(\) / 1000"):
            model(images(), depth=whole)
    model(images(), depth=depth)  # a refused call leaves nothing behind


@pytest.mark.slow
def test_a_lifted_model_compiles_whole():
    torch.compiler.reset()
    model = stringpe.lift(VIT.model())
    with torch.no_grad():
        model.depth_lift.scale.fill_(1.0)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    depth = torch.rand(2, SIZE, SIZE)
    torch.testing.assert_close(compiled(images(), depth=depth), model(images(), depth=depth), atol=1e-5, rtol=0)
    torch.testing.assert_close(compiled(images()), model(images()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["rope", "cayley", "circulant"])
def test_our_own_vit_is_lifted(name):
    torch.manual_seed(0)
    model = perturbed(stringpe.vit("vit_test_patch8", encoding=name, num_classes=3, pool="cls"), 0.1).eval()
    before = model(images())
    stringpe.lift(model)
    depth = torch.rand(2, SIZE, SIZE) + 0.5
    assert torch.equal(model(images()), before)
    out = model(images(), depth)
    assert torch.equal(out, before)
    out.square().sum().backward()
    assert model.lift.scale.grad.abs() > 0
    with torch.no_grad():
        model.lift.scale.fill_(2.0)
    moved = model(images(), depth)
    assert (moved - before).abs().max() > 1e-4
    torch.testing.assert_close(stringpe.fold(model)(images(), depth), moved, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="encodings are 2D"):
        stringpe.lift(stringpe.vit("vit_test_patch8", encoding="absolute"))


def test_linear_attention_estimates_the_softmax():
    """More features, less error: the linear attention is of the same q and k."""
    torch.manual_seed(0)
    model = VIT.build().eval()  # as timm starts it: scores of order one, where few features are enough
    before = VIT.call(model, images())
    errors = []
    for count in (16, 4096):
        torch.manual_seed(0)
        linear = stringpe.attach(copy.deepcopy(model), "cayley", attention="linear")
        for _, layer in attached_layers(linear):
            layer.directions = stringpe.linear_attention.random_directions(count, layer.head_dim)
        errors.append((VIT.call(linear, images()) - before).norm().item())
    assert errors[1] < 0.2 * errors[0]


def test_autocast_and_half_precision():
    model = stringpe.attach(VIT.model(), "cayley")
    perturbed(nn.ModuleList(encodings(model)), 0.3)
    exact = VIT.call(model, images())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = VIT.call(model, images())
    torch.testing.assert_close(rough.float(), exact, atol=0.1, rtol=0.1)
    half = copy.deepcopy(model).bfloat16()
    assert encodings(half)[0].frequencies.weight.dtype == torch.float32
    torch.testing.assert_close(half(images().bfloat16()).float(), exact, atol=0.1, rtol=0.1)


def test_errors_say_what_was_found_and_what_is_supported():
    swin = timm.create_model("swin_tiny_patch4_window7_224", embed_dim=32, depths=(1, 1, 1, 1), num_classes=2)
    with pytest.raises(
        ValueError, match=r"does not know SwinTransformer: its attention is .*WindowAttention.*timm: Vi"
    ):
        stringpe.attach(swin)
    odd = timm.create_model("vit_tiny_patch16_224", embed_dim=32, depth=1, num_heads=2, attn_layer="diff")
    with pytest.raises(ValueError, match="DiffAttention"):
        stringpe.attach(odd)
    with pytest.raises(ValueError, match="no class that has Attention"):
        stringpe.attach(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="attached already"):
        stringpe.attach(stringpe.attach(VIT.model()))
    with pytest.raises(ValueError, match="start must be one of same, replace, got 'fresh'"):
        stringpe.attach(VIT.model(), start="fresh")
    with pytest.raises(ValueError, match="did you mean 'cayley'"):
        stringpe.attach(VIT.model(), "caley")
    with pytest.raises(ValueError, match="one of index, centred, normalised"):
        stringpe.attach(VIT.model(), units="metres")
    layer = next(attached_layers(stringpe.attach(VIT.model())))[1]
    with pytest.raises(ValueError, match="call the model"):
        layer(torch.randn(1, 17, 32))


def test_a_failed_attach_leaves_the_model_as_it_was():
    model = VIT.model()
    before = VIT.call(model, images())
    with pytest.raises(ValueError, match="block_size"):
        stringpe.attach(model, "circulant", block_size=5)
    assert not list(attached_layers(model))
    assert torch.equal(VIT.call(model, images()), before)


class TestAttentionMaps:
    """transformers returns attention maps where attention is "eager"; attached models do too."""

    def model(self):
        family = next(f for f in FAMILIES if (f.package, f.name) == ("transformers", "SigLIP"))
        model = family.model()
        model.set_attn_implementation("eager")
        return model

    def test_they_are_those_of_the_host_where_it_returned_some_before(self):
        model = self.model()
        expected = model(images(), output_attentions=True).attentions
        stringpe.attach(model, "cayley")
        found = model(images(), output_attentions=True).attentions
        assert len(found) == len(expected) == 2
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)

    def test_they_are_those_that_were_used(self):
        model = stringpe.attach(self.model(), "cayley")
        for _, layer in attached_layers(model):
            perturbed(layer.encoding, 0.3)
        out = model(images(), output_attentions=True)
        assert all((a.sum(-1) - 1).abs().max() < 1e-5 for a in out.attentions)
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(model(images()).last_hidden_state, out.last_hidden_state, atol=1e-5, rtol=1e-4)
        assert not model(images(), output_attentions=True).attentions
