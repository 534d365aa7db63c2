"""What STRING is compared with: each is what its authors say, and works wherever an encoding does."""

import copy

import pytest
import torch
from torch import nn

import stringpe
from cases import BASELINES, build, perturbed
from stringpe import testing
from stringpe.baselines import LearnedAbsolute, LieRE, SinCos, Spherical

every_baseline = pytest.mark.parametrize("case", BASELINES)


class TestAll:
    @every_baseline
    @pytest.mark.parametrize("coord_dim", [1, 3])
    def test_every_parameter_gets_gradient(self, case, coord_dim):
        enc = build(case, coord_dim=coord_dim)
        q, k, coords = testing.sample(enc, extent=4.0)
        coords.requires_grad_()
        testing.scores(enc, q, k, coords).square().sum().backward()
        for name, parameter in enc.named_parameters():
            assert (parameter.grad != 0).all(), f"{name} has dead entries"
        assert coords.grad.norm() > 0

    @every_baseline
    def test_samples_groups_and_pairs(self, case):
        enc = build(case)
        x, coords = torch.randn(4, 3, 6, 16), torch.randn(4, 6, 2)
        loop = torch.cat([enc.rotate(x[i : i + 1], coords[i]) for i in range(4)])
        torch.testing.assert_close(enc.rotate(x, coords), loop, rtol=0, atol=2e-5)
        q = torch.randn(4, 6, 6, 16)
        grouped, keys = enc(q, x, coords)
        torch.testing.assert_close(keys, enc.rotate(x, coords), rtol=0, atol=2e-5)
        for member in range(2):
            torch.testing.assert_close(grouped[:, member::2], enc.rotate(q[:, member::2], coords), rtol=0, atol=2e-5)

    @every_baseline
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_dtypes(self, case, dtype):
        enc = build(case).to(dtype)
        assert enc.rotate(torch.randn(1, 3, 4, 16).to(dtype), torch.randn(4, 2)).dtype == dtype
        assert all(p.dtype != torch.bfloat16 for p in enc.parameters())

    @every_baseline
    def test_state_dict_deepcopy_and_meta_device(self, case):
        enc, x, coords = build(case), torch.randn(1, 3, 5, 16), torch.randn(5, 2)
        with torch.device("meta"):
            empty = BASELINES[case](head_dim=16, num_heads=3, coord_dim=2)
        assigned = copy.deepcopy(empty)
        assigned.load_state_dict(enc.state_dict(), assign=True)
        loaded = empty.to_empty(device="cpu")
        loaded.load_state_dict(enc.state_dict())
        for other in (assigned, loaded, copy.deepcopy(enc)):
            assert torch.equal(other.rotate(x, coords), enc.rotate(x, coords))
        for module in loaded.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        assert all(p.isfinite().all() for p in loaded.parameters())

    @every_baseline
    @pytest.mark.slow
    def test_compiles_whole(self, case):
        enc, x, coords = build(case), torch.randn(1, 3, 5, 16), torch.randn(5, 2)
        torch._dynamo.reset()
        compiled = torch.compile(enc, fullgraph=True, backend="aot_eager")
        for whole, plain in zip(compiled(x, x, coords), enc(x, x, coords), strict=True):
            torch.testing.assert_close(whole, plain, atol=1e-5, rtol=0)

    @every_baseline
    def test_one_dimension_is_relative_and_the_origin_does_nothing_but_what_is_learned(self, case):
        enc = build(case, coord_dim=1, dtype=torch.float64)
        assert testing.shift_error(enc, shift=8.0, dtype=torch.float64) < 1e-9
        x = torch.randn(1, 3, 1, 16, dtype=torch.float64)
        if case in ("liere", "liere-blocks", "spherical"):
            torch.testing.assert_close(enc.rotate(x, torch.zeros(1, 1).double()), x)

    @every_baseline
    def test_which_are_relative_in_two_dimensions(self, case):
        error = testing.shift_error(build(case, dtype=torch.float64), shift=8.0, dtype=torch.float64)
        assert (error < 1e-9) == case.startswith(("outer", "harope"))

    @every_baseline
    def test_refuses_what_every_encoding_refuses(self, case):
        enc = build(case)
        with pytest.raises(ValueError, match="coords has 3 columns"):
            enc.rotate(torch.randn(1, 3, 5, 16), torch.randn(5, 3))
        with pytest.raises(ValueError, match="must be finite"):
            enc.rotate(torch.randn(1, 3, 5, 16), torch.full((5, 2), float("nan")))
        for sizes in ({"head_dim": 0}, {"num_heads": 0}, {"coord_dim": 0}, {"coord_dim": 1.5}):
            with pytest.raises(ValueError, match=f"{next(iter(sizes))} must be"):
                BASELINES[case](**({"head_dim": 16, "num_heads": 1, "coord_dim": 2} | sizes))


