"""Projections that are more than the matrix of their weight (adapters, hooks, other tensors) are called."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

import stringpe
from attention_cases import inputs, layer
from cases import perturbed
from stringpe import Attention, LinearAttention


class LowRank(nn.Module):
    """An adapter of peft's structure: the layer that it wraps, and a low-rank update beside it."""

    def __init__(self, base_layer, rank=2):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base_layer.out_features, bias=False)})
        self.to(base_layer.weight.dtype)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))

    @torch.no_grad()
    def merged(self):
        plain = copy.deepcopy(self.base_layer)
        plain.weight += self.lora_B["default"].weight @ self.lora_A["default"].weight
        return plain


class Doubled(nn.Module):
    """A parametrisation."""

    def forward(self, weight):
        return 2 * weight


def doubled(projection):
    """The same projection with twice the weight, by hand."""
    plain = copy.deepcopy(projection)
    with torch.no_grad():
        plain.weight *= 2
    return plain


def adapt(attn, how):
    """Change a layer's qkv in one of the ways that libraries do, and return what it now computes as an nn.Linear."""
    if how == "lora":
        attn.qkv = LowRank(attn.qkv)
        return attn.qkv.merged()
    if how == "parametrisation":
        plain = doubled(attn.qkv)
        parametrize.register_parametrization(attn.qkv, "weight", Doubled())
        return plain
    if how == "prune":
        prune.l1_unstructured(attn.qkv, "weight", amount=0.5)
        plain = nn.Linear(attn.qkv.in_features, attn.qkv.out_features, dtype=attn.qkv.weight.dtype)
        plain.load_state_dict({"weight": attn.qkv.weight_orig * attn.qkv.weight_mask, "bias": attn.qkv.bias})
        return plain
    plain = copy.deepcopy(attn.qkv)
    with torch.no_grad():
        plain.weight *= 2
        plain.bias *= 2
    if how == "hook":
        attn.qkv.register_forward_hook(lambda module, args, out: 2 * out)
    elif how == "forward":
        original = attn.qkv.forward
        attn.qkv.forward = lambda x: 2 * original(x)
    return plain


HOW = ("lora", "parametrisation", "prune", "hook", "forward")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("cls", [Attention, LinearAttention])
@pytest.mark.parametrize("case", ["rope", "cayley", "circulant-fft"])
def test_projections_that_are_more_than_a_matrix_are_called(case, cls, how):
    """In training and in evaluation, for self and cross attention: as the merged layer computes it."""
    attn = layer(case, cls, dtype=torch.float64)
    x, coords = inputs(dtype=torch.float64)
    context, places = inputs(n=5, dtype=torch.float64)
    before = attn(x, coords)
    merged = copy.deepcopy(attn)
    merged.qkv = adapt(attn, how)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(attn(x, coords), merged(x, coords), atol=1e-10, rtol=0)
            crossed = merged(x, coords, context, places)
            torch.testing.assert_close(attn(x, coords, context, places), crossed, atol=1e-10, rtol=0)
    assert (attn(x, coords) - before).abs().max() > 1e-3
    attn(x, coords).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in attn.parameters())


@pytest.mark.parametrize("how", HOW)
def test_fold_refuses_projections_that_are_more_than_a_matrix(how):
    attn = layer("cayley")
    merged = copy.deepcopy(attn)
    merged.qkv = adapt(attn, how)
    with pytest.raises(
        ValueError, match=r"cannot fold Attention: its projection qkv is an? .*merge it into an nn\.Linear"
    ):
        stringpe.fold(attn)
    x, coords = inputs()
    torch.testing.assert_close(stringpe.fold(copy.deepcopy(merged))(x, coords), merged(x, coords), atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", ["lora", "hook"])
def test_adapters_in_a_whole_model(how):
    """Layers are prepared together, and one that cannot be is called."""
    torch.manual_seed(0)
    model = perturbed(stringpe.vit("vit_test_patch8", encoding="cayley", num_classes=3), 0.05)
    image = torch.randn(2, 3, 16, 16)
    merged = copy.deepcopy(model)
    merged.blocks[1].attention.qkv = adapt(model.blocks[1].attention, how)
    torch.testing.assert_close(model(image), merged(image), atol=1e-5, rtol=0)


def test_adapters_compile_whole():
    torch.compiler.reset()
    attn = layer("cayley")
    x, coords = inputs()
    adapt(attn, "lora")
    compiled = torch.compile(attn, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, coords), attn(x, coords), atol=1e-6, rtol=0)


