import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stringpe
from cases import CASES, build
from stringpe import testing
from stringpe.basis import Cayley
from stringpe.encoding import check_coords

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
def test_half_precision_tokens_stay_within_their_tolerance(case, dtype):
    enc = build(case).to(dtype)
    q, _, coords = testing.sample(enc, dtype=dtype)
    assert enc.rotate(q, coords).dtype == dtype
    assert testing.shift_error(enc, dtype=dtype) < testing.tolerance(dtype)
    assert testing.rotation_error(enc, dtype=dtype) < testing.tolerance(dtype)
    assert enc.basis().dtype == enc.frequencies().dtype == torch.float32  # casting a model does not round them


@every_case
def test_shapes_are_those_of_the_contract(case):
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
def test_a_state_and_a_copy_rotate_alike(case):
    enc, x, coords = build(case), torch.randn(1, 3, 5, 16), torch.randn(5, 2)
    again = build(case, seed=1)
    learned = any(True for _ in enc.parameters())
    assert (testing.relative_error(again.rotate(x, coords), enc.rotate(x, coords)) > 1e-3) == learned
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
    assigned, loaded, source = copy.deepcopy(enc), enc.to_empty(device="cpu"), build(case)
    loaded.load_state_dict(source.state_dict())
    assigned.load_state_dict(source.state_dict(), assign=True)
    x, coords = torch.randn(1, 3, 5, 16), torch.randn(5, 2)
    for again in (loaded, assigned):
        assert torch.equal(again.rotate(x, coords), source.rotate(x, coords))
        assert torch.equal(again.basis(), source.basis())


@every_case
def test_starts_at_the_identity_basis(case):
    enc = CASES[case](head_dim=16, num_heads=3, coord_dim=2)
    assert enc.basis.starts_at_identity == (not case.startswith(("circulant", "from_generators")))
    if enc.basis.starts_at_identity:
        assert torch.equal(enc.basis(), torch.eye(16).expand(3, 16, 16))


@every_case
def test_repr_says_wavelengths(case):
    assert "wavelengths" in repr(build(case))
    assert "units" in repr(build(case))


