"""STRING: separable, translation-invariant position encodings for transformers over 2D and 3D tokens.

The public names are imported when they are first used, and torch with them, so that `stringpe --help` answers at once.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import coords as coords
    from . import testing as testing
    from .attention import Attention as Attention
    from .baselines import LearnedAbsolute as LearnedAbsolute
    from .baselines import LieRE as LieRE
    from .baselines import SinCos as SinCos
    from .baselines import Spherical as Spherical
    from .catalogue import create as create
    from .catalogue import names as names
    from .catalogue import register as register
    from .dense import from_generators as from_generators
    from .dense import generators as generators
    from .encoding import Encoding as Encoding
    from .encoding import param_groups as param_groups
    from .geometry import box3d as box3d
    from .hosts.attach import attach as attach
    from .hosts.attach import fold as fold
    from .hosts.attach import lift as lift
    from .kv_cache import KVCache as KVCache
    from .kv_cache import LinearCache as LinearCache
    from .linear_attention import LinearAttention as LinearAttention
    from .models.vit import ViT as ViT
    from .models.vit import vit as vit
    from .named import cayley as cayley
    from .named import circulant as circulant
    from .named import general as general
    from .named import golden as golden
    from .named import harope as harope
    from .named import rope as rope
    from .named import rope_mixed as rope_mixed
    from .named import simplex as simplex
    from .outer_product import Outer as Outer
    from .outer_product import outer as outer
    from .own_projections import Projections as Projections
    from .packing import Packing as Packing
    from .rotate import backend as backend
    from .rotate import use_backend as use_backend

__version__ = "0.1.0"

_HOMES = {
    "attention": "Attention",
    "baselines": "LearnedAbsolute LieRE SinCos Spherical",
    "catalogue": "create names register",
    "dense": "from_generators generators",
    "encoding": "Encoding param_groups",
    "geometry": "box3d",
    "hosts.attach": "attach fold lift",
    "kv_cache": "KVCache LinearCache",
    "linear_attention": "LinearAttention",
    "models.vit": "ViT vit",
    "named": "cayley circulant general golden harope rope rope_mixed simplex",
    "outer_product": "Outer outer",
    "own_projections": "Projections",
    "packing": "Packing",
    "rotate": "backend use_backend",
}
"""Where each public name is defined; type checkers read the same from the imports above."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_HOME_OF, "coords", "testing"])


def __getattr__(name: str) -> Any:
    """A public name, or a module of this package, at its first use."""
    if name in _HOME_OF:
        home = import_module(f".{_HOME_OF[name]}", __name__)
        value = getattr(home, name) if hasattr(home, name) else import_module(f".{_HOME_OF[name]}.{name}", __name__)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
