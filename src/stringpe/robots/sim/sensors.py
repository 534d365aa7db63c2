"""What cameras see of a simulation: pictures, exact depth, and depth as a real sensor would measure it."""

import atexit
import contextlib
import hashlib
import importlib
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .simulator import CONTEXT, NO_RENDERING, check_rendering, mujoco

Depth = npt.NDArray[np.float32]

_FARTHEST = 9.0  # metres; what is farther away counts as nothing


class Cameras:
    """Renders named cameras of a model at one size (height, width): no shadows, no reflections, no smoothing.

    Environments of one process whose models have the same meshes and textures share one renderer, since opening one
    takes as long as rendering ten to fifty pictures."""

    def __init__(self, model: Any, size: tuple[int, int]) -> None:
        check_rendering()
        self._model, self._option = model, mujoco.MjvOption()
        key = (size, threading.get_ident(), _digest_assets(model))  # a rendering context belongs to its thread
        renderer = _RENDERERS.get(key)
        if renderer is None:
            renderer = _RENDERERS[key] = _open_renderer(model, size)
        self._renderer = renderer

    def rgb(self, data: Any, camera: str) -> npt.NDArray[np.uint8]:
        """The picture (h, w, 3)."""
        self._renderer.disable_depth_rendering()
        picture: npt.NDArray[np.uint8] = self._render(data, camera)
        return picture

    def depth(self, data: Any, camera: str) -> Depth:
        """Metres along the viewing axis (h, w), 0 where there is nothing."""
        self._renderer.enable_depth_rendering()
        depth: Depth = self._render(data, camera)
        depth[depth > _FARTHEST] = 0.0
        return depth

    def _render(self, data: Any, camera: str) -> Any:
        view = mujoco.MjvCamera()
        view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, self._model.camera(camera).id
        scene, everything = self._renderer.scene, mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._option, None, view, everything, scene)
        return self._renderer.render()


_RENDERERS: "weakref.WeakValueDictionary[Any, Any]" = weakref.WeakValueDictionary()
"""Open renderers, by what they can render. A renderer closes itself when the last `Cameras` that uses it is gone."""


def _open_renderer(model: Any, size: tuple[int, int]) -> Any:
    """A `mujoco.Renderer` for all models with the meshes and textures of this one."""
    height, width = size
    model.vis.global_.offheight = max(model.vis.global_.offheight, height)
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
    _silence_failures()
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")  # its LLVM has to be loaded before Mesa's: the other way round, it crashes
    try:
        renderer = mujoco.Renderer(model, height, width)
    except Exception as broken:  # every backend fails in its own way
        raise OSError(f"{NO_RENDERING} ({type(broken).__name__}: {broken})") from broken
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        renderer.scene.flags[flag] = 0
    if not _RENDERERS:
        atexit.register(_close_all)  # registered after EGL's own, so that it runs before EGL goes down
    return renderer


def _digest_assets(model: Any) -> bytes:
    """A digest of what a renderer takes from a model once and for all: meshes, textures, clipping planes."""
    vis = model.vis
    fixed = (vis.map.znear, vis.map.zfar, model.stat.extent, vis.quality.offsamples, vis.quality.shadowsize)
    digest = hashlib.blake2b(repr(fixed).encode())
    for array in (model.mesh_vert, model.mesh_normal, model.mesh_face, model.mesh_texcoord, model.tex_data):
        digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _silence_failures() -> None:
    """A context that could not be opened would complain again when it is deleted, because it lacks this attribute."""
    context = getattr(importlib.import_module(CONTEXT), "GLContext", None)
    if context is not None and not hasattr(context, "_context"):
        context._context = None


def _close_all() -> None:
    for renderer in list(_RENDERERS.values()):
        renderer.close()


@dataclass(frozen=True)
class DepthSensor:
    """Noise, steps and holes (0) for exact depth.

    It measures 1/z, with noise and in steps, so that both grow with z²: at 1 m they are `noise` and `step` metres.
    Pixels are lost with probability `edge_loss` at edges, where one of its two eyes does not see what is behind, and
    `loss` elsewhere; nearer than `nearest` nothing is measured.
    """

    noise: float = 0.002
    step: float = 0.001
    edge_loss: float = 0.6
    loss: float = 0.005
    jump: float = 0.03  # difference between neighbours, as a share of the depth, that makes an edge
    nearest: float = 0.05

    def __call__(self, depth: Depth, rng: np.random.Generator) -> Depth:
        """What the sensor would measure for exact depth (h, w) in metres; 0 is a hole, before and after."""
        disparity = 1 / np.maximum(depth, 1e-3) + self.noise * rng.standard_normal(depth.shape)
        if self.step:
            disparity = np.round(disparity / self.step) * self.step
        noisy = 1 / np.maximum(disparity, 1e-3)
        lost = rng.random(depth.shape) < np.where(self.edges(depth), self.edge_loss, self.loss)
        noisy[lost | (depth <= self.nearest)] = 0.0
        return noisy.astype(np.float32)

    def edges(self, depth: Depth) -> npt.NDArray[np.bool_]:
        """Pixels with a neighbour across a jump."""
        edges = np.zeros(depth.shape, bool)
        down = np.abs(np.diff(depth, axis=0)) > self.jump * depth[1:]
        across = np.abs(np.diff(depth, axis=1)) > self.jump * depth[:, 1:]
        edges[1:] |= down
        edges[:-1] |= down
        edges[:, 1:] |= across
        edges[:, :-1] |= across
        return edges
