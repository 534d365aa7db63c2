"""STRING inside an attention class of your own: its projections stay where they are, under their names.

    class MyAttention(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.positions = stringpe.Projections(stringpe.cayley(head_dim=dim // heads, num_heads=heads, coord_dim=2))

        def forward(self, x, coords):
            q, k, v = self.positions(self, x, coords)     # (b, h, n, d) each, with q and k encoded
            return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

`HeldProjections` is what attached hosts and `Projections` share: where the rows of queries, keys and values are in some
module, whether P may go into them, and how it does.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .checks import check_count, check_floats
from .encoding import Encoding
from .folding import Rows, check_precision, fold_projection, linear_obstacle, norm_obstacle
from .rotate import product_dtype


class ProjectionNames(NamedTuple):
    """Where a module keeps its projections and norms, by attribute. Queries, keys and values are rows of one nn.Linear,
    `packed`; or of one parameter, `packed_weight` with `packed_bias`; or of three layers, `apart`. Names that the
    module does not have are ignored."""

    packed: str = "qkv"
    apart: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    packed_weight: str = "in_proj_weight"
    packed_bias: str = "in_proj_bias"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"


class HeldProjections:
    """The projections of a module of another library or of a user: (b, n, dim) to queries, keys and values, with P
    folded in or not.

    encoding: of num_kv_heads heads; the module has num_heads of queries.
    """

    def __init__(self, owner: nn.Module, encoding: Encoding, num_heads: int, names: ProjectionNames):
        self.owner, self.encoding, self.names = owner, encoding, names
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, encoding.num_heads, encoding.head_dim

    def part(self, name: str) -> Any:
        """The module's attribute of that name, or None."""
        return getattr(self.owner, name, None)

    @property
    def sizes(self) -> list[int]:
        """How many channels queries, keys and values have."""
        return [self.num_heads * self.head_dim] + [self.num_kv_heads * self.head_dim] * 2

    def rows(self) -> tuple[Rows, ...]:
        """W and b of queries and keys, and of values where one parameter holds all three."""
        packed = self.part(self.names.packed)
        biases: Any
        if packed is not None:
            weight = packed.weight
            apart = (self.part("q_bias"), self.part("k_bias"), self.part("v_bias"))
            biases = apart if apart[0] is not None else packed.bias
        elif self.part(self.names.packed_weight) is not None:
            weight, biases = self.part(self.names.packed_weight), self.part(self.names.packed_bias)
        else:
            return tuple(Rows(p.weight, p.bias) for p in map(self.part, self.names.apart[:2]))
        if isinstance(biases, Tensor):
            biases = biases.split(self.sizes)
        return tuple(map(Rows, weight.split(self.sizes), biases or [None] * 3))

    def obstacle(self) -> str | None:
        """Why P cannot move into the weights, as a clause; None if it can."""
        for name in (self.names.q_norm, self.names.k_norm):
            if obstacle := norm_obstacle(self.part(name), f"{name}, a", self.encoding.basis.orthogonal):
                return obstacle
        for name in (self.names.packed, *self.names.apart[:2]):
            projection = self.part(name)
            if projection is not None and (obstacle := linear_obstacle(projection)):
                return f"its projection is {name}, {obstacle}, which has to be called: merge it into an nn.Linear first"
        return None

    def fold_rows(self) -> Rows:
        """The weight and bias of queries and keys side by side, with P in them."""
        q, k, *_ = self.rows()
        bias = None if q.bias is None and k.bias is None else torch.cat([_bias_or_zeros(q), _bias_or_zeros(k)])
        weight = torch.cat([q.weight, k.weight])
        if isinstance(self.encoding.basis, Identity):
            return Rows(weight, bias)
        folded = fold_projection(self.encoding.basis(), weight, bias)
        return Rows(folded.weight.to(weight.dtype), None if folded.bias is None else folded.bias.to(weight.dtype))

    @torch.no_grad()
    def write_basis(self) -> None:
        """Write P into the query and key rows permanently."""
        parts = self.rows()[:2]
        weight, bias = self.fold_rows()
        for part, folded in zip(parts, weight.split(self.sizes[:2]), strict=True):
            part.weight.copy_(folded)
        if bias is not None:
            for part, folded_bias in zip(parts, bias.split(self.sizes[:2]), strict=True):
                if part.bias is not None:
                    part.bias.copy_(folded_bias)

    def project_folded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, (b, n, (h + h_kv)·d), with P in their projections; and values."""
        _, _, *others = self.rows()
        values: Tensor = F.linear(x, *others[0]) if others else self.part(self.names.apart[2])(x)
        return F.linear(x, *self.fold_rows()), values

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, (b, n, h·d) each, through the module's layers as they are."""
        if self.part(self.names.apart[0]) is not None:
            pairs = zip(self.names.apart, self.sizes, strict=True)
            return tuple(self._call(name, x, size) for name, size in pairs)
        if self.part(self.names.packed) is None:
            return tuple(F.linear(x, *part) for part in self.rows())
        projected = self._call(self.names.packed, x, sum(self.sizes))
        if self.part("q_bias") is not None:  # the biases are separate parameters
            projected = projected + torch.cat([self.part(name) for name in ("q_bias", "k_bias", "v_bias")])
        return projected.split(self.sizes, dim=-1)

    def _call(self, name: str, x: Tensor, size: int) -> Tensor:
        """What a projection gives for tokens x, once it is known to have as many channels as the heads need."""
        found: Tensor = self.part(name)(x)
        if not isinstance(found, Tensor) or found.shape != (*x.shape[:-1], size):
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{name} of {type(self.owner).__name__} must give (b, n, {size}), got {what}")
        return found

    def check_tokens(self, x: Tensor) -> None:
        """Refuse tokens of another width or type than the query projection takes, where it is a plain nn.Linear."""
        packed = self.part(self.names.packed)
        first = self.part(self.names.apart[0]) if packed is None else packed
        if linear_obstacle(first):
            return
        if x.shape[-1] != first.in_features or product_dtype(x) != product_dtype(first.weight):
            raise ValueError(
                f"x must be (b, n, {first.in_features}) {first.weight.dtype} for these projections, got "
                f"{tuple(x.shape)} {x.dtype}"
            )

    def split_heads(self, x: Tensor) -> Tensor:
        """(b, n, h·d) to (b, h, n, d)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def normalise(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys through the module's norms, where it has them."""
        if self.part(self.names.q_norm) is None:
            return q, k
        return self.part(self.names.q_norm)(q), self.part(self.names.k_norm)(k)

    def encode(self, x: Tensor, coords: Tensor, *, folds: bool) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, h_kv, n, d), with q and k encoded at coords."""
        if folds:  # norms between projection and encoding are then such that rotations may come first
            packed, values = self.project_folded(x)
            groups = self.num_heads // self.num_kv_heads
            q, k = self.encoding.rotate_packed(packed, coords, groups=groups)
            return *self.normalise(q, k), self.split_heads(values)
        queries, keys, values = self.project(x)
        q, k = self.normalise(self.split_heads(queries), self.split_heads(keys))
        return *self.encoding(q, k, coords), self.split_heads(values)


class Projections(nn.Module):
    """What `stringpe.Attention` does between tokens and scores, for an attention class of your own: project, fold P
    into the weights in every forward where nothing stands between, and rotate.

    encoding: of one head per key head. num_heads: of queries; those of the encoding unless given (grouped queries).
    qkv: the attribute of the owner that holds one nn.Linear with the rows of queries, keys and values one after the
        other; or a sequence of three attributes.
    q_norm, k_norm: attributes with norms of queries and keys per head, applied before the encoding; ignored where the
        owner has none. Behind a norm with centring or a gain P cannot go into the weights, and multiplies tokens.

    Call it as `self.positions(self, x, coords)`: it reads the owner's layers in every call, so that adapters (LoRA),
    hooks and quantised layers put there later take effect. `stringpe.fold(model)` writes P into them.
    """

    def __init__(
        self,
        encoding: Encoding,
        *,
        qkv: str | Sequence[str] = "qkv",
        num_heads: int | None = None,
        q_norm: str = "q_norm",
        k_norm: str = "k_norm",
    ):
        super().__init__()
        if not isinstance(encoding, Encoding):
            raise ValueError(
                f"encoding must have a basis and frequencies, as stringpe.create('cayley', …) has, got {encoding!r}"
            )
        apart = ("", "", "") if isinstance(qkv, str) else tuple(qkv) if isinstance(qkv, (list, tuple)) else ()
        names = [qkv] if isinstance(qkv, str) else apart
        if len(apart) != 3 or not all(isinstance(name, str) and name for name in names) or len({*names}) != len(names):
            raise ValueError(
                f"qkv names one layer for all, or three different ones for queries, keys and values; got {qkv!r}"
            )
        self.num_heads = encoding.num_heads if num_heads is None else num_heads
        check_count("num_heads", self.num_heads)
        if self.num_heads % encoding.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of the encoding's {encoding.num_heads} heads: the "
                f"encoding has one per key head"
            )
        packed = qkv if isinstance(qkv, str) else ""
        self.names = ProjectionNames(packed, (apart[0], apart[1], apart[2]), "", "", q_norm, k_norm)
        self.encoding = encoding

    def forward(self, owner: nn.Module, x: Tensor, coords: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, h_kv, n, d) of tokens x (b, n, dim) at coords (n, c) or (b, n, c)."""
        check_precision(self.encoding)
        check_floats("x", x, ("b", None), ("n", None), ("dim", None))
        held = self.find_projections(owner)
        held.check_tokens(x)
        return held.encode(x, coords, folds=held.obstacle() is None)

    def find_projections(self, owner: nn.Module) -> HeldProjections:
        """The projections of the owner, once they are known to be there."""
        named = [self.names.packed] if self.names.packed else list(self.names.apart)
        missing = [name for name in named if getattr(owner, name, None) is None]
        if missing:
            raise ValueError(
                f"{type(owner).__name__} has no {', '.join(missing)}: pass the module that holds the projections as "
                f"first argument, and their names as qkv="
            )
        norms = [getattr(owner, name, None) for name in (self.names.q_norm, self.names.k_norm)]
        layers = [*(getattr(owner, name) for name in named), *(norm for norm in norms if norm is not None)]
        odd = [layer for layer in layers if not isinstance(layer, nn.Module)]
        if odd or (norms[0] is None) != (norms[1] is None):
            what = f"a {type(odd[0]).__name__}" if odd else "a norm of queries or of keys alone"
            raise ValueError(
                f"{type(owner).__name__} has {what}: {', '.join(named)} must be modules, and {self.names.q_norm} and "
                f"{self.names.k_norm} two modules or neither"
            )
        held = HeldProjections(owner, self.encoding, self.num_heads, self.names)
        wanted = (sum(held.sizes),) if self.names.packed else tuple(held.sizes)
        widths = tuple(getattr(getattr(owner, name), "out_features", None) for name in named)
        if None not in widths and widths != wanted:
            raise ValueError(
                f"{', '.join(named)} of {type(owner).__name__} must have {', '.join(map(str, wanted))} outputs, for "
                f"{self.num_heads} heads of queries and {self.encoding.num_heads} of keys and values, each of "
                f"{self.encoding.head_dim} channels; got {', '.join(map(str, widths))}"
            )
        return held


class OwnedLayer:
    """A `Projections` and the module that holds what it projects with, for `stringpe.fold`."""

    def __init__(self, owner: nn.Module, projections: Projections):
        self.owner, self.projections = owner, projections

    @property
    def encoding(self) -> Encoding:
        return self.projections.encoding

    def fold_obstacle(self) -> str | None:
        """Why P cannot move into the weights, as a clause; None if it can."""
        return self.projections.find_projections(self.owner).obstacle()

    def query_key_rows(self) -> Sequence[Rows]:
        """The rows that `fold_basis` writes to."""
        return self.projections.find_projections(self.owner).rows()[:2]

    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows permanently, and use `plain`, the encoding without P, from then on."""
        self.projections.find_projections(self.owner).write_basis()
        self.projections.encoding = plain


def owned_layers(model: nn.Module) -> list[tuple[str, OwnedLayer]]:
    """Every `Projections` in a model, by the path of the module that holds it."""
    return [
        (name, OwnedLayer(owner, child))
        for name, owner in model.named_modules()
        for child in owner.children()
        if isinstance(child, Projections)
    ]


def _bias_or_zeros(rows: Rows) -> Tensor:
    return rows.weight.new_zeros(len(rows.weight)) if rows.bias is None else rows.bias
