"""The named encodings: where P and Θ of each come from. A new encoding is a function here and a line in `catalogue`.

| name | basis P | frequencies Θ |
|---|---|---|
| `rope` | identity | fixed, each plane belongs to one axis |
| `rope_mixed` | identity | learned, every plane sees every axis |
| `cayley` | (I − S)(I + S)⁻¹, S learned | learned |
| `circulant` | Fourier basis of each block | learned through circulant coefficients |
| `general` | exp(S), S learned | learned |
| `simplex`, `golden` | identity | fixed, in directions spread evenly over all axes |
| `harope` | V Σ Uᵀ, learned, not orthogonal | as `rope` |
"""

from typing import Unpack

from torch import Tensor

from . import basis as bases
from . import frequencies as spectra
from .checks import check_flag
from .circulant_frequencies import Circulant
from .encoding import Encoding
from .frequencies import Frequencies, Spectrum
from .io.registry import look_up


class BasisOptions(Spectrum, total=False):
    """The options of encodings with a learned basis: those of `Spectrum`, and these.

    frequencies: "mixed" (as RoPE-Mixed, the default), "axial" (as RoPE), "joint", "simplex" or "golden".
    share_basis, share_frequencies: one P, or one Θ, for all heads; `share_heads` sets both.
    """

    frequencies: str
    share_basis: bool
    share_frequencies: bool


def rope(
    *, head_dim: int, num_heads: int, coord_dim: int = 2, every_plane: bool = False, **spectrum: Unpack[Spectrum]
) -> Encoding:
    """Axial RoPE: P = I, each plane belongs to one axis; base 10,000 and fixed unless given otherwise.

    Where 2·coord_dim does not divide head_dim the first axes get one plane more: 64 over 3 axes is 11 + 11 + 10 planes.
    every_plane: every axis turns every plane instead, which is equation 5 of the paper as written (see
        `frequencies.Joint` for why it needs one `base` per axis).
    `**spectrum`: see `Spectrum`; `base=100, learnable=True` learns the frequencies from base 100.
    """
    check_flag("every_plane", every_plane)
    kind = spectra.Joint if every_plane else spectra.Axial
    return _plain("rope", kind(head_dim, num_heads, coord_dim, **spectrum))


def rope_mixed(*, head_dim: int, num_heads: int, coord_dim: int = 2, **spectrum: Unpack[Spectrum]) -> Encoding:
    """RoPE-Mixed: P = I, every plane sees every axis, frequencies learned per head from base 100 in random directions.

    `**spectrum`: see `Spectrum`.
    """
    return _plain("rope_mixed", spectra.Mixed(head_dim, num_heads, coord_dim, **spectrum))


def simplex(*, head_dim: int, num_heads: int, coord_dim: int = 2, **spectrum: Unpack[Spectrum]) -> Encoding:
    """nD-RoPE: P = I, fixed wave vectors at the corners of a simplex, in groups of c + 1 planes, whose magnitude falls
    by e^(1/c) from group to group. The same for all heads. `**spectrum`: see `Spectrum`."""
    return _plain("simplex", spectra.Simplex(head_dim, num_heads, coord_dim, **spectrum))


def golden(*, head_dim: int, num_heads: int, coord_dim: int = 2, **spectrum: Unpack[Spectrum]) -> Encoding:
    """Golden-ratio RoPE: P = I, fixed frequencies from base 100 whose directions the golden ratio spreads evenly over
    all planes of all heads. `**spectrum`: see `Spectrum`."""
    return _plain("golden", spectra.Golden(head_dim, num_heads, coord_dim, **spectrum))


def cayley(
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    sparsity: int | Tensor | None = None,
    method: str = "matmul",
    **options: Unpack[BasisOptions],
) -> Encoding:
    """Cayley-STRING: P = (I − S)(I + S)⁻¹ with S learned and skew, zero at the start; frequencies as RoPE-Mixed.

    sparsity: the entries of S that are learned: None for all, an integer for a band of that width, or a (d, d) mask.
    method: "matmul" forms P (and attention folds it into its projections); "solve" is the paper's solve per token.
    `**options`: see `BasisOptions`; `frequencies="axial", share_basis=True` is what HARoPE's authors measured as
    STRING.
    """
    theta, shared = _build_frequencies(head_dim, num_heads, coord_dim, options)
    p = bases.Cayley(head_dim, num_heads, sparsity=sparsity, share_heads=shared, method=method)
    return Encoding(p, theta, name="cayley")


