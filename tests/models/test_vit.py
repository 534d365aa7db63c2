import copy
import itertools

import pytest
import torch

import stringpe
from cases import perturbed
from stringpe import ViT, vit
from stringpe.models.vit import SIZES

ENCODINGS = [*stringpe.names(), "liere", "absolute", "sincos", "none"]
DEPTHS = ("none", "channel", "lift", "normals", "lift+channel", "lift+normals")


def model(encoding="cayley", depth="none", **options):
    """A small ViT."""
    torch.manual_seed(0)
    options = {"num_classes": 5} | options
    return vit("vit_test_patch8", encoding=encoding, depth=depth, image_size=32, **options)


def batch(height=32, width=32, b=2):
    torch.manual_seed(1)
    return torch.randn(b, 3, height, width), torch.rand(b, height, width) * 3 + 0.5


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_every_encoding_with_every_way_of_depth(encoding, depth):
    if encoding == "none" and "lift" in depth:
        with pytest.raises(ValueError, match="no coordinates to lift depth into"):
            model(encoding, depth)
        return
    net = model(encoding, depth)
    image, metres = batch()
    without = net(image)
    assert without.shape == (2, 5)
    if depth == "none":
        return
    assert (net(image, metres) - without).abs().max() > 1e-4  # depth matters


@pytest.mark.parametrize(
    ("encoding", "depth", "pool"),
    [
        *itertools.product(ENCODINGS, ["none"], ["mean", "cls", "map"]),
        *itertools.product([e for e in ENCODINGS if e != "none"], ["lift+normals"], ["mean", "map"]),
    ],
)
def test_every_parameter_of_every_layer_gets_gradient(encoding, depth, pool):
    net = model(encoding, depth, pool=pool, registers=2)
    image, metres = batch()
    net(image, metres if depth != "none" else None).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("encoding", stringpe.names())
@pytest.mark.parametrize("depth", ["none", "lift", "normals", "lift+normals"])
def test_shifting_all_coordinates_changes_nothing_without_a_class_token(encoding, depth):
    net = perturbed(model(encoding, depth, num_classes=0), 0.02)
    image, metres = batch()
    metres = metres if depth != "none" else None
    places = (net.features(image, metres).coords * 64).round() / 64  # of which a shift by 512 is exact in float32
    own = net.features(image, metres, coords=places)
    moved = net.features(image, metres, coords=places + 512)
    torch.testing.assert_close(moved.tokens, own.tokens, atol=2e-5, rtol=0)
    torch.testing.assert_close(moved.pooled, own.pooled, atol=2e-5, rtol=0)
    assert (net.features(image, metres, coords=own.coords * 1.3).tokens - own.tokens).abs().max() > 1e-3


def test_coord_dim_and_depth_follow_from_each_other():
    sizes = {"dim": 32, "layers": 1, "num_heads": 2, "patch_size": 8}
    solid = stringpe.cayley(head_dim=16, num_heads=2, coord_dim=3)
    for options, expected in [
        ({}, (2, "none")),
        ({"coord_dim": 3}, (3, "lift")),
        ({"depth": "lift"}, (3, "lift")),
        ({"depth": "lift+channel"}, (3, "lift+channel")),
        ({"depth": "channel"}, (2, "channel")),
        ({"coord_dim": 3, "depth": "lift+normals"}, (3, "lift+normals")),
        ({"encoding": solid}, (3, "lift")),
    ]:
        made = ViT(**sizes, **options)
        assert (made.coord_dim, made.depth) == expected


@pytest.mark.parametrize("depth", ["lift", "channel"])
def test_depth_in_millimetres_is_warned_about_once(depth):
    net = model(depth=depth)
    image, metres = batch()
    with pytest.warns(UserWarning, match="looks like millimetres.*divide it by 1000"):
        net(image, 1000 * metres)
    net(image, 1000 * metres)  # a warning would be an error
    with torch.no_grad():
        model(depth=depth)(image, torch.where(metres > 2, 0.0, 40 * metres))  # far, with holes, but metres


@pytest.mark.parametrize("pool", ["mean", "cls", "map"])
def test_a_trunk_shares_everything_but_head_and_pooling(pool):
    net = model(pool=pool, registers=1)
    image, _ = batch()
    before = net(image)
    trunk = net.trunk()
    torch.testing.assert_close(trunk.features(image).tokens, net.features(image).tokens)
    assert {n for n, _ in net.named_parameters()} - {n for n, _ in trunk.named_parameters()} == {
        n for n, _ in net.named_parameters() if n.startswith(("head.", "map_pool."))
    }
    assert torch.equal(net(image), before)
    with torch.no_grad():
        trunk.blocks[0].norm1.weight.mul_(2)
    assert not torch.equal(net(image), before)


