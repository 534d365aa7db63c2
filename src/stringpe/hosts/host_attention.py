"""The self-attention of a host's layer with an encoding, on the host's own weights."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..encoding import Encoding
from ..folding import Rows, check_precision
from ..linear_attention import linear_mix, positive_features, random_directions
from ..own_projections import HeldProjections, ProjectionNames
from ..packing import Packing, attend_packed
from ..rotate import full_precision
from .description import Layer
from .token_coords import TokenCoords

ATTENTION_KINDS = ("softmax", "linear")
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook",
)  # fmt: skip


class HostAttention(nn.Module):
    """Self-attention on a host's own weights, under the host's own names, with queries and keys encoded at the
    coordinates of the current forward pass. It replaces the host's module and takes the same arguments; RoPE that the
    host passes (rope, position_embeddings) is ignored, since it has become part of the encoding.

    P is folded into the projections in every forward where that is possible (see `fold_obstacle`), else it multiplies
    tokens.

    kind: "softmax", through torch's scaled_dot_product_attention; or "linear", linear attention by positive random
        features of R(r) q and R(r) k, in which the left P does not cancel.
    keep: whether the map that the host applies to queries and keys at their positions stays, where it is not a rotation
        (`Layer.keep`).
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
        keep: bool = False,
        num_features: int = 256,
    ):
        super().__init__()
        self._parameters, self._buffers, self._modules = host._parameters, host._buffers, host._modules
        self._non_persistent_buffers_set = host._non_persistent_buffers_set
        for name in _HOOKS:
            setattr(self, name, getattr(host, name))
        self.layer, self.kind, self.keep = layer, kind, layer.keep if keep else None
        self.token_coords = (token_coords,)  # of the tower, and not one of our own modules
        self.num_heads: int = getattr(host, layer.heads)
        self.num_kv_heads: int = getattr(host, "num_kv_heads", None) or self.num_heads
        self.head_dim = encoding.head_dim
        self.config = getattr(host, "config", None)
        drop: Any = getattr(host, layer.dropout)
        self.drop = float(drop.p if isinstance(drop, nn.Dropout) else drop)
        self.encoding = encoding
        if kind == "linear":  # persistent: the random directions belong to the function that is trained
            directions = random_directions(num_features, self.head_dim)
            self.register_buffer("directions", directions.to(next(host.parameters()).device))
        self.train(host.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """x (b, n, dim), a grid of tokens (b, rows, columns, dim) or packed tokens (N, dim), and whatever else the host
        passes, by position or by name. Of that, masks, `is_causal` and the ends of packed sequences are used."""
        x: Tensor = args[0] if args else kwargs["hidden_states"] if "hidden_states" in kwargs else kwargs["query"]
        shape = x.shape
        grid = (shape[1], shape[2]) if x.ndim == 4 else None  # the whole grid, or windows of one
        coords = self._find_coords(args, kwargs, shape, grid)
        x = x[None] if x.ndim == 2 else x if grid is None else x.flatten(1, 2)
        q, k, v, bias = self._encode(x, coords, grid)
        packing = _read_packing(kwargs, shape) if len(shape) == 2 else None
        mask = self._read_mask(args, kwargs)
        heads, weights = self._attend(q, k, v, bias if mask is None else mask, packing, bool(kwargs.get("is_causal")))
        out = self._finish(x, heads.transpose(1, 2).flatten(2)).reshape(*shape[:-1], -1)
        return (out, weights) if self.layer.pair else out

    def _find_coords(self, args: Any, kwargs: Any, shape: torch.Size, grid: tuple[int, int] | None) -> Tensor:
        """Coordinates of these tokens: those that the host passes in place of cosines and sines, or the tower's."""
        token_coords = self.token_coords[0]
        if token_coords.handed_on:
            pair = kwargs.get("position_embeddings")
            coords: Tensor = (pair if pair is not None else next(a for a in args if isinstance(a, (tuple, list))))[0]
            return coords.reshape(-1, coords.shape[-1])
        return token_coords.of_tokens(shape[1]) if grid is None else token_coords.of_windows(*grid)

    def _read_mask(self, args: Any, kwargs: Any) -> Tensor | None:
        mask = next((kwargs[name] for name in ("attn_mask", "attention_mask") if kwargs.get(name) is not None), None)
        if mask is None and self.layer.pair and len(args) == 2 and isinstance(args[1], Tensor):
            mask = args[1]  # transformers: (hidden_states, attention_mask)
        return mask

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, packing: Packing | None, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Heads (b, h, n, d), and the attention weights if the host returns them."""
        if self.kind == "linear":
            if mask is not None or packing is not None:
                what = "masks" if packing is None else "packed sequences"
                raise ValueError(f"attention='linear' sums over all tokens and takes no {what}: use 'softmax'")
            return self._attend_linearly(q, k, v), None
        dropout = self.drop if self.training else 0.0
        if packing is not None:
            scale = self.head_dim**-0.5
            return attend_packed(q, k, v, packing, packing, scale=scale, causal=causal, dropout=dropout), None
        if self.layer.pair and _wants_weights(self._child("config")):
            return _attend_eagerly(q, k, v, mask, causal, dropout)
        grouped = self.num_kv_heads != self.num_heads
        heads = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
        )
        return heads, None

    @property
    def _held(self) -> HeldProjections:
        return HeldProjections(self, self.encoding, self.num_heads, ProjectionNames(apart=self.layer.apart))

    def fold_obstacle(self) -> str | None:
        """Why P cannot move into the weights, as a clause; None if it can."""
        between = "between projection and encoding stands"
        if self.kind == "linear":
            return f"{between} the feature map of linear attention, which is not linear"
        if self._has_bias:
            return f"{between} a relative position bias, which looks at queries before they are encoded"
        if self.keep is not None:
            return "after the encoding comes the model's own map of positions, which is not a rotation and sees P"
        return self._held.obstacle()

    def query_key_rows(self) -> Sequence[Rows]:
        """The rows that `fold_basis` writes to."""
        return self._held.rows()[:2]

    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows permanently, and use `plain`, the encoding without P, from then on."""
        self._held.write_basis()
        self.encoding = plain

    def _child(self, name: str) -> Any:
        return getattr(self, name, None)

    def _encode(
        self, x: Tensor, coords: Tensor, grid: tuple[int, int] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q (b, h, n, d), k and v (b, h_kv, n, d), with q and k encoded; and the bias that the host adds to scores."""
        check_precision(self.encoding)
        held = self._held
        if self.kind == "softmax" and not self._has_bias and self.keep is None:
            return *held.encode(x, coords, folds=held.obstacle() is None), None
        q, k, v = (held.split_heads(t) for t in held.project(x))
        q, k = held.normalise(q, k)
        bias = self.layer.bias(self, q, grid) if self._has_bias and self.layer.bias and grid else None
        if self.kind == "softmax" and self.keep is None:
            return *self.encoding(q, k, coords), v, bias
        groups = self.num_heads // self.num_kv_heads  # from here on the whole R(r): the left P does not cancel
        q = self.encoding.rotate(q, coords, groups=groups, whole=True)
        k = self.encoding.rotate(k, coords, whole=True)
        return *((q, k) if self.keep is None else (self.keep(q, coords), self.keep(k, coords))), v, bias

    @property
    def _has_bias(self) -> bool:
        return self._child("rel_pos_h") is not None

    def _attend_linearly(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with full_precision(q):  # half precision is too coarse for sums over all tokens
            wide = torch.promote_types(v.dtype, torch.float32)
            q = positive_features(q.to(wide), self.directions)
            k = positive_features(k.to(wide), self.directions, keys=True)
            return linear_mix(q, k, v.to(wide)).to(v.dtype)

    def _finish(self, x: Tensor, heads: Tensor) -> Tensor:
        """The host's norm, gate, output projection and dropout, where it has them, on merged heads (b, n, dim)."""
        for name in ("norm", "gate", self.layer.out, "proj_drop"):
            module = self._child(name)
            if module is not None:
                heads = heads * module(x).sigmoid() if name == "gate" else module(heads)
        return heads

    def extra_repr(self) -> str:
        return f"{self.kind}, num_heads={self.num_heads}, head_dim={self.head_dim}"


def _read_packing(kwargs: Any, shape: torch.Size) -> Packing:
    """The sequences that a host packed, by their offsets (cu_seqlens); a single one without offsets."""
    ends = kwargs.get("cu_seqlens")
    return Packing([shape[0]]) if ends is None else Packing.from_offsets(ends, shape[0], kwargs.get("max_seqlen"))


def _wants_weights(config: Any) -> bool:
    """Whether a model of transformers is set to "eager" attention, which returns attention maps."""
    return getattr(config, "_attn_implementation", None) == "eager"


def _attend_eagerly(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √d) v and the weights themselves, (b, h, n, m)."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = F.dropout(scores.float().softmax(-1).to(q.dtype), dropout)
    return weights @ v, weights
