import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stringpe
from cases import CASES, build, perturbed
from stringpe import rotate, testing
from stringpe.basis import Cayley
from stringpe.rotate import angles, rotate_planes

every_case = pytest.mark.parametrize("case", CASES)


@every_case
@pytest.mark.parametrize("coord_dim", [1, 2, 3])
def test_all_properties_in_float32(case, coord_dim):
    testing.check(build(case, coord_dim=coord_dim))


@every_case
@pytest.mark.parametrize("coord_dim", [1, 3, 5])
def test_all_properties_in_float64(case, coord_dim):
    testing.check(build(case, coord_dim=coord_dim, dtype=torch.float64), dtype=torch.float64)


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tokens(case, dtype):
    enc = build(case).to(dtype)
    q, _, coords = testing.sample(enc, dtype=dtype)
    assert enc.rotate(q, coords).dtype == dtype
    assert testing.shift_error(enc, dtype=dtype) < testing.tolerance(dtype)
    assert testing.rotation_error(enc, dtype=dtype) < testing.tolerance(dtype)
    assert enc.basis().dtype == enc.frequencies().dtype == torch.float32  # casting a model does not round them


@every_case
def test_shapes_and_dtypes(case):
    enc = build(case, head_dim=8, num_heads=2, coord_dim=3)
    assert enc.basis().shape == (2, 8, 8)
    assert enc.frequencies().shape == (2, 3, 4)
    assert enc.matrix(torch.randn(5, 3)).shape == (5, 2, 8, 8)
    assert enc.matrix(torch.randn(4, 5, 3)).shape == (4, 5, 2, 8, 8)
    assert stringpe.generators(enc).shape == (2, 3, 8, 8)
    q, k = enc(torch.randn(4, 2, 5, 8), torch.randn(4, 2, 7, 8), torch.randn(5, 3), torch.randn(4, 7, 3))
    assert q.shape == (4, 2, 5, 8)
    assert k.shape == (4, 2, 7, 8)


@every_case
def test_samples_with_their_own_coordinates_equal_a_loop(case):
    enc = build(case)
    x, coords = torch.randn(4, 3, 6, 16), torch.randn(4, 6, 2) * 5
    loop = torch.cat([enc.rotate(x[i : i + 1], coords[i]) for i in range(4)])
    torch.testing.assert_close(enc.rotate(x, coords), loop, rtol=0, atol=1e-6)


@every_case
def test_one_tensor_equals_both(case):
    enc = build(case)
    q, k, coords = testing.sample(enc)
    for one, both in zip((enc.rotate(q, coords), enc.rotate(k, coords)), enc(q, k, coords), strict=True):
        assert torch.equal(one, both)


@every_case
def test_grouped_queries_use_their_key_heads_encoding(case):
    enc = build(case)
    q, k, coords = torch.randn(2, 6, 5, 16), torch.randn(2, 3, 5, 16), torch.randn(2, 5, 2)
    grouped = enc(q, k, coords)[0]
    for member in range(2):
        torch.testing.assert_close(grouped[:, member::2], enc.rotate(q[:, member::2], coords), rtol=0, atol=1e-6)


@every_case
def test_whole_rotation_is_the_dense_matrix(case):
    enc = build(case, dtype=torch.float64)
    x, coords = torch.randn(2, 3, 5, 16).double(), torch.randn(2, 5, 2).double()
    dense = torch.einsum("bnhij,bhnj->bhni", enc.matrix(coords), x)
    assert testing.relative_error(enc.rotate(x, coords, whole=True), dense) < 1e-12


@every_case
def test_every_parameter_gets_gradient(case):
    enc = build(case, coord_dim=3)
    q, k, coords = testing.sample(enc, extent=4.0)
    coords.requires_grad_()
    testing.scores(enc, q, k, coords).square().sum().backward()
    for name, parameter in enc.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).all(), f"{name} has dead entries"
    assert coords.grad is not None
    assert coords.grad.norm() > 0


@every_case
def test_gradients_are_right(case):
    enc = build(case, head_dim=4, num_heads=1, dtype=torch.float64)
    x, coords = torch.randn(1, 1, 3, 4).double().requires_grad_(), torch.randn(3, 2).double().requires_grad_()
    parameters = dict(enc.named_parameters())

    def run(x, coords, *values):
        state = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(enc, state, (x, x, coords))[0]

    assert torch.autograd.gradcheck(run, (x, coords, *parameters.values()))


@every_case
def test_state_dict_and_deepcopy(case):
    enc, x, coords = build(case), torch.randn(1, 3, 5, 16), torch.randn(5, 2)
    again = build(case, seed=1)
    assert testing.relative_error(again.rotate(x, coords), enc.rotate(x, coords)) > 1e-3 or case.startswith("rope")
    again.load_state_dict(enc.state_dict())
    assert torch.equal(again.rotate(x, coords), enc.rotate(x, coords))
    assert torch.equal(copy.deepcopy(enc).rotate(x, coords), enc.rotate(x, coords))


