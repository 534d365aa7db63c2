"""Depth maps beside pictures, in the files of a sample: NAME.depth.png of 16 bits.

0 and 65535 are holes. The metres per step are what the file itself says (a text chunk "depth_step", see `io.pictures`),
else "depth_step" of the sample's json file, else `data.depth_step`.
"""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io.pictures import HOLE, BadSample, decode_deep, read_depth_step

if TYPE_CHECKING:
    from PIL.Image import Image

DEPTH = "depth.png"
"""The kind of a sample's depth file."""

_NEAR, _FAR = 0.05, 200.0  # metres: a median depth beyond these is a wrong unit, not a place
_ASPECT = 0.02  # by how much the aspects of depth and picture may differ, as a share


def read_depth(files: Mapping[str, bytes], name: str, step: float) -> Tensor:
    """The depth of a sample in metres (H, W), 0 in holes; refused if it is not 16-bit or its unit is wrong."""
    if DEPTH not in files:
        raise BadSample(f"{name}: it has no {DEPTH}, which a model with depth needs (`stringpe data depth` makes it)")
    steps = decode_deep(files[DEPTH], f"{name}: its depth")
    steps = torch.where(steps == HOLE, 0, steps)
    own = find_depth_step(files, name)
    stated = step if own is None else own
    depth = steps.float() * stated
    seen = depth[steps > 0]
    if len(seen) and not _NEAR <= (middle := float(seen.median())) <= _FAR:
        raise BadSample(f"{name}: its median depth would be {middle:.3g} m: is a step {stated:g} m (data.depth_step)?")
    return depth


def find_depth_step(files: Mapping[str, bytes], name: str) -> float | None:
    """The metres per step of a sample's depth, as the file itself says or else the json beside it; None if neither."""
    record = read_json_of(files, name)
    try:
        stored = read_depth_step(files[DEPTH])
    except ValueError as error:
        raise BadSample(f"{name}: its depth_step cannot be used: {error}") from error
    step = record.get("depth_step") if stored is None else stored
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < math.inf:
        raise BadSample(f"{name}: its depth_step is {step!r}, not a length in metres")
    return float(step)


def check_aspect(depth: Tensor, picture: "Image", name: str) -> Tensor:
    """The depth, if it has the image's aspect, at whatever resolution; else BadSample."""
    height, width = depth.shape
    if abs(width * picture.height / (height * picture.width) - 1) > _ASPECT:
        size = f"{picture.width} × {picture.height}"
        raise BadSample(f"{name}: its depth is {width} × {height}, which is not the image's {size} at another scale")
    return depth


def read_json_of(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The object in a sample's json file; empty if it has none."""
    if "json" not in files:
        return {}
    try:
        record = json.loads(files["json"])
    except (ValueError, RecursionError) as error:
        raise BadSample(f"{name}: its json cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise BadSample(f"{name}: its json is not an object")
    return record