def general(
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    sparsity: int | Tensor | None = None,
    **options: Unpack[BasisOptions],
) -> Encoding:
    """STRING at its most general: P = exp(S) anywhere in SO(d), S learned and skew, zero at the start; frequencies as
    RoPE-Mixed. `sparsity` as in `cayley`; `**options`: see `BasisOptions`."""
    theta, shared = _build_frequencies(head_dim, num_heads, coord_dim, options)
    p = bases.Exponential(head_dim, num_heads, sparsity=sparsity, share_heads=shared)
    return Encoding(p, theta, name="general")


def circulant(
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    block_size: int | None = None,
    method: str = "matmul",
    **spectrum: Unpack[Spectrum],
) -> Encoding:
    """Circulant-STRING: L_k = C_k − C_kᵀ with C_k circulant in blocks and learned; P is the Fourier basis.

    With ReLU linear attention, positive features point along (1, …, 1), which no circulant generator turns: see
    docs/choosing.md for signs that mend it.

    block_size: even, 4 up to the whole head; by default the largest that fits up to 16, the paper's best for
        classification. A block of b has b/2 − 1 rotating planes: at 4 half of the channels carry no position, at 16 an
        eighth.
    method: "matmul" uses the real Fourier basis (and attention folds it); "fft" is theorem 3.5, an FFT per token.
    `**spectrum`: see `Spectrum`. What is learned: see `circulant_frequencies.Circulant`.
    """
    if block_size is None:
        block_size = max([b for b in bases.block_sizes(head_dim) if b <= 16], default=head_dim)
    p = bases.Fourier(head_dim, num_heads, block_size=block_size, method=method)
    theta = Circulant(head_dim, num_heads, coord_dim, block_size=block_size, **spectrum)
    return Encoding(p, theta, name="circulant")


def harope(*, head_dim: int, num_heads: int, coord_dim: int = 2, **options: Unpack[BasisOptions]) -> Encoding:
    """HARoPE: a learned matrix A = U Σ Vᵀ per head, the identity at the start, in front of axial RoPE.

    A is not orthogonal, so this is a baseline and not STRING. Scores are still relative,
    qᵀ Aᵀ RoPE((r_j − r_i) Θ) A k, and A folds into the projections. But `matrix` and `whole=True` refuse: Aᵀ RoPE A is
    not a rotation. `**options`: see `BasisOptions`; frequencies are axial unless given otherwise.
    """
    theta, shared = _build_frequencies(head_dim, num_heads, coord_dim, {"frequencies": "axial", **options})
    return Encoding(bases.Svd(head_dim, num_heads, share_heads=shared), theta, name="harope")


def _plain(name: str, theta: Frequencies) -> Encoding:
    return Encoding(bases.Identity(theta.head_dim, theta.num_heads), theta, name=name)


def _build_frequencies(
    head_dim: int, num_heads: int, coord_dim: int, options: BasisOptions
) -> tuple[Frequencies, bool]:
    """Θ, and whether the heads share P."""
    if unknown := set(options) - set(BasisOptions.__annotations__):
        raise TypeError(
            f"unexpected options {', '.join(sorted(unknown))}: the known ones are in stringpe.named.BasisOptions"
        )
    for option in ("share_heads", "share_basis", "share_frequencies"):
        check_flag(option, options.get(option, False))
    both = options.get("share_heads", False)
    spectrum = {name: value for name, value in options.items() if name in Spectrum.__annotations__}
    spectrum["share_heads"] = options.get("share_frequencies", both)
    kind = look_up("set of frequencies", str(options.get("frequencies", "mixed")), spectra.FREQUENCIES)
    theta = kind(head_dim, num_heads, coord_dim, **spectrum)  # type: ignore[arg-type]
    return theta, options.get("share_basis", both)