@every_case
def test_meta_device_then_reset_or_load(case):
    if case == "from_generators":
        pytest.skip("built from values, which a meta device does not have")
    with torch.device("meta"):
        enc = CASES[case](head_dim=16, num_heads=3, coord_dim=2)
    assert enc.basis().is_meta
    assert enc.frequencies().is_meta
    assert "wavelengths" not in repr(enc)
    reset = copy.deepcopy(enc).to_empty(device="cpu")
    for module in reset.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    testing.check(reset)
    loaded, source = enc.to_empty(device="cpu"), build(case)
    loaded.load_state_dict(source.state_dict())
    x, coords = torch.randn(1, 3, 5, 16), torch.randn(5, 2)
    assert torch.equal(loaded.rotate(x, coords), source.rotate(x, coords))


@every_case
def test_starts_at_the_identity_basis(case):
    if case.startswith(("circulant", "from_generators")):
        return  # their basis is what they are
    enc = CASES[case](head_dim=16, num_heads=3, coord_dim=2)
    assert torch.equal(enc.basis(), torch.eye(16).expand(3, 16, 16))


@every_case
def test_repr_says_wavelengths(case):
    assert "wavelengths" in repr(build(case))
    assert "units" in repr(build(case))


def test_names_and_create():
    assert stringpe.names() == ["rope", "rope_mixed", "cayley", "circulant", "general"]
    for name in stringpe.names():
        torch.manual_seed(0)
        made = stringpe.create(name, head_dim=8, num_heads=2, coord_dim=3)
        torch.manual_seed(0)
        called = getattr(stringpe, name)(head_dim=8, num_heads=2, coord_dim=3)
        assert made.name == name
        assert torch.equal(made.frequencies(), called.frequencies())


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(list(CASES)),
    head_dim=st.integers(2, 12).map(lambda n: 4 * n),
    num_heads=st.integers(1, 4),
    coord_dim=st.integers(1, 4),
    shift=st.integers(-10_000, 10_000),
    seed=st.integers(0, 1000),
)
def test_invariance_for_any_size_and_shift(case, head_dim, num_heads, coord_dim, shift, seed):
    enc = build(case, head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim, seed=seed)
    # Coordinates of 10⁴ in float32: the bound of the precision contract.
    assert testing.shift_error(enc, shift=float(shift), seed=seed) < 1e-6


class TestPeriodic:
    @every_case
    def test_no_seam(self, case):
        if case == "from_generators":
            pytest.skip("frequencies are what they were given")
        torch.manual_seed(0)
        enc = perturbed(CASES[case](head_dim=16, num_heads=2, coord_dim=2, periodic=(1,)))
        x = torch.randn(1, 2, 1, 16)
        here, there = torch.tensor([[0.3, -math.pi]]), torch.tensor([[0.3, math.pi]])
        torch.testing.assert_close(enc.rotate(x, here), enc.rotate(x, there), atol=1e-5, rtol=0)
        theta = enc.frequencies()
        assert torch.equal(theta[:, 1], theta[:, 1].round())
        assert (theta[:, 1] != 0).any()
        assert not torch.equal(theta[:, 0], theta[:, 0].round())

    def test_gradient_passes_the_rounding(self):
        enc = stringpe.rope_mixed(head_dim=8, num_heads=1, coord_dim=1, periodic=(0,))
        enc.rotate(torch.randn(1, 1, 3, 8), torch.randn(3, 1)).sum().backward()
        assert (enc.frequencies.weight.grad != 0).all()

    def test_refuses_an_axis_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"periodic names axis 2, but coord_dim=2 has axes 0 to 1"):
            stringpe.rope_mixed(head_dim=8, num_heads=1, coord_dim=2, periodic=(2,))


class TestParamGroups:
    def test_encodings_do_not_decay(self):
        model = nn.ModuleList(
            [stringpe.Attention(32, 2, encoding=stringpe.cayley(head_dim=16, num_heads=2)), nn.LayerNorm(32)]
        )
        groups = {g["name"]: g for g in stringpe.param_groups(model, lr=1e-3, weight_decay=0.1, encoding_lr_scale=5.0)}
        assert sum(len(g["params"]) for g in groups.values()) == len(list(model.parameters()))
        own = {id(p) for p in model[0].encoding.parameters()}
        assert {id(p) for p in groups["encoding"]["params"]} == own
        assert groups["encoding"]["weight_decay"] == groups["no_decay"]["weight_decay"] == 0
        assert groups["encoding"]["lr"] == pytest.approx(5e-3)
        assert groups["decay"]["weight_decay"] == 0.1
        torch.optim.AdamW(groups.values())

    def test_no_empty_groups(self):
        assert [g["name"] for g in stringpe.param_groups(nn.Linear(2, 2), lr=1.0)] == ["decay", "no_decay"]