def test_backward_hooks_see_the_gradient():
    attn, seen = layer("cayley"), []
    attn.qkv.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_output[0].shape))
    x, coords = inputs()
    attn(x.requires_grad_(), coords).sum().backward()
    assert seen == [(2, 9, 8 * 16)]


def test_weights_of_other_tensor_types_are_not_read():
    """As quantised weights are: a wrapper that only knows how to be multiplied."""
    from torchao_like import Scaled

    attn = layer("cayley")
    x, coords = inputs()
    with torch.no_grad():
        merged = copy.deepcopy(attn)
        merged.qkv.weight *= 3
        attn.qkv.weight = nn.Parameter(Scaled(attn.qkv.weight.detach(), 3.0), requires_grad=False)
        torch.testing.assert_close(attn(x, coords), merged(x, coords), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="whose weight is a Scaled"):
        stringpe.fold(attn)


def test_peft_adapts_a_vit():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = perturbed(stringpe.vit("vit_test_patch8", encoding="cayley", num_classes=3), 0.05)
    image = torch.randn(2, 3, 16, 16)
    before = model(image)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["qkv", "out"], init_lora_weights=False))
    out = adapted(image)
    assert (out - before).abs().max() > 1e-4
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for n, p in adapted.named_parameters() if "lora_" in n)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(image), out, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(stringpe.fold(merged)(image), out, atol=1e-5, rtol=1e-4)


class Shifted(nn.RMSNorm):
    """A norm of one's own."""

    def forward(self, x):
        return super().forward(x) + torch.linspace(-1, 1, x.shape[-1])


def shift(norm, how):
    """Add a constant to what a norm gives, which rotations do not commute with."""
    constant = torch.linspace(-1, 1, norm.normalized_shape[-1])
    if how == "hook":
        norm.register_forward_hook(lambda module, args, out: out + constant)
    elif how == "replaced forward":
        norm.forward = lambda x, plain=norm.forward: plain(x) + constant
    else:
        norm.__class__ = Shifted


@pytest.mark.parametrize("how", ["hook", "replaced forward", "class"])
@pytest.mark.parametrize("encoding", ["rope", "cayley"])
def test_norms_that_are_more_than_norms_come_before_the_rotation(encoding, how):
    torch.manual_seed(0)
    attn = stringpe.Attention(
        16, 2, encoding=stringpe.create(encoding, head_dim=8, num_heads=2, coord_dim=2), qk_norm="rms"
    )
    x, coords = torch.randn(2, 5, 16), torch.randn(5, 2)
    for norm in (attn.q_norm, attn.k_norm):
        shift(norm, how)
    q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in perturbed(attn, 0.3).qkv(x).chunk(3, -1))
    q, k = attn.encoding(attn.q_norm(q), attn.k_norm(k), coords)
    wanted = attn.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, coords), wanted, atol=1e-5, rtol=1e-5)
    if encoding == "cayley":
        with pytest.raises(ValueError, match=r"the q/k norm .*commute with P"):
            stringpe.fold(attn)


class Two(nn.Module):
    """Two layers, one after the other."""

    def __init__(self, one, other):
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x, coords):
        return self.other(x + self.one(x, coords), coords)


@pytest.mark.parametrize("shared", ["layer", "weight", "bias", "part"])
def test_fold_refuses_weights_that_something_else_uses(shared):
    model = Two(layer("cayley"), layer("rope"))
    if shared == "layer":
        model.other.qkv = model.one.qkv
    elif shared == "part":
        model.other.extra = nn.Linear(16, 16)
        model.other.extra.weight = nn.Parameter(model.one.qkv.weight.detach()[:16])
    else:
        setattr(model.other.qkv, shared, getattr(model.one.qkv, shared))
    with pytest.raises(
        ValueError, match=r"cannot fold one: its projection is used elsewhere in the model, too \(one.qkv"
    ):
        stringpe.fold(model)


def test_a_layer_that_is_called_twice_folds_once():
    one = layer("cayley")
    x, coords = inputs()
    model = Two(one, one)
    before = model(x, coords)
    torch.testing.assert_close(stringpe.fold(model)(x, coords), before, atol=1e-5, rtol=1e-5)
