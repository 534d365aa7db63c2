"""Malformed calls of the public names: each must be refused in words, or be answered with finite numbers."""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from call_targets import targets
from tally import Tally
from torch import Tensor

import stringpe

NAN = float("nan")
SCALARS = (None, "x", "", -1, 0, 1.5, NAN, float("inf"), [], {}, object(), True, np.float64(3), 7)


def _bad_tensors(good: Tensor) -> tuple[Any, ...]:
    return (
        None, "x", 3, [], good.numpy(), good.tolist(), good[None], good[..., 0], good[..., :-1], good[:0], good.long(),
        good.to(torch.complex64), good.half(), good.bool(), good.float() * NAN, good.to("meta"), torch.tensor(1.0),
        torch.randn(3), object(),
    )  # fmt: skip


def attack(count: int, seed: int) -> Tally:
    """So many calls: every argument of every call made bad in turn, then two at a time."""
    tally, dice = Tally("malformed calls"), random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    known = targets()
    singles = [
        (name, {key: i})
        for name, (_, good) in known.items()
        for key, value in good.items()
        for i in range(_count(value))
    ]
    dice.shuffle(singles)

    def pairs() -> Any:
        while True:
            name = dice.choice(list(known))
            good = known[name][1]
            keys = dice.sample(list(good), min(2, len(good)))
            yield name, {key: dice.randrange(_count(good[key])) for key in keys}

    for name, chosen in itertools.islice(itertools.chain(singles, pairs()), count):
        function, good = known[name]
        bad = {key: _choices(good[key])[i] for key, i in chosen.items()}
        _call(tally, name, function, {**_fresh(good), **bad}, bad)
    return tally


def _choices(value: Any) -> tuple[Any, ...]:
    return _bad_tensors(value) if isinstance(value, Tensor) else SCALARS


def _count(value: Any) -> int:
    return len(_choices(value))


def _fresh(good: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, of which nothing is changed by a call: tensors and caches are copied."""
    kinds = (Tensor, stringpe.KVCache, stringpe.LinearCache)
    return {k: copy.deepcopy(v) if isinstance(v, kinds) else v for k, v in good.items()}


def _call(
    tally: Tally, name: str, function: Callable[..., Any], arguments: dict[str, Any], bad: dict[str, Any]
) -> None:
    line = f"{name}({', '.join(f'{k}={_show(v)}' for k, v in bad.items())})"
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            result = function(**arguments)
    except Exception as error:
        tally.judge(error, line)
        return
    tensors = [
        t
        for t in (result if isinstance(result, tuple) else (result,))
        if isinstance(t, Tensor) and t.device.type != "meta"
    ]
    given_nan = any(
        isinstance(v, Tensor) and v.is_floating_point() and v.device.type == "cpu" and not v.isfinite().all()
        for v in bad.values()
    )
    if all(t.isfinite().all() for t in tensors if t.is_floating_point()) or given_nan:
        tally.count("answered")
    else:
        tally.fault("silently not finite", line)


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device.type}"
    return f"array{value.shape}" if isinstance(value, np.ndarray) else repr(value)[:40]
