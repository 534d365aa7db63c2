"""Attention between the patches of a picture under several encodings while all coordinates move: a page, or an
animation.

The model is one attention head without training. Tokens are a random projection of the patches' pixels, and W_q and W_k
are two random matrices near the identity, so that a patch attends to patches that resemble it. All encodings share them
and differ only in how they put positions into q·k. Moving all coordinates by the same displacement changes nothing
about the picture: the weights of a relative encoding stay the same, and those of an absolute embedding change.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import viewer
from ..catalogue import create
from ..coords import grid
from ..encoding import AbsoluteEmbedding, Encoding, PositionEncoding
from ..io.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from PIL.Image import Image

HEAD_DIM, PATCHES = 64, 14
MOVES = (0, 1, 2, 4, 8, 16)
"""The positions of a page's slider: displacements in patches."""

_SHARPNESS = 5.0  # of the softmax: about the score of a token with itself
_DEVIATION = 0.8  # of W_q and W_k from the identity, between 0 and 1
_TITLES = {
    "sincos": "absolute embeddings (sine-cosine)",
    "absolute": "absolute embeddings (table)",
    "cayley": "Cayley-STRING",
    "circulant": "Circulant-STRING",
    "rope": "RoPE",
    "rope_mixed": "RoPE-Mixed",
}
_STEPS, _MAX_MOVE = 24, 12  # frames of the animation, and the largest displacement in it


def render_picture(side: int = 168) -> Tensor:
    """A picture of the procedural world, (3, side, side) uint8."""
    from .. import scenes

    frames = scenes.render(scenes.sample(7, [1], device="cpu"), (side, side))
    return (frames.rgb[0] * 255).round().to(torch.uint8)


def read_picture(path: Path, side: int = 168) -> Tensor:
    """The middle square of a picture file, (3, side, side) uint8."""
    from PIL import ImageOps

    from ..data.images import to_tensor
    from ..io.pictures import decode_picture

    return to_tensor(ImageOps.fit(decode_picture(path.read_bytes(), str(path), upright=True), (side, side)))


def make_encoding(name: str, noise: float, seed: int) -> PositionEncoding | AbsoluteEmbedding:
    """The encoding of one head over rows and columns. noise: standard deviation of the parameters of its basis, which
    moves the basis away from the identity."""
    torch.manual_seed(seed)
    if name in ("absolute", "sincos"):
        embedding = create(
            name, dim=HEAD_DIM, coord_dim=2, **({"sizes": (PATCHES, PATCHES)} if name == "absolute" else {})
        )
        assert isinstance(embedding, AbsoluteEmbedding)
        return embedding
    encoding = create(name, head_dim=HEAD_DIM, num_heads=1, coord_dim=2)
    assert isinstance(encoding, PositionEncoding)
    if isinstance(encoding, Encoding):
        for parameter in encoding.basis.parameters():
            torch.nn.init.normal_(parameter, std=noise)
    return encoding


@torch.no_grad()
def attention_maps(
    encoding: PositionEncoding | AbsoluteEmbedding, image: Tensor, moves: Sequence[tuple[float, float]], seed: int = 0
) -> Tensor:
    """Attention weights (moves, n, n) between the patches of an image (3, side, side), for each of the `moves` of all
    coordinates by (rows, columns) patches."""
    tokens, coords = _tokens(image, seed), grid(PATCHES, PATCHES)
    dice = torch.Generator().manual_seed(seed + 1)
    identity = (1 - _DEVIATION**2) ** 0.5 * torch.eye(HEAD_DIM)
    w_q, w_k = identity + _DEVIATION * torch.randn(2, HEAD_DIM, HEAD_DIM, generator=dice) / HEAD_DIM**0.5
    maps = []
    for move in moves:
        moved = coords + torch.tensor(move)
        if isinstance(encoding, AbsoluteEmbedding):
            embedded = (tokens / 2**0.5 + encoding(moved))[None, None]  # both of norm √(HEAD_DIM / 2)
            q, k = embedded @ w_q, embedded @ w_k
        else:
            q, k = encoding((tokens @ w_q)[None, None], (tokens @ w_k)[None, None], moved)
        maps.append((q @ k.mT / HEAD_DIM * _SHARPNESS).softmax(-1)[0, 0])
    return torch.stack(maps)


