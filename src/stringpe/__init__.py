"""STRING: separable, translation-invariant position encodings for transformers over 2D and 3D tokens."""

from . import coords, testing
from .attention import Attention, KVCache
from .baselines import LearnedAbsolute, LieRE, SinCos
from .dense import from_generators, generators
from .encoding import Encoding, cayley, circulant, create, general, names, param_groups, rope, rope_mixed
from .geometry import box3d
from .hosts.attach import attach, fold, lift
from .linear_attention import LinearAttention
from .models.vit import ViT, vit
from .outer_product import Outer, outer
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
    "SinCos",
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
    "lift",
    "names",
    "outer",
    "param_groups",
    "rope",
    "rope_mixed",
    "testing",
    "use_backend",
    "vit",
]
