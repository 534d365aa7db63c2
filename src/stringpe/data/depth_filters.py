"""Images for which an indoor depth model fails: overlays, no ground, large outdoor scenes, optical illusions (the
paper's WebLI-3D).

The paper filters with the method of SpatialVLM, which asks an image–text model. Three of the filters decide from pixels
and depth alone, each by one stated rule: crude, cheap, the same everywhere. Optical illusions cannot be recognised by
such a rule: for them, a model that the user names chooses among the texts of `ILLUSIONS` (`models.image_classifier`).
A filter takes an image uint8 (3, H, W) and depth (H, W) in metres, and returns the reason to drop the sample, or "".
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..coords import valid_depth

BORDER = 0.02
"""Lines of one colour at an edge of the image are a frame if they take at least this share of the side."""

FLAT = 0.5
"""An image is drawn, not photographed, if more than this share of its pixels equal their right and lower neighbours."""

GROUND = 0.15
"""Share of the image's lower half that a level plane must fill to be the ground."""

FAR, FAR_SHARE = 12.0, 0.3
"""A scene is large and outdoors if more than the second, a share of the image, is farther than the first, in metres."""


_PLANES = 256  # that are tried as the ground
_OFF_PLANE = 0.04  # a pixel is on a plane if its inverse depth differs from the plane's by less, as a share


def overlay(image: Tensor, depth: Tensor) -> str:
    """Frames of one colour, drawn pictures and screenshots, seams of a collage, and lines of text laid over a photo."""
    if has_frame(image):
        return "overlay: a frame of one colour"
    if flat_share(image) > FLAT:
        return "overlay: drawn, not photographed"
    if has_seam(image):
        return "overlay: a seam from side to side"
    return "overlay: lines of text" if has_text(image) else ""


def no_ground(image: Tensor, depth: Tensor) -> str:
    """No level plane below the camera."""
    return "" if ground_share(depth) >= GROUND else "no ground plane"


def outdoor(image: Tensor, depth: Tensor) -> str:
    """Much of the image is farther away than any room is large."""
    valid = valid_depth(depth)
    if not valid.any():
        return "no depth at all"
    return "large outdoor scene" if float((depth[valid] > FAR).float().mean()) > FAR_SHARE else ""


FILTERS: Mapping[str, Callable[[Tensor, Tensor], str]] = {
    "overlay": overlay,
    "no_ground": no_ground,
    "outdoor": outdoor,
}
"""The filters by pixels and depth."""

ILLUSION = "illusion"
"""The name of the filter that a model decides."""

ILLUSIONS: Mapping[str, Sequence[str]] = {
    "keep": (
        "a photo of a room",
        "a photo of furniture",
        "a photo of objects on a table",
        "a photo of a person",
        "a photo of an animal",
        "a photo of a street",
        "a photo of a landscape",
    ),
    "optical illusion": (
        "an optical illusion",
        "an impossible object",
        "a forced perspective trick",
        "a painting on the ground that looks three dimensional",
    ),
    "picture of a picture": (
        "a photo of a poster on a wall",
        "a photo of a television screen",
        "a photo of a billboard",
        "a reflection in a mirror",
    ),
}
"""The texts among which `ILLUSION` chooses, by class, unless the user gives others; images of class "keep" stay."""


def has_frame(image: Tensor) -> bool:
    """Whether at two opposite edges lines of exactly one colour take at least BORDER of the side."""
    for lines in (image.permute(1, 2, 0), image.permute(2, 1, 0)):  # rows, then columns: (lines, along, 3)
        plain = (lines == lines[:, :1]).all(-1).all(1)  # (lines,)
        least = max(2, round(BORDER * len(plain)))
        if bool(plain[:least].all()) and bool(plain[-least:].all()):
            return True
    return False