def _tokens(image: Tensor, seed: int) -> Tensor:
    """A random projection of the pixels of every patch, (n, HEAD_DIM) of norm √HEAD_DIM."""
    size = image.shape[1] // PATCHES
    patches = torch.nn.functional.unfold(image[None].float() / 255, size, stride=size)[0].T  # (n, 3 · size²)
    patches = patches - patches.mean(0)
    projection = torch.randn(patches.shape[1], HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(patches @ projection, dim=1) * HEAD_DIM**0.5


def attention_page(names: Sequence[str], image: Tensor, *, noise: float, seed: int) -> str:
    """A page with the picture once per encoding; the pointer chooses the patch, a slider moves all coordinates."""
    maps = {
        _TITLES.get(name, name): attention_maps(
            make_encoding(name, noise, seed), image, [(move, move) for move in MOVES], seed
        )
        for name in names
    }
    return viewer.show_attention(
        image,
        maps,
        (PATCHES, PATCHES),
        variants=[f"all coordinates moved by {move} rows and columns" for move in MOVES],
        note="One attention head without training: queries and keys are random projections of the patches' pixels, the "
        "same under every encoding. Changes are given as shares of the largest weight before the move.",
        title="Where a patch looks when all coordinates move",
    )


def animate(names: Sequence[str], image: Tensor, out: Path, *, noise: float, seed: int) -> Path:
    """Write an animated GIF: the attention weights of one patch under each encoding while all coordinates move in a
    circle. It starts at the far side of the circle, so that a viewer that does not play animations shows a
    difference."""
    angles = torch.pi + torch.arange(_STEPS) * (2 * torch.pi / _STEPS)
    moves = [(float(_MAX_MOVE / 2 * (1 - t.cos())), float(_MAX_MOVE / 2 * t.sin())) for t in angles]
    maps = {name: attention_maps(make_encoding(name, noise, seed), image, [(0.0, 0.0), *moves], seed) for name in names}
    out.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = list(_frames(image, maps, moves))
    with new_file(out) as draft:
        first.save(draft, "gif", save_all=True, append_images=rest, duration=150, loop=0, optimize=True)
    return out


def _frames(image: Tensor, maps: dict[str, Tensor], moves: Sequence[tuple[float, float]]) -> "Iterator[Image]":
    """The frames of the animation, with one palette for all of them. maps: (1 + moves, n, n) per encoding, of
    which the first has no displacement."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    figure = plt.figure(figsize=(3.1 * len(maps), 3.9), dpi=100)
    palette = None
    for i, move in enumerate(moves):
        _draw_frame(figure, image, {name: (weights[0], weights[i + 1]) for name, weights in maps.items()}, move)
        figure.canvas.draw()
        buffer = figure.canvas.buffer_rgba()  # type: ignore[attr-defined]
        picture = Image.fromarray(torch.frombuffer(bytearray(buffer), dtype=torch.uint8).view(buffer.shape).numpy())
        picture = picture.convert("RGB")
        palette = palette or picture.quantize(96)
        yield picture.quantize(palette=palette, dither=Image.Dither.NONE)
        figure.clear()
    plt.close(figure)


def _draw_frame(
    figure: "Figure", image: Tensor, maps: dict[str, tuple[Tensor, Tensor]], move: tuple[float, float]
) -> None:
    """One row of pictures: under every encoding, the weights of the middle patch after a move, laid over the image.
    maps: the weights (n, n) before and after."""
    row, column = PATCHES // 2 + 1, PATCHES // 2 - 1
    patch = row * PATCHES + column
    grey = image.float().mean(0) / 255
    (rows, columns), last = move, PATCHES - 1
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    figure.subplots_adjust(left=0.06, right=0.98, top=0.8, bottom=0.14, wspace=0.16)
    for ax, (name, (before, after)) in zip(panels, maps.items(), strict=True):
        change = float((after[patch] - before[patch]).abs().max() / before[patch].max())
        extent = (columns - 0.5, columns + last + 0.5, rows + last + 0.5, rows - 0.5)
        ax.imshow(grey.numpy(), extent=extent, cmap="gray", vmin=0, vmax=1)
        weights = (after[patch] / after[patch].max()).view(PATCHES, PATCHES)
        ax.imshow(weights.numpy(), extent=extent, interpolation="nearest", cmap="inferno", alpha=0.65, vmin=0, vmax=1)
        ax.add_patch(_outline(columns + column, rows + row))
        ax.set_title(_TITLES.get(name, name), fontsize=10)
        ax.set_xlabel(f"weights change by up to {100 * change:.1f} %", fontsize=10)
        ax.set_xticks([columns, columns + last], [str(round(columns)), str(round(columns + last))], fontsize=8)
        ax.set_yticks([rows, rows + last], [str(round(rows)), str(round(rows + last))], fontsize=8)
    figure.suptitle(
        f"Attention of the outlined patch, all coordinates moved\nby {round(rows)} rows and {round(columns)} columns",
        fontsize=11,
    )


def _outline(column: float, row: float) -> "Rectangle":
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#00e0ff", linewidth=2)
