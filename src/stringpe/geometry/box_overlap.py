"""How much of one box lies in another, computed without a special case for parallel planes.

An affine map takes box a to the unit cube [0, 1]³ and box b to a parallelepiped. The share of a that lies in b is the
integral over y, z in [0, 1] of the length of their intersection along x, which is a sum over the faces of b:

    share = Σ ± ∫∫ clamp(x(y, z), 0, 1) dy dz      over the shadow of the face in the yz-plane, in the unit square;

+ for faces through which a ray along x leaves b, − for those through which it enters. Each face is two triangles.
Cutting a triangle at a line gives signed triangles (`_Cut`), so that a whole batch has one shape whatever its geometry.

Nothing here depends on a tolerance. Where a face almost lies in a side of the cube, the cut through it may fall
anywhere, but then either the shadow or the part of x that is cut off vanishes with the angle between them: the sum is a
continuous function of the boxes in floating point, too, with errors of the order of rounding.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..constants import Constant

Values = tuple[Tensor, ...]
"""A linear function on triangles: its values at their three vertices, each (n, m)."""

CORNER_SIGNS = Constant(
    lambda dtype, device: torch.tensor(
        [[1.0 if i & bit else -1.0 for bit in (4, 2, 1)] for i in range(8)], dtype=dtype, device=device
    )
)
"""(8, 3): corner i has the signs of its three bits, the first axis the slowest: 0 is (−, −, −), 1 is (−, −, +), 7 is
(+, +, +)."""


def _triangles() -> list[list[int]]:
    """(12, 3) corners by their bits: of faces −x, −y, −z the first triangles, then the second; then of +x, +y, +z."""
    bits = (4, 2, 1)
    table = []
    for high in (0, 1):
        for second in (0, 1):
            for axis in range(3):
                origin, j, k = high * bits[axis], bits[(axis + 1) % 3], bits[(axis + 2) % 3]
                table.append([origin, origin + j + k, origin + (k if second else j)])
    return table


_TRIANGLES = Constant(lambda dtype, device: torch.tensor(_triangles(), dtype=dtype, device=device))


def shared_fraction(frame_a: Tensor, size_a: Tensor, frame_b: Tensor, size_b: Tensor, move: Tensor) -> Tensor:
    """The share of boxes a that lies in b: (n,) in [0, 1].

    frame_a, frame_b (n, 3, 3): rotations; size_a, size_b (n, 3); move (n, 3): from the centre of a to that of b. All
    float64. A box a without volume has some share; multiplied by its volume it is 0.
    """
    size_a = torch.where(size_a > 0, size_a, 1)
    # x along the thinnest side of a: in units of a, b is longest there, and shadows along it stay small.
    order = (size_a.argmin(-1, keepdim=True) + torch.arange(3, device=size_a.device)) % 3  # cyclic: no reflection
    to_unit = frame_a.mT.gather(1, order[..., None].expand(-1, -1, 3)) / size_a.gather(1, order)[..., None]
    edges = to_unit @ (frame_b * size_b[:, None])  # (n, 3, 3): the columns are the edges of b
    signs = CORNER_SIGNS(edges.dtype, edges.device)
    corners = (signs / 2) @ edges.mT + (to_unit @ move[..., None]).mT + 0.5  # (n, 8, 3)
    x, y, z = (vertex.unbind(-1) for vertex in corners[:, _TRIANGLES(torch.int64, edges.device)].unbind(-1))
    one, two = edges.roll(-1, 2), edges.roll(-2, 2)  # face i is spanned by edges i + 1 and i + 2
    half = (one[:, 1] * two[:, 2] - one[:, 2] * two[:, 1]) / 2  # (n, 3): signed shadow of each of its triangles
    shadow = torch.cat([-half, -half, half, half], dim=1)  # (n, 12)
    shadow, (z, x) = _keep_unit(shadow, y, (z, x))
    shadow, (x,) = _keep_unit(shadow, z, (x,))
    length = _mean_of_positive(x) - _mean_of_positive(_less_one(x))
    return (shadow * length).sum(-1).clamp(0, 1)


class _Cut(NamedTuple):
    """Triangles (n, m) cut where a linear function is 0, with one vertex alone on its side. The part where the function
    is positive is `whole` · the triangle + `sign` · the small triangle at that vertex, which takes the shares `left`
    and `right` of the two edges there. `second`, `third`: it is the triangle's second or third vertex."""

    whole: Tensor
    sign: Tensor
    second: Tensor
    third: Tensor
    left: Tensor
    right: Tensor

    @property
    def weight(self) -> Tensor:
        """Signed size of the small triangle in units of the whole one."""
        return self.sign * self.left * self.right

    def restrict(self, values: Values) -> Values:
        """Another linear function at the vertices of the small triangle."""
        alone, left, right = _alone_first(values, self.second, self.third)
        return alone, alone + self.left * (left - alone), alone + self.right * (right - alone)


def _cut(values: Values) -> _Cut:
    a, b, c = (v > 0 for v in values)
    second, third = (b != a) & (b != c), (c != a) & (c != b)
    mixed, whole = (a != b) | (a != c), torch.where(a, b | c, b & c)
    alone, left, right = _alone_first(values, second, third)
    left, right = (alone / torch.where(mixed, alone - other, 1) for other in (left, right))
    return _Cut(whole, torch.where(whole, -1.0, 1.0) * mixed, second, third, left, right)


def _alone_first(values: Values, second: Tensor, third: Tensor) -> Values:
    """The values in cyclic order, that of the vertex which is alone first."""
    a, b, c = values
    return (
        torch.where(second, b, torch.where(third, c, a)),
        torch.where(second, c, torch.where(third, a, b)),
        torch.where(second, a, torch.where(third, b, c)),
    )


def _keep_unit(shadow: Tensor, key: Values, others: tuple[Values, ...]) -> tuple[Tensor, list[Values]]:
    """The part of triangles (n, m) where `key` is in [0, 1], as signed triangles (n, 3 m): the part above 0 less the
    part above 1. Returns their shadows, and the other functions on them."""
    low, high = _cut(key), _cut(_less_one(key))
    parts = torch.cat([shadow * (low.whole ^ high.whole), shadow * low.weight, shadow * -high.weight], dim=1)
    kept = []
    for values in others:
        vertices = zip(values, low.restrict(values), high.restrict(values), strict=True)
        kept.append(tuple(torch.cat(vertex, dim=1) for vertex in vertices))
    return parts, kept


def _mean_of_positive(values: Values) -> Tensor:
    """The mean of max(f, 0) over triangles, for a linear f: (n, m)."""
    cut = _cut(values)
    alone = cut.restrict(values)[0]  # on the small triangle, f is `alone` at one vertex and 0 at the others
    return (cut.whole * (values[0] + values[1] + values[2]) + cut.weight * alone) / 3


def _less_one(values: Values) -> Values:
    return values[0] - 1, values[1] - 1, values[2] - 1
