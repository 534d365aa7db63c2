"""Images of different sizes in one batch give what each image gives alone."""

import pytest
import torch

from cases import perturbed
from stringpe import vit
from stringpe.coords import Calibration
from stringpe.models.blocks import Block, run_blocks
from stringpe.packing import Packing

SIZES = [(32, 32), (16, 48), (8, 8), (32, 32), (48, 16), (24, 40)]


def model(encoding="cayley", **options):
    torch.manual_seed(0)
    return perturbed(vit("vit_test_patch8", encoding=encoding, image_size=32, num_classes=5, **options)).double().eval()


def pictures(sizes=SIZES):
    torch.manual_seed(1)
    images = [torch.randn(3, *size, dtype=torch.float64) for size in sizes]
    return images, [torch.rand(*size, dtype=torch.float64) * 3 + 0.5 for size in sizes]


def alone(net, images, depths=None):
    rows = ((image[None], None if depths is None else depths[i][None]) for i, image in enumerate(images))
    return torch.cat([net(*row) for row in rows])


def gradients(net, out):
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weights).sum(), list(net.parameters()), allow_unused=True)


def assert_same(net, packed, separate):
    assert (packed - separate).abs().max() < 1e-11
    names = [name for name, _ in net.named_parameters()]
    for name, ours, theirs in zip(names, gradients(net, packed), gradients(net, separate), strict=True):
        assert (ours is None) == (theirs is None)
        exact = 1e-6 if name.startswith("lift.") else 1e-9  # the lift sums in float32
        assert ours is None or (ours - theirs).abs().max() < exact * (1 + theirs.abs().max())


@pytest.mark.parametrize("encoding", ["cayley", "rope", "circulant", "liere", "absolute", "sincos", "none"])
@pytest.mark.parametrize("pool", ["mean", "cls", "map"])
def test_every_encoding_and_pool(encoding, pool):
    net = model(encoding, pool=pool, registers=1)
    images, _ = pictures()
    assert_same(net, net(images), alone(net, images))


@pytest.mark.parametrize("depth", ["channel", "lift", "normals", "lift+normals"])
def test_every_way_of_depth(depth):
    net = model(depth=depth)
    images, depths = pictures()
    assert_same(net, net(images, depths), alone(net, images, depths))
    assert_same(net, net(tuple(images)), alone(net, images))


@pytest.mark.parametrize("options", [{"attention": "linear"}, {"stem": "conv"}, {"qk_norm": "layer"}])
def test_linear_attention_convolutions_and_norms(options):
    net = model(**options)
    images, _ = pictures()
    assert_same(net, net(images), alone(net, images))


def test_features_come_per_image_in_their_order():
    net = model(depth="lift")
    images, depths = pictures()
    packed = net.packed_features(images, depths)
    for i, (image, metres) in enumerate(zip(images, depths, strict=True)):
        single = net.features(image[None], metres[None])
        assert (packed.tokens[i] - single.tokens[0]).abs().max() < 1e-11
        assert torch.equal(packed.coords[i], single.coords[0])
        assert packed.sizes[i] == single.size


@pytest.mark.parametrize("depth", ["none", "lift+normals"])
@pytest.mark.parametrize("pool", ["mean", "map"])
def test_patches_outside_a_mask_are_not_seen(depth, pool):
    """What stands in them changes nothing; the result is that of the other patches at their own coordinates."""
    net = model(depth=depth, pool=pool, registers=1)
    images, depths = pictures([(32, 32), (16, 48)])
    metres = None if depth == "none" else depths
    masks = [torch.rand(4, 4) < 0.6, torch.rand(2, 6) < 0.6]
    packed = net.packed_features(images, metres, patch_mask=masks)
    assert [len(tokens) for tokens in packed.tokens] == [int(mask.sum()) for mask in masks]
    hidden = [~m.repeat_interleave(8, 0).repeat_interleave(8, 1) for m in masks]
    noisy = [torch.where(h, torch.randn_like(image), image) for h, image in zip(hidden, images, strict=True)]
    again = net.packed_features(noisy, metres, patch_mask=masks)
    assert (packed.pooled - again.pooled).abs().max() < 1e-11
    everything = [torch.ones_like(mask) for mask in masks]
    whole = net(images, metres, patch_mask=everything)
    assert (whole - alone(net, images, metres)).abs().max() < 1e-11
    assert (net.head(packed.pooled) - whole).abs().max() > 1e-6