class TestHarope:
    def test_scores_are_those_of_its_formula(self):
        """qᵀ Aᵀ RoPE(r_j − r_i) A k, with A = U Σ Vᵀ."""
        enc = build("harope", dtype=torch.float64)
        a = enc.basis().mT
        u, v = enc.basis.left(), enc.basis.right()
        torch.testing.assert_close(a, u @ torch.diag_embed(enc.basis.log_scale.exp()) @ v.mT)
        assert testing.relative_error(a @ a.mT, torch.eye(16).double().expand(3, 16, 16)) > 0.1
        q, k, r = torch.randn(1, 3, 4, 16).double(), torch.randn(1, 3, 4, 16).double(), torch.randn(4, 2).double()
        rope = stringpe.rope(head_dim=16, num_heads=3).double().matrix(r[None] - r[:, None])  # (i, j, h, d, d)
        truth = torch.einsum("bhid,hed,ijhef,hfg,bhjg->bhij", q, a, rope, a, k)
        torch.testing.assert_close(testing.scores(enc, q, k, r), truth)

    def test_starts_as_rope(self):
        enc, rope = (make(head_dim=16, num_heads=2) for make in (stringpe.harope, stringpe.rope))
        x, coords = torch.randn(1, 2, 5, 16), torch.randn(5, 2)
        assert torch.equal(enc.rotate(x, coords), rope.rotate(x, coords))

    def test_is_no_group_and_says_so(self):
        enc, r = build("harope"), torch.randn(5, 2)
        for call in (
            lambda: enc.matrix(r),
            lambda: enc.rotate(torch.randn(1, 3, 5, 16), r, whole=True),
            lambda: stringpe.generators(enc),
            lambda: testing.check(enc),
        ):
            with pytest.raises(ValueError, match="the basis of 'harope' is not orthogonal"):
                call()

    @pytest.mark.parametrize("qk_norm", [None, "rms", "layer"])
    def test_folds_only_where_nothing_stands_between(self, qk_norm):
        torch.manual_seed(0)
        attention = stringpe.Attention(
            32, 2, encoding=perturbed(stringpe.harope(head_dim=16, num_heads=2)), qk_norm=qk_norm
        )
        x, coords = torch.randn(2, 5, 32), torch.randn(5, 2)
        unfolded = copy.deepcopy(attention)
        unfolded.fold = False
        torch.testing.assert_close(attention(x, coords), unfolded(x, coords), atol=1e-5, rtol=0)
        if qk_norm is None:
            torch.testing.assert_close(stringpe.fold(attention)(x, coords), unfolded(x, coords), atol=1e-5, rtol=0)
        else:
            with pytest.raises(ValueError, match="cannot fold"):
                stringpe.fold(attention)


