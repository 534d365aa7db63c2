"""Directions of frequencies: unit vectors spread evenly over the axes, as plain numbers."""

import math
from statistics import NormalDist


def simplex(axes: int) -> list[list[float]]:
    """The n + 1 corners of a regular simplex in n dimensions: unit vectors, any two with the product −1/n."""
    corners = [[0.0] * axes for _ in range(axes + 1)]
    for k in range(axes):
        corners[k][k] = math.sqrt(1 - sum(x * x for x in corners[k]))
        for other in corners[k + 1 :]:
            other[k] = (-1 / axes - sum(x * y for x, y in zip(corners[k][:k], other[:k], strict=True))) / corners[k][k]
    return corners


def golden_directions(count: int, axes: int) -> list[list[float]]:
    """`count` unit vectors spread evenly over half of the plane by the golden angle, or over the sphere by its
    generalisation: point i of the sequence frac(i / φ^k), φ^(n+1) = φ + 1, mapped to normal quantiles."""
    if axes == 2:
        turns = [math.pi * ((i + 0.5) * (math.sqrt(5) - 1) / 2 % 1) for i in range(count)]
        return [[math.cos(a), math.sin(a)] for a in turns]
    ratio = 2.0
    for _ in range(64):  # a contraction: converges to the root
        ratio = (1 + ratio) ** (1 / (axes + 1))
    quantile = NormalDist().inv_cdf
    points = [[quantile((0.5 + i * ratio**-k) % 1) for k in range(1, axes + 1)] for i in range(1, count + 1)]
    return [[x / math.hypot(*point) for x in point] for point in points]
