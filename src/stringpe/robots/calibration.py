"""Calibrated cameras: the keys under which observations and batches carry them, and where data sets store them.

An observation has `observation.camera.<camera>.intrinsics` (3, 3), in pixels of its picture, and
`observation.camera.<camera>.pose` (4, 4), from the camera's frame (x right, y down, z forward) to the robot's. A data
set stores the intrinsics in the `info` of the camera's pictures in meta/info.json; the pose as a column of every frame,
or in the same `info` where the camera does not move.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..coords import Calibration
from ..io.files import find_mismatch

CAMERA = "observation.camera."


def intrinsics_key(camera: str) -> str:
    """The key of a camera's intrinsics."""
    return f"{CAMERA}{camera}.intrinsics"


def pose_key(camera: str) -> str:
    """The key of a camera's pose."""
    return f"{CAMERA}{camera}.pose"


def calibration_keys(cameras: Sequence[str]) -> list[str]:
    """All keys that these cameras bring."""
    return [key(camera) for camera in cameras for key in (intrinsics_key, pose_key)]


def stack_calibration(batch: Mapping[str, Any], cameras: Sequence[str]) -> Calibration:
    """The calibration (b, k, …) of a batch, cameras in their order."""
    intrinsics = torch.stack([batch[intrinsics_key(camera)] for camera in cameras], 1).float()
    return Calibration(intrinsics, torch.stack([batch[pose_key(camera)] for camera in cameras], 1).float())


def read_matrix(value: Any, size: int, what: str) -> Tensor:
    """A matrix (size, size) of float32 from a file that says how a camera is calibrated; ValueError for anything else
    than such a matrix of finite numbers."""
    wrong = find_mismatch(value, [[float]])
    if wrong or [len(row) for row in value] != [size] * size:
        raise ValueError(f"{what} must be {size} rows of {size} finite numbers, got {value!r:.60}")
    return torch.tensor(value, dtype=torch.float32)


def fit_intrinsics(intrinsics: Any, old: Sequence[int], size: int) -> Tensor:
    """K of a picture of `old` height and width after it was resized to a square of `size` pixels."""
    scale = torch.tensor([size / old[1], size / old[0], 1.0])
    return torch.as_tensor(intrinsics, dtype=torch.float32) * scale[:, None]


def pinhole(size: tuple[int, int], fovy: float) -> NDArray[np.float32]:
    """K of a picture (height, width) whose vertical angle of view is `fovy` degrees, with square pixels."""
    height, width = size
    focal = height / 2 / np.tan(np.deg2rad(fovy) / 2)
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], np.float32)