class TestLieRE:
    def test_one_dimension_is_string(self):
        torch.manual_seed(0)
        enc = LieRE(head_dim=8, num_heads=2, coord_dim=1).double()
        same = stringpe.from_generators(enc.generators())
        r = torch.randn(5, 1).double()
        torch.testing.assert_close(same.matrix(r), enc.matrix(r), atol=1e-10, rtol=0)

    def test_rotates_by_its_matrix(self):
        enc = LieRE(head_dim=12, num_heads=2, coord_dim=3, block_size=4).double()
        x, coords = torch.randn(2, 2, 5, 12).double(), torch.randn(2, 5, 3).double()
        dense = torch.linalg.matrix_exp(torch.einsum("bnc,hcij->bnhij", coords, enc.generators()))
        torch.testing.assert_close(enc.matrix(coords), dense)
        torch.testing.assert_close(enc.rotate(x, coords), torch.einsum("bnhij,bhnj->bhni", dense, x))
        torch.testing.assert_close(enc.rotate(x, coords).norm(dim=-1), x.norm(dim=-1))

    def test_blocks(self):
        enc = LieRE(head_dim=12, num_heads=2, coord_dim=3, block_size=4)
        assert enc.weight.shape == (2, 3, 3, 6)
        inside = torch.block_diag(*[torch.ones(4, 4)] * 3).bool().fill_diagonal_(False)
        assert ((enc.generators() != 0) == inside).all()

    def test_the_authors_start(self):
        torch.manual_seed(0)
        a = LieRE(head_dim=32, num_heads=4, start="authors").generators().triu(1)
        a = a[a != 0]
        assert a.min() >= 0
        assert a.max() <= 2 * torch.pi
        assert a.mean().item() == pytest.approx(torch.pi, rel=0.05)

    def test_states_saved_before_there_were_blocks_still_load(self):
        enc = LieRE(head_dim=8, num_heads=2)
        state = {"weight": torch.randn(2, 2, 28)}
        enc.load_state_dict(state)
        assert torch.equal(enc.weight[:, :, 0], state["weight"])

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"head_dim": 1}, "block_size must be at least 2, got 1"),
            ({"block_size": 3}, "block_size must divide head_dim=8, got 3"),
            ({"start": "zero"}, "start must be one of even, authors, got 'zero'"),
        ],
    )
    def test_refuses(self, options, match):
        with pytest.raises(ValueError, match=match):
            LieRE(**({"head_dim": 8, "num_heads": 1} | options))


class TestSpherical:
    def test_is_three_turns_about_three_axes(self):
        enc = perturbed(Spherical(head_dim=7, num_heads=1, coord_dim=3)).double()
        x, r = torch.randn(1, 1, 1, 7).double(), torch.randn(1, 3).double()
        generators = torch.zeros(3, 3, 3, dtype=torch.float64)  # of turns about x, y and z
        for k in range(3):
            generators[k, (k + 2) % 3, (k + 1) % 3], generators[k, (k + 1) % 3, (k + 2) % 3] = 1, -1
        out = enc.rotate(x, r)[0, 0, 0]
        assert out[6] == x[0, 0, 0, 6]  # 3 does not divide 7
        for j in range(2):
            turns = torch.linalg.matrix_exp(generators * (r[0] * enc.weight[0, :, j])[:, None, None])
            torch.testing.assert_close(out[j:6:2], turns[0] @ turns[1] @ turns[2] @ x[0, 0, 0, j:6:2])

    def test_starts_with_the_spectrum_of_rope_mixed(self):
        enc = Spherical(head_dim=18, num_heads=2, coord_dim=2, scale=2.0)
        torch.testing.assert_close(enc.weight.norm(dim=1)[0], torch.tensor([2 * 100 ** (-t / 6) for t in range(6)]))

    def test_refuses(self):
        with pytest.raises(ValueError, match="head_dim must be at least 3, got 2"):
            Spherical(head_dim=2, num_heads=1)
        with pytest.raises(ValueError, match="three axes to turn about, got coord_dim=4"):
            Spherical(head_dim=6, num_heads=1, coord_dim=4)


class TestSinCos:
    @pytest.mark.parametrize(("dim", "coord_dim"), [(16, 1), (16, 2), (64, 3), (10, 3)])
    def test_shape_and_values(self, dim, coord_dim):
        embedding = SinCos(dim, coord_dim=coord_dim)
        coords = torch.randn(2, 5, coord_dim)
        out = embedding(coords)
        assert out.shape == (2, 5, dim)
        torch.testing.assert_close(out[..., 0], coords[..., 0].sin())
        torch.testing.assert_close(out.square().sum(-1), torch.full((2, 5), dim / 2))

    def test_refuses(self):
        with pytest.raises(ValueError, match="dim must be even and at least"):
            SinCos(4, coord_dim=3)


