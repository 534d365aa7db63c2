"""The defining properties of an encoding, measured. Errors are relative and summed in float64.

    stringpe.testing.shift_error(enc)          how far scores move when all coordinates move by 1,000 units
    stringpe.testing.check(enc)                every property at once; raises AssertionError with the number that fails

Each takes an encoding with its present parameters. Scores are compared on random queries and keys. Baselines
(`PositionEncoding`) have scores and a shift error; the other properties are those of STRING (`Encoding`).
"""

import torch
from torch import Tensor

from .coords import Group
from .dense import exponential, generators
from .encoding import Encoding, PositionEncoding

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def tolerance(dtype: torch.dtype) -> float:
    """The relative error that a correct implementation stays below in this dtype, by a wide margin."""
    if dtype not in _TOLERANCE:
        raise ValueError(f"there is no tolerance for {dtype}: use one of {', '.join(map(str, _TOLERANCE))}")
    return _TOLERANCE[dtype]


def relative_error(value: Tensor, truth: Tensor) -> float:
    """‖value − truth‖ / ‖truth‖, in float64."""
    value, truth = value.detach().double(), truth.detach().double()
    return ((value - truth).norm() / truth.norm()).item()


def scores(encoding: PositionEncoding, q: Tensor, k: Tensor, coords: Tensor) -> Tensor:
    """q·k after encoding, (b, h, n, n), summed in float64 so that only the encoding's rounding shows."""
    q, k = encoding(q, k, coords)
    return q.double() @ k.double().mT


def sample(
    encoding: PositionEncoding,
    *,
    tokens: int = 64,
    extent: float = 16.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k (1, h, n, d) and coords (n, c) within ± extent. Coordinates are multiples of 1/64, so that shifting
    them by whole numbers up to 10⁵ is exact in float32 and an error is the encoding's own."""
    if not isinstance(encoding, PositionEncoding):
        raise TypeError(f"this takes an encoding, got {type(encoding).__name__}: see stringpe.create")
    device = next(iter([*encoding.parameters(), *encoding.buffers()])).device
    random = torch.Generator().manual_seed(seed)
    shape = (1, encoding.num_heads, tokens, encoding.head_dim)
    q, k = (torch.randn(shape, generator=random).to(device, dtype) for _ in range(2))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    coords = (torch.rand(tokens, encoding.coord_dim, generator=random) * 2 - 1) * extent * 64
    return q, k, (coords.round() / 64).to(device, wide)


@torch.no_grad()
def shift_error(
    encoding: PositionEncoding, *, shift: float = 1000.0, dtype: torch.dtype = torch.float32, seed: int = 0
) -> float:
    """Relative change of the scores when every coordinate moves by `shift`: zero for what is translation invariant."""
    q, k, coords = sample(encoding, dtype=dtype, seed=seed)
    return relative_error(scores(encoding, q, k, coords + shift), scores(encoding, q, k, coords))


@torch.no_grad()
def orthogonality_error(encoding: Encoding) -> float:
    """‖PᵀP − I‖ / ‖I‖."""
    p = encoding.basis().double()
    return relative_error(p.mT @ p, torch.eye(p.shape[-1], dtype=p.dtype, device=p.device).expand_as(p))


@torch.no_grad()
def dense_error(encoding: Encoding, *, seed: int = 0) -> float:
    """Distance of R(r) from exp(Σ r_k L_k) by matrix exponential, in the dtype of the encoding's frequencies."""
    coords = sample(encoding, tokens=16, extent=4.0, dtype=encoding.frequencies().dtype, seed=seed)[2]
    return relative_error(encoding.matrix(coords), exponential(generators(encoding), coords))


@torch.no_grad()
def group_law_error(encoding: Encoding, *, seed: int = 0) -> float:
    """Distance of R(a) R(b) from R(a + b), and of R(0) from I; the larger."""
    coords = sample(encoding, tokens=16, dtype=encoding.frequencies().dtype, seed=seed)[2]
    a, b = coords.chunk(2)
    zero = encoding.matrix(torch.zeros_like(a[:1]))
    eye = torch.eye(encoding.head_dim, dtype=zero.dtype, device=zero.device).expand_as(zero)
    law = relative_error(encoding.matrix(a) @ encoding.matrix(b), encoding.matrix(a + b))
    return max(law, relative_error(zero, eye))


@torch.no_grad()
def rotation_error(encoding: Encoding, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> float:
    """Distance of the scores from qᵀ R(r_j − r_i) k with the dense matrix: what `rotate` computes against its
    definition."""
    q, k, coords = sample(encoding, tokens=12, extent=4.0, dtype=dtype, seed=seed)
    between = encoding.matrix((coords[None, :] - coords[:, None]).double()).double()  # (n, n, h, d, d): from i to j
    truth = torch.einsum("bhid,ijhde,bhje->bhij", q.double(), between, k.double())
    return relative_error(scores(encoding, q, k, coords), truth)


def canonical_error(group: Group, points: Tensor, psi: Tensor) -> float:
    """‖ρ(T_ψ x) − ρ(x) − ψ‖ / ‖ψ‖, angles compared on the circle: whether a chart is canonical for its group."""
    shift = torch.zeros_like(group.chart(points))
    shift[..., list(group.moves)] = psi.to(shift)
    gap = (group.chart(group.act(points, psi)) - group.chart(points) - shift).double()
    for axis in group.periodic:
        gap[..., axis] = torch.atan2(gap[..., axis].sin(), gap[..., axis].cos())
    return (gap.norm() / shift.double().norm()).item()


def check(encoding: PositionEncoding, *, dtype: torch.dtype = torch.float32) -> None:
    """Assert that P is orthogonal, the group law holds, R is the exponential of its generators, and the scores of
    `rotate` are those of R and invariant under a shift of 1,000 units."""
    if not isinstance(encoding, Encoding):
        raise TypeError(
            f"check takes an Encoding, with a basis and frequencies, got {type(encoding).__name__}: use shift_error"
        )
    exact = tolerance(encoding.frequencies().dtype)  # of P and R, in the dtype of the parameters
    rotated = tolerance(dtype)  # of scores of q and k in this dtype
    results = {
        "PᵀP = I": (orthogonality_error(encoding), exact),
        "R(a) R(b) = R(a + b)": (group_law_error(encoding), exact),
        "R(r) = exp(Σ r_k L_k)": (dense_error(encoding), exact),
        "scores = qᵀ R(r_j − r_i) k": (rotation_error(encoding, dtype=dtype), rotated),
        "scores do not move with a shift": (shift_error(encoding, dtype=dtype), rotated),
    }
    for name, (error, limit) in results.items():
        assert error <= limit, f"{name} fails: relative error {error:.1e}, more than {limit:.1e}"
