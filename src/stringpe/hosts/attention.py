"""A host's self-attention, with an encoding in it."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import linear_mix, positive_features, random_directions
from ..basis import Identity
from ..encoding import Encoding
from ..projection import turn_rows
from ..rotate import full_precision
from .parts import Layer
from .places import Places

KINDS = ("softmax", "performer")


class Rows(NamedTuple):
    """The rows of a projection for queries, keys or values: views into the host's parameters."""

    weight: Tensor
    bias: Tensor | None


class HostAttention(nn.Module):
    """Self-attention on a host's own weights, under the host's own names, with queries and keys encoded at the
    coordinates of the running forward. It takes the place of the host's module and answers the same calls; what the
    host passes about positions of its own (rope, position_embeddings) has become part of the encoding.

    P goes into the projections in every forward where nothing stands between them (see `fold_obstacle`), else it
    multiplies tokens.

    kind: "softmax", through torch's scaled_dot_product_attention; or "performer", linear attention by positive random
    features of the whole R(r) q and R(r) k, where P is not lost.
    """

    encoding: Encoding
    directions: Tensor

    def __init__(
        self,
        host: nn.Module,
        layer: Layer,
        encoding: Encoding,
        places: Places,
        kind: str = "softmax",
        *,
        num_features: int = 256,
    ):
        super().__init__()
        self._parameters, self._buffers, self._modules = host._parameters, host._buffers, host._modules
        self._non_persistent_buffers_set = host._non_persistent_buffers_set
        self.layer, self.kind = layer, kind
        self.places = (places,)  # of the tower, and not one of our own modules
        self.num_heads: int = getattr(host, layer.heads)
        self.num_kv_heads: int = getattr(host, "num_kv_heads", None) or self.num_heads
        self.head_dim = encoding.head_dim
        drop: Any = getattr(host, layer.dropout)
        self.drop = float(drop.p if isinstance(drop, nn.Dropout) else drop)
        self.encoding = encoding
        if kind == "performer":  # persistent: the random directions belong to the function that is trained
            directions = random_directions(num_features, self.head_dim)
            self.register_buffer("directions", directions.to(self.rows()[0].weight.device))
        self.train(host.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """x (b, n, dim) and whatever else the host passes, by position or by name; of that, masks are used."""
        x: Tensor = args[0] if args else kwargs["hidden_states"] if "hidden_states" in kwargs else kwargs["query"]
        mask = next((kwargs[name] for name in ("attn_mask", "attention_mask") if kwargs.get(name) is not None), None)
        if mask is None and self.layer.pair and len(args) == 2:  # transformers: (hidden_states, attention_mask)
            mask = args[1]
        shape, places = x.shape, self.places[0]
        grid = None if x.ndim == 3 else (shape[1], shape[2])  # a grid of tokens, or windows of one
        coords = places.of(shape[1]) if grid is None else places.window(*grid)
        x = x if grid is None else x.flatten(1, 2)
        q, k, v, bias = self._encoded(x, coords, grid)
        mask = bias if mask is None else mask
        if self.kind == "softmax":
            heads = F.scaled_dot_product_attention(
                q, k, v,
                attn_mask=mask, dropout_p=self.drop if self.training else 0.0,
                is_causal=bool(kwargs.get("is_causal", False)), enable_gqa=self.num_kv_heads != self.num_heads,
            )  # fmt: skip
        else:
            if mask is not None:
                raise ValueError("attention='performer' sums over all tokens and has no masks: use 'softmax' here")
            heads = self._performed(q, k, v)
        out = self._finished(x, heads.transpose(1, 2).flatten(2)).reshape(*shape[:-1], -1)
        return (out, None) if self.layer.pair else out

    @property
    def sizes(self) -> list[int]:
        """How many channels queries, keys and values have."""
        return [self.num_heads * self.head_dim] + [self.num_kv_heads * self.head_dim] * 2

    def rows(self) -> tuple[Rows, ...]:
        """W and b of queries and keys, and of values where one parameter holds all three."""
        biases: Any
        if self._child("qkv") is not None:
            weight, bias = self.qkv.weight, self.qkv.bias  # type: ignore[union-attr]
            apart = (self._child("q_bias"), self._child("k_bias"), self._child("v_bias"))
            biases = apart if apart[0] is not None else bias
        elif self._child("in_proj_weight") is not None:
            weight, biases = self.in_proj_weight, self._child("in_proj_bias")
        else:
            return tuple(Rows(p.weight, p.bias) for p in (self.q_proj, self.k_proj))  # type: ignore
        assert isinstance(weight, Tensor)
        if isinstance(biases, Tensor):
            biases = biases.split(self.sizes)
        return tuple(map(Rows, weight.split(self.sizes), biases or [None] * 3))

    def fold_obstacle(self) -> str | None:
        """What stands between projection and encoding so that P cannot move into the weights; None if nothing does."""
        if self.kind == "performer":
            return "the feature map of linear attention, which is not linear"
        if self._has_bias:
            return "a relative position bias, which looks at queries before they are encoded"
        for name in ("q_norm", "k_norm"):
            norm = self._child(name)
            plain = isinstance(norm, nn.RMSNorm) and getattr(norm, "weight", None) is None
            plain = plain and self.encoding.basis.orthogonal
            if norm is not None and not isinstance(norm, nn.Identity) and not plain:
                return f"{name}, a {type(norm).__name__} with its centring or gain, which does not commute with P"
        for name in ("qkv", "q_proj", "k_proj"):
            projection = self._child(name)
            if projection is not None and type(projection) is not nn.Linear:
                return f"{name}, a {type(projection).__name__}, which is more than a matrix"
        return None

    @torch.no_grad()
    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows, for good, and go on with an encoding that has none."""
        basis = self.encoding.basis()
        for part in self.rows()[:2]:
            part.weight.copy_(turn_rows(basis, part.weight))
            if part.bias is not None:
                part.bias.copy_(turn_rows(basis, part.bias))
        self.encoding = plain

    def _child(self, name: str) -> Any:
        return getattr(self, name, None)

    def _encoded(
        self, x: Tensor, coords: Tensor, grid: tuple[int, int] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q (b, h, n, d), k and v (b, h_kv, n, d), with q and k encoded; and what the host adds to scores."""
        folds = self.fold_obstacle() is None
        groups = self.num_heads // self.num_kv_heads
        if folds:
            packed, values = self._projected_in_basis(x)
            if isinstance(self._child("q_norm") or nn.Identity(), nn.Identity):
                return *self.encoding.rotate_packed(packed, coords, groups=groups), self._heads(values), None
            queries, keys = packed.split(self.sizes[:2], dim=-1)
        else:
            queries, keys, values = self._projected(x)
        q, k = self._heads(queries), self._heads(keys)
        if self._child("q_norm") is not None:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[operator]
        bias = self.layer.bias(self, q, grid) if self._has_bias and self.layer.bias and grid else None
        if self.kind == "performer":  # the whole R(r): the feature map sees the left P
            q = self.encoding.rotate(q, coords, groups=groups, whole=True)
            return q, self.encoding.rotate(k, coords, whole=True), self._heads(values), bias
        return *self.encoding(q, k, coords, folded=folds), self._heads(values), bias

    @property
    def _has_bias(self) -> bool:
        return self._child("rel_pos_h") is not None

    def _heads(self, x: Tensor) -> Tensor:
        """(b, n, h·d) to (b, h, n, d)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _projected_in_basis(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, (b, n, (h + h_kv)·d), with P in their projections; and values."""
        q, k, *others = self.rows()
        if not isinstance(self.encoding.basis, Identity):
            basis = self.encoding.basis()
            q, k = (Rows(turn_rows(basis, r.weight), _turned(basis, r.bias)) for r in (q, k))
        bias = None if q.bias is None and k.bias is None else torch.cat([_filled(q), _filled(k)])
        values = F.linear(x, *others[0]) if others else self.v_proj(x)  # type: ignore[operator]
        return F.linear(x, torch.cat([q.weight, k.weight]), bias), values

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values side by side, (b, n, h·d) each, through the host's modules as they are."""
        if self._child("q_proj") is not None:
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)  # type: ignore[operator]
        if self._child("qkv") is not None and self._child("q_bias") is None:
            return self.qkv(x).split(self.sizes, dim=-1)  # type: ignore[operator]
        return tuple(F.linear(x, *part) for part in self.rows())

    def _performed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with full_precision(q):  # sums over all tokens: not in half precision
            wide = torch.promote_types(v.dtype, torch.float32)
            features = positive_features(q.to(wide), self.directions)
            return linear_mix(features, positive_features(k.to(wide), self.directions, keys=True), v.to(wide)).to(
                v.dtype
            )

    def _finished(self, x: Tensor, heads: Tensor) -> Tensor:
        """What the host does between attention and its residual: norm, gate, output projection, dropout."""
        for name in ("norm", "gate", self.layer.out, "proj_drop"):
            module = self._child(name)
            if module is not None:
                heads = heads * module(x).sigmoid() if name == "gate" else module(heads)
        return heads

    def extra_repr(self) -> str:
        return f"{self.kind}, num_heads={self.num_heads}, head_dim={self.head_dim}"


def _turned(basis: Tensor, bias: Tensor | None) -> Tensor | None:
    return None if bias is None else turn_rows(basis, bias)


def _filled(rows: Rows) -> Tensor:
    return rows.weight.new_zeros(len(rows.weight)) if rows.bias is None else rows.bias
