"""Linear attention: what it computes, its bound, its masks and its causal form."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import attention_cases
import stringpe
from attention_cases import inputs
from stringpe import Attention, LinearAttention, LinearCache, testing
from stringpe.folding import fold_projection
from stringpe.linear_attention import BOUND, linear_mix, relu_features


def layer(case, cls=LinearAttention, **options):
    return attention_cases.layer(case, cls, **options)


@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_equals_the_quadratic_form(num_kv_heads):
    attn = layer("cayley", num_kv_heads=num_kv_heads, features="relu", dtype=torch.float64)
    x, coords = inputs(dtype=torch.float64)
    q, k, v = attn.project(x)
    q = attn.encoding.rotate(q, coords, groups=4 // num_kv_heads, whole=True).relu()
    k = attn.encoding.rotate(k, coords, whole=True).relu().repeat_interleave(4 // num_kv_heads, dim=1)
    norms = [(t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k)]
    scores = q @ k.mT + norms[0] @ norms[1].mT / 16
    out = attn.merge((scores / scores.sum(-1, keepdim=True)) @ v.repeat_interleave(4 // num_kv_heads, dim=1))
    torch.testing.assert_close(attn(x, coords), out, atol=1e-10, rtol=0)


def test_softmax_features_estimate_softmax_attention():
    exact, (x, coords) = layer("cayley", Attention), inputs(n=32)
    errors = []
    for count in (64, 64 * 64):  # the error of a Monte-Carlo estimate falls with the square root: eightfold
        linear = layer("cayley", num_features=count)
        linear.load_state_dict(exact.state_dict(), strict=False)
        errors.append(testing.relative_error(linear(x, coords), exact(x, coords)))
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize("case", ["cayley", "general"])
@pytest.mark.parametrize(
    "options", [{"features": "softmax"}, {"features": "relu"}, {"features": "relu", "encode": "after"}]
)
def test_the_basis_reaches_the_feature_map(case, options):
    attn = layer(case, **options)
    x, coords = inputs()
    out = attn(x, coords)
    out.square().sum().backward()
    assert (attn.encoding.basis.weight.grad != 0).all()
    assert attn.encoding.frequencies.weight.grad.norm() > 0


def test_the_basis_adds_capacity():
    """No change of W_q and W_k alone undoes P in front of a feature map, as it does in softmax attention."""
    attn = layer("cayley", features="relu", num_kv_heads=4)
    x, coords = inputs()
    out = attn(x, coords)
    moved = copy.deepcopy(attn)
    with torch.no_grad():
        weight, bias = fold_projection(attn.encoding.basis(), *attn.rows()[0])
        moved.qkv.weight[: len(weight)] = weight
        moved.qkv.bias[: len(bias)] = bias
        moved.encoding.basis.weight.zero_()
    assert testing.relative_error(moved(x, coords), out) > 1e-2
    softmax = Attention(64, 4, encoding=attn.encoding)
    softmax.load_state_dict(attn.state_dict(), strict=False)
    softmax_moved = Attention(64, 4, encoding=moved.encoding)
    softmax_moved.load_state_dict(moved.state_dict(), strict=False)
    assert testing.relative_error(softmax_moved(x, coords), softmax(x, coords)) < 1e-5


def test_rotating_after_the_features_is_exactly_invariant():
    attn = layer("cayley", features="relu", encode="after")
    x, coords = inputs()
    torch.testing.assert_close(attn(x, coords + 1000), attn(x, coords), atol=2e-6, rtol=0)


def test_a_context_of_the_same_tokens_is_self_attention():
    attn = layer("circulant")
    x, coords = inputs()
    torch.testing.assert_close(attn(x, coords, x, coords), attn(x, coords), atol=1e-6, rtol=0)


def test_fold_refuses_it():
    with pytest.raises(ValueError, match=r"cannot fold LinearAttention: .* stands the feature map of linear attention"):
        stringpe.fold(layer("cayley"))


def test_large_scores_do_not_overflow():
    attn = layer("rope_mixed")
    x, coords = inputs()
    assert attn(100 * x, coords).isfinite().all()


def test_random_directions_are_orthogonal_and_saved():
    attn = layer("rope", num_features=24)
    block = nn.functional.normalize(attn.projection[:16], dim=1)
    torch.testing.assert_close(block @ block.T, torch.eye(16), atol=1e-5, rtol=0)
    assert "projection" in attn.state_dict()
    before = attn.projection.clone()
    attn.reset_parameters()
    assert not torch.equal(attn.projection, before)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"features": "gelu"}, "features must be 'softmax' or 'relu', got 'gelu'"),
        ({"encode": "after"}, "'after' with features='relu'"),
        ({"encode": "never", "features": "relu"}, "got 'never'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        layer("cayley", **options)
    with pytest.raises(ValueError, match=r"linear attention takes an Encoding.*, or ⊗-STRING, not LieRE"):
        LinearAttention(64, 4, encoding=stringpe.create("liere", head_dim=16, num_heads=4))


EVERY = [{"features": "softmax"}, {"features": "relu"}, {"features": "relu", "encode": "after"}]
names = st.sampled_from(["rope", "rope_mixed", "cayley", "circulant", "general"])


@settings(max_examples=150, deadline=None)
@given(
    name=names,
    options=st.sampled_from(EVERY),
    n=st.integers(1, 20),
    head_dim=st.sampled_from([8, 16]),
    scale=st.sampled_from([0.0, 1e-20, 1e-6, 1e-3, 1.0, 30.0, 1e4, 1e12]),
    sparse=st.sampled_from([0.0, 0.5, 0.9]),
    seed=st.integers(0, 2**31),
)
def test_outputs_and_gradients_are_bounded_for_any_input(name, options, n, head_dim, scale, sparse, seed):
    """|out| ≤ max |v| where the weights are positive, ≤ 17 max |v| where they are rotated; n = 1 and d = 8 included."""
    torch.manual_seed(seed)
    enc = stringpe.create(name, head_dim=head_dim, num_heads=2)
    attn = LinearAttention(2 * head_dim, 2, encoding=enc, **options)
    attn.out = nn.Identity()
    x = torch.randn(2, n, 2 * head_dim) * (torch.rand(2, n, 2 * head_dim) >= sparse)
    with torch.no_grad():  # large and small queries and keys; values keep their size
        for part in attn.rows()[0]:
            part *= scale
    coords = torch.randint(-9, 9, (2, n, 2)).float()
    out = attn(x, coords)
    largest = attn.project(x)[2].abs().amax((2, 3)).amax(1)  # of each sample
    bound = BOUND if options.get("encode") == "after" else 1.0
    assert (out.abs().amax((1, 2)) <= bound * largest * (1 + 1e-4)).all()
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in attn.parameters())


def test_the_bound_is_nearly_reached():
    """Orthogonal features, turned into each other: what the quotient without the norm's share made infinite."""
    q, k = torch.tensor([[[[1e4, 0.0]]]]), torch.tensor([[[[0.0, 1e4]]]])
    features = relu_features(q), relu_features(k)
    turned = features[0], torch.cat([q, features[1][..., 2:]], dim=-1)  # k turned by a quarter lies on q
    out = linear_mix(*features, torch.ones(1, 1, 1, 1), turned)
    assert 0.99 * BOUND < out.item() <= BOUND