def test_a_batch_of_one_size_takes_a_mask_too():
    net = model(pool="cls")
    images, _ = pictures([(32, 32), (32, 32)])
    mask = torch.rand(2, 4, 4) < 0.7
    stacked, listed = net(torch.stack(images), patch_mask=mask), net(images, patch_mask=list(mask))
    assert (stacked - listed).abs().max() < 1e-11


def test_stochastic_depth_drops_images_and_not_the_whole_batch():
    torch.manual_seed(0)
    net = vit("vit_test_patch8", encoding="rope", drop_path=0.5)
    block = net.blocks[-1]
    assert isinstance(block, Block)
    packing = Packing([200] * 300)
    kept = block._branch(torch.ones(1, packing.total, 1), packing)
    assert {len(part.unique()) for part in packing.split(kept, 1)} == {1}
    shares = torch.stack([part[0, 0, 0] for part in packing.split(kept, 1)])
    assert set(shares.tolist()) == {0.0, 2.0}
    assert 0.35 < (shares > 0).double().mean() < 0.65


def test_layers_see_the_packing_they_are_given():
    net = model("rope")
    x, coords = torch.randn(1, 6, net.dim, dtype=torch.float64), torch.randn(6, 2)
    together, apart = run_blocks(net.blocks, x, coords), run_blocks(net.blocks, x, coords, packing=Packing([2, 4]))
    assert (together - apart).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda net, i, d: net([]), "at least one image"),
        (lambda net, i, d: net(i, d[:1]), "got 1 depths for 2 images"),
        (lambda net, i, d: net(i, d[::-1]), r"depth must be \(H, W\) like its image, but number 0 is \(16, 48\)"),
        (lambda net, i, d: net([i[0], i[1][None]]), r"tensors \(3, H, W\), but number 1 is \(1, 3, 16, 48\)"),
        (lambda net, i, d: net([i[0], None]), r"tensors \(3, H, W\), but number 1 is NoneType"),
        (lambda net, i, d: net(i, patch_mask=[torch.ones(4, 4)] * 2), r"boolean \(H/p, W/p\) = \(4, 4\), but number 0"),
        (lambda net, i, d: net(i, patch_mask=[torch.ones(4, 4).bool()] * 2), r"= \(2, 6\), but number 1 is \(4, 4\)"),
        (lambda net, i, d: net(i[:1], patch_mask=[torch.zeros(4, 4).bool()]), "patch mask 0 leaves no patch"),
        (lambda net, i, d: net([i[0][:, :30]]), "multiples of 8"),
        (lambda net, i, d: net(i, d, calibration=Calibration(torch.eye(3), torch.eye(4))), "take no calibration"),
        (lambda net, i, d: net(torch.nested.nested_tensor([i[0], i[0][:2]], layout=torch.jagged)), "pass a list"),
    ],
)
def test_wrong_batches_are_refused_in_words(call, words):
    images, depths = pictures(SIZES[:2])
    with pytest.raises(ValueError, match=words):
        call(model(depth="lift"), images, depths)


@pytest.mark.parametrize("depth", [3, {}, "x", [None] * 2, [torch.ones(8, 8), "x"]], ids=range(5))
def test_depths_that_are_not_a_list_of_maps_are_refused(depth):
    net, images = model(coord_dim=3), [torch.zeros(3, 8, 8, dtype=torch.float64)] * 2
    with pytest.raises(TypeError, match=r"must be a list with one per image|depth [01] must be a torch tensor"):
        net(images, depth)
