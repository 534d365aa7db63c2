import pytest
import torch

import stringpe
from stringpe import testing
from stringpe.baselines import LearnedAbsolute, LieRE, SinCos


class TestLieRE:
    def test_one_dimension_is_string(self):
        torch.manual_seed(0)
        enc = LieRE(head_dim=8, num_heads=2, coord_dim=1).double()
        assert testing.shift_error(enc, dtype=torch.float64) < 1e-9
        same = stringpe.from_generators(enc.generators())
        r = torch.randn(5, 1).double()
        torch.testing.assert_close(same.matrix(r), enc.matrix(r), atol=1e-10, rtol=0)

    def test_more_dimensions_are_not_translation_invariant(self):
        torch.manual_seed(0)
        assert testing.shift_error(LieRE(head_dim=8, num_heads=2, coord_dim=2).double(), dtype=torch.float64) > 0.1

    def test_is_orthogonal_and_learns(self):
        torch.manual_seed(0)
        enc = LieRE(head_dim=8, num_heads=2, coord_dim=3)
        x, coords = torch.randn(2, 2, 5, 8), torch.randn(2, 5, 3)
        out = enc.rotate(x, coords)
        torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
        out[..., :3].square().sum().backward()
        assert (enc.weight.grad != 0).all()

    def test_inside_attention_with_grouped_queries(self):
        attn = stringpe.Attention(32, 4, encoding=LieRE(head_dim=8, num_heads=2), num_kv_heads=2)
        assert attn(torch.randn(2, 5, 32), torch.randn(5, 2)).shape == (2, 5, 32)

    def test_bf16_tokens(self):
        enc = LieRE(head_dim=8, num_heads=1).bfloat16()
        x = torch.randn(1, 1, 4, 8)
        out = enc.rotate(x.bfloat16(), torch.randn(4, 2))
        assert out.dtype == torch.bfloat16

    def test_refuses(self):
        with pytest.raises(ValueError, match="cannot build LieRE with head_dim=1"):
            LieRE(head_dim=1, num_heads=1)


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

    def test_every_entry_gets_gradient_and_a_single_row_works(self):
        embedding = LearnedAbsolute(4, (3, 1))
        embedding(stringpe.coords.grid(3, 1)).sum().backward()
        assert (embedding.weight.grad == 1).all()

    def test_refuses(self):
        with pytest.raises(ValueError, match="one positive number an axis"):
            LearnedAbsolute(4, (3, 0))
        with pytest.raises(ValueError, match="3 columns"):
            LearnedAbsolute(4, (3, 3))(torch.zeros(1, 3))
