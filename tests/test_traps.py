"""What others got wrong in this field, one test per trap, numbered as in docs/traps.md."""

import copy
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import stringpe
from cases import build, perturbed
from stringpe import Attention, box3d, coords, testing
from stringpe.rotate import angles


def stack(name, layers=3, **options):
    torch.manual_seed(0)
    return nn.ModuleList(
        [Attention(32, 2, encoding=stringpe.create(name, head_dim=16, num_heads=2, **options)) for _ in range(layers)]
    )


def run(layers, x, r):
    for attn in layers:
        x = x + attn(x, r)
    return x


def test_every_test_is_of_a_trap_on_the_list():
    listed = re.findall(
        r"^(\d+)\. \*\*", (Path(__file__).parents[1] / "docs/traps.md").read_text("utf-8"), re.MULTILINE
    )
    assert listed == [str(i + 1) for i in range(len(listed))]
    tested = [name.split("_")[1] for name in globals() if re.match(r"test_\d\d_", name)]
    assert tested == sorted(tested)
    assert {str(int(number)) for number in tested} <= set(listed)


def test_01_the_basis_is_on_the_side_where_it_does_not_cancel():
    enc = stringpe.cayley(head_dim=16, num_heads=2)
    q, k, r = testing.sample(enc)
    before = testing.scores(enc, q, k, r)
    before.square().sum().backward()
    row, column = enc.basis.index // 16, enc.basis.index % 16
    within_a_plane = row == column + 8  # turning a plane within itself does not change the basis: R stays as it is
    gradient = enc.basis.weight.grad.abs()
    assert gradient[:, ~within_a_plane].min() > 1e3 * gradient[:, within_a_plane].max()
    assert testing.relative_error(testing.scores(perturbed(enc), q, k, r), before) > 1e-2


@pytest.mark.parametrize("name", ["cayley", "general"])
def test_02_the_basis_starts_at_the_identity(name):
    enc = stringpe.create(name, head_dim=16, num_heads=2)
    assert torch.equal(enc.basis(), torch.eye(16).expand(2, 16, 16))


def test_03_nothing_goes_stale():
    enc = build("cayley").eval()
    x, r = torch.randn(1, 3, 4, 16), torch.randn(4, 2)
    first = enc.rotate(x, r)
    perturbed(enc)  # as an EMA or an optimiser writes, in eval mode
    second = enc.rotate(x, r)
    assert testing.relative_error(second, first) > 1e-2
    other = build("cayley", seed=5)
    enc.load_state_dict(other.state_dict())
    assert torch.equal(enc.rotate(x, r), other.rotate(x, r))


def test_04_tokens_at_the_origin_go_through_the_basis_too():
    enc = build("cayley", dtype=torch.float64)
    q, k = torch.randn(2, 1, 3, 5, 16).double()
    r = coords.grid(2, 2, prefix=1).double()
    truth = torch.einsum("bhid,ijhde,bhje->bhij", q, enc.matrix(r[None] - r[:, None]), k)
    torch.testing.assert_close(testing.scores(enc, q, k, r), truth)
    skipping = enc(q[:, :, 1:], k[:, :, 1:], r[1:])
    q_skip = torch.cat([q[:, :, :1], skipping[0]], dim=2)
    k_skip = torch.cat([k[:, :, :1], skipping[1]], dim=2)
    assert testing.relative_error((q_skip @ k_skip.mT)[..., 0, 1:], truth[..., 0, 1:]) > 0.1


