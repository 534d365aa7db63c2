"""The caches of attention, softmax and linear: what is stored of the tokens seen so far."""

import torch
from torch import Tensor

from .checks import check_count, check_floats


class KVCache:
    """Keys and values of the tokens seen so far. Keys are stored encoded: each token is rotated once, at its own
    coordinates.

    Where no gradient is recorded, tokens are written into room that doubles when it runs out, so that n tokens one by
    one cost O(n) copies and not O(n²). capacity: tokens to make room for at once.
    """

    def __init__(self, capacity: int = 0) -> None:
        check_count("capacity", capacity, least=0)
        self.capacity = capacity
        self._room: tuple[Tensor, Tensor] | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> Tensor | None:
        """(b, h_kv, tokens so far, d), encoded; None before the first."""
        return None if self._room is None else self._room[0][:, :, : self._length]

    @property
    def values(self) -> Tensor | None:
        """(b, h_kv, tokens so far, d); None before the first."""
        return None if self._room is None else self._room[1][:, :, : self._length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add (b, h_kv, n, d) and return everything so far."""
        self._check_fit(keys, values)
        tensors = (keys, values) if self._room is None else (keys, values, *self._room)
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        length = self._length + keys.shape[2]
        if recorded:  # autograd may need these tensors later, so nothing is written into them
            if self.keys is not None and self.values is not None:
                keys, values = torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)
            self._room = keys, values
        else:
            self._make_room(keys, values, length)
            assert self._room is not None
            for room, more in zip(self._room, (keys, values), strict=True):
                room[:, :, self._length : length] = more
        self._length = length
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _check_fit(self, keys: Tensor, values: Tensor) -> None:
        """Refuse anything but keys and values of the same tokens, and tokens of another batch, layer, dtype or device
        than those in the cache."""
        for what, tokens in (("keys", keys), ("values", values)):
            check_floats(what, tokens, ("b", None), ("h", None), ("n", None), ("d", None))
        if keys.shape[:3] != values.shape[:3]:
            raise ValueError(
                f"keys and values must have the same batch, heads and tokens, got {tuple(keys.shape)} and "
                f"{tuple(values.shape)}"
            )
        if self._room is None:
            return
        if keys.shape[0] != self._room[0].shape[0]:
            sizes = f"{self._room[0].shape[0]}, got one of {keys.shape[0]}"
            raise ValueError(f"this cache holds a batch of {sizes}: use one cache per batch")
        for what, new, old in zip(("keys", "values"), (keys, values), self._room, strict=True):
            held, given = ((t.shape[1], t.shape[3], t.dtype, t.device) for t in (old, new))
            if held != given:
                raise ValueError(
                    f"this cache holds {what} of {_describe(held)}, got {_describe(given)}: use one cache per layer, "
                    f"and a new one after a change of dtype or device"
                )

    def _make_room(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Provide tensors with room for `length` tokens, and copy the earlier tokens into them."""
        if self._room is not None and self._room[0].shape[2] >= length and not self._room[0].requires_grad:
            return
        room = max(length, 2 * self._length, self.capacity)
        fresh = tuple(t.new_empty(*t.shape[:2], room, t.shape[3]) for t in (keys, values))
        if self._room is not None:
            for new, old in zip(fresh, self._room, strict=True):
                new[:, :, : self._length] = old[:, :, : self._length].detach()
        self._room = (fresh[0], fresh[1])


class LinearCache:
    """What linear attention stores of the tokens seen so far: the sums Σ φ(k_j) v_jᵀ (b, h, f', d) and Σ φ(k_j)
    (b, h, f, 1), of the same size after one token as after a million. Keys enter encoded, at their own coordinates."""

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.weights: Tensor | None = None
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def check_fit(self, scoring: Tensor, values: Tensor) -> None:
        """Refuse features (b, h, n, f') and values (b, h, n, d) of another batch or layer than those in the cache."""
        if self.values is None:
            return
        if len(values) != len(self.values):
            sizes = f"{len(self.values)}, got one of {len(values)}"
            raise ValueError(f"this cache holds a batch of {sizes}: use one cache per batch")
        _, heads, features, width = self.values.shape
        held = (heads, features, width, self.values.dtype, self.values.device)
        given = (scoring.shape[1], scoring.shape[3], values.shape[3], values.dtype, values.device)
        if held != given:
            raise ValueError(
                f"this cache holds sums of {_describe_sums(*held)}, got {_describe_sums(*given)}: use one cache per "
                f"layer, and a new one after a change of dtype or device"
            )

    def add(self, scoring: Tensor, keys: Tensor, values: Tensor) -> None:
        """Add the features that score (b, h, n, f'), those that normalise (b, h, n, f), and the values (b, h, n, d)."""
        new = scoring.mT @ values, keys.sum(2)[..., None]
        self.values = new[0] if self.values is None else self.values + new[0]
        self.weights = new[1] if self.weights is None else self.weights + new[1]
        self.count += values.shape[2]


def _describe_sums(heads: int, features: int, width: int, dtype: torch.dtype, device: torch.device) -> str:
    return f"{heads} heads × {features} features × {width}, {dtype}, on {device}"


def _describe(kind: tuple[int, int, torch.dtype, torch.device]) -> str:
    heads, width, dtype, device = kind
    return f"{heads} heads × {width}, {dtype}, on {device}"
