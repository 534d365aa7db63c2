"""Several calibrated cameras in one frame: patches are placed where they are in the world, whichever camera sees them.

Attention between patches, of one view or of two, is then a function of their metric displacement: where the cameras
stand enters through the points alone, and a shift of the whole world changes no score.
"""

import torch
from torch import Tensor, nn

from ..coords import Calibration, patch_points
from .depth import check_metres, surface_normals

FRAMES = ("camera", "world")
"""Where coordinates live: each camera in its own (row, column and perhaps depth), or all cameras in one, in metres."""

PER_METRE = 10.0
"""Where the scale of world coordinates starts: 10 cm count as one patch."""


class WorldLift(nn.Module):
    """r = per_metre · the point of a patch in the world: depth (b, H, W) or (b, v, H, W) in metres to (b, v n, 3).

    per_metre is learned: it brings metres to the units of the encoding's frequencies. There is no offset, which no
    score between patches would show. Tokens without a position stand at the origin of the world, for a robot its base.
    """

    def __init__(self, patch_size: int | tuple[int, int], *, per_metre: float = PER_METRE):
        super().__init__()
        self.patch_size, self.start = patch_size, per_metre
        self.per_metre = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.per_metre, self.start)

    def forward(self, depth: Tensor, calibration: Calibration) -> Tensor:
        return self.scale(world_points(depth, calibration, self.patch_size))

    def scale(self, points: Tensor) -> Tensor:
        """Points in metres as coordinates."""
        return points * self.per_metre.float()

    def extra_repr(self) -> str:
        return f"patch_size={self.patch_size}"


def world_points(depth: Tensor, calibration: Calibration, patch_size: int | tuple[int, int]) -> Tensor:
    """The patches' points (b, v n, 3) in metres, camera after camera, in float32 whatever the dtype of depth."""
    check_metres(depth)
    intrinsics, pose = (matrix.float() for matrix in calibration)
    return patch_points(depth.float(), intrinsics, patch_size, pose=pose)


def world_normals(depth: Tensor, calibration: Calibration) -> Tensor:
    """Surface normals in the world frame: depth (b, v, H, W) in metres to (b v, 3, H, W)."""
    lead = depth.shape[:-2]
    intrinsics = calibration.intrinsics.float().expand(*lead, 3, 3).flatten(0, -3)
    turn = calibration.pose.float()[..., :3, :3].expand(*lead, 3, 3).flatten(0, -3)
    return torch.einsum("bij,bjhw->bihw", turn, surface_normals(depth.float().flatten(0, -3), intrinsics))


def merge_views(tensor: Tensor, ends: int) -> Tensor:
    """Views as samples: (b, v, …) to (b v, …) where there is an axis of views before the last `ends`."""
    return tensor.flatten(0, 1) if isinstance(tensor, Tensor) and tensor.ndim == ends + 2 else tensor


def check_frame(frame: str, image: Tensor, depth: Tensor | None, calibration: Calibration | None) -> None:
    """Refuse views and calibration that a model would not use, and the lack of what it needs."""
    if frame == "camera":
        if calibration is not None:
            raise ValueError(
                "this model sees each camera in a frame of its own and would ignore calibration: leave it out, or "
                "build the model with frame='world'"
            )
        if isinstance(image, Tensor) and image.ndim == 5:
            raise ValueError(
                f"several views per sample, image {tuple(image.shape)}, need one frame: build the model with "
                f"frame='world' and pass calibration"
            )
        return
    missing = [name for name, given in (("depth", depth), ("calibration", calibration)) if given is None]
    if missing:
        raise ValueError(
            f"frame='world' places patches by depth and calibrated cameras, and got no {' and no '.join(missing)}: "
            f"pass depth in metres and calibration=coords.Calibration(intrinsics, pose), or use frame='camera'"
        )
