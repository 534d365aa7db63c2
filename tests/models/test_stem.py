import pytest
import torch

from stringpe.hosts.attach import lift
from stringpe.models.stem import PatchEmbedding, build_stem, vit_prefixes
from stringpe.models.vit import ViT

SIZES = {"dim": 32, "layers": 2, "num_heads": 2, "encoding": "cayley"}


@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
def test_convolutions_end_at_the_patches(patch_size):
    found = build_stem("conv", 24, patch_size)[0](torch.randn(2, 3, 32, 48))
    assert found.shape == (2, 24, 32 // patch_size, 48 // patch_size)


@pytest.mark.parametrize(("channels", "patch_size", "size"), [(3, 8, (32, 48)), (4, 5, (10, 15)), (1, 4, (9, 11))])
def test_patches_as_a_product_are_the_convolution(channels, patch_size, size):
    embed = PatchEmbedding(channels, 12, patch_size).double()
    image = torch.randn(2, channels, *size, dtype=torch.float64, requires_grad=True)
    found, wanted = embed.as_product(image), embed(image)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted)
    weights = torch.randn_like(wanted)
    leaves = (image, embed.weight, embed.bias)
    pairs = zip(*(torch.autograd.grad(out, leaves, weights) for out in (found, wanted)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)


def test_a_pixel_reaches_neighbouring_patches_only_through_convolutions():
    image = torch.zeros(1, 3, 32, 32)
    other = image.clone()
    other[0, :, 15, 15] = 1  # the corner of a patch
    changed = {}
    for kind in ("patch", "conv"):
        torch.manual_seed(0)
        embed, _ = build_stem(kind, 16, 8)
        parts = list(embed) if kind == "conv" else [embed]
        embed = torch.nn.Sequential(
            *(p for p in parts if not isinstance(p, torch.nn.GroupNorm))
        )  # sees the whole image
        changed[kind] = int(((embed(image) - embed(other)).abs().amax(1) > 1e-7).sum())
    assert changed["patch"] == 1
    assert changed["conv"] == 4


def test_bad_stems_are_refused():
    with pytest.raises(ValueError, match="stem must be one of patch, conv, got 'fourier'"):
        ViT(**SIZES, patch_size=4, stem="fourier")
    with pytest.raises(ValueError, match="power of 2, got 12"):
        ViT(**SIZES, patch_size=12, stem="conv")


@pytest.mark.parametrize("depth", ["none", "channel", "lift", "normals", "lift+channel", "lift+normals"])
def test_a_model_with_convolutions_sees_and_learns(depth):
    model = ViT(**SIZES, patch_size=8, stem="conv", depth=depth, registers=1)
    image = torch.randn(2, 3, 32, 48)
    metres = None if depth == "none" else torch.rand(2, 32, 48).masked_fill(torch.rand(2, 32, 48) < 0.3, 0.0)
    features = model.features(image, metres)
    assert features.tokens.shape == (2, 24, 32)
    features.tokens.square().sum().backward()
    for name, parameter in model.named_parameters():
        if name.startswith(("patch", "depth_patch")):
            assert parameter.grad.abs().max() > 0, name


def surfaces(count, seed):
    """RGB in [−1, 1] and the depth of smooth surfaces, each at a distance of its own between 1 and 5 m."""
    dice = torch.Generator().manual_seed(seed)

    def smooth(channels):
        coarse = torch.randn(count, channels, 8, 8, generator=dice)
        return torch.nn.functional.interpolate(coarse, (64, 64), mode="bilinear")

    image = 0.4 * smooth(3) + 0.2 * torch.randn(count, 3, 64, 64, generator=dice)
    distance = 1 + 4 * torch.rand(count, 1, 1, 1, generator=dice)
    return image.clamp(-1, 1), (distance + 0.4 * smooth(1)).clamp(min=0.3)[:, 0]


@pytest.mark.parametrize("stem", ["patch", "conv"])
def test_absolute_depth_can_be_read_linearly_from_the_tokens_of_a_depth_channel(stem):
    """Group norms over four channels would leave an error of half a metre: they remove an image's mean and spread."""
    torch.manual_seed(0)
    model = ViT(dim=64, layers=1, num_heads=2, patch_size=8, stem=stem, depth="channel", encoding="none")

    def tokens_and_depth(count, seed):
        image, metres = surfaces(count, seed)
        with torch.no_grad():
            tokens = model._embed(image, metres).flatten(0, 1).double()
        mean = torch.nn.functional.avg_pool2d(metres[:, None], 8).flatten()
        return torch.nn.functional.pad(tokens, (0, 1), value=1.0), mean.double()

    (x, y), (held_out, wanted) = tokens_and_depth(96, 0), tokens_and_depth(32, 1)
    weight = torch.linalg.lstsq(x, y[:, None]).solution
    assert (held_out @ weight - wanted[:, None]).abs().mean() < 0.05  # metres


def test_shifted_coordinates_change_nothing():
    model = ViT(**SIZES, patch_size=8, stem="conv").double()
    image = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    features = model.features(image)
    moved = model.features(image, coords=features.coords + torch.tensor([3.0, -40.0]))
    torch.testing.assert_close(moved.tokens, features.tokens, rtol=0, atol=1e-9)


def test_a_2d_model_with_convolutions_is_lifted():
    model = ViT(**SIZES, patch_size=8, stem="conv").eval()
    image = torch.randn(1, 3, 32, 32)
    before = model.features(image).tokens
    after = lift(model).features(image, torch.rand(1, 32, 32) + 0.5).tokens
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_models_are_found_in_a_state_dict_by_their_stem():
    plain, conv = ViT(**SIZES, patch_size=4), ViT(**SIZES, patch_size=4, stem="conv")
    both = {f"a.{k}": v for k, v in plain.state_dict().items()} | {f"b.c.{k}": v for k, v in conv.state_dict().items()}
    assert vit_prefixes(both) == ["a.", "b.c."]
    assert vit_prefixes(conv.state_dict()) == [""]
    assert vit_prefixes(["other_patch.weight", "patch.3.weight"]) == []
