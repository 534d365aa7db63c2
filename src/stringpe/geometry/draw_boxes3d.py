"""Boxes in 3D drawn into images as the paper draws them: ground truth green, predictions blue. Needs Pillow.

picture = draw(rgb, intrinsics, [(truth, GREEN), (predicted, BLUE)])      # uint8 (h, w, 3)
sheet([[picture, …], …], columns=["ViT", "ViTD"], path="figure.png")
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..io.pictures import to_pixels
from . import box3d

GREEN, BLUE = (38, 222, 89), (48, 97, 255)
Colour = tuple[int, int, int]

_SMOOTH = 2  # lines are drawn this many times larger and then shrunk
_GAP, _HEAD = 6, 22


def draw(rgb: Tensor, intrinsics: Tensor, layers: Sequence[tuple[Tensor, Colour]], *, scale: int = 3) -> Tensor:
    """An enlarged image with boxes drawn into it: uint8 (scale · h, scale · w, 3).

    rgb: uint8 (3, h, w). intrinsics: K (3, 3) in pixels of `rgb`. layers: boxes (k, 12) in the camera frame with their
    colour; later layers lie on top."""
    from PIL import Image, ImageDraw

    if rgb.ndim != 3 or rgb.shape[0] != 3 or rgb.dtype != torch.uint8:
        raise ValueError(f"rgb must be uint8 (3, h, w), got {rgb.dtype} {tuple(rgb.shape)}")
    height, width = rgb.shape[1:]
    factor = scale * _SMOOTH
    image = Image.fromarray(rgb.permute(1, 2, 0).cpu().numpy())
    image = image.resize((width * factor, height * factor), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    limit = 8 * factor * max(width, height)  # keeps distant ends within Pillow's 32-bit coordinates
    for boxes, colour in layers:
        for ends in (box3d.project_edges(boxes, intrinsics) * factor).clamp(-limit, limit).tolist():
            pen.line([tuple(end) for end in ends], fill=colour, width=factor // 2 or 1)
    image = image.resize((width * scale, height * scale), Image.Resampling.BOX)
    return to_pixels(image)


def sheet(
    pictures: Sequence[Sequence[Tensor]],
    *,
    columns: Sequence[str],
    path: str | Path,
    rows: Sequence[str] = (),
    abreast: int = 4,
) -> Path:
    """Write a table of pictures to one picture file, with the names of the columns above and those of the rows at the
    left. pictures: rows of uint8 (h, w, 3), one per column. abreast: how many columns stand side by side; further ones
    are placed below, so that pictures stay large enough to see."""
    from PIL import Image, ImageDraw, ImageFont

    wrong = [len(row) for row in pictures if len(row) != len(columns)]
    if wrong or not pictures or (rows and len(rows) != len(pictures)):
        raise ValueError(
            f"every row needs {len(columns)} pictures, and either all rows have names or none; "
            f"got rows of {[len(row) for row in pictures]} pictures and {len(rows)} names"
        )
    font = ImageFont.load_default(15)
    left = 0 if not rows else _GAP + max(round(font.getlength(name)) for name in rows)
    height, width = (max(p.shape[side] for row in pictures for p in row) for side in (0, 1))
    bands = -(-len(columns) // abreast)
    band = _HEAD + len(pictures) * (height + _GAP)
    total = (left + min(len(columns), abreast) * (width + _GAP) + _GAP, bands * band)
    page = Image.new("RGB", total, (255, 255, 255))
    pen = ImageDraw.Draw(page)
    for j, name in enumerate(columns):
        x, y = left + _GAP + j % abreast * (width + _GAP), j // abreast * band
        pen.text((x + (width - font.getlength(name)) / 2, y + 2), name, fill=(0, 0, 0), font=font)
        for i, row in enumerate(pictures):
            page.paste(Image.fromarray(row[j].cpu().numpy()), (x, y + _HEAD + i * (height + _GAP)))
    for y in range(0, bands * band, band):
        for i, name in enumerate(rows):
            pen.text((_GAP // 2, y + _HEAD + i * (height + _GAP) + height / 2 - 9), name, fill=(0, 0, 0), font=font)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path)
    return path
