"""The learning rate as a pure function of the step: its factor for step 0 … total − 1, after a linear warm-up from
1/warmup to 1."""

import math
from collections.abc import Callable


def cosine(step: int, total: int, warmup: int) -> float:
    """After the warm-up, half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


def constant(step: int, total: int, warmup: int) -> float:
    """After the warm-up, no change."""
    return min((step + 1) / max(warmup, 1), 1.0)


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {"cosine": cosine, "constant": constant}
"""By their names in `optim.schedule`."""
