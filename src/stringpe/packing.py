"""Which tokens attend to which: sequences packed end to end, and masks.

    attn(x, coords, lengths=[196, 64, 400])     # x (1, 660, dim): each token attends within its own sequence
    attn(x, coords, mask=is_real)               # x (b, n, dim), is_real (b, n): no token attends to padding

Packed sequences have no padding between them. Projections, encodings and MLPs act on tokens one by one, so only
attention depends on the packing (`attend_packed`). In half precision on CUDA it goes through
`torch.nn.attention.varlen`, elsewhere sequence by sequence: either way the result is that of each sequence alone.
"""

import inspect
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_count, check_tensor, is_numpy_integer


class Packing:
    """Where sequences begin and end in a packed one. Build it once per batch and pass it to every layer.

    lengths: whole numbers of at least 1, as a sequence or a tensor. Reading a tensor on a GPU makes the host wait.
    """

    def __init__(self, lengths: "Sequence[int] | Tensor"):
        if isinstance(lengths, Tensor):
            check_tensor("lengths", lengths)
            if lengths.is_meta:
                raise ValueError("lengths must be known numbers, got a tensor on the meta device")
        listed = lengths.tolist() if hasattr(lengths, "tolist") else lengths
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise TypeError(f"lengths must be a sequence of whole numbers, or such a tensor, got {lengths!r:.60}")
        listed = [int(n) if is_numpy_integer(n) else n for n in listed]
        if not listed or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in listed):
            raise ValueError(f"lengths must be whole numbers of at least 1, one per sequence, got {_shorten(listed)}")
        self._lengths: tuple[int, ...] | None = tuple(listed)
        self.total, self.longest = sum(listed), max(listed)
        self._offsets: dict[torch.device, Tensor] = {}

    @classmethod
    def from_offsets(cls, offsets: Tensor, total: int, longest: int | None = None) -> "Packing":
        """From the offsets at which each sequence starts and the last one ends, (sequences + 1,), as other libraries
        pass them (cu_seqlens). The host does not wait for a GPU where `longest`, or a bound of it, is given and torch's
        kernel for packed sequences is used."""
        check_tensor("offsets", offsets)
        check_count("total", total)
        if longest is not None:
            check_count("longest", longest)
        if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"offsets must be whole numbers (sequences + 1,), from 0 to the number of tokens, got "
                f"{tuple(offsets.shape)} {offsets.dtype}"
            )
        if offsets.is_meta and longest is None:
            raise ValueError("offsets on the meta device have no lengths: pass longest=, or offsets with known numbers")
        if offsets.device.type == "cpu" and not torch.compiler.is_compiling():  # on a GPU the host would have to wait
            listed = offsets.tolist()
            if listed[0] != 0 or listed[-1] != total or any(b <= a for a, b in pairwise(listed)):
                raise ValueError(f"offsets must rise from 0 to the {total} tokens, got {_shorten(listed)}")
            most = max(b - a for a, b in pairwise(listed))
            if longest is not None and longest < most:
                raise ValueError(f"longest={longest} is too small: the offsets hold a sequence of {most} tokens")
        packing = cls.__new__(cls)
        packing._lengths = None
        packing._offsets = {offsets.device: offsets.to(torch.int32)}
        packing.total = total
        packing.longest = int(offsets.diff().max()) if longest is None else int(longest)
        return packing

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the sequences, in their order."""
        if self._lengths is None:
            (offsets, *_) = self._offsets.values()
            self._lengths = tuple(offsets.diff().tolist())
        return self._lengths

    def __len__(self) -> int:
        if self._lengths is not None:
            return len(self._lengths)
        return len(next(iter(self._offsets.values()))) - 1

    def __repr__(self) -> str:
        return f"Packing({_shorten(list(self.lengths))})"

    def offsets(self, device: torch.device) -> Tensor:
        """Where each sequence starts, and where the last one ends: (sequences + 1,), int32."""
        if device not in self._offsets:
            ends = torch.tensor((0, *self.lengths)).cumsum(0)
            self._offsets[device] = ends.to(device=device, dtype=torch.int32)
        return self._offsets[device]

    def split(self, packed: Tensor, dim: int) -> tuple[Tensor, ...]:
        """The sequences of a packed tensor, as views."""
        if packed.ndim < 2 or packed.shape[dim] != self.total:
            raise ValueError(
                f"the sequences have {self.total} tokens in all, which tokens and coordinates must have too; got a "
                f"tensor {tuple(packed.shape)}"
            )
        return packed.split(self.lengths, dim)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """One row per sequence to one row per token: (sequences, …) to (N, …)."""
        repeats = self.offsets(per_sequence.device).diff()
        return per_sequence.repeat_interleave(repeats, dim=0, output_size=self.total)


def as_packing(lengths: "Packing | Sequence[int] | Tensor", tokens: Tensor, name: str = "x") -> Packing:
    """These lengths as a `Packing`, checked against the packed tokens (1, N, …)."""
    packing = lengths if isinstance(lengths, Packing) else Packing(lengths)
    if tokens.shape[0] != 1 or tokens.shape[1] != packing.total:
        raise ValueError(
            f"packed {name} must be (1, N, …) with N = {packing.total}, the sum of the {len(packing)} lengths; got "
            f"{tuple(tokens.shape)}: concatenate the sequences along dim 1"
        )
    return packing


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    *,
    scale: float,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention within each sequence: q (1, h, N, d), k (1, h_kv, M, d), v (1, h_kv, M, e) to (1, h, N, e)."""
    grouped = q.shape[1] != k.shape[1]
    if dropout == 0 and _suits_varlen(q, k, v):
        flat = (t[0].transpose(0, 1) for t in (q, k, v))  # (N, h, d)
        options = _varlen_options(causal)
        if grouped:
            options["enable_gqa"] = True
        places = (queries.offsets(q.device), keys.offsets(q.device), queries.longest, keys.longest)
        out: Tensor = _varlen()(*flat, *places, scale=scale, **options)
        return out.transpose(0, 1)[None]
    parts = zip(queries.split(q, 2), keys.split(k, 2), keys.split(v, 2), strict=True)
    return torch.cat(
        [
            F.scaled_dot_product_attention(*part, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped)
            for part in parts
        ],
        dim=2,
    )