def flat_share(image: Tensor) -> float:
    """The share of pixels exactly equal to their right and lower neighbour; noise keeps it low in photographs.
    Burnt-out white and black are left out: skies have them too."""
    here = image[:, :-1, :-1]
    same = ((here == image[:, :-1, 1:]) & (here == image[:, 1:, :-1])).all(0)
    extreme = (here >= 254).all(0) | (here <= 1).all(0)
    counted = ~extreme
    # Where most pixels are burnt out, the image is a page or a drawing, and they count as well.
    return float(same[counted].float().mean()) if float(counted.float().mean()) > 0.3 else float(same.float().mean())


def has_seam(image: Tensor) -> bool:
    """Whether one line between two rows or columns, away from the edges, is a step all along, and a clear one: the two
    sides differ everywhere by more than they do within either."""
    grey = image.float().mean(0)
    for field in (grey, grey.mT):
        step = (field[1:] - field[:-1]).abs()  # (H − 1, W)
        if len(step) < 8:
            continue
        margin = max(2, len(step) // 20)
        all_along = (step > 12).float().mean(1)
        around = torch.maximum(step[:-2].median(1).values, step[2:].median(1).values)
        sharp = step[1:-1].median(1).values > 6 * around + 12
        seam = (all_along[1:-1] > 0.9) & sharp
        if bool(seam[margin - 1 : len(seam) - margin + 1].any()):
            return True
    return False


def has_text(image: Tensor) -> bool:
    """Whether several adjacent rows hold strokes: short runs of pure white or black, with a hard edge on both sides."""
    pure = (image >= 245).all(0) | (image <= 10).all(0)
    wide = torch.nn.functional.pad(image.float(), (1, 1), mode="replicate")
    change = (wide[:, :, 3:] - wide[:, :, :-3]).abs().amax(0) > 40  # over three pixels: strokes have soft edges
    edges = (pure[:, 1:] != pure[:, :-1]) & change  # where pure meets the rest, hard
    strokes = edges.sum(1) // 2
    rows = strokes >= max(8, image.shape[2] // 20)
    longest = run = 0
    for row in rows.tolist():
        run = run + 1 if row else 0
        longest = max(longest, run)
    return longest >= max(4, image.shape[1] // 60)


def ground_share(depth: Tensor) -> float:
    """The largest share of the lower half of the image that lies on one level plane below the camera.

    On a plane, 1/z is linear in the pixel: 1/z = a u + b v + c, with u to the right and v down from the middle of the
    image, in widths. With a focal length of one width, (a, b, c) is the plane's normal by its distance. Cameras look
    down by up to 60°, so a plane counts as level below the camera if its normal is within 60° of the image's vertical.
    The best of `_PLANES` planes through three pixels is counted, from a fixed seed.
    """
    height, width = depth.shape
    step = max(1, width // 64)
    low = depth[height // 2 :: step, ::step]
    v, u = torch.meshgrid(
        (torch.arange(height // 2, height, step) - height / 2) / width,
        (torch.arange(0, width, step) - width / 2) / width,
        indexing="ij",
    )
    valid = valid_depth(low)
    if int(valid.sum()) < 16:
        return 0.0
    inverse = 1 / low[valid].double()
    design = torch.stack([u[valid], v[valid], torch.ones_like(u[valid])], -1).double()  # (n, 3)
    dice = torch.Generator().manual_seed(0)
    triples = torch.randint(len(inverse), (_PLANES, 3), generator=dice)
    matrix = design[triples]  # (_PLANES, 3, 3)
    solid = torch.linalg.det(matrix).abs() > 1e-4
    planes = torch.linalg.solve(matrix[solid], inverse[triples][solid])  # (some, 3)
    level = planes[:, 1] > 0.5 * planes.norm(dim=1)
    planes = planes[level]
    if not len(planes):
        return 0.0
    error = (design @ planes.mT - inverse[:, None]).abs() / inverse[:, None]  # (n, some)
    return float((error < _OFF_PLANE).double().mean(0).max()) * len(inverse) / low.numel()
