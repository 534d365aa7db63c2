"""RandAugment (Cubuk et al.) on Pillow images: n operations, all equally likely, each at a magnitude of at most 30."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..recipes.schema import Augment
from ..seeds import derive
from .images import to_image, to_tensor

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = (128, 128, 128)
_LARGEST = 30.0

Operation = Callable[["Image", float, float], "Image"]
"""(image, strength in [0, 1], sign ±1) to image."""


def randaugment(image: "Image", count: int, magnitude: float, dice: random.Random) -> "Image":
    """RandAugment(count, magnitude): `count` operations, one after the other."""
    if not 0 <= magnitude <= _LARGEST:
        raise ValueError(f"augment.magnitude ranges from 0 to {_LARGEST:g}, got {magnitude:g}")
    for name in dice.choices(list(OPERATIONS), k=count):
        image = OPERATIONS[name](image, magnitude / _LARGEST, dice.choice((-1.0, 1.0)))
    return image


def augment_pixels(pixels: Tensor, how: Augment, seed: int, first: int) -> Tensor:
    """RandAugment of uint8 (b, 3, S, S), the examples first, first + 1, … of a run with this seed."""
    changed = []
    for number, one in enumerate(pixels.cpu(), first):
        dice = random.Random(derive(seed, "picture", number))
        changed.append(to_tensor(randaugment(to_image(one), how.randaugment, how.magnitude, dice)))
    return torch.stack(changed).to(pixels.device)


def _affine(image: "Image", matrix: tuple[float, ...]) -> "Image":
    from PIL import Image

    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=_GREY)


def _rotate(image: "Image", strength: float, sign: float) -> "Image":
    from PIL import Image

    return image.rotate(30 * strength * sign, Image.Resampling.BILINEAR, fillcolor=_GREY)


def _posterize(image: "Image", strength: float, sign: float) -> "Image":
    from PIL import ImageOps

    return ImageOps.posterize(image, max(1, 8 - round(4 * strength)))


def _solarize(image: "Image", strength: float, sign: float) -> "Image":
    from PIL import ImageOps

    return ImageOps.solarize(image, round(256 * (1 - strength)))


def _solarize_add(image: "Image", strength: float, sign: float) -> "Image":
    more = round(110 * strength)
    return image.point([min(255, v + more) if v < 128 else v for v in range(256)] * 3)


def _cutout(image: "Image", strength: float, sign: float) -> "Image":
    """A grey square around a place that is computed from the pixels, so that the operation needs no random number."""
    side = round(0.4 * strength * min(image.size))
    places = max(1, image.width * image.height)
    place = sum(image.resize((4, 4)).tobytes()) * 7919 % places
    left, top = place % image.width - side // 2, place // image.width - side // 2
    out = image.copy()
    out.paste(_GREY, (left, top, left + side, top + side))
    return out


def _enhance(name: str) -> Operation:
    """Colour, contrast, brightness or sharpness by a factor of 1 ± 0.9 · strength."""

    def operation(image: "Image", strength: float, sign: float) -> "Image":
        from PIL import ImageEnhance

        changed: Image = getattr(ImageEnhance, name)(image).enhance(1 + 0.9 * strength * sign)
        return changed

    return operation


def _plain(name: str) -> Operation:
    """Autocontrast, equalize or invert, which have no strength."""

    def operation(image: "Image", strength: float, sign: float) -> "Image":
        from PIL import ImageOps

        changed: Image = getattr(ImageOps, name)(image)
        return changed

    return operation


OPERATIONS: dict[str, Operation] = {
    "autocontrast": _plain("autocontrast"),
    "equalize": _plain("equalize"),
    "invert": _plain("invert"),
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": _enhance("Color"),
    "contrast": _enhance("Contrast"),
    "brightness": _enhance("Brightness"),
    "sharpness": _enhance("Sharpness"),
    "shear_x": lambda image, s, sign: _affine(image, (1, 0.3 * s * sign, 0, 0, 1, 0)),
    "shear_y": lambda image, s, sign: _affine(image, (1, 0, 0, 0.3 * s * sign, 1, 0)),
    "translate_x": lambda image, s, sign: _affine(image, (1, 0, 0.45 * s * sign * image.width, 0, 1, 0)),
    "translate_y": lambda image, s, sign: _affine(image, (1, 0, 0, 0, 1, 0.45 * s * sign * image.height)),
    "cutout": _cutout,
}
