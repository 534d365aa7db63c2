"""Pages to look at in a browser. Each is one HTML file, which needs no network and no library.

    page = viewer.show_scene(rgb, depth, intrinsics, [viewer.Box(box, "mug", "true"), …])    # a point cloud with boxes
    page = viewer.show_frames([viewer.Frame(rgb, depth, intrinsics, boxes, "frame 7"), …])   # several, one at a time
    page = viewer.show_attention(image, {"rope": maps, "cayley": maps}, grid=(14, 14))       # the map of a chosen patch
    page = viewer.show_rollouts([viewer.Rollout({"front": pictures}, "picked up after 71 steps"), …])
    viewer.save(page, "scene.html")
    viewer.record_frames(frames, "scene.rrd")                                                # for rerun, if installed

A scene is first seen as its camera saw it: drag to turn it, scroll to come nearer, double-click to go back, click a
name in the list to see its box alone. True boxes are green and predicted ones blue, as in the paper; edges behind a
surface are faint.
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
