"""`stringpe.Projections` in an attention class that is not ours does what `stringpe.Attention` does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stringpe
from cases import perturbed
from stringpe.basis import Identity

DIM, HEADS = 24, 4


class Someone(nn.Module):
    """An attention class as people write it."""

    def __init__(self, encoding, apart=False, norm=None, **options):
        super().__init__()
        names = ("query", "key", "value")
        width = encoding.num_heads * encoding.head_dim
        if apart:
            self.query, self.key, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, width), nn.Linear(DIM, width)
        else:
            self.qkv = nn.Linear(DIM, DIM + 2 * width)
        if norm is not None:
            self.q_norm, self.k_norm = norm(), norm()
        self.proj = nn.Linear(DIM, DIM)
        self.positions = stringpe.Projections(encoding, qkv=names if apart else "qkv", num_heads=HEADS, **options)

    def forward(self, x, coords):
        q, k, v = self.positions(self, x, coords)
        heads = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        return self.proj(heads.transpose(1, 2).flatten(2))


def build(name="cayley", kv_heads=HEADS, **options):
    torch.manual_seed(0)
    encoding = stringpe.create(name, head_dim=DIM // HEADS, num_heads=kv_heads, coord_dim=2)
    return perturbed(Someone(encoding, **options)).double()


def tokens():
    torch.manual_seed(1)
    return torch.randn(2, 7, DIM, dtype=torch.float64), 3 * torch.randn(2, 7, 2, dtype=torch.float64)


def ours(someone, qk_norm=None):
    """`stringpe.Attention` with the weights of someone's."""
    held = someone.positions
    kv_heads = held.encoding.num_heads
    layer = stringpe.Attention(DIM, HEADS, encoding=held.encoding, num_kv_heads=kv_heads, qk_norm=qk_norm).double()
    parts = [someone.qkv] if hasattr(someone, "qkv") else [someone.query, someone.key, someone.value]
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.cat([p.weight for p in parts]))
        layer.qkv.bias.copy_(torch.cat([p.bias for p in parts]))
    layer.out = someone.proj
    if qk_norm is not None:
        layer.q_norm, layer.k_norm = someone.q_norm, someone.k_norm
    return layer