class TestLearnedAbsolute:
    def test_starts_at_the_size_of_tokens(self):
        """Entries of standard deviation 1/√dim: rows of norm one, as big_vision has them."""
        torch.manual_seed(0)
        embedding = LearnedAbsolute(256, (14, 14), coord_dim=3)
        assert embedding.weight.norm(dim=1).mean().item() == pytest.approx(1, rel=0.02)
        assert embedding.more.norm(dim=2).mean().item() == pytest.approx(1, rel=0.05)

    def test_reads_the_table_at_its_points(self):
        embedding = LearnedAbsolute(8, (3, 4))
        assert torch.equal(embedding(stringpe.coords.grid(3, 4)), embedding.weight)

    def test_interpolates_between_and_clamps_beyond(self):
        embedding = LearnedAbsolute(8, (3, 4, 2))
        table = embedding.weight.view(3, 4, 2, 8)
        middle = embedding(torch.tensor([[0.5, 2.25, 0.0]]))[0]
        expected = 0.5 * (0.75 * table[0, 2, 0] + 0.25 * table[0, 3, 0]) + 0.5 * (
            0.75 * table[1, 2, 0] + 0.25 * table[1, 3, 0]
        )
        torch.testing.assert_close(middle, expected)
        torch.testing.assert_close(embedding(torch.tensor([[9.0, -4.0, 1.0]]))[0], table[2, 0, 1])

    def test_depth_has_a_table_of_its_own(self):
        embedding = LearnedAbsolute(8, (3, 4), coord_dim=3, bins=5)
        assert embedding.more.shape == (1, 5, 8)
        coords = torch.tensor([[1.0, 2.0, 2.5], [1.0, 2.0, 99.0]]).requires_grad_()
        out = embedding(coords)
        flat, depth = embedding.weight[6], embedding.more[0]
        torch.testing.assert_close(out, torch.stack([flat + (depth[2] + depth[3]) / 2, flat + depth[4]]))
        out.sum().backward()
        assert coords.grad[0, 2] != 0  # so that the scale of a depth lift learns

    def test_every_entry_gets_gradient_and_a_single_row_works(self):
        embedding = LearnedAbsolute(4, (3, 1))
        embedding(stringpe.coords.grid(3, 1)).sum().backward()
        assert (embedding.weight.grad == 1).all()

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"sizes": ()}, r"one positive number per axis, got \(\)"),
            ({"sizes": (3, 0)}, "a size of the table must be at least 1, got 0"),
            ({"sizes": (3, 2.5)}, "a size of the table must be a whole number, got 2.5"),
            ({"sizes": (3, 3), "coord_dim": 1}, r"coord_dim=1 is less than the 2 axes of the table \(3, 3\)"),
            ({"sizes": (3,), "coord_dim": 2, "bins": 0}, "bins must be at least 1"),
            ({"sizes": (3,), "dim": 0}, "dim must be at least 1"),
        ],
    )
    def test_refuses(self, arguments, match):
        with pytest.raises(ValueError, match=match):
            LearnedAbsolute(**({"dim": 4} | arguments))

    def test_refuses_coordinates(self):
        with pytest.raises(ValueError, match="3 columns"):
            LearnedAbsolute(4, (3, 3))(torch.zeros(1, 3))
        with pytest.raises(ValueError, match="must be finite"):
            LearnedAbsolute(4, (3, 3))(torch.full((1, 2), float("nan")))


def test_a_model_finds_no_decay_for_them():
    model = nn.Sequential(LearnedAbsolute(4, (3, 3)), nn.Linear(4, 4))
    groups = {g["name"]: g["params"] for g in stringpe.param_groups(model, lr=1.0, weight_decay=0.1)}
    assert groups["decay"] == [model[1].weight]
