"""Attack `box3d.iou` with pairs of boxes of every kind, against a truth that shares no code or idea with it.

    python tests/geometry/attack_box3d.py --pairs 1000000 --seed 0

prints one line per kind of pair and dtype (pairs, largest error, largest asymmetry) and fails if an error exceeds 1e-6
in float64 or 1e-4 in float32, if iou(a, b) and iou(b, a) differ by more than that, or if a value leaves [0, 1].
`test_box3d.py` runs a few thousand pairs of the same kinds.

The truth: box a is cut into six tetrahedra, and these are cut by the six planes of b, one after the other, into
tetrahedra again, in numpy's long double (64 bits of mantissa on x86). Every tetrahedron is cut by itself and volumes
are unsigned, so there is no shared topology that could become inconsistent. Rotations come from the raw columns by Gram
and Schmidt in long double.
"""

import argparse
import itertools
import sys
import time

import numpy as np
import torch

from stringpe import box3d

LIMIT = {torch.float64: 1e-6, torch.float32: 1e-4}
_PARTS = 6


def true_iou(a, b):
    """IoU (n,) of boxes (n, 12), in long double."""
    a, b = np.asarray(a, dtype=np.longdouble), np.asarray(b, dtype=np.longdouble)
    va, vb = a[:, 9:].prod(1), b[:, 9:].prod(1)
    shared = true_intersection(a, b)
    return shared / (va + vb - shared)


def true_intersection(a, b):
    frame_a, frame_b = _frames(a), _frames(b)
    path = [np.cumsum([[0, 0, 0], *np.eye(3)[list(p)]], axis=0) for p in itertools.permutations(range(3))]
    local = (np.array(path, dtype=np.longdouble) - 0.5)[None] * a[:, None, None, 9:]  # (n, 6, 4, 3)
    world = np.einsum("nij,npvj->npvi", frame_a, local) + (a[:, :3] - b[:, :3])[:, None, None]
    tetra, owner = world.reshape(-1, 4, 3), np.repeat(np.arange(len(a)), _PARTS)
    for axis in range(3):
        for sign in (1, -1):
            normal, room = sign * frame_b[:, :, axis], b[:, 9 + axis] / 2
            tetra, owner = _clip(tetra, owner, normal, room)
    edges = tetra[:, 1:] - tetra[:, :1]
    volume = np.abs((np.cross(edges[:, 0], edges[:, 1]) * edges[:, 2]).sum(-1)) / 6
    total = np.zeros(len(a), dtype=np.longdouble)
    np.add.at(total, owner, volume)
    return total


def _frames(box):
    x = box[:, 3:6] / np.sqrt((box[:, 3:6] ** 2).sum(1, keepdims=True))
    y = box[:, 6:9]
    for _ in range(2):
        y = y - (x * y).sum(1, keepdims=True) * x
        y = y / np.sqrt((y**2).sum(1, keepdims=True))
    return np.stack([x, y, np.cross(x, y)], axis=2)


def _clip(tetra, owner, normal, room):
    """The part of tetrahedra (m, 4, 3) with normal · x ≤ room of their owner, as tetrahedra."""
    inside = room[owner, None] - (tetra * normal[owner, None]).sum(-1)  # (m, 4)
    order = np.argsort(-inside, axis=1)
    tetra = np.take_along_axis(tetra, order[..., None], 1)
    inside = np.take_along_axis(inside, order, 1)
    count = (inside >= 0).sum(1)
    done, owners = [tetra[count == 4]], [owner[count == 4]]

    def cross(rows, i, j):
        p, q, d, e = tetra[rows, i], tetra[rows, j], inside[rows, i, None], inside[rows, j, None]
        return p + (q - p) * (d / (d - e))

    def keep(rows, *corners):
        done.append(np.stack(corners, axis=1))
        owners.append(owner[rows])

    one = np.flatnonzero(count == 1)
    keep(one, tetra[one, 0], *(cross(one, 0, j) for j in (1, 2, 3)))
    two = np.flatnonzero(count == 2)
    wedge = [tetra[two, 0], cross(two, 0, 2), cross(two, 0, 3), tetra[two, 1], cross(two, 1, 2), cross(two, 1, 3)]
    three = np.flatnonzero(count == 3)
    trunk = [*(tetra[three, i] for i in range(3)), *(cross(three, i, 3) for i in range(3))]
    for rows, prism in ((two, wedge), (three, trunk)):
        for first in range(3):
            keep(rows, *prism[first : first + 4])
    return np.concatenate(done), np.concatenate(owners)


def _turns(random, count):
    q, _ = np.linalg.qr(random.standard_normal((count, 3, 3)))
    return q * np.sign(np.linalg.det(q))[:, None, None]


def _about(axis, angle):
    """Rotations (n, 3, 3) about the coordinate axes `axis` (n,) by `angle` (n,)."""
    turn, row = np.zeros((len(angle), 3, 3)), np.arange(len(angle))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    turn[row, axis, axis] = 1
    turn[row, i, i], turn[row, j, j] = np.cos(angle), np.cos(angle)
    turn[row, i, j], turn[row, j, i] = -np.sin(angle), np.sin(angle)
    return turn


def _boxes(centre, frame, size):
    return np.concatenate([centre, frame[:, :, 0], frame[:, :, 1], size], axis=1)


