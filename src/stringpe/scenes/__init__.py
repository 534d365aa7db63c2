"""The procedural RGB-D world: rooms and cluttered tables, rendered with complete annotations.

    frames = scenes.render(scenes.sample(seed=0, indices=64))      # or next(scenes.stream(seed=0))
    frames.rgb, frames.depth, frames.instance                      # (64, 3, 128, 128), (64, 128, 128), (64, 128, 128)
    frames.kind, frames.box3d, frames.box2d, frames.visibility     # per object slot
    scenes.captions(frames), scenes.relations(frames), scenes.seen(frames)
    scenes.render(scenes.single_object("mug"))                     # one object in an empty room
    scenes.write("data/scenes", count=10_000)                      # WebDataset shards

A scene is plain data (`Scenes`): the layout draws it from (seed, index), and the renderer turns it into `Frames`. The
modules, in that order: families, rooms, placement, cameras, layout; templates, assembly, ray_casting, shading,
renderer; descriptions, shards.

World: z up, metres. Camera: OpenCV (x right, y down, z forward), K in pixels with pixel centres at + ½, depth = z.
"""

from .descriptions import RELATIONS, Seen, captions, in_view, relations, seen
from .layout import sample
from .object_kinds import COLOURS, MATERIALS, PATTERNS
from .one_object import single_object
from .renderer import render, stream
from .scene import FAMILIES, Frames, Scenes
from .shards import contact_sheet, draw_boxes, write
from .templates import kinds

__all__ = [
    "COLOURS",
    "FAMILIES",
    "MATERIALS",
    "PATTERNS",
    "RELATIONS",
    "Frames",
    "Scenes",
    "Seen",
    "captions",
    "contact_sheet",
    "draw_boxes",
    "in_view",
    "kinds",
    "relations",
    "render",
    "sample",
    "seen",
    "single_object",
    "stream",
    "write",
]
