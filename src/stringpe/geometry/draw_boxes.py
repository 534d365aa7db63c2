"""Boxes in the image plane drawn on pictures. Needs Pillow."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..io.pictures import to_pixels

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

COLOURS = ("#ee6677", "#4477aa", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#0077bb", "#cc3311")
"""Colours that differ in hue and lightness, visible on light and dark pictures (Tol's bright and vibrant schemes)."""


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
    texts = list(dict.fromkeys(str(f["text"]) for f in found))
    width = max(1, round(max(picture.size) / 200))
    for detection in reversed(found):  # the best on top
        colour = COLOURS[texts.index(str(detection["text"])) % len(COLOURS)]
        x0, y0, x1, y1 = (scale * value for value in detection["box"])
        corners = [x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)]
        draw.rectangle(corners, outline="white", width=width + 1)  # so that it stands out from any background
        draw.rectangle(corners, outline=colour, width=width)
        write_label(draw, (x0 + width, y0), f"{detection['text']} {detection['score']:.2f}", colour)
    return picture


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