def test_absolute_embeddings_do_change():
    net = model("sincos", num_classes=0)
    image, _ = batch()
    own = net.features(image)
    assert (net.features(image, coords=own.coords + 512).tokens - own.tokens).abs().max() > 1e-2


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("units", ["index", "centred", "normalised"])
def test_any_resolution_and_aspect(encoding, units):
    net = model(encoding, units=units, pool="cls", registers=1)
    for size in [(32, 32), (48, 32), (16, 80), (8, 8)]:
        out = net.features(batch(*size)[0])
        assert out.tokens.shape == (2, size[0] * size[1] // 64, 32)
        assert out.size == (size[0] // 8, size[1] // 8)


@pytest.mark.parametrize("depth", ["channel", "lift", "normals", "lift+channel", "lift+normals"])
def test_holes_never_poison(depth):
    net = model(depth=depth)
    image, metres = batch()
    for hole in (0.0, float("nan"), float("inf"), -1.0):
        holed = metres.clone()
        holed[:, :20] = hole
        holed[1] = hole
        out = net(image, holed)
        out.sum().backward()
        assert out.isfinite().all()
        assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    empty = torch.full_like(metres, float("nan"))
    assert torch.equal(net(image, empty), net(image, torch.zeros_like(metres)))


def test_a_lift_of_scale_zero_is_the_flat_model():
    net = model(depth="lift")
    image, metres = batch()
    torch.nn.init.zeros_(net.lift.scale)
    torch.testing.assert_close(net(image, metres), net(image), atol=1e-6, rtol=0)
    net(image, metres).square().sum().backward()
    assert net.lift.scale.grad.abs() > 0


def test_layers_prepared_together_equal_layers_alone(monkeypatch):
    for encoding in ("cayley", "circulant", "general", "rope"):
        net = perturbed(model(encoding), 0.05)
        image, _ = batch()
        together = net(image)
        monkeypatch.setattr(stringpe.models.blocks, "prepare_together", lambda layers: [None] * len(layers))
        torch.testing.assert_close(net(image), together, atol=1e-6, rtol=0)
        monkeypatch.undo()


@pytest.mark.parametrize("encoding", stringpe.names())
def test_folding_changes_nothing(encoding):
    net = perturbed(model(encoding, "lift"), 0.05).eval()
    image, metres = batch()
    before = net(image, metres)
    torch.testing.assert_close(stringpe.fold(copy.deepcopy(net))(image, metres), before, atol=1e-5, rtol=0)


def test_sharing_over_layers_and_heads():
    own, shared = model("cayley"), model("cayley", share_layers=True, encoding_options={"share_heads": True})
    assert shared.blocks[0].attention.encoding is shared.blocks[1].attention.encoding
    assert shared.blocks[0].attention.encoding.frequencies.weight.shape[0] == 1
    assert sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in own.parameters())


def test_an_encoding_object_serves_all_layers():
    enc = stringpe.circulant(head_dim=16, num_heads=2, coord_dim=2, block_size=8)
    net = model(enc)
    assert all(block.attention.encoding is enc for block in net.blocks)


def test_outer_and_liere_inside():
    for enc in (stringpe.outer(head_dim=16, num_heads=2), stringpe.LieRE(head_dim=16, num_heads=2)):
        assert model(enc)(batch()[0]).shape == (2, 5)


def test_linear_attention_trains_every_basis():
    net = model("cayley", attention="linear")
    net(batch()[0]).sum().backward()
    assert all(block.attention.encoding.basis.weight.grad.abs().max() > 0 for block in net.blocks)


def test_stochastic_depth_only_in_training():
    net = model(drop_path=0.5)
    image, _ = batch()
    torch.manual_seed(0)
    assert not torch.equal(net(image), net(image))
    net.eval()
    assert torch.equal(net(image), net(image))
    assert [block.drop_path for block in net.blocks] == [0.0, 0.5]


def test_stochastic_depth_keeps_the_mean():
    block = model(drop_path=0.5).blocks[1].train()
    x = torch.ones(4000, 1, 1)
    torch.testing.assert_close(block._branch(x).mean(), torch.tensor(1.0), atol=0.1, rtol=0)
    assert set(block._branch(x).unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    with torch.device("meta"):
        net = vit(f"vit_{name}_patch16", num_classes=1000)
    assert (net.dim, len(net.blocks), net.blocks[0].attention.num_heads) == SIZES[name]


def test_base_is_the_papers():
    with torch.device("meta"):
        net = vit("vit_base_patch16", encoding="absolute", num_classes=1000, pool="cls")
    count = sum(p.numel() for p in net.parameters())
    assert count == 86_567_656 - 768  # timm's ViT-B/16, whose table has a row for the class token


@pytest.mark.slow
def test_it_runs_in_bfloat16_and_compiles_whole():
    net = model(depth="lift").to(torch.bfloat16)
    image, metres = batch()
    assert net(image.bfloat16(), metres).dtype == torch.bfloat16
    torch.compiler.reset()
    net = model(depth="lift")
    fast = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(fast(image, metres), net(image, metres), atol=1e-5, rtol=0)


class TestBadInput:
    def refuses(self, match, **options):
        with pytest.raises(ValueError, match=match):
            ViT(**({"dim": 32, "layers": 1, "num_heads": 2, "patch_size": 8} | options))

    def test_choices(self):
        self.refuses("no encoding named 'caley': did you mean 'cayley'", encoding="caley")
        self.refuses("got None: a model without positions is encoding='none'", encoding=None)
        self.refuses("encoding must be a name", encoding=2)
        self.refuses("pool must be one of mean, cls, map, got 'max'", pool="max")
        self.refuses("units must be one of", units="pixels")
        self.refuses("attention must be one of", attention="flash")
        self.refuses("depth must be one of", depth="stereo")
        self.refuses("coord_dim=3 contradicts depth='channel'", coord_dim=3, depth="channel")
        self.refuses("coord_dim=2 contradicts depth='lift'", coord_dim=2, depth="lift")
        self.refuses("coord_dim=4 contradicts depth='none'", coord_dim=4)
        self.refuses("which pool='cls' ignores", depth="normals", pool="cls")
        flat = stringpe.rope(head_dim=16, num_heads=2, coord_dim=2)
        self.refuses("built with coord_dim=2, depth='lift' gives patches 3", encoding=flat, depth="lift")
        self.refuses("'absolute' has no options", encoding="absolute", encoding_options={"base": 10})

    @pytest.mark.parametrize("rate", [1.0, -0.1, 2.0])
    def test_rates(self, rate):
        self.refuses("drop_path is a rate of at least 0 and below 1", drop_path=rate, layers=2)
        self.refuses("dropout is a rate of at least 0 and below 1", dropout=rate)

    @pytest.mark.parametrize("size", [{"layers": 0}, {"patch_size": 0}, {"registers": -1}, {"dim": 0}])
    def test_sizes(self, size):
        ((name, number),) = size.items()
        self.refuses(f"{name} must be at least {number + 1}, got {number}", **size)

    @pytest.mark.parametrize("ratio", [0, -1, 1e-9, "4", float("nan")])
    def test_the_mlp_has_channels(self, ratio):
        self.refuses("mlp_ratio must", mlp_ratio=ratio)

    @pytest.mark.parametrize("size", [0, None, "224", 1.5, (32,), (32, 32, 3), (32, -1)])
    def test_image_sizes(self, size):
        self.refuses("image_size must be", image_size=size)

    @pytest.mark.parametrize("name", ["vit_huge_patch14", "base", "vit_base_patch0", "resnet50"])
    def test_names(self, name):
        with pytest.raises(ValueError, match="names are vit_SIZE_patchP"):
            vit(name)

    def test_inputs(self):
        net, lifted = model(), model(depth="lift")
        image, metres = batch()
        for match, call in {
            "multiples of 8": lambda: net(image[..., :30]),
            r"floats in \[−1, 1\], got torch.uint8": lambda: net(image.byte()),
            r"floats in \[−1, 1\], got ndarray": lambda: net(image.numpy()),
            r"image must be \(b, 3, H, W\)": lambda: net(image[:, :2]),
            "this model takes no depth": lambda: net(image, metres),
            r"depth must be \(2, 32, 32\), one value per pixel": lambda: lifted(image, metres[:, :16]),
            "depth is in metres, as floats, got torch.int32": lambda: lifted(image, (1000 * metres).int()),
            "a learned table of absolute embeddings and would ignore coords": lambda: model("absolute").features(
                image, coords=torch.zeros(16, 2)
            ),
            "no positions and would ignore coords": lambda: model("none").features(image, coords=torch.zeros(16, 2)),
        }.items():
            with pytest.raises(ValueError, match=match):
                call()