def test_05_circulant_is_an_exponential_with_one_frequency_vector_per_coordinate():
    enc = build("circulant", coord_dim=2, dtype=torch.float64)
    assert testing.dense_error(enc) < 1e-12
    a, b = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[2.0, 1.0]]).double()  # same sum
    assert testing.relative_error(enc.matrix(a), enc.matrix(b)) > 1e-2
    depth = torch.stack([torch.full((4, 4), 1.0), torch.full((4, 4), 9.0)])
    assert coords.pool_depth(depth, 2).flatten(1).tolist() == [[1.0] * 4, [9.0] * 4]  # not averaged over the batch


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_06_circulant_rank_and_no_dead_parameters(block_size):
    enc = stringpe.circulant(head_dim=16, num_heads=1, coord_dim=1, block_size=block_size)
    turning = (enc.frequencies() != 0).sum().item()
    assert turning == 16 // block_size * (block_size // 2 - 1) == enc.frequencies.weight.numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_07_cayley_in_half_precision_and_under_autocast(dtype):
    enc = perturbed(stringpe.cayley(head_dim=16, num_heads=2))
    exact = enc.basis()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(enc.basis(), exact)
    assert torch.equal(enc.to(dtype).basis(), exact)
    assert testing.orthogonality_error(perturbed(enc, 100.0)) < 1e-5  # invertible without pivoting for every S


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_08_folding_with_biases_groups_and_norms(num_kv_heads):
    torch.manual_seed(0)
    enc = perturbed(stringpe.cayley(head_dim=8, num_heads=num_kv_heads))
    x, r = torch.randn(2, 5, 32), torch.randn(5, 2)
    for qk_norm in (None, "rms"):
        attn = Attention(32, 4, encoding=enc, num_kv_heads=num_kv_heads, qk_norm=qk_norm, fold=False)
        nn.init.normal_(attn.qkv.bias)
        torch.testing.assert_close(stringpe.fold(copy.deepcopy(attn))(x, r), attn(x, r), atol=2e-6, rtol=0)
    for qk_norm in ("layer", "rms_gain"):
        with pytest.raises(ValueError, match="cannot fold"):
            stringpe.fold(Attention(32, 4, encoding=enc, num_kv_heads=num_kv_heads, qk_norm=qk_norm))


@pytest.mark.parametrize("name", ["rope_mixed", "cayley", "circulant", "general"])
def test_09_parameters_per_head_by_default(name):
    enc = stringpe.create(name, head_dim=16, num_heads=4)
    assert all(p.shape[0] == 4 for p in enc.parameters())
    assert enc.frequencies()[:, :, :].unique(dim=0).shape[0] == 4
    shared = stringpe.create(name, head_dim=16, num_heads=4, share_heads=True)
    assert all(p.shape[0] == 1 for p in shared.parameters())


@pytest.mark.parametrize("name", stringpe.names())
def test_10_linear_attention_takes_every_encoding(name):
    torch.manual_seed(0)
    enc = perturbed(stringpe.create(name, head_dim=8, num_heads=2))
    for features in ("softmax", "relu"):
        attn = stringpe.LinearAttention(16, 2, encoding=enc, features=features)
        attn(torch.randn(2, 5, 16), torch.randn(5, 2)).sum().backward()
        assert all(p.grad is not None and p.grad.norm() > 0 for p in enc.parameters())
        enc.zero_grad()


@pytest.mark.parametrize("name", stringpe.names())
def test_11_angles_under_autocast_are_exactly_those_without(name):
    enc = perturbed(stringpe.create(name, head_dim=16, num_heads=2, coord_dim=3))
    x, r = torch.randn(2, 2, 50, 16), torch.rand(2, 50, 3) * 300
    plain, whole, outside = enc.rotate(x, r, folded=True), enc.rotate(x, r), angles(r, enc.frequencies())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(angles(r, enc.frequencies()), outside)
        assert torch.equal(enc.rotate(x, r, folded=True), plain)
        assert torch.equal(enc.rotate(x, r), whole)


def test_12_positions_beyond_256_do_not_collide():
    enc = stringpe.rope(head_dim=16, num_heads=1, coord_dim=1).bfloat16()
    x = torch.randn(1, 1, 1, 16).expand(1, 1, 600, 16).bfloat16()
    turned = enc.rotate(x, coords.grid(600))[0, 0]
    assert turned.float().unique(dim=0).shape[0] == 600
    with pytest.raises(ValueError, match="half-precision positions collide"):
        enc.rotate(x, coords.grid(600).bfloat16())


@pytest.mark.parametrize("name", stringpe.names())
def test_13_it_is_a_rotation(name):
    enc = perturbed(stringpe.create(name, head_dim=16, num_heads=2))
    x = torch.randn(1, 2, 20, 16)
    torch.testing.assert_close(enc.rotate(x, torch.randn(20, 2) * 100).norm(dim=-1), x.norm(dim=-1))


def test_14_height_and_width_on_a_grid_that_is_not_square():
    enc = stringpe.rope(head_dim=8, num_heads=1, coord_dim=2)
    r = coords.grid(3, 5)
    x = torch.zeros(1, 1, 15, 8)
    x[..., 0] = 1  # a plane of the first axis: rows
    turned = enc.rotate(x, r)[0, 0].view(3, 5, 8)
    torch.testing.assert_close(turned, turned[:, :1].expand_as(turned))  # the same along a row
    assert testing.relative_error(turned[1], turned[0]) > 0.1


