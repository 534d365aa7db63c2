"""Boxes in 2D and in 3D drawn on pictures, and pictures side by side on a sheet. Needs Pillow.

outline_boxes(image, corners)                                                # uint8 (h, w, 3)
picture = outline_boxes3d(rgb, intrinsics, [(truth, GREEN), (predicted, BLUE)])
write_sheet([[picture, …], …], columns=["ViT", "ViTD"], path="figure.png")
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io.pictures import to_pixels
from . import box3d

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

COLOURS = ("#ee6677", "#4477aa", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#0077bb", "#cc3311")
"""Colours that differ in hue and lightness, visible on light and dark pictures (Tol's bright and vibrant schemes)."""

GREEN, BLUE = (38, 222, 89), (48, 97, 255)
"""The paper's colours: of the ground truth, and of predictions."""

Colour = tuple[int, int, int]

_SMOOTH = 2  # lines are drawn this many times larger and then shrunk
_GAP, _HEAD = 6, 22


def outline_boxes(image: Tensor, boxes: Sequence[Sequence[float]]) -> Tensor:
    """An image, uint8 (3, h, w), with the outlines of boxes (corners x0, y0, x1, y1 in pixels): uint8 (h, w, 3)."""
    from PIL import Image, ImageDraw

    pixels = image.permute(1, 2, 0).contiguous().cpu()
    picture = Image.fromarray(pixels.numpy())
    draw = ImageDraw.Draw(picture)
    for i, box in enumerate(boxes):
        draw.rectangle(list(box), outline=COLOURS[i % len(COLOURS)])
    return to_pixels(picture)


def draw_detections(image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
    """A copy of the picture with the outlines and labels of detections, in one colour per text. Small pictures are
    enlarged.

    found: best first, {"box": corners in pixels of `image`, "text": …, "score": …}."""
    from PIL import ImageDraw

    picture, scale = enlarge(image)
    draw = ImageDraw.Draw(picture)
    width = max(1, round(max(picture.size) / 200))
    for detection, colour in in_colours(found):
        x0, y0, x1, y1 = (scale * value for value in detection["box"])
        corners = [x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)]
        draw.rectangle(corners, outline="white", width=width + 1)  # so that it stands out from any background
        draw.rectangle(corners, outline=colour, width=width)
        write_label(draw, (x0 + width, y0), f"{detection['text']} {detection['score']:.2f}", colour)
    return picture


def draw_places(image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
    """A copy of the picture with dots and labels at places, as `draw_detections` has boxes.

    found: best first, {"place": x and y in pixels of `image`, "text": …, "score": …}."""
    from PIL import ImageDraw

    picture, scale = enlarge(image)
    draw = ImageDraw.Draw(picture)
    radius = max(2, round(max(picture.size) / 100))
    for one, colour in in_colours(found):
        x, y = (scale * (value + 0.5) for value in one["place"])
        draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour, outline="white")
        write_label(draw, (x + radius, y + radius), f"{one['text']} {one['score']:.2f}", colour)
    return picture


def in_colours(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """What was found, best first, in the order in which it is drawn, so that the best is on top; each with the colour
    of its text."""
    texts = list(dict.fromkeys(str(one["text"]) for one in found))
    for one in reversed(found):
        yield one, COLOURS[texts.index(str(one["text"])) % len(COLOURS)]


def enlarge(image: "Image") -> tuple["Image", int]:
    """A copy of the picture as RGB, enlarged until its long side has 640 pixels or more, and the whole number by which
    it was enlarged."""
    from PIL import Image

    scale = max(1, -(-640 // max(image.size)))
    size = (scale * image.width, scale * image.height)
    return image.convert("RGB").resize(size, Image.Resampling.BICUBIC), scale


def write_label(draw: "ImageDraw", corner: tuple[float, float], label: str, colour: str) -> None:
    """Write a label in white on a colour, above the corner (x, y) of a box, moved so that it lies in the picture."""
    picture = draw.im.size
    size = max(10, round(max(picture) / 40))
    left, top, right, bottom = draw.textbbox((0, 0), label, font_size=size)
    x = min(max(2.0, corner[0]), max(2.0, picture[0] - right - 2))
    y = min(max(0.0, corner[1] - size - 2), max(0.0, picture[1] - bottom - 1))
    draw.rectangle([x + left - 2, y + top - 1, x + right + 2, y + bottom + 1], fill=colour)
    draw.text((x, y), label, fill="white", font_size=size)


def outline_boxes3d(
    rgb: Tensor, intrinsics: Tensor, layers: Sequence[tuple[Tensor, Colour]], *, scale: int = 3
) -> Tensor:
    """An enlarged image with the edges of boxes in 3D drawn into it: uint8 (scale · h, scale · w, 3).

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


def write_sheet(
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