@pytest.mark.parametrize("name", ["rope", "rope_mixed", "cayley", "circulant", "general", "harope"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_it_is_what_our_attention_computes(name, apart, kv_heads):
    someone, (x, coords) = build(name, kv_heads, apart=apart), tokens()
    assert (someone(x, coords) - ours(someone)(x, coords)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("qk_norm", "norm"),
    [
        ("layer", lambda: nn.LayerNorm(DIM // HEADS)),
        ("rms", lambda: nn.RMSNorm(DIM // HEADS, elementwise_affine=False)),
        ("rms_gain", lambda: nn.RMSNorm(DIM // HEADS)),
    ],
)
def test_norms_stand_before_the_encoding(qk_norm, norm):
    someone, (x, coords) = build(norm=norm), tokens()
    assert (someone(x, coords) - ours(someone, qk_norm)(x, coords)).abs().max() < 1e-12
    if qk_norm == "rms":
        stringpe.fold(someone)
        return
    with pytest.raises(ValueError, match="with its centring or gain, which does not commute with P"):
        stringpe.fold(someone)


@pytest.mark.parametrize("apart", [False, True])
def test_fold_changes_nothing_and_leaves_no_basis(apart):
    model, (x, coords) = nn.ModuleList([build(apart=apart), build("general", apart=apart)]), tokens()
    before = [layer(x, coords) for layer in model]
    stringpe.fold(model)
    for layer, expected in zip(model, before, strict=True):
        assert isinstance(layer.positions.encoding.basis, Identity)
        assert (layer(x, coords) - expected).abs().max() < 1e-12


def test_scores_depend_on_displacements_alone_and_every_parameter_learns():
    someone, (x, coords) = build(), tokens()
    out = someone(x, coords)
    assert (someone(x, coords + torch.tensor([100.0, -7.0])) - out).abs().max() < 1e-9
    assert (someone(x, 2 * coords) - out).abs().max() > 1e-3
    out.square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in someone.parameters())


def test_an_adapter_put_there_later_is_honoured():
    someone, (x, coords) = build(), tokens()
    before = someone(x, coords)

    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.extra = base, nn.Linear(DIM, 3 * DIM, bias=False).double()

        def forward(self, x):
            return self.base(x) + self.extra(x)

    someone.qkv = Adapter(someone.qkv)
    assert (someone(x, coords) - before).abs().max() > 1e-3
    with pytest.raises(ValueError, match="its projection is qkv, a Adapter, which has to be called"):
        stringpe.fold(someone)
    nn.init.zeros_(someone.qkv.extra.weight)
    assert (someone(x, coords) - before).abs().max() < 1e-12


@pytest.mark.slow
def test_names_of_weights_copies_and_compilation():
    someone, (x, coords) = build(), tokens()
    assert {"qkv.weight", "proj.weight", "positions.encoding.frequencies.weight"} <= set(someone.state_dict())
    assert sum("qkv" in name for name in someone.state_dict()) == 2
    twin = copy.deepcopy(someone)
    nn.init.zeros_(someone.qkv.weight)
    assert (twin(x, coords) - someone(x, coords)).abs().max() > 1e-3
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    assert (compiled(x, coords) - twin(x, coords)).abs().max() < 1e-12


def test_mistakes_are_named():
    encoding = stringpe.cayley(head_dim=6, num_heads=HEADS, coord_dim=2)
    with pytest.raises(ValueError, match=r"encoding must have a basis and frequencies.*'cayley'"):
        stringpe.Projections("cayley")
    with pytest.raises(ValueError, match="one layer for all, or three"):
        stringpe.Projections(encoding, qkv=("q", "k"))
    with pytest.raises(ValueError, match="num_heads=6 is not a multiple of the encoding's 4 heads"):
        stringpe.Projections(encoding, num_heads=6)
    with pytest.raises(ValueError, match=r"Linear has no qkv: pass the module that holds the projections as first"):
        stringpe.Projections(encoding)(nn.Linear(2, 2), *tokens())
    own = Someone(stringpe.cayley(head_dim=DIM // HEADS, num_heads=HEADS, coord_dim=2)).double()
    x, coords = tokens()
    with pytest.raises(ValueError, match=r"x must be \(b, n, dim\) floats, got \(7, "):
        own.positions(own, x[0], coords)
    own.qkv = nn.Linear(DIM, 2 * DIM).double()
    with pytest.raises(ValueError, match=f"qkv of Someone must have {3 * DIM} outputs.*; got {2 * DIM}"):
        own(x, coords)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"q_norm": nn.LayerNorm(6)}, "has a norm of queries or of keys alone: qkv must be modules, and q_norm and"),
        ({"q_norm": "rms", "k_norm": "rms"}, "has a str: qkv must be modules"),
        ({"qkv": "linear"}, "has a str: qkv must be modules"),
        ({"qkv": torch.zeros(3 * DIM, DIM)}, "has a Tensor: qkv must be modules"),
        ({"qkv": nn.Sequential(nn.Linear(DIM, 7))}, rf"qkv of \w+ must give \(b, n, {3 * DIM}\), got \(2, 7, 7\)"),
        ({"qkv": nn.LSTM(DIM, DIM)}, "must give .*, got tuple"),
    ],
)
def test_parts_that_cannot_project_are_named(parts, words):
    encoding = stringpe.cayley(head_dim=DIM // HEADS, num_heads=HEADS, coord_dim=2)
    owner = nn.Module()
    for name, part in ({"qkv": nn.Linear(DIM, 3 * DIM)} | parts).items():
        setattr(owner, name, part)
    with pytest.raises(ValueError, match=words):
        stringpe.Projections(encoding)(owner, *(t.float() for t in tokens()))


@pytest.mark.parametrize("names", ["", ("", "", ""), ("q", "q", "v"), ("q", "k", 3)])
def test_names_of_projections_are_words_and_differ(names):
    encoding = stringpe.cayley(head_dim=6, num_heads=HEADS, coord_dim=2)
    with pytest.raises(ValueError, match="qkv names one layer for all, or three different ones"):
        stringpe.Projections(encoding, qkv=names)
