import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import stringpe
from cases import CASES, build, perturbed
from stringpe import Attention, KVCache, LinearAttention, testing

every_case = pytest.mark.parametrize("case", CASES)


def layer(case, cls=Attention, *, num_kv_heads=2, dtype=torch.float32, **options):
    torch.manual_seed(0)
    enc = build(case, head_dim=16, num_heads=num_kv_heads, coord_dim=2)
    return cls(64, 4, encoding=enc, num_kv_heads=num_kv_heads, **options).to(dtype)


def inputs(n=9, b=2, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(b, n, 64, dtype=dtype), torch.randint(-8, 8, (b, n, 2)).to(dtype)


def reference(attn, x, coords, context=None, context_coords=None):
    """Softmax attention written out with the dense matrices R(r)."""
    source, places = (x, coords) if context is None else (context, context_coords)
    h, hk, d = attn.num_heads, attn.num_kv_heads, attn.head_dim
    w, b = attn.qkv.weight, attn.qkv.bias
    q = (x @ w[: h * d].T + b[: h * d]).unflatten(-1, (h, d)).transpose(1, 2)
    k, v = (source @ w[h * d :].T + b[h * d :]).unflatten(-1, (2, hk, d)).movedim(2, 0).transpose(2, 3)
    k, v = (t.repeat_interleave(h // hk, dim=1) for t in (k, v))
    rq = attn.encoding.matrix(coords).repeat_interleave(h // hk, dim=2)
    rk = attn.encoding.matrix(places).repeat_interleave(h // hk, dim=2)
    q = torch.einsum("bnhij,bhnj->bhni", rq, q)
    k = torch.einsum("bnhij,bhnj->bhni", rk, k)
    return attn.merge(((q @ k.mT) * d**-0.5).softmax(-1) @ v)


@every_case
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_equals_the_dense_matrices(case, num_kv_heads):
    attn = layer(case, num_kv_heads=num_kv_heads, dtype=torch.float64)
    x, coords = inputs(dtype=torch.float64)
    context, places = inputs(n=5, dtype=torch.float64)
    tolerance = 1e-5 if case == "from_generators" else 1e-10  # its given basis was rounded to float32 on the way
    torch.testing.assert_close(attn(x, coords), reference(attn, x, coords), atol=tolerance, rtol=0)
    crossed = attn(x, coords, context, places)
    torch.testing.assert_close(crossed, reference(attn, x, coords, context, places), atol=tolerance, rtol=0)


@every_case
@pytest.mark.parametrize("qk_norm", [None, "rms"])
def test_folding_in_training_changes_neither_outputs_nor_gradients(case, qk_norm):
    x, coords = inputs(dtype=torch.float64)
    runs = []
    for fold in (True, False):
        attn = layer(case, fold=fold, qk_norm=qk_norm, dtype=torch.float64)
        out = attn(x, coords)
        out.square().sum().backward()
        runs.append([out, *(p.grad for p in attn.parameters())])
    for folded, plain in zip(*runs, strict=True):
        torch.testing.assert_close(folded, plain, atol=1e-6 if case == "from_generators" else 1e-10, rtol=0)


@every_case
def test_fold_after_training_leaves_plain_rotations(case):
    attn = layer(case)
    x, coords = inputs()
    before = attn(x, coords)
    folded = stringpe.fold(copy.deepcopy(attn))
    torch.testing.assert_close(folded(x, coords), before, atol=2e-6, rtol=0)
    assert torch.equal(folded.encoding.basis(), torch.eye(16).expand(2, 16, 16))
    assert not [n for n, _ in folded.named_parameters() if n.startswith("encoding.basis")]
    torch.testing.assert_close(stringpe.fold(folded)(x, coords), before, atol=2e-6, rtol=0)  # twice is once


@pytest.mark.parametrize("case", ["cayley", "circulant"])
def test_layers_that_share_an_encoding_fold_each_and_go_on_sharing(case):
    torch.manual_seed(0)
    enc = build(case, head_dim=16, num_heads=4)
    layers = nn.ModuleList([Attention(64, 4, encoding=enc), Attention(64, 4, encoding=enc)])
    x, coords = inputs()
    before = [attn(x, coords) for attn in layers]
    stringpe.fold(layers)
    assert layers[0].encoding is layers[1].encoding
    for attn, out in zip(layers, before, strict=True):
        torch.testing.assert_close(attn(x, coords), out, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("qk_norm", "word"), [("layer", "LayerNorm"), ("rms_gain", "RMSNorm")])
def test_fold_refuses_in_words_where_a_norm_stands_between(qk_norm, word):
    with pytest.raises(ValueError, match=rf"cannot fold: between projection and encoding stands the q/k norm {word}"):
        layer("cayley", qk_norm=qk_norm, fold=True)
    model = nn.Sequential(layer("cayley", qk_norm=qk_norm))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=rf"cannot fold 0: .*{word}"):
        stringpe.fold(model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("qk_norm", ["layer", "rms_gain"])
def test_norms_that_do_not_commute_put_the_basis_on_tokens(qk_norm):
    attn = perturbed(layer("cayley", qk_norm=qk_norm), 0.1)
    x, coords = inputs()
    assert attn.fold is False
    q, k, v = attn.project(x, None)
    q, k = attn.encoding(q, k, coords)
    k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
    expected = attn.merge(((q @ k.mT) / 4).softmax(-1) @ v)
    torch.testing.assert_close(attn(x, coords), expected, atol=1e-5, rtol=0)


@every_case
def test_cached_decoding_equals_the_full_pass(case):
    attn = layer(case)
    x, coords = inputs(n=8)
    coords = coords + 0.25
    full = attn(x, coords, causal=True)
    for cuts in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 5, 8], [0, 3, 4, 8]):
        cache = KVCache()
        parts = [attn(x[:, a:b], coords[:, a:b], causal=True, cache=cache) for a, b in pairwise(cuts)]
        torch.testing.assert_close(torch.cat(parts, dim=1), full, atol=2e-6, rtol=0)
        assert len(cache) == 8


def test_causal_means_causal():
    attn = layer("cayley")
    x, coords = inputs()
    changed = x.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(attn(x, coords, causal=True)[:, :5], attn(changed, coords, causal=True)[:, :5])


def test_mask():
    attn = layer("cayley")
    x, coords = inputs()
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[:, 4] = False
    changed = x.clone()
    changed[:, 4] += 1
    keep = [i for i in range(9) if i != 4]
    torch.testing.assert_close(attn(x, coords, mask=mask)[:, keep], attn(changed, coords, mask=mask)[:, keep])


@every_case
def test_translation_leaves_the_output_unchanged(case):
    attn = layer(case)
    x, coords = inputs()
    torch.testing.assert_close(attn(x, coords + 1000), attn(x, coords), atol=2e-6, rtol=0)
    assert not torch.allclose(attn(x, coords * 1.5), attn(x, coords), atol=1e-4)


def test_dropout_only_in_training():
    attn = layer("rope_mixed", dropout=0.5)
    x, coords = inputs()
    assert not torch.equal(attn(x, coords), attn(x, coords))
    attn.eval()
    assert torch.equal(attn(x, coords), attn(x, coords))


def test_no_encoding_is_plain_attention():
    torch.manual_seed(0)
    attn = Attention(64, 4)
    x, _ = inputs()
    theirs = nn.MultiheadAttention(64, 4, batch_first=True)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = attn.qkv.weight.data, attn.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = attn.out.weight.data, attn.out.bias.data
    torch.testing.assert_close(attn(x), theirs(x, x, x)[0], atol=1e-6, rtol=0)


class TestLinear:
    @pytest.mark.parametrize("num_kv_heads", [1, 4])
    def test_equals_the_quadratic_form(self, num_kv_heads):
        attn = layer("cayley", LinearAttention, num_kv_heads=num_kv_heads, features="relu", dtype=torch.float64)
        x, coords = inputs(dtype=torch.float64)
        q, k, v = attn.project(x, None)
        q = attn.encoding.rotate(q, coords, groups=4 // num_kv_heads, whole=True).relu()
        k = attn.encoding.rotate(k, coords, whole=True).relu().repeat_interleave(4 // num_kv_heads, dim=1)
        scores = q @ k.mT
        out = attn.merge((scores / scores.sum(-1, keepdim=True)) @ v.repeat_interleave(4 // num_kv_heads, dim=1))
        torch.testing.assert_close(attn(x, coords), out, atol=1e-10, rtol=0)

    def test_softmax_features_estimate_softmax_attention(self):
        exact, (x, coords) = layer("cayley"), inputs(n=32)
        errors = []
        for count in (64, 64 * 64):  # the error of a Monte-Carlo estimate falls with the square root: eightfold
            linear = layer("cayley", LinearAttention, num_features=count)
            linear.load_state_dict(exact.state_dict(), strict=False)
            errors.append(testing.relative_error(linear(x, coords), exact(x, coords)))
        assert errors[1] < errors[0] / 4

    @pytest.mark.parametrize("case", ["cayley", "general"])
    @pytest.mark.parametrize(
        "options", [{"features": "softmax"}, {"features": "relu"}, {"features": "relu", "encode": "after"}]
    )
    def test_the_basis_reaches_the_feature_map(self, case, options):
        attn = layer(case, LinearAttention, **options)
        x, coords = inputs()
        out = attn(x, coords)
        out.square().sum().backward()
        assert (attn.encoding.basis.weight.grad != 0).all()
        assert attn.encoding.frequencies.weight.grad.norm() > 0

    def test_the_basis_adds_capacity(self):
        """No change of W_q and W_k alone undoes P in front of a feature map, as it does in softmax attention."""
        attn = layer("cayley", LinearAttention, features="relu", num_kv_heads=4)
        x, coords = inputs()
        out = attn(x, coords)
        moved = copy.deepcopy(attn)
        with torch.no_grad():
            ((weight, bias),) = stringpe.projection.fold_projections([attn], [attn.encoding.basis()])
            moved.qkv.weight[: len(weight)] = weight
            moved.qkv.bias[: len(bias)] = bias
            moved.encoding.basis.weight.zero_()
        assert testing.relative_error(moved(x, coords), out) > 1e-2
        softmax = Attention(64, 4, encoding=attn.encoding)
        softmax.load_state_dict(attn.state_dict(), strict=False)
        softmax_moved = Attention(64, 4, encoding=moved.encoding)
        softmax_moved.load_state_dict(moved.state_dict(), strict=False)
        assert testing.relative_error(softmax_moved(x, coords), softmax(x, coords)) < 1e-5

    def test_rotating_after_the_features_is_exactly_invariant(self):
        attn = layer("cayley", LinearAttention, features="relu", encode="after")
        x, coords = inputs()
        torch.testing.assert_close(attn(x, coords + 1000), attn(x, coords), atol=2e-6, rtol=0)

    def test_cross(self):
        attn = layer("circulant", LinearAttention)
        x, coords = inputs()
        torch.testing.assert_close(attn(x, coords, x, coords), attn(x, coords), atol=1e-6, rtol=0)

    def test_fold_refuses(self):
        with pytest.raises(
            ValueError, match=r"cannot fold LinearAttention: .* stands the feature map of linear attention"
        ):
            stringpe.fold(layer("cayley", LinearAttention))

    def test_large_scores_do_not_overflow(self):
        attn = layer("rope_mixed", LinearAttention)
        x, coords = inputs()
        assert attn(100 * x, coords).isfinite().all()

    def test_random_directions_are_orthogonal_and_saved(self):
        attn = layer("rope", LinearAttention, num_features=24)
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
    def test_refuses(self, options, match):
        with pytest.raises(ValueError, match=match):
            layer("cayley", LinearAttention, **options)
        with pytest.raises(ValueError, match="linear attention takes an Encoding"):
            LinearAttention(64, 4, encoding=stringpe.outer(head_dim=16, num_heads=4))


class TestBadInput:
    x, coords = inputs()

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"dim": 65}, "dim=65 does not divide into 4 heads"),
            ({"num_kv_heads": 3}, "num_heads=4 is not a multiple of num_kv_heads=3"),
            ({"qk_norm": "batch"}, "qk_norm must be None or one of .* got 'batch'"),
        ],
    )
    def test_construction(self, arguments, match):
        with pytest.raises(ValueError, match=match):
            Attention(**({"dim": 64, "num_heads": 4} | arguments))

    def test_encoding_for_other_heads(self):
        with pytest.raises(ValueError, match="the encoding has 3 heads of dim 16, this attention needs 4 of dim 16"):
            Attention(64, 4, encoding=stringpe.rope(head_dim=16, num_heads=3))

    def test_calls(self):
        attn, plain = layer("cayley"), Attention(64, 4)
        for match, call in {
            r"x must be \(b, n, 64\), got \(2, 9, 32\)": lambda: attn(self.x[..., :32], self.coords),
            "has an encoding: pass coords": lambda: attn(self.x),
            "no encoding, so coords would be ignored": lambda: plain(self.x, self.coords),
            "needs both context and context_coords": lambda: attn(self.x, self.coords, self.x),
            "causal is for self attention": lambda: attn(self.x, self.coords, self.x, self.coords, causal=True),
        }.items():
            with pytest.raises(ValueError, match=match):
                call()