class TestBadInput:
    enc = stringpe.cayley(head_dim=8, num_heads=2, coord_dim=2)
    x = torch.randn(3, 2, 5, 8)

    def refuses(self, match, x=None, coords=None):
        with pytest.raises(ValueError, match=match):
            self.enc.rotate(self.x if x is None else x, torch.randn(5, 2) if coords is None else coords)

    def test_columns(self):
        self.refuses(
            "coords has 3 columns but this encoding was built with coord_dim=2: "
            "build it with coord_dim=3 or drop a column",
            coords=torch.randn(5, 3),
        )
        self.refuses(r"coords has 1 columns.*build it with coord_dim=1$", coords=torch.randn(5, 1))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
    def test_coordinate_dtypes(self, dtype):
        self.refuses(
            f"coords must be float32 or float64, got {dtype}".replace(".", r"\."), coords=torch.ones(5, 2).to(dtype)
        )
        with pytest.raises(ValueError, match="float32 or float64"):
            self.enc.matrix(torch.ones(5, 2).to(dtype))

    @pytest.mark.parametrize("shape", [(4, 2), (1, 5, 2), (2, 5, 2), (3, 4, 2), (2,), (3, 2, 5, 2)])
    def test_coordinate_shapes_are_never_broadcast(self, shape):
        self.refuses(r"coords must be \(5, 2\), shared by the batch, or \(3, 5, 2\)", coords=torch.randn(shape))

    @pytest.mark.parametrize("shape", [(3, 2, 5, 6), (3, 4, 5, 8), (3, 1, 5, 8), (2, 5, 8), (3, 5, 16)])
    def test_token_shapes(self, shape):
        self.refuses(r"must be \(b, 2, n, 8\) for this encoding, got", x=torch.randn(shape))

    def test_query_heads_that_are_no_multiple(self):
        with pytest.raises(ValueError, match="multiple of 2 heads"):
            self.enc(torch.randn(1, 3, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(5, 2))

    def test_cross_attention_without_key_coords(self):
        with pytest.raises(ValueError, match="pass key_coords for cross attention"):
            self.enc(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 6, 8), torch.randn(5, 2))

    @pytest.mark.parametrize("name", stringpe.names())
    @pytest.mark.parametrize(
        ("sizes", "match"),
        [
            ({"head_dim": 7}, "head_dim must be even"),
            ({"head_dim": 0}, "head_dim"),
            ({"num_heads": 0}, "num_heads"),
            ({"coord_dim": 0}, "coord_dim"),
            ({"base": -1.0}, "base must be positive"),
            ({"scale": (1.0, 2.0, 3.0)}, "scale has 3 numbers for coord_dim=2"),
        ],
    )
    def test_sizes(self, name, sizes, match):
        if name == "circulant" and "head_dim" in sizes:
            match = "head_dim|block_size"
        with pytest.raises(ValueError, match=match):
            stringpe.create(name, **({"head_dim": 8, "num_heads": 2, "coord_dim": 2} | sizes))

    @pytest.mark.parametrize(
        ("typed", "meant"), [("caley", "cayley"), ("ropemixed", "rope_mixed"), ("Circulant", "circulant")]
    )
    def test_unknown_name_gets_the_nearest(self, typed, meant):
        with pytest.raises(ValueError, match=f"no encoding named '{typed}': did you mean '{meant}'"):
            stringpe.create(typed, head_dim=8, num_heads=1)

    def test_unknown_method(self):
        with pytest.raises(ValueError, match="method 'fft' is not one of"):
            stringpe.cayley(head_dim=8, num_heads=1, method="fft")

    def test_parts_for_different_heads(self):
        with pytest.raises(ValueError, match="build both for the same heads"):
            stringpe.Encoding(Cayley(8, 2), stringpe.rope(head_dim=8, num_heads=3).frequencies)


class TestRotation:
    @pytest.mark.parametrize("gradient", [False, True])
    def test_samples_taken_together_change_nothing(self, gradient, monkeypatch):
        """On a CPU, sines and cosines are formed for as many samples at a time as its cache holds."""
        torch.manual_seed(0)
        q, k = torch.randn(2, 5, 3, 7, 8, requires_grad=gradient).unbind(0)
        coords, theta = 9 * torch.randn(5, 7, 2), torch.randn(3, 2, 4, requires_grad=gradient)
        whole = rotate.rotate_pair(q, k, coords, theta)
        for most in (1, 2 * 7 * 3 * 4):  # one sample at a time, and two
            monkeypatch.setattr(rotate, "CACHED_ANGLES", most)
            for a, b in zip(rotate.rotate_pair(q, k, coords, theta), whole, strict=True):
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
