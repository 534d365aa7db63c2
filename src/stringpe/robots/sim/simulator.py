"""MuJoCo, imported with a way to render that this machine has: `from .simulator import mujoco`.

Where a package or a library is missing, the error says what to install.
"""

import ctypes.util
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["asset_folder", "check_rendering", "load_mujoco", "mujoco"]

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
        module = importlib.import_module("mujoco")
        if late:
            importlib.reload(importlib.import_module(CONTEXT))
        return module
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
