# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""Hungarian matching on the GPU: one program finds the cheapest assignment of one image, by shortest augmenting paths
(Jonker and Volgenant), so that a training step never waits for its host. Imports triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LARGEST = 1e8
"""What a cost counts as that is larger or not a number, and what it costs to leave an object without a prediction."""


def assign(cost: Tensor, valid: Tensor) -> Tensor:
    """The prediction of every object (b, m), −1 for padding and for objects left over, with the smallest sum of costs.

    cost: (b, n, m) float32, of prediction i for object j; any strides. valid: bool (b, m)."""
    b, n, m = cost.shape
    out = torch.empty(b, m, dtype=torch.int64, device=cost.device)
    if b and m:
        places = triton.next_power_of_2(max(n, m, 2))
        with torch.cuda.device_of(cost):
            _assign[(b,)](
                cost, valid.contiguous().view(torch.uint8), out, n, m, *cost.stride(), LARGEST=_LARGEST,
                OBJECTS=triton.next_power_of_2(max(m, 2)), PLACES=places, num_warps=1 if places <= 256 else 4,
            )  # fmt: skip
    return out


@triton.jit
def _assign(cost, valid, out, n, m, c_b, c_n, c_m, LARGEST: tl.constexpr, OBJECTS: tl.constexpr, PLACES: tl.constexpr):
    """Object after object, the cheapest path of exchanges that ends at a free place is found as in Dijkstra's
    algorithm and carried out. Places are predictions and, where there are more objects, as many empty ones as are
    missing. A potential per place keeps all reduced costs of what is assigned at zero or above. Entries of vectors are
    read and written by masks, since registers cannot be indexed. In float64, as in scipy."""
    image = tl.program_id(0).to(tl.int64)
    object_, place = tl.arange(0, OBJECTS), tl.arange(0, PLACES)
    is_place = place < tl.maximum(n, m)
    place_of = tl.full((OBJECTS,), -1, tl.int32)  # the place of every object
    owner = tl.full((PLACES,), -1, tl.int32)  # the object at every place
    price = tl.zeros((PLACES,), tl.float64)  # the potential of a place
    worth = tl.zeros((PLACES,), tl.float64)  # the potential of its owner
    for newcomer in range(m):
        if tl.load(valid + image * m + newcomer) != 0:
            length = tl.full((PLACES,), float("inf"), tl.float64)  # of the shortest path to a place
            before = tl.full((PLACES,), -1, tl.int32)  # the object from which that path arrives
            visited = ~is_place
            reached = tl.sum(tl.zeros((PLACES,), tl.float64))  # length of the path to `mover`, and its potential
            potential = reached
            mover = newcomer
            end = -1
            while end < 0:
                at = cost + image * c_b + mover * c_m + place.to(tl.int64) * c_n
                step = tl.load(at, mask=place < n, other=LARGEST).to(tl.float64)
                step = tl.where(tl.abs(step) < LARGEST, step, LARGEST)
                path = reached + step - potential - price
                shorter = (path < length) & ~visited
                length = tl.where(shorter, path, length)
                before = tl.where(shorter, mover, before)
                open_length = tl.where(visited, float("inf"), length)
                nearest = tl.argmin(open_length, axis=0)
                here = place == nearest
                reached = tl.min(open_length, axis=0)
                visited = visited | here
                found = tl.sum(tl.where(here, owner, 0), axis=0)
                potential = tl.sum(tl.where(here, worth, 0.0), axis=0)
                end = tl.where(found < 0, nearest, -1)
                mover = tl.where(found < 0, mover, found)
            change = tl.where(visited & is_place, reached - length, 0.0)
            price -= change
            worth += change
            at_end = end
            arriving = -1
            while arriving != newcomer:
                arriving = tl.sum(tl.where(place == at_end, before, 0), axis=0)
                left = tl.sum(tl.where(object_ == arriving, place_of, 0), axis=0)
                brought = tl.sum(tl.where(place == left, worth, 0.0), axis=0)
                brought = tl.where(arriving == newcomer, reached, brought)
                owner = tl.where(place == at_end, arriving, owner)
                worth = tl.where(place == at_end, brought, worth)
                place_of = tl.where(object_ == arriving, at_end, place_of)
                at_end = left
    result = tl.where(place_of < n, place_of, -1).to(tl.int64)
    tl.store(out + image * m + object_, result, mask=object_ < m)
