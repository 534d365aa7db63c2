"""The rotation by itself: angles, blocks of tokens, and derivatives beyond the first (double backward, forward mode and
torch.func, in float64)."""

import copy
import math

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.gradcheck import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import stringpe
from cases import CASES, build, perturbed
from stringpe.rotate import angles, rotate, rotate_packed, rotate_pair, rotate_planes

H, C, D = 2, 2, 4


@pytest.fixture
def plain_attention():
    """torch's fused attention has neither second nor forward-mode derivatives, nor a batching rule; its formula has."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def tensors(b=2, n=3, groups=1, shared=False):
    """q (b, groups·h, n, d), k (b, h, n, d), coords and frequencies, in float64."""
    torch.manual_seed(0)
    kind = torch.float64
    q, k = torch.randn(b, groups * H, n, D, dtype=kind), torch.randn(b, H, n, D, dtype=kind)
    return q, k, torch.randn(1 if shared else b, n, C, dtype=kind), torch.randn(H, C, D // 2, dtype=kind)


def grown(*inputs):
    return tuple(t.clone().requires_grad_() for t in inputs)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.slow
def test_first_and_second_derivatives_of_a_pair(groups, shared):
    def turn(*inputs):
        return rotate_pair(*inputs, groups)

    inputs = grown(*tensors(groups=groups, shared=shared))
    assert gradcheck(turn, inputs)
    assert gradgradcheck(turn, inputs)


def test_first_and_second_derivatives_of_a_packed_projection():
    q, k, coords, theta = tensors()
    packed = torch.cat([q, k], dim=1).transpose(1, 2).flatten(2)
    assert gradgradcheck(rotate_packed, grown(packed, coords, theta))


def test_the_mixed_derivative_by_tokens_and_coordinates_is_not_lost():
    """d²y/dx dr, which is not zero, against finite differences of the first derivative."""
    q, _, coords, theta = tensors()

    def slope(r):
        x = q.clone().requires_grad_()
        (dx,) = torch.autograd.grad(
            rotate(x, r, theta).square().sum() + rotate(x, r, theta).sum(), x, create_graph=True
        )
        return dx.sum()

    (second,) = torch.autograd.grad(slope(r := coords.clone().requires_grad_()), r)
    step, where = 1e-6, torch.zeros_like(coords)
    where[0, 1, 0] = step
    numeric = (slope(coords + where) - slope(coords - where)) / (2 * step)
    assert second.abs().max() > 0.1
    torch.testing.assert_close(second[0, 1, 0], numeric.detach(), atol=1e-6, rtol=1e-6)


def test_forward_mode_equals_finite_differences():
    q, _, coords, theta = tensors()
    inputs, step = (q, coords, theta), 1e-6
    directions = tuple(torch.randn_like(t) for t in inputs)
    numeric = (
        rotate(*(t + step * d for t, d in zip(inputs, directions, strict=True)))
        - rotate(*(t - step * d for t, d in zip(inputs, directions, strict=True)))
    ) / (2 * step)
    torch.testing.assert_close(jvp(rotate, inputs, directions)[1], numeric, atol=1e-8, rtol=1e-6)
    with forward_ad.dual_level():
        out = rotate(*(forward_ad.make_dual(t, d) for t, d in zip(inputs, directions, strict=True)))
        torch.testing.assert_close(forward_ad.unpack_dual(out).tangent, numeric, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_tangent_on_one_input_alone_is_seen(which):
    q, _, coords, theta = tensors()
    inputs = [q, coords, theta]
    direction = torch.randn_like(inputs[which])

    def alone(t):
        return rotate(*inputs[:which], t, *inputs[which + 1 :])

    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(alone(forward_ad.make_dual(inputs[which], direction))).tangent
    _, pull = vjp(alone, inputs[which])
    weights = torch.randn_like(q)
    torch.testing.assert_close((tangent * weights).sum(), (pull(weights)[0] * direction).sum())
    assert tangent.abs().max() > 0.1


@pytest.mark.parametrize("which", [0, 1, 2])
def test_jacobians_and_hessians_agree_between_modes(which):
    q, _, coords, theta = tensors(b=1, n=2)
    inputs = (q, coords, theta)
    torch.testing.assert_close(jacrev(rotate, which)(*inputs), jacfwd(rotate, which)(*inputs))
    truth = torch.autograd.functional.jacobian(
        lambda t: rotate(*inputs[:which], t, *inputs[which + 1 :]), inputs[which]
    )
    torch.testing.assert_close(jacrev(rotate, which)(*inputs), truth)

    def loss(*arguments):
        return rotate(*arguments).pow(3).sum()

    truth = torch.autograd.functional.hessian(lambda t: loss(*inputs[:which], t, *inputs[which + 1 :]), inputs[which])
    torch.testing.assert_close(hessian(loss, which)(*inputs), truth)


def test_vmap_equals_a_loop():
    q, _, coords, theta = tensors(b=5)
    mapped = vmap(lambda x, r: rotate(x[None], r[None], theta)[0])(q, coords)
    torch.testing.assert_close(mapped, rotate(q, coords, theta))
    many = torch.stack([theta, 2 * theta, -theta])
    mapped = vmap(rotate, in_dims=(None, None, 0))(q, coords, many)
    torch.testing.assert_close(mapped, torch.stack([rotate(q, coords, t) for t in many]))


@pytest.mark.parametrize("case", CASES)
def test_per_sample_gradients_of_attention(case, plain_attention):
    attn = stringpe.Attention(32, 2, encoding=build(case, num_heads=2)).double()
    x, coords = torch.randn(3, 5, 32).double(), torch.randn(3, 5, 2).double()
    parameters = {name: p.detach() for name, p in attn.named_parameters()}

    def loss(given, one, place):
        return functional_call(attn, given, (one[None], place[None])).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, coords)
    for i in range(3):
        attn.zero_grad()
        attn(x[i : i + 1], coords[i : i + 1]).square().sum().backward()
        for name, p in attn.named_parameters():
            torch.testing.assert_close(each[name][i], p.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", stringpe.names())
def test_hessian_vector_products_of_a_whole_model(name, plain_attention):
    """Double backward through a ViT against finite differences of its gradient."""
    torch.manual_seed(0)
    model = perturbed(stringpe.vit("vit_test_patch8", encoding=name, num_classes=3), 0.05).double()
    image = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    parameters = [p for p in model.parameters() if p.requires_grad]
    direction = [torch.randn_like(p) for p in parameters]

    def gradient(net, **options):
        own = [p for p in net.parameters() if p.requires_grad]
        return torch.autograd.grad(net(image).square().sum(), own, **options)

    slope = sum((g * d).sum() for g, d in zip(gradient(model, create_graph=True), direction, strict=True))
    product = torch.autograd.grad(slope, parameters)
    step, moved = 1e-6, []
    for sign in (1, -1):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for p, d in zip([p for p in other.parameters() if p.requires_grad], direction, strict=True):
                p.add_(d, alpha=sign * step)
        moved.append(gradient(other))
    for exact, up, down in zip(product, *moved, strict=True):
        numeric = (up - down) / (2 * step)
        assert (exact - numeric).abs().max() <= 1e-5 * (1 + numeric.abs().max())


def test_forward_mode_through_a_whole_model(plain_attention):
    """The tangent of a ViT's features by its coordinates, which only the rotation passes on."""
    torch.manual_seed(0)
    model = perturbed(stringpe.vit("vit_test_patch8", encoding="cayley"), 0.05).double()
    image, coords = torch.randn(1, 3, 16, 16).double(), stringpe.coords.grid(2, 2).double()
    direction, step = torch.randn_like(coords), 1e-6

    def features(places):
        return model.features(image, coords=places).tokens

    numeric = (features(coords + step * direction) - features(coords - step * direction)) / (2 * step)
    tangent = jvp(features, (coords,), (direction,))[1]
    assert tangent.abs().max() > 1e-3
    torch.testing.assert_close(tangent, numeric.detach(), atol=1e-7, rtol=1e-5)


