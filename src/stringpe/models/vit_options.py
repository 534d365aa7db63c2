"""The options of a vision transformer: which there are, and which go together."""

from ..coords import UNITS
from ..encoding import PositionEncoding
from .blocks import ATTENTIONS
from .positions import check_encoding
from .world import FRAMES

DEPTHS = ("none", "channel", "lift", "normals", "lift+channel", "lift+normals")
POOLS = ("mean", "cls", "map")


def agree(encoding: str | PositionEncoding, coord_dim: int | None, depth: str | None, frame: str) -> tuple[int, str]:
    """coord_dim and depth, each from the other (or from the encoding object) where it is not given."""
    if depth is not None and depth not in DEPTHS:
        raise ValueError(f"depth must be one of {', '.join(DEPTHS)}, got {depth!r}")
    if coord_dim is None and depth is None and isinstance(encoding, PositionEncoding):
        coord_dim = encoding.coord_dim
    if depth is None:
        depth = "lift" if coord_dim == 3 or frame == "world" else "none"
    if coord_dim is None:
        coord_dim = 3 if "lift" in depth else 2
    if coord_dim not in (2, 3) or ("lift" in depth) != (coord_dim == 3):
        raise ValueError(
            f"coord_dim={coord_dim} contradicts depth={depth!r}: 3 coordinates go with 'lift' (or 'lift+…') and 2 with "
            f"the others; give one of the two and leave the other out"
        )
    if isinstance(encoding, PositionEncoding) and encoding.coord_dim != coord_dim:
        raise ValueError(
            f"the encoding was built with coord_dim={encoding.coord_dim}, depth={depth!r} gives patches {coord_dim} "
            f"coordinates: build the encoding with coord_dim={coord_dim}"
        )
    if frame == "world" and ("lift" not in depth or encoding == "absolute"):
        raise ValueError(
            f"frame='world' needs depth to place patches and an encoding of coordinates, got depth={depth!r} and "
            f"encoding={encoding!r}: use depth='lift' and any encoding but 'absolute', a table over one picture"
        )
    if coord_dim == 3 and encoding == "none":
        raise ValueError("encoding='none' has no coordinates to lift depth into: use depth='channel'")
    return coord_dim, depth


def check_choices(encoding: str | PositionEncoding, pool: str, units: str, attention: str, frame: str) -> None:
    """Refuse words that are not among the choices."""
    check_encoding(encoding)
    choices = {"pool": (pool, POOLS), "units": (units, UNITS), "attention": (attention, tuple(ATTENTIONS))}
    choices["frame"] = (frame, FRAMES)
    for what, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")


def check_sizes(*, registers: int, **sizes: int) -> None:
    """Refuse sizes below 1, and fewer registers than none."""
    wrong = [f"{name}={value}" for name, value in sizes.items() if value < 1]
    wrong += [f"registers={registers}"] if registers < 0 else []
    if wrong:
        raise ValueError(f"a ViT needs positive sizes, got {', '.join(wrong)}")
