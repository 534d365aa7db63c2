"""Pictures and depth of a simulation, off screen."""

import atexit
import importlib
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from .simulator import CONTEXT, NO_RENDERING, mujoco, needs_rendering


class Cameras:
    """Renders named cameras of a model at one size (height, width): no shadows, no reflections, no smoothing."""

    def __init__(self, model: Any, size: tuple[int, int]) -> None:
        needs_rendering()
        height, width = size
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        _quiet_failures()
        try:
            self._renderer = mujoco.Renderer(model, height, width)
        except Exception as broken:  # every backend fails in its own way
            raise OSError(f"{NO_RENDERING} ({type(broken).__name__}: {broken})") from broken
        if not _OPEN:
            atexit.register(_close_all)  # registered after EGL's own, so that it runs before EGL goes down
        _OPEN.add(self)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = 0

    def rgb(self, data: Any, camera: str) -> npt.NDArray[np.uint8]:
        """The picture (h, w, 3)."""
        self._renderer.disable_depth_rendering()
        self._renderer.update_scene(data, camera)
        return self._renderer.render().copy()

    def depth(self, data: Any, camera: str) -> npt.NDArray[np.float32]:
        """Metres along the viewing axis (h, w), 0 where there is nothing."""
        self._renderer.enable_depth_rendering()
        self._renderer.update_scene(data, camera)
        depth = self._renderer.render().astype(np.float32)
        self._renderer.disable_depth_rendering()
        depth[depth > 9.0] = 0.0
        return depth

    def close(self) -> None:
        """Release the context."""
        _OPEN.discard(self)
        self._renderer.close()


def _quiet_failures() -> None:
    """A context that could not be opened would complain again when it is deleted, for want of this attribute."""
    context = getattr(importlib.import_module(CONTEXT), "GLContext", None)
    if context is not None and not hasattr(context, "_context"):
        context._context = None


_OPEN: "weakref.WeakSet[Cameras]" = weakref.WeakSet()


def _close_all() -> None:
    for cameras in list(_OPEN):
        cameras.close()