def test_one_token_attends_to_itself():
    for options in EVERY:
        attn = layer("cayley", **options)
        x, coords = inputs(n=1)
        values = attn.merge(attn.project(x)[2].repeat_interleave(2, dim=1))
        torch.testing.assert_close(attn(x, coords), values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_masked_keys_are_not_looked_at(options):
    attn = layer("cayley", **options)
    x, coords = inputs()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 6:] = False
    changed = x.clone()
    changed[:, 6:] = 40 * torch.randn(2, 3, 64)
    out = attn(x, coords, mask=mask)[:, :6]
    torch.testing.assert_close(attn(changed, coords, mask=mask)[:, :6], out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(attn(x[:, :6], coords[:, :6]), out, atol=1e-6, rtol=1e-5)  # as if they were not there
    torch.testing.assert_close(attn(x, coords, mask=mask[:, None, None])[:, :6], out)
    nothing = attn(x, coords, mask=torch.zeros_like(mask))
    nothing.sum().backward()
    torch.testing.assert_close(nothing, attn.out.bias.expand_as(nothing))
    assert all(p.grad.isfinite().all() for p in attn.parameters())


@pytest.mark.parametrize("encode", ["before", "after"])
@pytest.mark.parametrize("n", [1, 9, 64, 130])
def test_causal_equals_one_query_at_a_time(encode, n):
    attn = layer("cayley", features="relu", encode=encode, dtype=torch.float64)
    x, coords = inputs(n=n, dtype=torch.float64)
    full = attn(x, coords, causal=True)
    for i in sorted({0, n // 2, n - 1}):
        seen = attn(x[:, i : i + 1], coords[:, i : i + 1], x[:, : i + 1], coords[:, : i + 1])
        torch.testing.assert_close(full[:, i : i + 1], seen, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mask": torch.ones(2, 9)}, "mask must be boolean.*use mask.bool"),
        ({"mask": torch.ones(9, 9, dtype=torch.bool)}, r"takes a mask of keys, \(b, m\) = \(2, 9\)"),
        ({"causal": True}, "causal is for self attention with features='relu'"),
        ({"cache": LinearCache()}, "cache is for self attention with features='relu'"),
    ],
)
def test_masks_that_it_cannot_take_are_refused(arguments, match):
    attn = layer("cayley")
    with pytest.raises(ValueError, match=match):
        attn(*inputs(), **arguments)


@pytest.mark.parametrize("encode", ["before", "after"])
@pytest.mark.parametrize("case", ["cayley", "outer"])
def test_a_cache_equals_the_causal_form_token_by_token(case, encode):
    enc = stringpe.create(case, head_dim=16, num_heads=2)
    attn = LinearAttention(64, 4, encoding=enc, num_kv_heads=2, features="relu", encode=encode).double()
    x, coords = inputs(n=70, dtype=torch.float64)
    mask = torch.rand(2, 70, generator=torch.Generator().manual_seed(0)) < 0.8
    mask[:, 0] = True
    full = attn(x, coords, mask=mask, causal=True)
    for parts in ([1] * 70, [64, 1, 5], [3, 67]):
        cache, found, start = LinearCache(), [], 0
        sizes = set()
        for n in parts:
            new = slice(start, start + n)
            found.append(attn(x[:, new], coords[:, new], mask=mask[:, new], causal=True, cache=cache))
            start += n
            sizes.add((cache.values.numel(), cache.weights.numel()))
        torch.testing.assert_close(torch.cat(found, dim=1), full, atol=1e-10, rtol=0)
        assert len(cache) == 70
        assert len(sizes) == 1  # the same memory after every part


def test_without_causal_a_cache_is_context_for_all():
    attn = layer("cayley", features="relu", dtype=torch.float64)
    x, coords = inputs(n=9, dtype=torch.float64)
    cache = LinearCache()
    attn(x[:, :6], coords[:, :6], cache=cache)
    later = attn(x[:, 6:], coords[:, 6:], cache=cache)
    torch.testing.assert_close(later, attn(x[:, 6:], coords[:, 6:], x, coords), atol=1e-10, rtol=0)
    with pytest.raises(ValueError, match="this cache holds a batch of 2, got one of 1"):
        attn(x[:1], coords[:1], cache=cache)


class TestOuter:
    """⊗-STRING under linear attention, before and after the feature map."""

    @pytest.mark.parametrize("features", ["softmax", "relu"])
    def test_after_the_features_it_is_their_product_with_the_kernel(self, features):
        torch.manual_seed(0)
        enc = stringpe.outer(head_dim=16, num_heads=4)
        attn = LinearAttention(64, 4, encoding=enc, features=features, encode="after", num_features=24).double()
        x, coords = inputs(dtype=torch.float64)
        q, k, v = attn.project(x)
        q, k = attn._map_features(q), attn._map_features(k, keys=True)
        f = enc.features(coords)
        scores, kernel = q @ k.mT, f @ f.mT
        wanted = attn.merge((scores * kernel) @ v / scores.sum(-1, keepdim=True))
        torch.testing.assert_close(attn(x, coords), wanted, atol=1e-10, rtol=0)
        torch.testing.assert_close(attn(x, coords + 1000), wanted, atol=1e-8, rtol=0)

    def test_before_the_features_it_estimates_softmax_attention(self):
        torch.manual_seed(0)
        enc = stringpe.outer(head_dim=16, num_heads=4, features=2)
        exact, (x, coords) = Attention(64, 4, encoding=enc), inputs(n=32)
        errors = []
        for count in (64, 64 * 64):
            torch.manual_seed(1)
            linear = LinearAttention(64, 4, encoding=enc, num_features=count)
            linear.load_state_dict(exact.state_dict(), strict=False)
            errors.append(testing.relative_error(linear(x, coords), exact(x, coords)))
        assert errors[1] < errors[0] / 4

    def test_the_bound(self):
        attn = LinearAttention(64, 4, encoding=stringpe.outer(head_dim=16, num_heads=4), features="relu")
        attn.out = nn.Identity()
        x, coords = inputs()
        assert attn(x, coords).abs().max() <= attn.project(x)[2].abs().max() * (1 + 1e-5)


def test_positive_features_point_where_circulant_generators_do_not_turn():
    """What docs/choosing.md says of Circulant-STRING behind a ReLU: the share of relu(z) that is blind to position."""
    z = torch.randn(20_000, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).relu()
    encoding = stringpe.circulant(head_dim=16, num_heads=1, coord_dim=3, block_size=16).double()
    basis, turns = encoding.basis()[0], encoding.frequencies()[0].detach().abs().sum(0) > 0
    assert turns.tolist() == [False] + 7 * [True]
    signs = torch.tensor([1, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, -1, 1, -1], dtype=torch.float64)

    def share_of_ones(p):
        return ((z @ p)[:, 0].square().mean() / z.square().sum(1).mean()).item()  # P's first column is (1, …, 1) / 4

    expected = (16 / torch.pi + 1 - 1 / torch.pi) / 16
    assert share_of_ones(basis) == pytest.approx(expected, abs=0.005)
    assert share_of_ones(signs[:, None] * basis) == pytest.approx((1 - 1 / torch.pi) / 16, abs=0.005)


@pytest.mark.parametrize("features", ["softmax", "relu"])
def test_no_tokens_and_no_keys(features):
    attn = layer("cayley", features=features)
    x, coords = inputs(n=3)
    assert attn(x[:, :0], coords[:, :0]).shape == (2, 0, 64)
    without_keys = attn(x, coords, x[:, :0], coords[:, :0])
    assert torch.equal(without_keys, attn.out.bias.expand(2, 3, 64))


@pytest.mark.parametrize("other", [{"num_kv_heads": 1}, {"dtype": torch.float64}])
def test_a_cache_of_another_layer_is_refused_and_left_as_it_was(other):
    """Sums of one head would be broadcast to those of four."""
    cache, (x, coords) = LinearCache(), inputs()
    layer("cayley", features="relu", num_kv_heads=4)(x, coords, cache=cache)
    second = layer("cayley", features="relu", **other)
    dtype = second.qkv.weight.dtype
    with pytest.raises(ValueError, match=r"holds sums of 4 heads × 17 features × 16, .* one cache per layer"):
        second(x.to(dtype), coords.to(dtype), cache=cache)
    assert len(cache) == 9


def test_causal_is_true_or_false():
    with pytest.raises(ValueError, match="causal must be True or False, got 'false'"):
        layer("cayley", features="relu")(*inputs(), causal="false")
