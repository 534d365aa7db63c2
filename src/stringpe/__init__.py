"""STRING: separable, translation-invariant position encodings for transformers over 2D and 3D tokens."""

from . import coords, testing
from .attention import Attention, KVCache
from .baselines import LearnedAbsolute, LieRE, SinCos, Spherical
from .catalogue import create, names, register
from .dense import from_generators, generators
from .encoding import Encoding, param_groups
from .geometry import box3d
from .hosts.attach import attach, fold, lift
from .linear_attention import LinearAttention
from .models.vit import ViT, vit
from .named import cayley, circulant, general, golden, harope, rope, rope_mixed, simplex
from .outer_product import Outer, outer
from .own_projections import Projections
from .packing import Packing
from .rotate import backend, use_backend

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "Encoding",
    "KVCache",
    "LearnedAbsolute",
    "LieRE",
    "LinearAttention",
    "Outer",
    "Packing",
    "Projections",
    "SinCos",
    "Spherical",
    "ViT",
    "attach",
    "backend",
    "box3d",
    "cayley",
    "circulant",
    "coords",
    "create",
    "fold",
    "from_generators",
    "general",
    "generators",
    "golden",
    "harope",
    "lift",
    "names",
    "outer",
    "param_groups",
    "register",
    "rope",
    "rope_mixed",
    "simplex",
    "testing",
    "use_backend",
    "vit",
]
