"""Random encodings, tokens and boxes against the laws that must hold for every one of them."""

from __future__ import annotations

import random
import time

import torch
from tally import Tally

import stringpe

_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9}


def attack(seconds: float, seed: int) -> Tally:
    """Draw cases until the time is over."""
    tally, dice = Tally("laws of encodings and boxes"), random.Random(seed)
    torch.manual_seed(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        dice.choice((_encoding, _attention, _boxes, _boxes, _boxes))(tally, dice)
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


def _encoding(tally: Tally, dice: random.Random) -> None:
    """The score depends on r_j − r_i alone; lengths stay; R(0) = I; the basis is orthogonal."""
    encoding, what = _draw_encoding(dice)
    dtype = next((p.dtype for p in encoding.parameters()), torch.float32)
    n, h, d, c = dice.randint(1, 9), encoding.num_heads, encoding.head_dim, encoding.coord_dim
    q, k = torch.randn(2, 1, h, n, d, dtype=dtype)
    coords = torch.randn(n, c, dtype=torch.float64) * dice.choice((0.1, 1.0, 30.0))
    shift = torch.randn(c, dtype=torch.float64) * dice.choice((1.0, 100.0, 1000.0))
    coords, moved = coords.to(torch.float64), (coords + shift)

    def scores(r: torch.Tensor) -> torch.Tensor:
        a, b = encoding(q, k, r)
        return a @ b.mT

    size = q.norm(dim=-1).amax() * k.norm(dim=-1).amax()
    errors = {
        "shift": (scores(coords) - scores(moved)).abs().amax() / size,
        "length": (encoding.rotate(q, coords).norm(dim=-1) - q.norm(dim=-1)).abs().amax() / q.norm(dim=-1).amax(),
        "origin": (scores(torch.zeros_like(coords)) - q @ k.mT).abs().amax() / size,
        "basis": (encoding.basis().mT @ encoding.basis() - torch.eye(d)).abs().amax(),
    }
    for law, error in errors.items():
        if error <= _TOLERANCE[dtype] or (law == "basis" and error <= _TOLERANCE[torch.float32]):
            tally.count("law holds", n * h)
        else:
            tally.fault("law broken", f"{law} of {what}: {error:.1e}")


def _attention(tally: Tally, dice: random.Random) -> None:
    """Folding changes nothing; samples of a batch do not see each other."""
    encoding, what = _draw_encoding(dice)
    encoding = encoding.float()
    heads, d, c = encoding.num_heads, encoding.head_dim, encoding.coord_dim
    layer = stringpe.Attention(heads * d, heads, encoding=encoding).eval()
    n = dice.randint(1, 7)
    x, coords = torch.randn(3, n, heads * d), torch.randn(3, n, c)
    with torch.no_grad():
        together = layer(x, coords)
        alone = torch.cat([layer(x[i : i + 1], coords[i : i + 1]) for i in range(3)])
        folded = stringpe.fold(layer)(x, coords)
    for law, other in (("batch", alone), ("fold", folded)):
        error = (together - other).abs().amax() / together.abs().amax().clamp(min=1e-6)
        if error <= _TOLERANCE[torch.float32]:
            tally.count("law holds", n * 3)
        else:
            tally.fault("law broken", f"{law} of {what}: {error:.1e}")


def _boxes(tally: Tally, dice: random.Random) -> None:
    """0 ≤ IoU ≤ 1, symmetric, one for a box with itself, and unmoved by a common rigid motion."""
    dtype, count = dice.choice(tuple(_TOLERANCE)), 512
    a, b = _random_boxes(count, dtype), _random_boxes(count, dtype)
    kind = dice.choice(("free", "coplanar", "nested", "thin", "near"))
    if kind == "coplanar":
        b[:, :9] = a[:, :9]
        b[:, dice.randrange(2)] += torch.rand(count, dtype=dtype)
    elif kind == "nested":
        b[:, :9], b[:, 9:] = a[:, :9], a[:, 9:] * 0.5
    elif kind == "thin":
        a[:, 9 + dice.randrange(3)] *= 1e-4
    elif kind == "near":
        b = a + torch.randn_like(a) * 10.0 ** dice.randint(-9, -2)
        b[:, 9:] = b[:, 9:].abs()
    forward, back = stringpe.box3d.iou(a, b), stringpe.box3d.iou(b, a)
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    bad = (forward < 0) | (forward > 1 + tolerance) | ((forward - back).abs() > tolerance) | ~forward.isfinite()
    bad |= (stringpe.box3d.iou(a, a) - 1).abs() > tolerance
    tally.count("law holds", count - int(bad.sum()))
    for i in bad.nonzero()[:3, 0].tolist():
        tally.fault("law broken", f"IoU of {kind} boxes {a[i].tolist()} and {b[i].tolist()}: {forward[i]}, {back[i]}")


def _random_boxes(count: int, dtype: torch.dtype) -> torch.Tensor:
    """(count, 12): centre, the first two columns of a rotation, size."""
    columns = torch.linalg.qr(torch.randn(count, 3, 3, dtype=torch.float64)).Q[..., :2].mT.flatten(1)
    centre = torch.randn(count, 3, dtype=torch.float64) * 0.5
    return torch.cat([centre, columns, torch.rand(count, 3, dtype=torch.float64) + 0.1], -1).to(dtype)
