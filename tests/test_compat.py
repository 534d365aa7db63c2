"""Drop-in layers against the published definition, written out term by term."""

import math
import pickle

import pytest
import torch

from stringpe.compat import PointROPE, RoPE2D

LAYERS = [(RoPE2D, 2), (PointROPE, 3)]


def defined(tokens, positions, base, f0):
    """The definition in float64, channel by channel."""
    d, axes = tokens.shape[-1], positions.shape[-1]
    block, m = d // axes, d // axes // 2
    x, out = tokens.double(), torch.empty_like(tokens, dtype=torch.float64)
    for a in range(axes):
        for j in range(m):
            angle = f0 * positions[..., a].double() / base ** (j / m)
            cos, sin = angle.cos()[:, None], angle.sin()[:, None]
            u, v = x[..., a * block + j], x[..., a * block + j + m]
            out[..., a * block + j] = u * cos - v * sin
            out[..., a * block + j + m] = v * cos + u * sin
    return out


@pytest.mark.parametrize(("layer", "axes"), LAYERS)
@pytest.mark.parametrize("base", [100.0, 10_000.0])
@pytest.mark.parametrize("fractions", [False, True])
def test_numbers_are_the_definition(layer, axes, base, fractions):
    torch.manual_seed(0)
    tokens = torch.randn(2, 3, 7, 12 * axes, dtype=torch.float64)
    positions = torch.rand(2, 7, axes, dtype=torch.float64) * 300 if fractions else torch.randint(0, 300, (2, 7, axes))
    rope = layer(freq=base, F0=0.7)
    torch.testing.assert_close(rope(tokens, positions), defined(tokens, positions, base, 0.7), atol=1e-10, rtol=0)
    assert rope(tokens.float(), positions).dtype == torch.float32


@pytest.mark.parametrize(("layer", "axes"), LAYERS)
def test_strides_do_not_matter_and_nothing_is_overwritten(layer, axes):
    torch.manual_seed(0)
    packed = torch.randn(2, 5, 3, 4, 6 * axes)  # (b, n, qkv, h, d), as a projection leaves them
    positions = torch.randint(0, 50, (2, 5, axes))
    q = packed.permute(2, 0, 3, 1, 4)[0]
    before = packed.clone()
    assert torch.equal(layer()(q, positions), layer()(q.contiguous(), positions))
    assert torch.equal(packed, before)


@pytest.mark.parametrize(("layer", "axes"), LAYERS)
def test_gradients_are_right(layer, axes):
    torch.manual_seed(0)
    tokens = torch.randn(1, 2, 3, 2 * axes, dtype=torch.float64, requires_grad=True)
    positions = torch.rand(1, 3, axes, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer(freq=10.0), (tokens, positions))


def test_scores_depend_on_displacement_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 6, 16)
    positions = torch.randint(0, 40, (1, 6, 2))
    rope = RoPE2D()
    scores = rope(q, positions) @ rope(k, positions).mT
    moved = rope(q, positions + 1000) @ rope(k, positions + 1000).mT
    torch.testing.assert_close(scores, moved, atol=1e-4, rtol=0)
    assert not torch.allclose(scores, q @ k.mT, atol=0.1)


def test_bad_calls_are_refused_in_words():
    with pytest.raises(ValueError, match=r"multiple of 4, got \(1, 2, 3, 6\)"):
        RoPE2D()(torch.randn(1, 2, 3, 6), torch.zeros(1, 3, 2))
    with pytest.raises(ValueError, match=r"positions must be \(1, 3, 3\)"):
        PointROPE()(torch.randn(1, 2, 3, 6), torch.zeros(1, 3, 2))
    with pytest.raises(ValueError, match="freq is a base"):
        RoPE2D(freq=0.0)
    with pytest.raises(ValueError, match="F0 must be a finite number"):
        RoPE2D(F0=math.nan)


@pytest.mark.parametrize(("layer", "axes"), LAYERS)
def test_a_layer_that_was_called_can_be_saved_whole(layer, axes):
    rope, tokens, positions = layer(freq=10.0, F0=0.5), torch.randn(1, 2, 3, 4 * axes), torch.rand(1, 3, axes)
    out = rope(tokens, positions)
    assert torch.equal(pickle.loads(pickle.dumps(rope))(tokens, positions), out)
