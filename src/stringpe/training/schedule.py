"""The learning rate as a pure function of the step."""

import math


def cosine(step: int, total: int, warmup: int) -> float:
    """Factor of the learning rate for step 0 … total − 1: linear from 1/warmup to 1, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))
