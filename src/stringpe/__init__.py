"""STRING: separable, translation-invariant position encodings for transformers over 2D and 3D tokens."""

from . import coords, testing
from .attach import attach, fold, lift
from .attention import Attention, KVCache, LinearAttention
from .baselines import LearnedAbsolute, LieRE, SinCos
from .encoding import Encoding, cayley, circulant, create, general, names, param_groups, rope, rope_mixed
from .generators import from_generators, generators
from .outer import Outer, outer
from .rotate import backend, use_backend
from .vision import ViT, box3d, vit

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
