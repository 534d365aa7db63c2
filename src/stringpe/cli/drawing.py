"""A picture of an encoding: its wavelengths, basis and frequencies, and attention scores by displacement."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..coords import grid
from ..encoding import Encoding
from ..rotate import rotate_planes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def score_map(encoding: Encoding, head: int, token: Tensor, extent: float = 16.0, points: int = 97) -> Tensor:
    """zᵀ R(δ) z / ‖z‖² for displacements δ in the plane of the first two axes, (points, points).

    The score of a token with a copy of itself at displacement δ: 1 at δ = 0, and farther out a sum of waves. (If the
    basis is not orthogonal, z stands for Pᵀ z.)
    """
    delta = torch.zeros(points * points, encoding.coord_dim)
    axes = min(2, encoding.coord_dim)
    delta[:, :axes] = (grid(points, points, units="centred") * (2 * extent / (points - 1)))[:, :axes]
    z = token @ encoding.basis()[head].detach()  # Pᵀ z as a row
    angle = delta @ encoding.frequencies()[head].detach()
    rotated = rotate_planes(z.expand(len(delta), -1), angle)
    return ((rotated @ z) / z.square().sum()).view(points, points)


@torch.no_grad()
def draw(encoding: Encoding, out: Path | str, *, extent: float = 16.0, seed: int = 0) -> Path:
    """Write the picture to `out` (PNG, SVG or PDF by its suffix) and return its path."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    heads = min(encoding.num_heads, 4)
    figure = plt.figure(figsize=(12, 6.6), layout="constrained")
    above, below = figure.subfigures(2, squeeze=False)[:, 0]
    wavelengths, basis, spectrum = above.subplots(1, 3)
    _draw_wavelengths(wavelengths, encoding)
    _draw_basis(basis, encoding)
    _draw_spectrum(spectrum, encoding)
    token = torch.randn(encoding.head_dim, generator=torch.Generator().manual_seed(seed))
    panels = below.subplots(1, heads, squeeze=False)[0]
    for head, ax in enumerate(panels):
        image = score_map(encoding, head, token, extent)
        heatmap = ax.imshow(image.numpy(), extent=(-extent, extent, extent, -extent), cmap="RdBu_r", vmin=-1, vmax=1)
        ax.set(title=f"head {head}", xlabel="Δ column (units)")
    panels[0].set_ylabel("Δ row (units)")
    below.suptitle("score of a token with a copy of itself, over their displacement")
    below.colorbar(heatmap, ax=panels, shrink=0.8)
    size = f"{encoding.num_heads} heads of {encoding.head_dim}, {encoding.coord_dim} coordinates"
    figure.suptitle(f"{encoding.name}: {size}")
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)
    plt.close(figure)
    return out


def _draw_wavelengths(ax: "Axes", encoding: Encoding) -> None:
    ax.semilogy(encoding.wavelengths().numpy(), color="#3b6ea5")
    ax.set(title="wavelengths, all heads", xlabel="plane, sorted", ylabel="wavelength (units)")
    ax.grid(alpha=0.3)


def _draw_basis(ax: "Axes", encoding: Encoding) -> None:
    p = encoding.basis()[0]
    limit = float(p.abs().max())
    ax.imshow(p.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    ax.set(title="basis P, head 0", xlabel="channel in the basis", ylabel="channel")


def _draw_spectrum(ax: "Axes", encoding: Encoding) -> None:
    """Each plane's frequency vector in the plane of the first two axes, one colour per head."""
    theta = encoding.frequencies().numpy()
    for head in theta[:4]:
        ax.scatter(head[min(1, len(head) - 1)], head[0], s=10)
    ax.axhline(0, color="0.8", zorder=0)
    ax.axvline(0, color="0.8", zorder=0)
    ax.set(title="frequencies, four heads", xlabel="θ column (rad/unit)", ylabel="θ row (rad/unit)", aspect="equal")