def _relabel(frame, size, order):
    """The same boxes with their axes in another cyclic order, order (n,) steps on."""
    index = (np.arange(3) + order[:, None]) % 3
    return np.take_along_axis(frame, index[:, None], 2), np.take_along_axis(size, index, 1)


def _flush(random, size_a, size_b, planes):
    """Centres of b in the frame of a, where `planes` (n, 3) says on which axes two of their faces share a plane."""
    at = random.uniform(-0.4, 0.4, size_a.shape) * (size_a + size_b)
    side, inner = random.choice([-1, 1], (2, *size_a.shape))
    return np.where(planes, side * (size_a + inner * size_b) / 2, at)


def make_pairs(kind, count, random, wide):
    """Boxes a and b (count, 12) of one kind, float64. wide: offsets and ratios that need float64."""
    frame, other = _turns(random, count), _turns(random, count)
    size_a, size_b = random.uniform(0.1, 1.1, (2, count, 3))
    centre, at = random.standard_normal((2, count, 3)) * [[[2.0]], [[0.3]]]  # of a; of b, in the frame of a
    axis, order = random.integers(0, 3, (2, count))
    tilt = 10.0 ** random.uniform(-12 if wide else -8, -3, count)
    if kind == "coplanar":
        other, at = frame, _flush(random, size_a, size_b, random.random((count, 3)) < 0.5)
    elif kind == "coplanar, turned":
        other = frame @ _about(axis, random.uniform(0, 2 * np.pi, count))
        at = _flush(random, size_a, size_b, np.arange(3) == axis[:, None])
    elif kind == "tilted":
        spin = random.choice([0.0, 0.5, np.pi / 2], count)
        other = frame @ _about(axis, spin) @ _about((axis + random.integers(1, 3, count)) % 3, tilt)
        at = _flush(random, size_a, size_b, random.random((count, 3)) < 0.5)
    elif kind == "nested":
        size_b = size_a * random.choice([0.1, 0.5, 0.999999, 1.0], (count, 3))
        other, at = frame, (size_a - size_b) / 2 * random.choice([-1, 0, 1], (count, 3))
    elif kind == "thin":
        size_a, size_b = 10.0 ** random.uniform(-6 if wide else -3, 0, (2, count, 3))
        some = random.random(count) < 0.5
        other = np.where(some[:, None, None], frame @ _about(axis, tilt), other)
        at = at * np.where(some, 0.1 * size_a.min(1), 0.1)[:, None]
    elif kind == "touching":
        touching = np.arange(3) < random.integers(1, 4, (count, 1))
        at = (size_a + size_b) / 2 * np.where(touching, random.choice([-1, 1], (count, 3)), random.uniform(-1, 1))
        other = frame
    elif kind == "far away":
        centre = centre * 10.0 ** random.uniform(1, 8 if wide else 3, (count, 1))
    elif kind == "unequal":
        size_b = size_a * 10.0 ** random.uniform(-3, 3, (count, 1))
        at = at * np.maximum(size_a.max(1), size_b.max(1))[:, None]
    elif kind == "identical":
        other, size_b, at = frame, size_a, np.zeros((count, 3))
    other, size_b = _relabel(other, size_b, order)
    return _boxes(centre, frame, size_a), _boxes(centre + np.einsum("nij,nj->ni", frame, at), other, size_b)


KINDS = (
    *("random", "coplanar", "coplanar, turned", "tilted", "nested"),
    *("thin", "touching", "far away", "unequal", "identical"),
)


def attack(kind, dtype, count, seed):
    """Largest error, and largest difference between iou(a, b) and iou(b, a), over pairs of one kind."""
    random = np.random.default_rng([seed, KINDS.index(kind), dtype == torch.float32])
    a, b = (torch.tensor(x).to(dtype) for x in make_pairs(kind, count, random, dtype == torch.float64))
    truth = torch.tensor(true_iou(a.double().numpy(), b.double().numpy()).astype(np.float64))
    found, swapped = box3d.iou(a, b).double(), box3d.iou(b, a).double()
    assert ((found >= 0) & (found <= 1)).all(), f"{kind}: outside [0, 1]"
    return (found - truth).abs().max().item(), (found - swapped).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description="Attack box3d.iou with pairs of boxes of every kind.")
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs in all, over kinds and both dtypes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=2_000, help="pairs at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    each = -(-options.pairs // (2 * len(KINDS)))
    start, total, wrong = time.perf_counter(), 0, []
    for kind, dtype in itertools.product(KINDS, LIMIT):
        worst, uneven = 0.0, 0.0
        for first in range(0, each, options.chunk):
            error, gap = attack(kind, dtype, min(options.chunk, each - first), options.seed * 10_000_019 + first)
            worst, uneven = max(worst, error), max(uneven, gap)
        total += each
        ok = max(worst, uneven) <= LIMIT[dtype]
        wrong += [] if ok else [f"{kind}, {dtype}"]
        print(f"{kind:18} {str(dtype)[6:]:8} {each:9,} pairs  error {worst:.1e}  asymmetry {uneven:.1e}", flush=True)
    print(f"{total:,} pairs in {time.perf_counter() - start:.0f} s; {len(wrong)} kinds beyond the limits {wrong or ''}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