def _suits_varlen(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's kernel for packed sequences takes these: half precision, and one size of head."""
    half = q.dtype in (torch.bfloat16, torch.float16) and q.dtype == k.dtype == v.dtype
    sized = q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    if not (q.is_cuda and half and sized) or _varlen() is None:
        return False
    names = inspect.signature(_varlen()).parameters
    return "scale" in names and (q.shape[1] == k.shape[1] or "enable_gqa" in names)


def _varlen_options(causal: bool) -> dict[str, Any]:
    """Causal attention is a window in newer releases of torch and a flag in older ones."""
    if "window_size" in inspect.signature(_varlen()).parameters:
        return {"window_size": (-1, 0)} if causal else {}
    return {"is_causal": causal}


@cache
def _varlen() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    return varlen_attn


def _shorten(values: list[Any], most: int = 8) -> str:
    shown = ", ".join(map(str, values[:most]))
    return f"[{shown}, … {len(values)} in all]" if len(values) > most else f"[{shown}]"


def check_packing(
    x: Tensor,
    context: Tensor | None,
    lengths: Packing | Sequence[int] | Tensor | None,
    context_lengths: Packing | Sequence[int] | Tensor | None,
    **unpacked: object,
) -> tuple[Packing, Packing]:
    """The packings of queries and keys. unpacked: options that cannot be combined with lengths."""
    given = [name for name, value in unpacked.items() if value is not None]
    if given:
        raise ValueError(
            f"lengths and {given[0]} do not go together: leave masked tokens out of the packed sequence, and use one "
            f"cache per sequence"
        )
    if lengths is None or (context is None) != (context_lengths is None):
        raise ValueError("packed cross attention needs both lengths (of x) and context_lengths (of context)")
    queries = as_packing(lengths, x)
    if context is None:
        return queries, queries
    assert context_lengths is not None
    keys = as_packing(context_lengths, context, "context")
    if len(keys) != len(queries):
        raise ValueError(
            f"x packs {len(queries)} sequences and the context {len(keys)}: give one length of each per sequence"
        )
    return queries, keys


def broadcast_mask(mask: Tensor, b: int, h: int, n: int, m: int, device: torch.device) -> Tensor:
    """A boolean mask, True where a query may look at a key, with dimensions that broadcast to (b, h, n, m). It may be
    (b, m), for padded keys; (n, m); (b, n, m); or have four dimensions."""
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean, True where a query may look at a key, got {mask.dtype}: use mask.bool() for zeros "
            f"and ones (a mask of numbers would be added to the scores)"
        )
    _check_device(mask, device)
    shape = tuple(mask.shape)
    if mask.ndim == 2 and shape == (n, m) == (b, m):
        raise ValueError(
            f"a mask of {shape} can mean (b, m) or (n, m) here: pass mask[:, None] for the keys of each sample, or "
            f"mask[None] for all samples"
        )
    if mask.ndim == 2:
        full = mask if shape[0] in (n, 1) else mask[:, None, None]
    else:
        full = mask[:, None] if mask.ndim == 3 else mask
    sizes = (1,) * (4 - full.ndim) + tuple(full.shape)
    # Compared one by one: torch's compiler does not find a symbolic size among others with `in`.
    fits = 2 <= mask.ndim <= 4 and all(s == whole or s == 1 for s, whole in zip(sizes, (b, h, n, m), strict=True))
    if not fits:
        raise ValueError(
            f"mask must be (b, m) = ({b}, {m}), (n, m) = ({n}, {m}), (b, n, m) = ({b}, {n}, {m}), or broadcast to "
            f"(b, h, n, m) = ({b}, {h}, {n}, {m}); got {shape}"
        )
    return full


def _check_device(mask: Tensor, device: torch.device) -> None:
    if mask.device != device:  # torch itself would go on with a mask on the meta device, which has no values
        raise ValueError(f"mask must be on the device of x, {device}, got one on {mask.device}: use mask.to(x.device)")


def key_mask(mask: Tensor, b: int, m: int, device: torch.device) -> Tensor:
    """A boolean mask of keys as (b, m), from (b, m) or (b, 1, 1, m). Linear attention sums the keys once for all
    queries, so all queries have the same mask."""
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True for keys to look at, got {mask.dtype}: use mask.bool()")
    _check_device(mask, device)
    flat = mask[:, 0, 0] if mask.ndim == 4 and mask.shape[1:3] == (1, 1) else mask
    if flat.ndim != 2 or flat.shape[0] not in (b, 1) or flat.shape[1] != m:
        raise ValueError(
            f"linear attention takes a mask of keys, (b, m) = ({b}, {m}) or ({b}, 1, 1, {m}), one for all queries; got "
            f"{tuple(mask.shape)}: use softmax attention for others"
        )
    return flat
