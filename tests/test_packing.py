"""Packed sequences give what each sequence gives alone, forward and backward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stringpe
from stringpe.kv_cache import KVCache
from stringpe.packing import Packing, _suits_varlen, _varlen_options

DIM, HEADS = 24, 4
ENCODINGS = ["rope", "rope_mixed", "cayley", "circulant", "general", "liere", "outer", "harope"]


def build(kind, name, kv_heads=None, **options):
    sizes = {"head_dim": DIM // HEADS, "num_heads": kv_heads or HEADS, "coord_dim": 3}
    encoding = None if name is None else stringpe.create(name, **sizes)
    layer = kind(DIM, HEADS, encoding=encoding, num_kv_heads=kv_heads, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def pack(lengths):
    x = torch.randn(1, sum(lengths), DIM, dtype=torch.float64, requires_grad=True)
    return x, 3 * torch.randn(1, sum(lengths), 3, dtype=torch.float64)


def gradients(out, x, layer):
    """Of a fixed linear function of the output, in the tokens and all parameters."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    wanted = [x, *[p for p in layer.parameters() if p.requires_grad]]
    found = torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)]


def assert_equal(packed, alone, x, layer):
    assert (packed - alone).abs().max() < 1e-12
    for ours, theirs in zip(gradients(packed, x, layer), gradients(alone, x, layer), strict=True):
        assert (ours - theirs).abs().max() < 1e-10 * (1 + theirs.abs().max())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [None, *ENCODINGS])
def test_self_attention_is_that_of_each_sequence_alone(name, causal):
    layer, lengths = build(stringpe.Attention, name), (5, 1, 9, 5)
    x, coords = pack(lengths)
    coords = None if name is None else coords
    parts = zip(x.split(lengths, 1), [None] * 4 if coords is None else coords.split(lengths, 1), strict=True)
    alone = torch.cat([layer(a, r, causal=causal) for a, r in parts], 1)
    assert_equal(layer(x, coords, lengths=lengths, causal=causal), alone, x, layer)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_lengths_give_each_sequence_alone(lengths, as_tensor):
    layer = build(stringpe.Attention, "cayley")
    x, coords = pack(lengths)
    given_lengths = torch.tensor(lengths) if as_tensor else lengths
    alone = [layer(a, r) for a, r in zip(x.split(lengths, 1), coords.split(lengths, 1), strict=True)]
    assert (layer(x, coords[0], lengths=given_lengths) - torch.cat(alone, 1)).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{"kv_heads": 2}, {"qk_norm": "layer"}, {"fold": False}])
def test_grouped_queries_norms_and_unfolded_bases(options):
    layer, lengths = build(stringpe.Attention, "cayley", **options), [3, 8]
    x, coords = pack(lengths)
    alone = torch.cat([layer(a, r) for a, r in zip(x.split(lengths, 1), coords.split(lengths, 1), strict=True)], 1)
    assert_equal(layer(x, coords, lengths=lengths), alone, x, layer)


@pytest.mark.parametrize("kind", [stringpe.Attention, stringpe.LinearAttention])
def test_cross_attention_with_lengths_of_both(kind):
    layer, lengths, others = build(kind, "circulant"), [3, 8, 2], [6, 1, 4]
    (x, coords), (context, places) = pack(lengths), pack(others)
    parts = [t.split(n, 1) for t, n in ((x, lengths), (coords, lengths), (context, others), (places, others))]
    alone = torch.cat([layer(*part) for part in zip(*parts, strict=True)], 1)
    packed = layer(x, coords, context, places, lengths=lengths, context_lengths=others)
    assert_equal(packed, alone, x, layer)


@pytest.mark.parametrize(
    "options", [{}, {"features": "relu"}, {"features": "relu", "encode": "after"}, {"features": "relu", "kv_heads": 2}]
)
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_that_of_each_sequence_alone(options, causal):
    if causal and not options:
        pytest.skip("softmax features have no causal form")
    layer, lengths = build(stringpe.LinearAttention, "cayley", **options), [3, 8, 2]
    x, coords = pack(lengths)
    parts = zip(x.split(lengths, 1), coords.split(lengths, 1), strict=True)
    alone = torch.cat([layer(a, r, causal=causal) for a, r in parts], 1)
    assert_equal(layer(x, coords, lengths=lengths, causal=causal), alone, x, layer)


