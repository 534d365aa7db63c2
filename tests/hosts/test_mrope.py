"""Qwen-VL's M-RoPE (time, row, column) is `rope` with given frequencies, and decodes with our cache."""

import pytest
import torch

import stringpe
from stringpe.basis import Identity
from stringpe.encoding import Encoding
from stringpe.frequencies import GivenFrequencies
from stringpe.kv_cache import KVCache

SECTIONS = [2, 3, 3]  # planes of time, rows and columns


def mrope(inv_freq, sections, heads):
    """Θ (heads, 3, d/2): plane j turns with the axis whose section it lies in."""
    axis = torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    return torch.where(axis == torch.arange(3)[:, None], inv_freq, 0.0).expand(heads, -1, -1).clone()


@pytest.fixture(scope="module")
def qwen():
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": SECTIONS}
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = Qwen2VLTextConfig(**sizes, num_key_value_heads=2, vocab_size=50, rope_parameters=rope)
    return Qwen2VLTextModel(config).eval().double()


def positions():
    """Four words, an image of 3 × 4 patches, three words: (3, 1, 19), as Qwen-VL counts them."""
    words = torch.arange(4).expand(3, -1)
    rows, columns = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    image = 4 + torch.stack([torch.zeros(12, dtype=torch.long), rows.flatten(), columns.flatten()])
    after = (image.max() + 1 + torch.arange(3)).expand(3, -1)
    return torch.cat([words, image, after], dim=1)[:, None]


def test_decoding_token_by_token_is_their_attention(qwen):
    theirs, where = qwen.layers[0].self_attn, positions()
    x = torch.randn(1, where.shape[-1], 64, dtype=torch.float64)
    seen = torch.ones(19, 19, dtype=torch.bool).tril()[None, None]
    expected = theirs(x, attention_mask=seen, position_embeddings=qwen.rotary_emb(x, where))[0]

    theta = mrope(qwen.rotary_emb.inv_freq, SECTIONS, heads=2)
    encoding = Encoding(Identity(16, 2), GivenFrequencies(theta, learnable=False), name="mrope")
    ours = stringpe.Attention(64, 4, encoding=encoding, num_kv_heads=2).double()
    with torch.no_grad():
        parts = (theirs.q_proj, theirs.k_proj, theirs.v_proj)
        ours.qkv.weight.copy_(torch.cat([p.weight for p in parts]))
        ours.qkv.bias.copy_(torch.cat([p.bias for p in parts]))
        ours.out.weight.copy_(theirs.o_proj.weight)
        ours.out.bias.zero_()

    coords = where[:, 0].mT.double()  # (19, 3): time, row, column of every token
    assert (ours(x, coords, causal=True) - expected).abs().max() < 1e-6  # theirs forms angles in float32
    cache, steps = KVCache(capacity=32), []
    with torch.no_grad():
        for start, end in [(0, 16), (16, 17), (17, 18), (18, 19)]:  # the prompt with its image, then word by word
            steps.append(ours(x[:, start:end], coords[start:end], causal=True, cache=cache))
    assert (torch.cat(steps, 1) - expected).abs().max() < 1e-6
    assert len(cache) == 19


def test_a_learned_basis_starts_there_and_moves_nothing_else(qwen):
    """Cayley-STRING on M-RoPE's frequencies: the same function at first, and still exactly invariant."""
    theta = mrope(qwen.rotary_emb.inv_freq, SECTIONS, heads=2)
    plain = Encoding(Identity(16, 2), GivenFrequencies(theta), name="mrope")
    learned = Encoding(
        stringpe.cayley(head_dim=16, num_heads=2, coord_dim=3).basis, GivenFrequencies(theta), name="cayley"
    )
    q, k = torch.randn(2, 1, 2, 19, 16, dtype=torch.float64)
    coords = positions()[:, 0].mT.double()
    for one, other in zip(plain(q, k, coords), learned(q, k, coords), strict=True):
        assert (one - other).abs().max() < 1e-12
    torch.nn.init.normal_(learned.basis.weight, std=0.3)

    def scores(at):
        turned_q, turned_k = learned(q, k, at)
        return turned_q @ turned_k.mT

    assert (scores(coords) - scores(coords + torch.tensor([5.0, -3.0, 11.0]))).abs().max() < 1e-10
