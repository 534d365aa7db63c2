"""Hungarian matching of predictions to objects, image by image on the CPU's threads."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@torch.no_grad()
def match(cost: Tensor, valid: Tensor) -> Tensor:
    """The prediction of every object, (b, m) int64, such that the sum of costs is the smallest there is.

    cost: (b, n, m), of prediction i for object j. valid: (b, m), true where there is an object and not padding, whose
    costs are not looked at. −1 where there is no object, and for the objects that are left over where an image has more
    of them than predictions.
    """
    if cost.ndim != 3 or valid.shape != (len(cost), cost.shape[-1]) or valid.dtype != torch.bool:
        raise ValueError(
            f"cost must be (b, n, m) and valid bool (b, m), got {tuple(cost.shape)} and "
            f"{valid.dtype} {tuple(valid.shape)}"
        )
    # One transfer from the GPU for all: padding is 0 here, so that what is not finite belongs to an object.
    table = cost.masked_fill(~valid[:, None], 0).float().cpu()
    objects = valid.cpu()
    if not bool(table.isfinite().all()):
        image = int((~table.isfinite()).flatten(1).any(1).nonzero()[0, 0])
        raise ValueError(
            f"a matching cost of image {image} is NaN or infinite: a prediction or a box is not finite; "
            f"lower optim.lr, raise optim.warmup_steps, or check the boxes"
        )
    found = torch.full(valid.shape, -1)
    tables, masks, rows = table.numpy(), objects.numpy(), found.numpy()
    threads = min(16, torch.get_num_threads())
    if threads == 1:
        _assign(tables, masks, rows)
        return found.to(cost.device)

    def assign(first: int) -> None:
        every = slice(first, None, threads)
        _assign(tables[every], masks[every], rows[every])

    list(_pool(threads).map(assign, range(threads)))  # a list, so that what a thread raises is raised here
    return found.to(cost.device)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows (b, m, …) of x (b, n, …) at the matches index (b, m); row 0 where there is none."""
    rows = index.clamp(min=0)
    return x.gather(1, rows.view(*rows.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:]))


def _assign(costs: NDArray[Any], valid: NDArray[Any], found: NDArray[Any]) -> None:
    """Write the matches of several images (b, n, m) into found (b, m)."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    for cost, mask, row in zip(costs, valid, found, strict=True):
        objects = np.flatnonzero(mask)
        if len(objects):
            predictions, places = linear_sum_assignment(cost[:, objects])
            row[objects[places]] = predictions


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads, as many as torch may use, kept between steps; scipy lets go of the interpreter while it assigns."""
    return ThreadPoolExecutor(threads, "matching")