def test_a_padded_batch_with_a_mask_gives_the_same():
    layer, lengths = build(stringpe.Attention, "cayley"), [3, 8, 2]
    x, coords = pack(lengths)
    padded = torch.zeros(3, 8, DIM, dtype=torch.float64)
    places, mask = torch.zeros(3, 8, 3, dtype=torch.float64), torch.zeros(3, 8, dtype=torch.bool)
    rows = zip(x.split(lengths, 1), coords.split(lengths, 1), strict=True)
    for i, (tokens, at) in enumerate(rows):
        padded[i, : tokens.shape[1]], places[i, : tokens.shape[1]] = tokens[0].detach(), at[0]
        mask[i, : tokens.shape[1]] = True
    for causal in (False, True):
        out = layer(padded, places, mask=mask, causal=causal)
        assert (out[mask] - layer(x, coords, lengths=lengths, causal=causal)[0]).abs().max() < 1e-12
        full = mask[:, None] & mask[:, :, None] | torch.eye(8, dtype=torch.bool)
        out = layer(padded, places, mask=full, causal=causal)
        assert (out[mask] - layer(x, coords, lengths=lengths, causal=causal)[0]).abs().max() < 1e-12


def test_a_packing_is_made_once_and_serves_all_layers():
    packing = Packing([2, 3])
    x, coords = pack([2, 3])
    layer = build(stringpe.Attention, "rope")
    assert torch.equal(layer(x, coords, lengths=packing), layer(x, coords, lengths=[2, 3]))
    assert packing.offsets(x.device) is packing.offsets(x.device)
    assert packing.offsets(x.device).tolist() == [0, 2, 5]
    assert packing.spread(torch.tensor([7, 9])).tolist() == [7, 7, 9, 9, 9]
    assert len(packing) == 2
    assert repr(packing) == "Packing([2, 3])"


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    layer = build(stringpe.Attention, "cayley").float()
    x, coords = torch.randn(1, 9, DIM), torch.randn(9, 3)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x, coords, lengths=[4, 5]), layer(x, coords, lengths=[4, 5]), atol=1e-6)


def test_the_kernel_for_packed_sequences_is_asked_only_for_what_it_knows():
    q = torch.randn(1, 2, 4, 16)
    assert not _suits_varlen(q, q, q)  # a CPU
    assert _varlen_options(False) in ({}, {"is_causal": False})
    assert _varlen_options(True) in ({"window_size": (-1, 0)}, {"is_causal": True})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [4, 4]}, r"N = 8, the sum of the 2 lengths; got \(1, 9, 24\): concatenate"),
        ({"lengths": []}, r"whole numbers of at least 1, one per sequence, got \[\]"),
        ({"lengths": [9, 0]}, r"whole numbers of at least 1.*got \[9, 0\]"),
        ({"lengths": [4.5, 4.5]}, "whole numbers of at least 1"),
        ({"lengths": [4, 5], "mask": torch.ones(1, 9, dtype=torch.bool)}, "lengths and mask do not go together: leave"),
        ({"lengths": [4, 5], "cache": KVCache()}, "lengths and cache do not go together.*one cache per sequence"),
        ({"context_lengths": [4, 5]}, "needs both lengths .* and context_lengths"),
        ({"lengths": [4, 5], "context_lengths": [4, 5]}, "needs both lengths .* and context_lengths"),
    ],
)
def test_wrong_lengths_are_refused_in_words(change, words):
    layer, (x, coords) = build(stringpe.Attention, "rope"), pack([9])
    with pytest.raises(ValueError, match=words):
        layer(x, coords, **change)


def test_a_context_of_another_number_of_sequences_is_refused():
    layer, (x, coords), (context, places) = build(stringpe.Attention, "rope"), pack([9]), pack([6])
    with pytest.raises(ValueError, match="x packs 2 sequences and the context 3"):
        layer(x, coords, context, places, lengths=[4, 5], context_lengths=[1, 2, 3])


