"""The fused rotation as an operator: fake tensors, derivatives, torch.compile and torch.export."""

import pytest
import torch
from fused_cases import DEVICE, Case, error, fused_pair
from torch import library
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import stringpe
from stringpe import kernels
from stringpe.rotate import rotate, rotate_packed, rotate_pair


@pytest.mark.parametrize("layout", ["bhnd", "packed"])
def test_operators_are_well_formed(layout: str) -> None:
    """Schemas, fake tensors with the strides of the real ones, and derivatives under dynamic shapes."""
    case = Case(d=16, c=1, h=1, b=2, n=3, groups=2, layout=layout, shared=False)
    q, k, coords, theta = case.inputs()
    library.opcheck(torch.ops.stringpe.rotate_pair.default, (q, k, coords, theta, 2))
    library.opcheck(torch.ops.stringpe.rotate_one.default, (k, coords, theta, 1))
    (gq, gk), places = case.output_gradients(), (coords.detach(), theta.detach())
    q, k = q.detach(), k.detach()
    for needs in ((True, True), (True, False), (False, True)):
        for op, tensors, groups in (
            (torch.ops.stringpe.rotate_pair_backward.default, (gq, gk, q, k), 2),
            (torch.ops.stringpe.rotate_one_backward.default, (gk, k), 1),
        ):
            library.opcheck(op, (*tensors, *places, groups, *needs), test_utils=("test_schema", "test_faketensor"))


def test_saved_results_may_come_back_in_another_layout() -> None:
    """As from a hook that packs saved tensors: the same gradients, and no write outside the new tensors."""
    case = Case(d=16, layout="bnhd")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.repeat_interleave(2, -1)[..., ::2], lambda t: t):
        moved = fused_pair(case)
    assert all(torch.equal(a, b) for a, b in zip(moved, fused_pair(case), strict=True))


@pytest.mark.parametrize("layout", ["bhnd", "bnhd", "packed"])
def test_results_are_dense_in_the_memory_order_of_the_inputs(layout: str) -> None:
    q, k, coords, theta = Case(layout=layout, groups=2).inputs()
    for y in kernels.rotate_pair(q, k, coords, theta, 2):
        assert (y if layout == "bhnd" else y.transpose(1, 2)).is_contiguous()


class Calls(TorchDispatchMode):
    """Remembers the operators called inside it, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[object, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func.name(), args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)])
def test_only_the_gradients_asked_for_are_computed(needs: tuple[bool, bool]) -> None:
    q, k, coords, theta = Case(d=16, n=5).inputs()
    coords.requires_grad_(needs[0])
    theta.requires_grad_(needs[1])
    rotated = kernels.rotate_pair(q, k, coords, theta, 1)
    with Calls() as calls:
        (rotated[0].sum() + rotated[1].sum()).backward()
    (args,) = (args for name, args in calls.seen if name == "stringpe::rotate_pair_backward")
    assert args[-2:] == needs
    assert (coords.grad is not None, theta.grad is not None) == needs
    assert q.grad is not None
    assert k.grad is not None


def test_a_gradient_at_one_of_the_two_is_enough() -> None:
    q, k, coords, theta = Case(d=16, n=5).inputs()
    kernels.rotate_pair(q, k, coords, theta)[0].sum().backward()
    (dq,) = torch.autograd.grad(kernels.rotate_one(q, coords, theta).sum(), q)
    assert torch.equal(q.grad, dq)
    assert not k.grad.any()


def second(turn, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Gradients of a function of the gradients of Σ y³: every second derivative goes into one of them."""
    loss = sum(y.pow(3).sum() for y in turn(*inputs))
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["pair", "packed", "one"])
def test_second_derivatives_are_those_of_the_reference(kind: str, groups: int, shared: bool) -> None:
    q, k, coords, theta = Case(d=16, n=5, groups=groups, shared=shared, scale=1.0).inputs()
    if kind == "packed":
        packed = torch.cat([q, k], dim=1).transpose(1, 2).flatten(2).detach().requires_grad_()
        inputs, fused, plain = (packed, coords, theta), kernels.rotate_packed, rotate_packed
    elif kind == "pair":
        inputs, fused, plain = (q, k, coords, theta), kernels.rotate_pair, rotate_pair
    else:
        inputs = (q, coords, theta)

        def fused(*given):
            return (kernels.rotate_one(*given),)

        def plain(*given):
            return (rotate(*given),)

    found = second(lambda *given: fused(*given, groups), inputs)
    exact = tuple(t.detach().double().requires_grad_() for t in inputs)
    with stringpe.use_backend("torch"):
        truth = second(lambda *given: plain(*given, groups), exact)
    for value, true in zip(found, truth, strict=True):
        assert true.abs().max() > 0
        assert error(value, true) < 1e-5


