"""A host's self-attention, with an encoding in it."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..basis import Identity
from ..encoding import Encoding
from ..linear_attention import linear_mix, positive_features, random_directions
from ..projection import check_precision, fold_projection, linear_obstacle, norm_obstacle
from ..rotate import full_precision
from .description import Layer
from .token_coords import TokenCoords

ATTENTION_KINDS = ("softmax", "linear")
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook",
)  # fmt: skip


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

    kind: "softmax", through torch's scaled_dot_product_attention; or "linear", linear attention by positive random
    features of the whole R(r) q and R(r) k, where P is not lost.
    """

    encoding: Encoding
    directions: Tensor

    def __init__(
        self,
        host: nn.Module,
        layer: Layer,
        encoding: Encoding,
        token_coords: TokenCoords,
        kind: str = "softmax",
        *,
        num_features: int = 256,
    ):
        super().__init__()
        self._parameters, self._buffers, self._modules = host._parameters, host._buffers, host._modules
        self._non_persistent_buffers_set = host._non_persistent_buffers_set
        for name in _HOOKS:
            setattr(self, name, getattr(host, name))
        self.layer, self.kind = layer, kind
        self.token_coords = (token_coords,)  # of the tower, and not one of our own modules
        self.num_heads: int = getattr(host, layer.heads)
        self.num_kv_heads: int = getattr(host, "num_kv_heads", None) or self.num_heads
        self.head_dim = encoding.head_dim
        drop: Any = getattr(host, layer.dropout)
        self.drop = float(drop.p if isinstance(drop, nn.Dropout) else drop)
        self.encoding = encoding
        if kind == "linear":  # persistent: the random directions belong to the function that is trained
            directions = random_directions(num_features, self.head_dim)
            self.register_buffer("directions", directions.to(next(host.parameters()).device))
        self.train(host.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """x (b, n, dim) and whatever else the host passes, by position or by name; of that, masks are used."""
        x: Tensor = args[0] if args else kwargs["hidden_states"] if "hidden_states" in kwargs else kwargs["query"]
        mask = next((kwargs[name] for name in ("attn_mask", "attention_mask") if kwargs.get(name) is not None), None)
        if mask is None and self.layer.pair and len(args) == 2:  # transformers: (hidden_states, attention_mask)
            mask = args[1]
        shape, token_coords = x.shape, self.token_coords[0]
        grid = None if x.ndim == 3 else (shape[1], shape[2])  # a grid of tokens, or windows of one
        coords = token_coords.of_tokens(shape[1]) if grid is None else token_coords.of_windows(*grid)
        x = x if grid is None else x.flatten(1, 2)
        q, k, v, bias = self._encode(x, coords, grid)
        mask = bias if mask is None else mask
        if self.kind == "softmax":
            heads = F.scaled_dot_product_attention(
                q, k, v,
                attn_mask=mask, dropout_p=self.drop if self.training else 0.0,
                is_causal=bool(kwargs.get("is_causal", False)), enable_gqa=self.num_kv_heads != self.num_heads,
            )  # fmt: skip
        else:
            if mask is not None:
                raise ValueError("attention='linear' sums over all tokens and takes no masks: use 'softmax' here")
            heads = self._attend_linearly(q, k, v)
        out = self._finish(x, heads.transpose(1, 2).flatten(2)).reshape(*shape[:-1], -1)
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
        """Why P cannot move into the weights, as a clause; None if it can."""
        between = "between projection and encoding stands"
        if self.kind == "linear":
            return f"{between} the feature map of linear attention, which is not linear"
        if self._has_bias:
            return f"{between} a relative position bias, which looks at queries before they are encoded"
        for name in ("q_norm", "k_norm"):
            if obstacle := norm_obstacle(self._child(name), f"{name}, a", self.encoding.basis.orthogonal):
                return obstacle
        for name in ("qkv", "q_proj", "k_proj"):
            projection = self._child(name)
            if projection is not None and (obstacle := linear_obstacle(projection)):
                return f"its projection is {name}, {obstacle}, which has to be called: merge it into an nn.Linear first"
        return None

    @torch.no_grad()
    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows, for good, and go on with an encoding that has none."""
        parts = self.rows()[:2]
        weight, bias = self._fold_rows()
        for part, own in zip(parts, weight.split(self.sizes[:2]), strict=True):
            part.weight.copy_(own)
        if bias is not None:
            for part, own in zip(parts, bias.split(self.sizes[:2]), strict=True):
                if part.bias is not None:
                    part.bias.copy_(own)
        self.encoding = plain

    def _fold_rows(self) -> tuple[Tensor, Tensor | None]:
        """The weight and bias of queries and keys side by side, with P in them."""
        q, k, *_ = self.rows()
        bias = None if q.bias is None and k.bias is None else torch.cat([_bias_or_zeros(q), _bias_or_zeros(k)])
        weight = torch.cat([q.weight, k.weight])
        if isinstance(self.encoding.basis, Identity):
            return weight, bias
        folded, turned = fold_projection(self.encoding.basis(), weight, bias)
        return folded.to(weight.dtype), None if turned is None else turned.to(weight.dtype)

    def _child(self, name: str) -> Any:
        return getattr(self, name, None)

    def _encode(
        self, x: Tensor, coords: Tensor, grid: tuple[int, int] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q (b, h, n, d), k and v (b, h_kv, n, d), with q and k encoded; and what the host adds to scores."""
        check_precision(self.encoding)
        folds = self.fold_obstacle() is None
        groups = self.num_heads // self.num_kv_heads
        if folds:
            packed, values = self._project_folded(x)
            if isinstance(self._child("q_norm") or nn.Identity(), nn.Identity):
                return *self.encoding.rotate_packed(packed, coords, groups=groups), self._split_heads(values), None
            queries, keys = packed.split(self.sizes[:2], dim=-1)
        else:
            queries, keys, values = self._project(x)
        q, k = self._split_heads(queries), self._split_heads(keys)
        if self._child("q_norm") is not None:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[operator]
        bias = self.layer.bias(self, q, grid) if self._has_bias and self.layer.bias and grid else None
        if self.kind == "linear":  # the whole R(r): the feature map sees the left P
            q = self.encoding.rotate(q, coords, groups=groups, whole=True)
            return q, self.encoding.rotate(k, coords, whole=True), self._split_heads(values), bias
        return *self.encoding(q, k, coords, folded=folds), self._split_heads(values), bias

    @property
    def _has_bias(self) -> bool:
        return self._child("rel_pos_h") is not None

    def _split_heads(self, x: Tensor) -> Tensor:
        """(b, n, h·d) to (b, h, n, d)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _project_folded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, (b, n, (h + h_kv)·d), with P in their projections; and values."""
        _, _, *others = self.rows()
        values = F.linear(x, *others[0]) if others else self.v_proj(x)  # type: ignore[operator]
        return F.linear(x, *self._fold_rows()), values

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, (b, n, h·d) each, through the host's modules as they are."""
        if self._child("q_proj") is not None:
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)  # type: ignore[operator]
        if self._child("qkv") is None:
            return tuple(F.linear(x, *part) for part in self.rows())
        projected: Tensor = self.qkv(x)  # type: ignore[operator]
        if self._child("q_bias") is not None:  # the biases stand beside the projection
            projected = projected + torch.cat([self._child(name) for name in ("q_bias", "k_bias", "v_bias")])
        return projected.split(self.sizes, dim=-1)

    def _attend_linearly(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with full_precision(q):  # sums over all tokens: not in half precision
            wide = torch.promote_types(v.dtype, torch.float32)
            q = positive_features(q.to(wide), self.directions)
            k = positive_features(k.to(wide), self.directions, keys=True)
            return linear_mix(q, k, v.to(wide)).to(v.dtype)

    def _finish(self, x: Tensor, heads: Tensor) -> Tensor:
        """What the host does between attention and its residual: norm, gate, output projection, dropout."""
        for name in ("norm", "gate", self.layer.out, "proj_drop"):
            module = self._child(name)
            if module is not None:
                heads = heads * module(x).sigmoid() if name == "gate" else module(heads)
        return heads

    def extra_repr(self) -> str:
        return f"{self.kind}, num_heads={self.num_heads}, head_dim={self.head_dim}"


def _bias_or_zeros(rows: Rows) -> Tensor:
    return rows.weight.new_zeros(len(rows.weight)) if rows.bias is None else rows.bias
