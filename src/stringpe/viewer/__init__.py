"""Pages for people who would rather look than read: one HTML file each, with everything in it.

    page = viewer.show_scene(rgb, depth, intrinsics, [viewer.Box(box, "mug", "true"), …])    # a point cloud with boxes
    page = viewer.show_frames([viewer.Frame(rgb, depth, intrinsics, boxes, "frame 7"), …])   # several, one at a time
    page = viewer.show_attention(image, {"rope": maps, "cayley": maps}, grid=(14, 14))       # the map of a chosen token
    page = viewer.show_rollouts([viewer.Rollout({"front": pictures}, "picked up after 71 steps"), …])
    viewer.save(page, "scene.html")
    viewer.record_frames(frames, "scene.rrd")                                                # for rerun, if installed

A page needs no network and no library. Drag to turn a scene, scroll to come nearer, click a box in the list to see it
alone. Colours: true boxes are green and predicted ones blue, as in the paper.
"""

from .pages import (
    KINDS,
    Box,
    Frame,
    Rollout,
    save,
    show_attention,
    show_frames,
    show_rollout,
    show_rollouts,
    show_scene,
)
from .recording import record_frames

__all__ = [
    "KINDS",
    "Box",
    "Frame",
    "Rollout",
    "record_frames",
    "save",
    "show_attention",
    "show_frames",
    "show_rollout",
    "show_rollouts",
    "show_scene",
]
