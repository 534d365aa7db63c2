import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import stringpe
from attention_cases import inputs, layer
from cases import CASES, build, perturbed
from stringpe import Attention, KVCache

every_case = pytest.mark.parametrize("case", CASES)


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


def test_fold_says_when_there_is_nothing_to_fold():
    plain = nn.Sequential(nn.Linear(4, 4), Attention(64, 4))
    with pytest.raises(ValueError, match=r"nothing to fold in this Sequential: .* no attention layer whose encoding"):
        stringpe.fold(plain)
    with pytest.raises(ValueError, match="nothing to fold in this ViT"):
        stringpe.fold(stringpe.vit("vit_test_patch8", encoding="absolute"))
    own = nn.ModuleDict({"attention": layer("cayley"), "mine": nn.ModuleList([build("cayley")])})
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(ValueError, match=r"cannot fold mine\.0: it is not called by stringpe\.Attention"):
        stringpe.fold(own)
    assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())
    rope = layer("rope")
    assert stringpe.fold(rope) is rope  # no basis: plain rotations already


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
    q, k, v = attn.project(x)
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


def test_a_masked_key_is_not_looked_at():
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


class TestMasks:
    def test_shapes_that_mean_the_same(self):
        attn = layer("cayley")
        x, coords = inputs()
        keys = torch.rand(2, 9) > 0.3
        keys[:, 0] = True
        out = attn(x, coords, mask=keys)
        for same in (
            keys[:, None, None],
            keys[:, None].expand(2, 9, 9),
            keys[:, None],
            keys[:, None, None].expand(2, 4, 9, 9),
        ):
            torch.testing.assert_close(attn(x, coords, mask=same), out)
        short = attn(x[:1, keys[0]], coords[:1, keys[0]])
        torch.testing.assert_close(out[:1, keys[0]], short, atol=2e-6, rtol=0)

    def test_with_causal_attention_and_a_cache(self):
        attn = layer("cayley")
        x, coords = inputs(n=6)
        keys = torch.tensor([[True, False, True, True, True, True]]).expand(2, 6)
        full = attn(x, coords, causal=True, mask=keys)
        without = [0, 2, 3, 4, 5]
        alone = attn(x[:, without], coords[:, without], causal=True)
        torch.testing.assert_close(full[:, without], alone, atol=2e-6, rtol=0)
        cache = KVCache()
        attn(x[:, :4], coords[:, :4], causal=True, cache=cache, mask=keys[:, :4])
        rest = attn(x[:, 4:], coords[:, 4:], causal=True, cache=cache, mask=keys[:, None])
        torch.testing.assert_close(rest, full[:, 4:], atol=2e-6, rtol=0)

    @pytest.mark.parametrize("mask", [torch.ones(9, 9), torch.zeros(9, 9), torch.ones(2, 9).long()], ids=str)
    def test_numbers_are_refused(self, mask):
        with pytest.raises(ValueError, match=r"mask must be boolean.*use mask\.bool\(\)"):
            layer("cayley")(*inputs(), mask=mask)

    @pytest.mark.parametrize("shape", [(8,), (9, 8), (3, 9), (2, 8, 9), (2, 3, 9, 9), (1, 1, 1, 9, 9)])
    def test_other_shapes_are_refused(self, shape):
        with pytest.raises(ValueError, match=r"mask must be \(b, m\) = \(2, 9\).*got"):
            layer("cayley")(*inputs(), mask=torch.ones(shape, dtype=torch.bool))

    def test_a_shape_with_two_meanings_is_refused(self):
        x, coords = inputs(n=2)
        with pytest.raises(ValueError, match=r"can mean \(b, m\) or \(n, m\)"):
            layer("cayley")(x, coords, mask=torch.ones(2, 2, dtype=torch.bool))


def halved(attn):
    """With frequencies in bfloat16, as a mixed precision policy of FSDP hands them over."""
    attn = copy.deepcopy(attn)
    attn.encoding.frequencies.weight.data = attn.encoding.frequencies.weight.data.bfloat16()
    return attn


