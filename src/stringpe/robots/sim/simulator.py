"""MuJoCo, imported with a way to render that this machine has; its cameras; and depth as a sensor measures it.

Where a package or a library is missing, the error says what to install.
"""

import atexit
import ctypes.util
import importlib
import importlib.util
import os
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Cameras", "DepthSensor", "asset_folder", "check_rendering", "load_mujoco", "mujoco"]

EXTRA = "the robots need more packages: pip install 'stringpe[robots]'"
LIBRARIES = "libosmesa6 libegl1 libgl1 libglx-mesa0 libegl-mesa0 libgl1-mesa-dri libgles2"
CONTEXT = "mujoco.rendering.classic.gl_context"  # the module that makes MuJoCo's choice
NO_RENDERING = (
    "no library to render without a screen was found (EGL or OSMesa): "
    f"apt-get install -y --no-install-recommends {LIBRARIES}; without cameras, cameras=(), the robots run as they are"
)


def rendering_backend() -> str:
    """The MUJOCO_GL of this machine: what the user set, else egl, else osmesa, else disabled."""
    if "MUJOCO_GL" in os.environ:
        return os.environ["MUJOCO_GL"]
    if sys.platform != "linux":
        return ""  # MuJoCo's own choice opens hidden windows there
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            return backend
    return "disabled"


def load_mujoco() -> ModuleType:
    """The mujoco module; the choice of a backend has to be made before its first import."""
    missing = [name for name in ("mujoco", "gymnasium") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{EXTRA} ({' and '.join(missing)} not found)")
    late = "mujoco" in sys.modules and "MUJOCO_GL" not in os.environ  # it has chosen a backend that needs a screen
    backend = rendering_backend()
    if backend:
        os.environ["MUJOCO_GL"] = backend
    try:
        found = importlib.import_module("mujoco")
        if late:
            importlib.reload(importlib.import_module(CONTEXT))
        return found
    except (ImportError, AttributeError, OSError, RuntimeError) as broken:  # how the bindings of GL fail to load
        raise OSError(f"{NO_RENDERING} (MUJOCO_GL={backend}: {broken})") from broken


def check_rendering() -> None:
    """Raise an error that says what to install where nothing can render."""
    if os.environ.get("MUJOCO_GL", "").lower() in ("disabled", "disable", "off", "0", "false"):
        raise OSError(f"{NO_RENDERING} (MUJOCO_GL={os.environ['MUJOCO_GL']})")


def asset_folder(package: str, *parts: str) -> Path:
    """A folder of model files that an installed package ships, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(f"{EXTRA} (the model files come from {package}, which is not installed)")
    folder = Path(spec.origin).parent.joinpath(*parts)
    if not folder.is_dir():
        raise FileNotFoundError(f"{package} has no folder {'/'.join(parts)}: install the version of 'stringpe[robots]'")
    return folder


mujoco = load_mujoco()


class Cameras:
    """Renders named cameras of a model at one size (height, width): no shadows, no reflections, no smoothing."""

    def __init__(self, model: Any, size: tuple[int, int]) -> None:
        check_rendering()
        height, width = size
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        _silence_failures()
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


def _silence_failures() -> None:
    """A context that could not be opened would complain again when it is deleted, for want of this attribute."""
    context = getattr(importlib.import_module(CONTEXT), "GLContext", None)
    if context is not None and not hasattr(context, "_context"):
        context._context = None


_OPEN: "weakref.WeakSet[Cameras]" = weakref.WeakSet()


def _close_all() -> None:
    for cameras in list(_OPEN):
        cameras.close()


Depth = npt.NDArray[np.float32]


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
        found = np.zeros(depth.shape, bool)
        down = np.abs(np.diff(depth, axis=0)) > self.jump * depth[1:]
        across = np.abs(np.diff(depth, axis=1)) > self.jump * depth[:, 1:]
        found[1:] |= down
        found[:-1] |= down
        found[:, 1:] |= across
        found[:, :-1] |= across
        return found