def test_a_name_makes_what_its_function_makes():
    assert stringpe.names() == ["rope", "rope_mixed", "cayley", "circulant", "general", "simplex", "golden"]
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

    def test_tables_and_tokens_do_not_decay(self):
        """What multiplies tokens decays, also inside layers that hold other layers; what is added to them does not."""

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.prefix = nn.Parameter(torch.zeros(1, 4, 8))
                self.words = nn.Embedding(10, 8)
                self.table = stringpe.LearnedAbsolute(8, (3, 4), coord_dim=3)
                self.torch_attention = nn.MultiheadAttention(8, 2)
                self.patch = nn.Conv2d(3, 8, 2)
                self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

        model = Model()
        groups = {g["name"]: {id(p) for p in g["params"]} for g in stringpe.param_groups(model, lr=1.0)}
        decay = {name for name, p in model.named_parameters() if id(p) in groups["decay"]}
        assert decay == {
            "torch_attention.in_proj_weight",
            "torch_attention.out_proj.weight",
            "patch.weight",
            "normed.parametrizations.weight.original0",
            "normed.parametrizations.weight.original1",
        }

    def test_tokens_of_a_vit_do_not_decay(self):
        vit = stringpe.vit("vit_test_patch16", encoding="absolute", image_size=32, pool="map", registers=2)
        decay = {id(p) for g in stringpe.param_groups(vit, lr=1.0) if g["name"] == "decay" for p in g["params"]}
        tokens = [vit.prefix, vit.absolute.weight, vit.map_pool.query]
        assert not decay & {id(p) for p in tokens}
        assert id(vit.blocks[0].attention.qkv.weight) in decay

    @pytest.mark.parametrize("bad", [{"lr": float("nan")}, {"weight_decay": -1}, {"encoding_lr_scale": "4"}])
    def test_refuses_rates(self, bad):
        with pytest.raises(ValueError, match=next(iter(bad))):
            stringpe.param_groups(nn.Linear(2, 2), **({"lr": 1.0} | bad))

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

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_coordinates_that_are_not_finite(self, bad):
        coords = torch.randn(5, 2)
        coords[3, 1] = bad
        self.refuses("coords must be finite, but 1 of 10 entries are NaN or infinite", coords=coords)
        with pytest.raises(ValueError, match="must be finite"):
            self.enc.matrix(coords)

    def test_the_check_for_nan_stays_out_of_transforms(self):
        def total(r):
            check_coords(r, 2)  # looking into a tensor that stands for many would be an error
            return r.sum()

        assert torch.func.vmap(total)(torch.randn(4, 5, 2)).shape == (4,)
        assert torch.func.grad(total)(torch.randn(5, 2)).shape == (5, 2)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
    def test_token_dtypes(self, dtype):
        self.refuses("must be floating point", x=torch.ones(3, 2, 5, 8).to(dtype))

    def test_devices(self):
        self.refuses("x is on meta but coords are on cpu: move them to one device", x=self.x.to("meta"))

    def test_arrays_and_nested_tensors(self):
        with pytest.raises(TypeError, match="x must be a torch tensor, got ndarray"):
            self.enc.rotate(self.x.numpy(), torch.randn(5, 2))
        with pytest.raises(TypeError, match="coords must be a torch tensor, got list"):
            self.enc.rotate(self.x, [[0.0, 0.0]] * 5)
        with pytest.raises(TypeError, match="q must be a torch tensor, got NoneType"):
            self.enc(None, self.x, torch.randn(5, 2))
        nested = torch.nested.nested_tensor([torch.randn(2, 5, 8), torch.randn(2, 3, 8)], layout=torch.jagged)
        with pytest.raises(ValueError, match="x must be a plain tensor, got a nested one"):
            self.enc.rotate(nested, torch.randn(5, 2))

    @every_case
    def test_no_tokens_and_no_samples(self, case):
        enc = build(case)
        assert enc.rotate(torch.randn(2, 3, 0, 16), torch.randn(0, 2)).shape == (2, 3, 0, 16)
        assert enc.rotate(torch.randn(0, 3, 4, 16), torch.randn(0, 4, 2)).shape == (0, 3, 4, 16)

    def test_query_heads_that_are_not_a_multiple(self):
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
            ({"base": float("nan")}, "base must be a finite number, got nan"),
            ({"base": "100"}, "base must be a number or one number per axis, got '100'"),
            ({"scale": float("nan")}, "scale must be a finite number, got nan"),
            ({"scale": (1.0, float("inf"))}, "scale must be a finite number, got inf"),
            ({"zero_fraction": 1.0}, r"zero_fraction must lie in \[0, 1\), got 1.0"),
            ({"coord_dim": 2.0}, "coord_dim must be a whole number, got 2.0"),
            ({"num_heads": True}, "num_heads must be a whole number, got True"),
            ({"head_dim": "8"}, "head_dim must be a whole number, got '8'"),
            ({"scale": (1.0, 2.0, 3.0)}, "scale has 3 numbers for coord_dim=2"),
        ],
    )
    def test_sizes(self, name, sizes, match):
        with pytest.raises(ValueError, match=match):
            stringpe.create(name, **({"head_dim": 8, "num_heads": 2, "coord_dim": 2} | sizes))

    @pytest.mark.parametrize(
        ("typed", "meant"), [("caley", "cayley"), ("ropemixed", "rope_mixed"), ("Circulant", "circulant")]
    )
    def test_unknown_name_gets_the_nearest(self, typed, meant):
        with pytest.raises(ValueError, match=f"no encoding named '{typed}': did you mean '{meant}'"):
            stringpe.create(typed, head_dim=8, num_heads=1)

    def test_unknown_method(self):
        with pytest.raises(ValueError, match="method of Cayley must be one of matmul, solve, got 'fft'"):
            stringpe.cayley(head_dim=8, num_heads=1, method="fft")

    def test_parts_for_different_heads(self):
        with pytest.raises(ValueError, match="build both for the same heads"):
            stringpe.Encoding(Cayley(8, 2), stringpe.rope(head_dim=8, num_heads=3).frequencies)
