"""A batch of scenes as data, and the frames rendered from it.

`Scenes` is the input of the renderer: objects, room, light and camera. `Frames` is its output: images, cameras, and the
annotation of every object. Neither random numbers nor rays occur in this file.

World frame: z up, metres, the floor at z = 0 and the middle of the room at x = y = 0. Camera frame (OpenCV): x right,
y down, z forward. b scenes, o object slots; slots where `present` is false are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..coords import Calibration, backproject
from ..geometry.box_overlap import CORNER_SIGNS

FAMILIES = ("living", "tabletop", "tables", "trays")
"""Living rooms without clutter; a cluttered table; several cluttered tables; objects on trays and other flat things."""


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes: everything that the renderer and the annotation need."""

    seed: int
    index: Tensor  # (b,) int64: the scene's number in the world `seed`
    family: Tensor  # (b,) index into FAMILIES
    # objects
    present: Tensor  # (b, o) bool
    kind: Tensor  # (b, o) index into kinds()
    template: Tensor  # (b, o) which variant, as a row of `templates.Templates`
    colour: Tensor  # (b, o) index into COLOURS
    material: Tensor  # (b, o) index into MATERIALS
    pattern: Tensor  # (b, o) index into PATTERNS
    tint: Tensor  # (b, o, 2, 3) sRGB of body and accent
    centre: Tensor  # (b, o, 3) of the oriented box, world frame
    rotation: Tensor  # (b, o, 3, 3) world from object
    size: Tensor  # (b, o, 3) along the object's own axes
    parent: Tensor  # (b, o) the object it stands on, −1 for the floor or a wall
    # room
    room: Tensor  # (b, 3) width (x), depth (y), height
    surface_tint: Tensor  # (b, 3, 2, 3) floor, walls, ceiling: two sRGB colours each
    surface_pattern: Tensor  # (b, 3) index into PATTERNS
    rug: Tensor  # (b, 4) centre and half sizes on the floor; a background pattern without thickness
    rug_tint: Tensor  # (b, 2, 3)
    # light
    light: Tensor  # (b, 3) position, above every object
    light_colour: Tensor  # (b, 3) linear
    ambient: Tensor  # (b, 3) linear
    # camera
    pose: Tensor  # (b, 4, 4) world from camera
    lens: Tensor  # (b, 4) fx / width, fy / height, cx / width, cy / height

    def __len__(self) -> int:
        return len(self.index)

    @property
    def device(self) -> torch.device:
        return self.index.device

    def _map(self, change: Callable[[Tensor], Tensor]) -> Scenes:
        columns: dict[str, Any] = {f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "seed"}
        return replace(self, **columns)

    def to(self, device: torch.device | str) -> Scenes:
        """The same scenes on another device."""
        return self._map(lambda t: t.to(device))

    def __getitem__(self, rows: Tensor | slice) -> Scenes:
        """Some of the scenes, as a batch."""
        return self._map(lambda t: t[rows])

    def intrinsics(self, size: tuple[int, int]) -> Tensor:
        """K (b, 3, 3) in pixels for images of (height, width); pixel (i, j) has its centre at x = j + ½, y = i + ½."""
        height, width = size
        k = torch.zeros(len(self), 3, 3, device=self.device)
        k[:, 0, 0], k[:, 1, 1] = self.lens[:, 0] * width, self.lens[:, 1] * height
        k[:, 0, 2], k[:, 1, 2] = self.lens[:, 2] * width, self.lens[:, 3] * height
        k[:, 2, 2] = 1
        return k


@dataclass(frozen=True)
class Frames:
    """A batch of RGB-D frames. b frames of h × w pixels, o object slots.

    Instance 0 is the room (walls, floor, ceiling); instance i + 1 is object i. Depth is z in the camera frame, in
    metres. Boxes are in the camera frame (x right, y down, z forward) and tight: the object's solids touch all six
    faces. Visibility is visible pixels / pixels that the object would cover if nothing stood in front of it.
    """

    scenes: Scenes
    rgb: Tensor  # (b, 3, h, w) sRGB in [0, 1]
    depth: Tensor  # (b, h, w) metres; rooms are closed, so every pixel has one
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
        """(b, o, 8, 3) corners of the boxes in the camera frame, in the order of `box3d.corners`."""
        local = CORNER_SIGNS(self.size.dtype, self.size.device) * 0.5 * self.size[..., None, :]  # (b, o, 8, 3)
        return local @ self.rotation.transpose(-1, -2) + self.centre[..., None, :]

    def points(self, *, world: bool = False) -> Tensor:
        """(b, h, w, 3): every pixel lifted to its 3D point in the camera frame, or in the room's."""
        return backproject(self.depth, self.intrinsics, self.pose if world else None)

    def group(self, views: int) -> tuple[Tensor, Tensor, Calibration]:
        """The input of a model in the world frame, for v = `views` views per scene: images (b, v, 3, h, w) in [−1, 1],
        depth (b, v, h, w) in metres, and the calibration of the cameras. For frames of `sample(…, views=views)`."""
        scene = self.scenes.index // views
        if len(self) % views or not (scene.view(-1, views) == scene[::views, None]).all():
            raise ValueError(
                f"these frames are not whole groups of {views} views, received the indices "
                f"{self.scenes.index.tolist()}: sample them with views={views}, starting at a multiple of {views}"
            )
        image, depth = (x.unflatten(0, (-1, views)) for x in (2 * self.rgb - 1, self.depth))
        calibration = Calibration(*(m.unflatten(0, (-1, views)) for m in (self.intrinsics, self.pose)))
        return image, depth, calibration


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


def annotate(scenes: Scenes, rgb: Tensor, depth: Tensor, instance: Tensor, unoccluded: Tensor) -> Frames:
    """Add the annotations that follow from the scene to its images; `unoccluded` (b, o) as in ray_casting.Hits."""
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
        visibility=pixels / unoccluded.clamp(min=1),
    )