class TestBadInput:
    x, coords = inputs()

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"dim": 65}, "dim=65 does not divide into 4 heads"),
            ({"num_kv_heads": 3}, "num_heads=4 is not a multiple of num_kv_heads=3"),
            ({"qk_norm": "batch"}, "qk_norm, if not None, must be one of .* got 'batch'"),
            ({"num_kv_heads": 0}, "num_kv_heads must be at least 1, got 0"),
            ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
            ({"num_heads": -4}, "num_heads must be at least 1, got -4"),
            ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
            ({"dropout": 1.5}, r"dropout must lie in \[0, 1\), got 1.5"),
            ({"dropout": float("nan")}, "dropout must lie in"),
            (
                {"encoding": "cayley"},
                r"got 'cayley': build it with stringpe\.create\('cayley', head_dim=16, num_heads=4",
            ),
            ({"encoding": 3}, "encoding must be an encoding object, got 3"),
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
            r"context must be \(b, n, 64\), got \(2, 9, 32\)": lambda: attn(
                self.x, self.coords, self.x[..., :32], self.coords
            ),
            "context has a batch of 1 and x of 2": lambda: attn(self.x, self.coords, self.x[:1], self.coords[:1]),
            r"x is torch\.float64 and the weights are torch\.float32": lambda: attn(self.x.double(), self.coords),
            r"x is torch\.bfloat16 and the weights are": lambda: attn(self.x.bfloat16(), self.coords),
            "coords came in half precision.*cast_forward_inputs=False": lambda: attn(self.x, self.coords.bfloat16()),
            "x is a nested tensor: concatenate its sequences": lambda: attn(
                torch.nested.nested_tensor([self.x[0], self.x[1, :4]], layout=torch.jagged), self.coords
            ),
            "parameters of this encoding came as torch.bfloat16.*without param_dtype": lambda: halved(attn)(
                self.x, self.coords
            ),
        }.items():
            with pytest.raises(ValueError, match=match):
                call()


class TestARefusedCallLeavesTheCacheAsItWas:
    x = torch.randn(2, 5, 32)

    def filled(self):
        attn, cache = Attention(32, num_heads=4), KVCache()
        with torch.no_grad():
            attn(self.x, cache=cache)
        return attn, cache

    def test_wrong_mask(self):
        attn, cache = self.filled()
        with torch.no_grad(), pytest.raises(ValueError, match="mask"):
            attn(self.x[:, :2], mask=torch.ones(2, 6, dtype=torch.bool), cache=cache)
        assert len(cache) == 5

    @pytest.mark.parametrize("other", [Attention(32, num_heads=2), Attention(32, num_heads=4).double()])
    def test_another_layer_or_dtype(self, other):
        _, cache = self.filled()
        with torch.no_grad(), pytest.raises(ValueError, match="use one cache per layer"):
            other(self.x.to(next(other.parameters()).dtype), cache=cache)
        assert len(cache) == 5

    def test_what_is_not_a_cache(self):
        with pytest.raises(TypeError, match=r"cache must be a stringpe\.KVCache, got list"):
            Attention(32, num_heads=4)(self.x, cache=[])

    def test_a_context(self):
        attn, cache = self.filled()
        with torch.no_grad(), pytest.raises(ValueError, match="cache is for self attention"):
            attn(self.x, None, self.x, cache=cache)
        assert len(cache) == 5


@pytest.mark.parametrize("norm", ["layer", "rms_gain"])
def test_a_norm_that_takes_the_place_of_another_keeps_the_basis_out_of_the_weights(norm):
    """Whether P may be folded is judged by the norms that the layer has now."""
    attn, other = perturbed(layer("cayley"), 0.3), perturbed(layer("cayley", qk_norm=norm), 0.3)
    attn.q_norm, attn.k_norm = other.q_norm, other.k_norm
    x, coords = inputs()
    out = attn(x, coords)
    attn.fold = False
    torch.testing.assert_close(out, attn(x, coords), atol=1e-5, rtol=0)


def test_an_encoding_that_comes_later_is_folded_only_where_it_may():
    """HARoPE's basis is not orthogonal and does not commute with the norm, which was built without an encoding."""
    attn = Attention(64, 4, qk_norm="rms")
    attn.encoding = perturbed(stringpe.harope(head_dim=16, num_heads=4), 0.3)
    x, coords = inputs()
    out = attn(x, coords)
    attn.fold = False
    torch.testing.assert_close(out, attn(x, coords), atol=1e-5, rtol=0)


@pytest.mark.parametrize("linear", [False, True])
def test_a_mask_on_another_device_is_refused(linear):
    kind = stringpe.LinearAttention if linear else stringpe.Attention
    x, coords = torch.randn(1, 3, 16), torch.randn(3, 2)
    attn = kind(16, 2, encoding=stringpe.cayley(head_dim=8, num_heads=2, coord_dim=2))
    with pytest.raises(ValueError, match=r"mask must be on the device of x, cpu, got one on meta"):
        attn(x, coords, mask=torch.ones(1, 3, dtype=torch.bool, device="meta"))