def test_15_units_are_stated_and_a_new_axis_starts_non_zero():
    enc = stringpe.rope_mixed(head_dim=16, num_heads=2, coord_dim=3, scale=(1.0, 1.0, 4.0))
    assert "wavelengths" in repr(enc)
    assert (enc.frequencies()[:, 2] != 0).any(dim=1).all()
    scale = torch.zeros(1, requires_grad=True)  # gate the coordinate, not the frequencies
    r = coords.lift_depth(torch.rand(1, 4, 4) + 1, 2, scale=scale)
    testing.scores(enc, *torch.randn(2, 1, 2, 4, 16), r).square().sum().backward()
    assert scale.grad.abs() > 0


def test_16_the_choice_at_a_new_resolution_is_explicit():
    index = coords.grid(14, 14), coords.grid(28, 28)
    assert torch.equal(index[1].view(28, 28, 2)[:14, :14].reshape(-1, 2), index[0])  # extrapolates
    small, large = (coords.grid(n, n, units="normalised") for n in (14, 28))
    assert large.abs().max() < 1  # interpolates
    pooled = large.view(14, 2, 14, 2, 2).mean((1, 3)).view(-1, 2)
    torch.testing.assert_close(pooled, small)


@pytest.mark.parametrize("name", stringpe.names())
@pytest.mark.slow
def test_17_no_complex_tensors_on_the_default_path(name):
    enc = stringpe.create(name, head_dim=16, num_heads=2)
    program = torch.export.export(enc, (*torch.randn(2, 1, 2, 5, 16), torch.randn(5, 2)))
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert values
    assert not [v for v in values if v.dtype.is_complex]


@pytest.mark.parametrize("name", stringpe.names())
def test_18_inputs_are_not_written_to(name):
    enc = perturbed(stringpe.create(name, head_dim=16, num_heads=2))
    q, k, r = testing.sample(enc)
    before = [t.clone() for t in (q, k, r)]
    enc(q, k, r)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, r), strict=True))
    x = torch.randn(1, 2, 5, 16, requires_grad=True)
    checkpointed = torch.utils.checkpoint.checkpoint(enc.rotate, x, torch.randn(5, 2), use_reentrant=False)
    checkpointed.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("name", stringpe.names())
def test_19_meta_device_leaves_no_garbage(name):
    with torch.device("meta"):
        model = Attention(32, 2, encoding=stringpe.create(name, head_dim=16, num_heads=2))
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(7)  # the garbage
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    testing.check(model.encoding)


def test_20_every_parameter_is_used_in_every_step():
    """Under DDP an unused parameter is an error; see test_deployment for two real processes."""
    for mode in (True, False):
        for name in stringpe.names():
            layers = stack(name).train(mode)
            for _ in range(2):
                layers.zero_grad()
                run(layers, torch.randn(2, 5, 32), torch.randn(5, 2)).sum().backward()
                assert all(p.grad is not None for p in layers.parameters())


@pytest.mark.parametrize("name", stringpe.names())
def test_21_each_layer_uses_its_own_parameters(name):
    layers = stack(name)
    x, r = torch.randn(2, 9, 32), torch.randn(9, 2) * 3
    run(layers, x, r).square().sum().backward()
    for index, attn in enumerate(layers):
        for key, p in attn.encoding.named_parameters():
            assert (p.grad != 0).any(), f"layer {index}, {key}"
    out = run(layers, x, r)
    for attn in layers:
        if list(attn.encoding.parameters()):
            saved = copy.deepcopy(attn.encoding.state_dict())
            perturbed(attn.encoding)
            assert testing.relative_error(run(layers, x, r), out) > 1e-4
            attn.encoding.load_state_dict(saved)


def test_22_no_weight_decay_on_encodings():
    layers = stack("cayley")
    groups = stringpe.param_groups(layers, lr=1e-3, weight_decay=0.1, encoding_lr_scale=0.1)
    encoding = next(g for g in groups if g["name"] == "encoding")
    assert encoding["weight_decay"] == 0
    assert encoding["lr"] == pytest.approx(1e-4)
    assert len(encoding["params"]) == 2 * 3