def test_forward_mode_and_torch_func_take_the_reference() -> None:
    """A tangent through the kernel would be zero: "auto" goes to the torch formula, and a forced kernel refuses."""
    x, _, coords, theta = (t.detach() for t in Case(d=16, n=5, shared=False).inputs())
    for which, moved in enumerate((x, coords, theta)):
        inputs, direction = [x, coords, theta], torch.randn_like(moved)
        with forward_ad.dual_level():
            inputs[which] = forward_ad.make_dual(moved, direction)
            tangent = forward_ad.unpack_dual(rotate(*inputs)).tangent
            with stringpe.use_backend("triton"), pytest.raises(ValueError, match="no forward-mode derivatives"):
                rotate(*inputs)
        wide = [t.double() for t in (x, coords, theta)]
        tangents = [torch.zeros_like(t) for t in wide]
        tangents[which] = direction.double()
        truth = torch.func.jvp(rotate, tuple(wide), tuple(tangents))[1]
        assert error(tangent, truth) < 1e-5
    each = torch.func.vmap(lambda one, place: rotate(one[None], place[None], theta)[0])(x, coords)
    torch.testing.assert_close(each, rotate(x, coords, theta), atol=1e-5, rtol=0)
    jacobian = torch.func.jacrev(lambda place: rotate(x, place, theta).sum())(coords)
    torch.testing.assert_close(
        jacobian, torch.autograd.functional.jacobian(lambda r: rotate(x, r, theta).sum(), coords)
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_takes_it_whole(dynamic: bool) -> None:
    case = Case(d=16, groups=2, layout="packed", dtype=torch.bfloat16)

    def turned(q, k, coords, theta):
        assert kernels.unavailable(q) is None
        q, k = kernels.rotate_pair(q + 0, k, coords, theta, case.groups)
        return q, kernels.rotate_one(k, 0 * coords, theta)

    inputs = case.inputs()
    rotated = torch.compile(turned, fullgraph=True, backend="aot_eager", dynamic=dynamic)(*inputs)
    gradients = torch.autograd.grad(rotated, inputs, case.output_gradients())
    for value, plain in zip((*rotated, *gradients), fused_pair(case), strict=True):
        torch.testing.assert_close(value, plain)


def test_export_takes_it_whole() -> None:
    class Turn(torch.nn.Module):
        def forward(self, q, k, coords, theta):
            return kernels.rotate_pair(q, k, coords, theta, 1)

    inputs = tuple(t.detach() for t in Case(d=16, layout="packed").inputs())
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    shapes = {"q": {2: tokens}, "k": {2: tokens}, "coords": {1: tokens}, "theta": None}
    program = torch.export.export(Turn(), inputs, dynamic_shapes=shapes)
    assert any("rotate_pair" in str(node.target) for node in program.graph.nodes)
    longer = tuple(t.detach() for t in Case(d=16, layout="packed", n=21).inputs())
    for value, plain in zip(program.module()(*longer), kernels.rotate_pair(*longer), strict=True):
        assert torch.equal(value, plain)


def test_what_it_cannot_take_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 1, 2, 4, device=DEVICE)
    assert kernels.unavailable(x) is None
    assert "float64" in kernels.unavailable(x.double())
    assert "not on meta" in kernels.unavailable(x.to("meta"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "CUDA devices, not on cpu" in kernels.unavailable(x.cpu())
    monkeypatch.setattr(kernels, "_TRITON", False)
    assert kernels.unavailable(x) == "triton is not installed"


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("values", [False, True])
def test_packed_is_the_pair_and_its_gradient_is_packed(groups: int, values: bool) -> None:
    """qk alone, and as a slice of a projection to q, k and v."""
    torch.manual_seed(0)
    b, n, h, d, c = 2, 5, 2, 16, 3
    count = (groups + 1) * h * d
    qkv = torch.randn(b, n, count + (h * d if values else 0), device=DEVICE)
    qk = qkv[..., :count].detach().requires_grad_()
    coords, theta = torch.randn(b, n, c, device=DEVICE), torch.randn(h, c, d // 2, device=DEVICE)
    coords.requires_grad_(), theta.requires_grad_()
    slopes = torch.randn(b, groups * h, n, d, device=DEVICE), torch.randn(b, h, n, d, device=DEVICE)
    packed = kernels.rotate_packed(qk, coords, theta, groups)
    pair = kernels.rotate_pair(*kernels.heads_of(qk, theta, groups), coords, theta, groups)
    ours = [*packed, *torch.autograd.grad(packed, (qk, coords, theta), slopes)]
    theirs = [*pair, *torch.autograd.grad(pair, (qk, coords, theta), slopes)]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert ours[2].is_contiguous()
    library.opcheck(torch.ops.stringpe.rotate_packed.default, (qk, coords, theta, groups))


def test_attention_rotates_packed_projections() -> None:
    torch.manual_seed(0)
    attention = stringpe.Attention(32, 4, stringpe.cayley(head_dim=8, num_heads=2), num_kv_heads=2).to(DEVICE)
    x, coords = torch.randn(2, 5, 32, device=DEVICE), torch.randn(5, 2, device=DEVICE)
    with Calls() as calls:
        out = attention(x, coords)
    assert "stringpe::rotate_packed" in [name for name, _ in calls.seen]
    with stringpe.use_backend("torch"):
        torch.testing.assert_close(attention(x, coords), out, atol=1e-5, rtol=1e-5)