def test_nested_tensors_are_refused_with_what_to_do():
    layer = build(stringpe.Attention, None)
    nested = torch.nested.nested_tensor([torch.randn(2, DIM), torch.randn(3, DIM)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"concatenate its sequences into \(1, N, dim\) and pass their lengths"):
        layer(nested)


class TestCache:
    @pytest.mark.parametrize("capacity", [0, 3, 64])
    def test_steps_equal_the_whole(self, capacity):
        layer, (x, coords) = build(stringpe.Attention, "cayley", kv_heads=2), pack([11])
        whole = layer(x, coords, causal=True)
        for grad in (torch.enable_grad, torch.no_grad):
            cache = KVCache(capacity)
            with grad():
                pieces = zip(x.split([4, 1, 1, 5], 1), coords.split([4, 1, 1, 5], 1), strict=True)
                steps = torch.cat([layer(a, r, causal=True, cache=cache) for a, r in pieces], 1)
            assert (steps - whole).abs().max() < 1e-12
            assert len(cache) == 11
            assert cache.keys.shape == (1, 2, 11, 6)

    def test_gradients_flow_through_a_cache(self):
        layer, (x, coords) = build(stringpe.Attention, "cayley"), pack([6])
        cache = KVCache()
        pieces = zip(x.split(2, 1), coords.split(2, 1), strict=True)
        steps = torch.cat([layer(a, r, causal=True, cache=cache) for a, r in pieces], 1)
        assert_equal(steps, layer(x, coords, causal=True), x, layer)

    def test_tokens_are_copied_a_few_times_and_not_at_every_step(self):
        cache, places = KVCache(), set()
        with torch.no_grad():
            for step in range(100):
                keys, values = cache.append(torch.full((1, 1, 1, 2), float(step)), torch.zeros(1, 1, 1, 2))
                places.add(keys.data_ptr())
                assert keys.shape == values.shape == (1, 1, step + 1, 2)
        assert len(places) <= 8  # 1, 2, 4, … 128
        assert torch.equal(cache.keys[0, 0, :, 0], torch.arange(100.0))

    def test_what_was_returned_before_stays_as_it_was(self):
        cache = KVCache(8)
        first, _ = cache.append(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
        before = first.clone()
        cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
        assert torch.equal(first, before)

    def test_a_cache_filled_with_gradients_goes_on_without_them(self):
        layer, (x, coords) = build(stringpe.Attention, "rope"), pack([5])
        cache = KVCache()
        layer(x[:, :3], coords[:, :3], causal=True, cache=cache)
        with torch.no_grad():
            rest = layer(x[:, 3:], coords[:, 3:], causal=True, cache=cache)
        assert (rest - layer(x, coords, causal=True)[:, 3:]).abs().max() < 1e-12

    def test_another_batch_and_a_negative_capacity_are_refused(self):
        cache = KVCache()
        cache.append(torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2))
        with pytest.raises(ValueError, match="holds a batch of 2, got one of 3"):
            cache.append(torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2))
        with pytest.raises(ValueError, match="capacity must be at least 0"):
            KVCache(-1)


@pytest.mark.parametrize("offsets", [[2, 5, 8], [0, 5, 10], [0, 5, 5, 8], [0, 6, 4, 8], [8], [], [0.0, 8.0]])
def test_offsets_that_cannot_be_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets must"):
        Packing.from_offsets(torch.tensor(offsets), total=8)


def test_lengths_of_numpy_are_whole_numbers_too():
    import numpy as np

    assert Packing(np.array([2, 3])).lengths == (2, 3)
    assert Packing([np.int64(2), 3]).lengths == (2, 3)
    for wrong in (3, None, "abc", torch.tensor(4)):
        with pytest.raises(TypeError, match="lengths must be a sequence"):
            Packing(wrong)


def test_a_longest_sequence_that_is_too_short_is_refused():
    assert Packing.from_offsets(torch.tensor([0, 2, 5]), total=5, longest=4).longest == 4  # a bound
    with pytest.raises(ValueError, match="longest=2 is too small: the offsets hold a sequence of 3 tokens"):
        Packing.from_offsets(torch.tensor([0, 2, 5]), total=5, longest=2)
