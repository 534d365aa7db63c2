"""The slow truth: dense generators and matrix exponentials, and the paper's theorems as code.

Nothing here is fast, and no fast path calls it: the fast paths are tested against it. `from_generators` makes an
encoding of generators from elsewhere.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from . import basis as bases
from . import frequencies as spectra
from .basis import matrix_exponential
from .checks import check_tensor
from .encoding import Encoding


def generators(encoding: Encoding) -> Tensor:
    """L (h, c, d, d): the commuting skew matrices with R(r) = exp(Σ_k r_k L_k) (definition 3.1).

    L_k = P G(θ_k) Pᵀ, where G(θ) has −θ_j at (j, j + d/2) and θ_j at (j + d/2, j).
    """
    if not isinstance(encoding, Encoding):
        raise TypeError(f"generators are those of an Encoding, got {type(encoding).__name__}")
    encoding.check_group()
    p = encoding.basis()[:, None]  # (h, 1, d, d)
    theta = encoding.frequencies().to(p.dtype)[..., None, :]  # (h, c, 1, d/2)
    first, second = p.chunk(2, dim=-1)
    return torch.cat([second * theta, -first * theta], dim=-1) @ p.mT


def exponential(generators: Tensor, coords: Tensor) -> Tensor:
    """exp(Σ_k r_k L_k), by matrix exponential: L (h, c, d, d) and coords (n, c) give (n, h, d, d)."""
    return matrix_exponential(torch.einsum("nc,hcij->nhij", coords.to(generators.dtype), generators))


def circulant_matrix(coefficients: Tensor) -> Tensor:
    """C (…, b, b) with C_ij = c_{(i − j) mod b} (equation 11), from c (…, b)."""
    i = torch.arange(coefficients.shape[-1], device=coefficients.device)
    return coefficients[..., (i[:, None] - i) % len(i)]


def circulant_exponential(coefficients: Tensor, coords: Tensor, z: Tensor) -> Tensor:
    """exp(Σ_k r_k (C_k − C_kᵀ)) z in O(d log d) (theorem 3.5), for c (c, d), coords (n, c) and tokens z (n, d).

    A circulant matrix is diagonal in the Fourier basis with eigenvalues DFT(c); the exponential acts on those alone.
    """
    antisymmetric = coefficients - coefficients.flip(-1).roll(1, -1)  # u_m = c_m − c_{−m}
    eigenvalues = torch.fft.fft(antisymmetric)  # imaginary
    return torch.fft.ifft(torch.exp(coords.to(eigenvalues.dtype) @ eigenvalues) * torch.fft.fft(z)).real


def from_generators(generators: Tensor, *, learnable: bool = False, name: str = "from_generators") -> Encoding:
    """The encoding whose matrix(r) is exp(Σ_k r_k L_k): P and Θ recovered from commuting skew matrices (theorem 3.4).

    generators: (c, d, d), or (h, c, d, d) for h heads, skew and commuting; eigenvalues may repeat and be zero.
    learnable: whether the recovered frequencies are parameters. The basis is fixed.
    """
    check_tensor("generators", generators)
    if generators.ndim not in (3, 4) or generators.shape[-1] != generators.shape[-2] or generators.shape[-1] % 2:
        raise ValueError(f"generators must be (c, d, d) or (h, c, d, d) with d even, got {tuple(generators.shape)}")
    if not generators.is_floating_point():
        raise ValueError(f"generators must be real floating point, got {generators.dtype}")
    exact = generators.detach().double().cpu()
    exact = exact if exact.ndim == 4 else exact[None]
    if 0 in exact.shape:
        raise ValueError(f"generators must not be empty, got {tuple(generators.shape)}")
    _check_commuting_skew(exact, generators.dtype)
    heads = [_planes(l) for l in exact]
    p = torch.stack([head[0] for head in heads]).to(generators)
    theta = torch.stack([head[1] for head in heads]).to(generators)
    return Encoding(bases.GivenBasis(p), spectra.GivenFrequencies(theta, learnable=learnable), name=name)


def rebuild(family: Callable[[Tensor], Tensor], coord_dim: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """The generators of a family r ↦ R(r) with R(a)ᵀR(b) = R(b − a) and R(0) = I (theorem 3.2): L_k = ∂R/∂r_k at 0.

    family: maps coords (c,) to a (d, d) matrix and is differentiable. Returns (c, d, d).
    """
    jacobian: Tensor = torch.autograd.functional.jacobian(family, torch.zeros(coord_dim, dtype=dtype))
    return jacobian.movedim(-1, 0)


def _check_commuting_skew(l: Tensor, dtype: torch.dtype) -> None:
    """Refuse (h, c, d, d) that are not skew or do not commute, beyond what rounding in their dtype explains.

    Every generator is measured by its own size, and every pair by theirs, so that a large one does not excuse a small
    one. A generator as small as the rounding error of the head's largest counts as zero.
    """
    eps = torch.finfo(dtype).eps
    tolerance = 64 * l.shape[-1] * eps
    size = l.abs().amax((-2, -1)).clamp_min(1e-150)  # (h, c); its square is still a number
    size = torch.where(size <= 8 * eps * size.amax(-1, keepdim=True), torch.inf, size)
    asymmetry = ((l + l.mT).abs().amax((-2, -1)) / size).amax()
    if not asymmetry <= tolerance:
        raise ValueError(
            f"generators must be skew, but L + Lᵀ is {asymmetry:.1e} of the largest entry (tolerance {tolerance:.1e}): "
            f"use (L − Lᵀ) / 2"
        )
    product = torch.einsum("hkij,hljm->hklim", l, l)
    gap = (product - product.transpose(1, 2)).abs().amax((-2, -1)) / (size[:, :, None] * size[:, None])  # (h, c, c)
    if not gap.amax() <= tolerance:
        raise ValueError(
            f"generators must commute, but L_i L_j − L_j L_i is {gap.amax():.1e} relative to the largest entries of "
            f"both (tolerance {tolerance:.1e}): no encoding built on them is translation invariant (for one that is "
            f"not, see stringpe.LieRE)"
        )


def _planes(l: Tensor) -> tuple[Tensor, Tensor]:
    """P (d, d) and Θ (c, d/2) of one head's generators (c, d, d), in float64.

    A random combination of commuting matrices separates, with probability one, whatever any of them separates: its
    planes serve them all. They are brought to one size first, so that a small one is not drowned by a large one. A few
    combinations are tried, and the one that leaves the least outside of the planes is kept.
    """
    random = torch.Generator().manual_seed(0)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    size = l.abs().amax((-2, -1), keepdim=True)  # (c, 1, 1)
    size = torch.where(size > 1e-14 * size.amax(), size, size.amax().clamp_min(1e-300))
    for _ in range(4):
        mix = torch.einsum("c,cij->ij", torch.randn(len(l), generator=random, dtype=l.dtype), l / size)
        p = torch.cat(_invariant_planes(mix, torch.eye(l.shape[-1], dtype=l.dtype), mix.abs().amax()), dim=1)
        first, second = p.chunk(2, dim=1)
        theta = torch.einsum("ij,cik,kj->cj", second, l, first)
        rebuilt = torch.cat([second * theta[:, None], -first * theta[:, None]], dim=-1) @ p.T
        rest = ((rebuilt - l) / size).abs().amax()
        if best is None or rest < best[0]:
            best = (rest, p, theta)
    assert best is not None
    return best[1], best[2]


def _invariant_planes(skew: Tensor, frame: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Bases (first, second), each (d, m), of the planes in which frame · skew · frameᵀ turns; skew is (2m, 2m).

    For L v = iω v with v = (u + iw)/√2: L w = ω u and L u = −ω w, so (w, u) is a plane turned by ω > 0. Eigenvectors of
    small |ω| mix with their conjugates, so only the clearly non-zero ones are taken; the rest spans a real subspace on
    which the same is done again, on its own scale, until nothing is left that turns.
    """
    half = skew.shape[0] // 2
    largest = skew.abs().amax() if half else scale
    if half == 0 or largest <= 64 * skew.shape[0] * torch.finfo(skew.dtype).eps * scale:
        return frame[:, :half], frame[:, half:]
    omega, vectors = torch.linalg.eigh(1j * skew)  # L v = −i ω' v for eigenvalue ω' of iL: ω = −ω'
    clear = omega < -1e-3 * largest
    v = vectors[:, clear]
    first, second = v.imag * 2**0.5, v.real * 2**0.5
    rest = torch.eye(len(skew), dtype=skew.dtype) - first @ first.T - second @ second.T
    null = torch.linalg.eigh(rest).eigenvectors[:, 2 * v.shape[1] :]  # eigenvalues are 0, then 1
    deeper = _invariant_planes(null.T @ skew @ null, frame @ null, scale)
    return torch.cat([frame @ first, deeper[0]], dim=1), torch.cat([frame @ second, deeper[1]], dim=1)
