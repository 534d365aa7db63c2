"""What a rendered batch is: images, cameras, and the annotation of every object."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .world import Scenes


@dataclass(frozen=True)
class Frames:
    """A batch of RGB-D frames. b frames of h × w pixels, o object slots.

    Instance 0 is the room (walls, floor, ceiling); instance i + 1 is object i. Depth is z in the camera frame, in
    metres. Boxes are in the camera frame (x right, y down, z forward) and tight: the object's solids touch all six
    faces. Visibility is visible pixels / pixels the object would cover in this image if nothing stood before it.
    """

    scenes: Scenes
    rgb: Tensor  # (b, 3, h, w) sRGB in [0, 1]
    depth: Tensor  # (b, h, w) metres; rooms are closed, so no pixel is without
    instance: Tensor  # (b, h, w) int64
    intrinsics: Tensor  # (b, 3, 3) in pixels, pixel centres at + ½
    pose: Tensor  # (b, 4, 4) world from camera
    kind: Tensor  # (b, o) index into kinds(); −1 in empty slots
    colour: Tensor  # (b, o) index into COLOURS; −1 in empty slots
    centre: Tensor  # (b, o, 3) of the box
    rotation: Tensor  # (b, o, 3, 3) camera from object
    size: Tensor  # (b, o, 3) along the object's own axes
    box2d: Tensor  # (b, o, 4) x0, y0, x1, y1 in pixels around the visible pixels; zeros where there are none
    pixels: Tensor  # (b, o) visible pixels
    visibility: Tensor  # (b, o) in [0, 1]

    def __len__(self) -> int:
        return len(self.rgb)

    @property
    def visible(self) -> Tensor:
        """(b, o) bool: at least one pixel shows the object."""
        return self.pixels > 0

    @property
    def box3d(self) -> Tensor:
        """(b, o, 12): centre, first two columns of the rotation, size: the paper's box format."""
        columns = self.rotation[..., :2].transpose(-1, -2).flatten(-2)  # column 0, then column 1
        return torch.cat([self.centre, columns, self.size], -1)

    def corners(self) -> Tensor:
        """(b, o, 8, 3) corners of the boxes in the camera frame; corner k has sign bits (x, y, z) = (4, 2, 1)."""
        signs = torch.tensor([[i, j, k] for i in (-0.5, 0.5) for j in (-0.5, 0.5) for k in (-0.5, 0.5)])
        local = signs.to(self.size.device) * self.size[..., None, :]  # (b, o, 8, 3)
        return local @ self.rotation.transpose(-1, -2) + self.centre[..., None, :]

    def points(self) -> Tensor:
        """(b, h, w, 3): every pixel lifted to its 3D point in the camera frame."""
        h, w = self.depth.shape[1:]
        j = torch.arange(w, device=self.depth.device) + 0.5
        i = torch.arange(h, device=self.depth.device) + 0.5
        k = self.intrinsics[:, :, :, None, None]
        x = (j - k[:, 0, 2]) / k[:, 0, 0] * self.depth
        y = (i[:, None] - k[:, 1, 2]) / k[:, 1, 1] * self.depth
        return torch.stack([x, y, self.depth], -1)


def _boxes_2d(instance: Tensor, objects: int) -> tuple[Tensor, Tensor]:
    """Boxes (b, o, 4) around the pixels of each instance, and the number of those pixels (b, o)."""
    b, h, w = instance.shape
    flat = (instance + torch.arange(b, device=instance.device).view(b, 1, 1) * (objects + 1)).flatten()
    count = torch.bincount(flat, minlength=b * (objects + 1))
    boxes = []
    for axis, extent in ((2, w), (1, h)):
        shape = [1, 1, 1]
        shape[axis] = extent
        place = torch.arange(extent, device=instance.device).view(shape).expand(b, h, w).flatten()
        low = torch.full_like(count, extent).scatter_reduce(0, flat, place, "amin")
        high = torch.full_like(count, -1).scatter_reduce(0, flat, place, "amax")
        boxes += [low, high + 1]
    box = torch.stack([boxes[0], boxes[2], boxes[1], boxes[3]], -1) * (count > 0)[:, None]
    return box.view(b, objects + 1, 4)[:, 1:].float(), count.view(b, objects + 1)[:, 1:]


def annotate(scenes: Scenes, rgb: Tensor, depth: Tensor, instance: Tensor, alone: Tensor) -> Frames:
    """Put images and the scene's own knowledge together; `alone` (b, o) as in hits.Hits."""
    box2d, pixels = _boxes_2d(instance, scenes.present.shape[1])
    to_camera = scenes.pose[:, None, :3, :3].transpose(-1, -2)
    away = scenes.centre - scenes.pose[:, None, :3, 3]
    return Frames(
        scenes=scenes,
        rgb=rgb,
        depth=depth,
        instance=instance,
        intrinsics=scenes.intrinsics((depth.shape[1], depth.shape[2])),
        pose=scenes.pose,
        kind=scenes.kind.masked_fill(~scenes.present, -1),
        colour=scenes.colour.masked_fill(~scenes.present, -1),
        centre=(to_camera @ away[..., None])[..., 0],
        rotation=to_camera @ scenes.rotation,
        size=scenes.size,
        box2d=box2d,
        pixels=pixels,
        visibility=pixels / alone.clamp(min=1),
    )
