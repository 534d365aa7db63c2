"""Random encodings, layers, cameras, clouds and boxes against the laws that must hold for every one of them.

Each draw is a batch: a random encoding with random parameters, and hundreds of tokens at random places. A case is one
law for one token, one pair of tokens, one point or one pair of boxes.
"""

from __future__ import annotations

import random

import layer_laws
import torch
from tally import Tally
from torch import Tensor

import stringpe

_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9}
_PAIRS = 512  # boxes per draw
_BATCH, _TOKENS = 4, 24


def attack(count: int, seed: int) -> Tally:
    """So many cases at least."""
    tally, dice = Tally("laws of encodings and boxes"), random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    while tally.cases < count:
        dice.choice((_encoding, _encoding, _attention, _boxes, _layers))(tally, dice)
    return tally


def _draw_encoding(dice: random.Random) -> tuple[stringpe.Encoding, str]:
    name = dice.choice(stringpe.names())
    sizes = {
        "head_dim": dice.choice((8, 12, 16, 32, 48)),
        "num_heads": dice.randint(1, 4),
        "coord_dim": dice.randint(1, 4),
    }
    encoding = stringpe.create(name, **sizes)
    spread = dice.choice((0.0, 0.1, 1.0))
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    dtype = dice.choice(tuple(_TOLERANCE))
    return encoding.to(dtype), f"{name} {sizes} spread {spread} {dtype}"


def _count(tally: Tally, law: str, what: str, error: Tensor, limit: float) -> None:
    """One case per entry of `error`."""
    bad = ~(error <= limit)
    tally.count("law holds", error.numel() - int(bad.sum()))
    for value in error[bad][:3].tolist():
        tally.fault("law broken", f"{law} of {what}: {value:.1e}")
    hidden = int(bad.sum()) - 3
    if hidden > 0:
        tally.count("law broken", hidden)


def _encoding(tally: Tally, dice: random.Random) -> None:
    """The score depends on r_j − r_i alone; lengths stay; R(0) = I; R(a)R(b) = R(a + b); the basis is orthogonal."""
    encoding, what = _draw_encoding(dice)
    dtype = next((p.dtype for p in encoding.parameters()), torch.float32)
    h, d, c = encoding.num_heads, encoding.head_dim, encoding.coord_dim
    q, k = torch.randn(2, _BATCH, h, _TOKENS, d, dtype=dtype)
    coords = torch.randn(_BATCH, _TOKENS, c, dtype=torch.float64) * dice.choice((0.1, 1.0, 30.0))
    moved = coords + torch.randn(_BATCH, 1, c, dtype=torch.float64) * dice.choice((1.0, 100.0, 1000.0))

    def scores(r: Tensor) -> Tensor:
        a, b = encoding(q, k, r)
        return a @ b.mT

    with torch.no_grad():
        size = q.norm(dim=-1).amax() * k.norm(dim=-1).amax()
        before, length = scores(coords), q.norm(dim=-1)
        turned = encoding.rotate(q, coords)
        limit = _TOLERANCE[dtype]
        _count(tally, "shift", what, (before - scores(moved)).abs() / size, limit)
        _count(tally, "length", what, (turned.norm(dim=-1) - length).abs() / length.amax(), limit)
        _count(tally, "origin", what, (scores(torch.zeros_like(coords)) - q @ k.mT).abs() / size, limit)
        basis = encoding.basis()
        _count(tally, "basis", what, (basis.mT @ basis - torch.eye(d)).abs().amax((-2, -1)), _TOLERANCE[torch.float32])


def _attention(tally: Tally, dice: random.Random) -> None:
    """Folding changes nothing; samples of a batch do not see each other; the order of tokens does not matter."""
    encoding, what = _draw_encoding(dice)
    encoding = encoding.float()
    heads, d, c = encoding.num_heads, encoding.head_dim, encoding.coord_dim
    layer = stringpe.Attention(heads * d, heads, encoding=encoding).eval()
    x, coords = torch.randn(_BATCH, _TOKENS, heads * d), torch.randn(_BATCH, _TOKENS, c)
    order = torch.randperm(_TOKENS)
    with torch.no_grad():
        together = layer(x, coords)
        others = {
            "batch": torch.cat([layer(x[i : i + 1], coords[i : i + 1]) for i in range(_BATCH)]),
            "order": layer(x[:, order], coords[:, order])[:, order.argsort()],
            "fold": stringpe.fold(layer)(x, coords),
        }
    size = together.abs().amax().clamp(min=1e-6)
    for law, other in others.items():
        _count(tally, law, what, (together - other).abs().amax(-1) / size, _TOLERANCE[torch.float32])


@torch.no_grad()
def _layers(tally: Tally, dice: random.Random) -> None:
    """Every law of `layer_laws`, once."""
    for laws in layer_laws.LAWS:
        for law, error in laws(dice):
            _count(tally, law, laws.__name__, error, _TOLERANCE[torch.float32])


def _boxes(tally: Tally, dice: random.Random) -> None:
    """0 ≤ IoU ≤ 1, symmetric, one for a box with itself, and unmoved by a common rigid motion."""
    dtype = dice.choice(tuple(_TOLERANCE))
    a, b = _random_boxes(dtype), _random_boxes(dtype)
    kind = dice.choice(("free", "coplanar", "nested", "thin", "near"))
    if kind == "coplanar":
        b[:, :9] = a[:, :9]
        b[:, dice.randrange(2)] += torch.rand(_PAIRS, dtype=dtype)
    elif kind == "nested":
        b[:, :9], b[:, 9:] = a[:, :9], a[:, 9:] * 0.5
    elif kind == "thin":
        a[:, 9 + dice.randrange(3)] *= 1e-4
    elif kind == "near":
        b = a + torch.randn_like(a) * 10.0 ** dice.randint(-9, -2)
        b[:, 9:] = b[:, 9:].abs()
    limit = 1e-6 if dtype == torch.float64 else 1e-4
    forward, what = stringpe.box3d.iou(a, b), f"IoU of {kind} boxes, {dtype}"
    _count(tally, "range", what, torch.maximum(-forward, forward - 1).clamp(min=0) + (forward - forward), limit)
    _count(tally, "symmetry", what, (forward - stringpe.box3d.iou(b, a)).abs(), limit)
    _count(tally, "itself", what, (stringpe.box3d.iou(a, a) - 1).abs(), limit)
    if dtype == torch.float64:  # a motion rounds float32 boxes by more than thin ones are thick
        _count(tally, "motion", what, (forward - stringpe.box3d.iou(*_moved(a, b))).abs(), limit)


def _random_boxes(dtype: torch.dtype) -> Tensor:
    """(_PAIRS, 12): centre, the first two columns of a rotation, size."""
    columns = torch.linalg.qr(torch.randn(_PAIRS, 3, 3, dtype=torch.float64)).Q[..., :2].mT.flatten(1)
    centre = torch.randn(_PAIRS, 3, dtype=torch.float64) * 0.5
    return torch.cat([centre, columns, torch.rand(_PAIRS, 3, dtype=torch.float64) + 0.1], -1).to(dtype)


def _moved(*boxes: Tensor) -> list[Tensor]:
    """The boxes after one rotation and translation of space."""
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    turn, by = turn * torch.linalg.det(turn), torch.randn(3, dtype=torch.float64)
    parts = (box.split((3, 3, 3, 3), -1) for box in boxes)
    return [torch.cat([p @ turn.T + by, x @ turn.T, y @ turn.T, size], -1) for p, x, y, size in parts]