@pytest.mark.parametrize("name", ["rope_mixed", "cayley", "circulant", "general"])
def test_23_frequencies_learn(name):
    torch.manual_seed(0)
    enc = stringpe.create(name, head_dim=16, num_heads=2)
    before = enc.frequencies().detach().clone()
    optimiser = torch.optim.Adam(enc.parameters(), lr=0.01)
    q, k, r = testing.sample(enc, extent=4.0)
    testing.scores(enc, q, k, r).sum().backward()
    optimiser.step()
    moved = (enc.frequencies() - before).abs()
    assert (moved.amax(dim=(1, 2)) > 1e-3).all()  # in every head


@pytest.mark.parametrize(("head_dim", "coord_dim"), [(64, 3), (10, 3), (6, 2), (16, 5)])
@pytest.mark.parametrize("name", ["rope", "rope_mixed", "cayley"])
def test_24_head_dims_that_the_axes_do_not_divide(name, head_dim, coord_dim):
    enc = perturbed(stringpe.create(name, head_dim=head_dim, num_heads=2, coord_dim=coord_dim))
    assert (enc.frequencies().abs().sum(-1) > 0).all()  # every axis is seen
    testing.check(enc)


def test_25_a_cache_rotates_each_token_once_at_its_own_coordinates():
    torch.manual_seed(0)
    enc = perturbed(stringpe.cayley(head_dim=16, num_heads=2, coord_dim=3))
    attn, cache = Attention(32, 2, encoding=enc), stringpe.KVCache()
    x, r = torch.randn(1, 6, 32), torch.randn(1, 6, 3) * math.e
    first = attn(x[:, :4], r[:, :4], causal=True, cache=cache)
    stored = cache.keys.clone()
    rest = attn(x[:, 4:], r[:, 4:], causal=True, cache=cache)
    assert torch.equal(cache.keys[:, :, :4], stored)
    torch.testing.assert_close(torch.cat([first, rest], 1), attn(x, r, causal=True), atol=1e-6, rtol=0)


def test_26_images_are_padded_and_every_class_is_one():
    """Of a wide picture, the square's lower half is grey; boxes are in units of the long side; class 0 is found."""
    from PIL import Image

    from stringpe.geometry.square import from_square, to_square
    from stringpe.models.owl import Detections
    from stringpe.tasks.detection2d import pick_best

    square = to_square(Image.new("RGB", (80, 40), (255, 255, 255)), 40)
    assert (square[:, :19] == 255).all()  # not stretched over the whole
    assert (square[:, 21:] == 128).all()  # grey: black would be a thing to look at
    logits = torch.full((1, 4, 3), -9.0)
    logits[0, 2, 0] = 5.0  # a token that shows the first class
    boxes = torch.full((1, 4, 4), 0.5)
    boxes[0, 2] = torch.tensor([0.5, 0.25, 0.5, 0.5])
    top = pick_best(Detections(logits, boxes, torch.zeros(1, 4, 1)), torch.tensor([0]), top=1)[0, 0]
    assert top[1] == 0
    assert from_square(top[3:], 80.0, 40.0).tolist() == [20, 0, 60, 40]


def test_28_boxes_overlap_themselves_wholly_and_never_more_at_any_distance():
    """Corner order is stated: see test_corners_in_their_stated_order and test_omni3d."""
    torch.manual_seed(0)
    q = torch.linalg.qr(torch.randn(200, 3, 3, dtype=torch.float64)).Q
    q = q * torch.linalg.det(q)[:, None, None]
    size = torch.rand(200, 3, dtype=torch.float64) + 0.05
    for away in (0.0, 10.0, 1e4, 1e7):
        boxes = box3d.from_parts(torch.full((200, 3), away).double(), q, size)
        iou = box3d.iou(boxes, boxes)
        assert (iou > 1 - 1e-12).all()
        assert (iou <= 1).all()
        half = boxes.clone()
        half[:, 9] /= 2  # inside the other, with four faces in common: half of it
        torch.testing.assert_close(box3d.iou(boxes, half), torch.full((200,), 0.5).double(), atol=1e-12, rtol=0)


def test_29_six_numbers_of_a_rotation_are_two_columns():
    c, s = math.cos(0.4), math.sin(0.4)
    r = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    box = box3d.from_parts(torch.zeros(3), r, torch.ones(3))
    assert box[3:9].tolist() == [r[0, 0], r[1, 0], r[2, 0], r[0, 1], r[1, 1], r[2, 1]]
    torch.testing.assert_close(box3d.rotation(box), r)
    rows = box.clone()
    rows[3:9] = r[:2].flatten()  # how others stack them: the inverse rotation comes out
    torch.testing.assert_close(box3d.rotation(rows), r.T)