class TestRotation:
    @pytest.mark.parametrize("gradient", [False, True])
    def test_samples_taken_together_change_nothing(self, gradient, monkeypatch):
        """On a CPU, sines and cosines are formed for as many samples at a time as its cache holds."""
        torch.manual_seed(0)
        q, k = torch.randn(2, 5, 3, 7, 8, requires_grad=gradient).unbind(0)
        coords, theta = 9 * torch.randn(5, 7, 2), torch.randn(3, 2, 4, requires_grad=gradient)
        whole = rotate_pair(q, k, coords, theta)
        for most in (1, 2 * 7 * 3 * 4):  # one sample at a time, and two
            monkeypatch.setattr("stringpe.rotate.CACHED_ANGLES", most)
            for a, b in zip(rotate_pair(q, k, coords, theta), whole, strict=True):
                assert torch.equal(a, b)
                assert a.requires_grad == gradient

    def test_angles_are_reduced_and_exact_where_float32_products_are_not(self):
        coords = torch.tensor([[[9_999.75]]])
        theta = torch.tensor([[[0.7]]])
        exact = math.remainder(float(coords) * float(theta), 2 * math.pi)
        assert abs(angles(coords, theta).item() - exact) < 1e-6
        assert abs(math.remainder((coords * theta).item(), 2 * math.pi) - exact) > 1e-5

    def test_layout_pairs_j_with_j_plus_half(self):
        x = torch.zeros(1, 1, 1, 8)
        x[..., 1] = 1
        turned = rotate_planes(x, torch.full((1, 1, 1, 4), math.pi / 2))
        assert turned.argmax() == 5
        torch.testing.assert_close(turned.sum(), torch.tensor(1.0))
