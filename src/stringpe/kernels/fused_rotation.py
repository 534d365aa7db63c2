"""The fused rotation: how its work is cut into programs, and the launches. Imports triton."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .kernel_launch import KernelLaunch, blocks, power_of_two
from .rotation_kernels import backward_kernel, forward_kernel
from .row_sums import sum_rows

Sizes = tuple[int, ...]
Layout = tuple[Sizes, Sizes]  # shape and strides of a tensor


class Tile(NamedTuple):
    """What one program does: `steps` times `tokens` by `columns` by `batch` entries, on `warps` warps, with that many
    registers per thread at most. Tokens and `width`, the room for the columns, are powers of two; forward programs have
    one step. With two `stages`, what a step reads goes to shared memory while the one before is computed."""

    tokens: int
    width: int
    columns: int
    batch: int
    warps: int
    steps: int = 1
    stages: int = 1
    registers: int | None = None

    @property
    def options(self) -> dict[str, int | None]:
        return {"num_warps": self.warps, "maxnreg": self.registers}


# Elements of a block (tokens by width), as measured on an H200 (`tests/kernels/tune.py`); programs have one warp.
_ELEMENTS, _ELEMENTS_MANY = 256, 512  # the second: forward, with more than four coordinates
_MANY = 4
_SECTOR = 16  # planes of 32 bytes in half precision, which memory moves at once
_REGISTERS = 128  # of a backward program with up to three coordinates: nothing spills, and there is room for 16 warps
# Programs may grow along the batch or the tokens as long as this many remain: two rounds on 132 multiprocessors with 16
# programs each. Small inputs do better with less than one round, because every program leaves sums to add up.
ENOUGH_PROGRAMS, FEW_PROGRAMS, MOST_ENTRIES, MOST_STEPS = 4096, 1536, 8, 64


@lru_cache(maxsize=1024)
def tile(
    planes: int,
    n: int,
    batch: int,
    heads: int,
    shared: bool,
    coords: int,
    *,
    wide: bool = False,
    backward: bool = False,
) -> Tile:
    """The choice for `heads` key heads of `planes` planes at n tokens with that many coordinates: half as many elements
    if they are `wide`, of 32 bits; fewer tokens where the last block would otherwise hang over the end by more than a
    sixth of all; several entries only if `shared` coordinates give them the same angles, and if enough programs remain;
    several steps in backward, likewise."""
    many = coords > _MANY
    elements = (_ELEMENTS_MANY if many and not backward else _ELEMENTS) // (1 + wide)
    width, columns = _block(heads, planes, _widths(planes, many, backward))
    tokens = min(elements // width, power_of_two(n))
    while tokens > 16 and blocks(n, tokens) * tokens * 6 > n * 7:
        tokens //= 2
    programs = blocks(n, tokens) * blocks(heads * planes, columns) * batch
    entries = min(max(programs // ENOUGH_PROGRAMS, 1), MOST_ENTRIES, batch) if shared else 1
    if not backward:
        return Tile(tokens, width, columns, entries, 1)
    rest = programs // entries
    steps = max(rest // (FEW_PROGRAMS if many or rest < 4 * ENOUGH_PROGRAMS else ENOUGH_PROGRAMS), 1)
    steps = min(1 << (steps.bit_length() - 1), MOST_STEPS)
    stages, registers = (2, None) if many else (1, _REGISTERS if coords <= 3 else None)
    return Tile(tokens, width, columns, entries, 1, steps, stages, registers)


def _widths(planes: int, many: bool, backward: bool) -> tuple[int, ...]:
    """Widths of a block, the best first."""
    if many:
        return (64, 128, 32) if backward and planes >= 64 else (128, 64, 32)
    return (32, 64, 128) if planes <= 16 and not backward else (64, 128, 32)


def _block(heads: int, planes: int, widths: Sequence[int]) -> tuple[int, int]:
    """Width and columns of a block: the first width that wastes a sixteenth at most, or else the one that wastes least.
    Heads that end inside of a sector stay whole where they fit: two programs would both move that sector."""
    columns = dict(zip(widths, widths, strict=True))
    if planes % _SECTOR and planes <= max(widths):
        columns = {w: w // planes * planes for w in widths if w >= planes}
    waste = {w: blocks(heads * planes, c) * w - heads * planes for w, c in columns.items()}
    width = next((w for w in columns if waste[w] * 16 <= heads * planes), min(waste, key=waste.__getitem__))
    return width, columns[width]


def forward(
    q: Tensor,
    k: Tensor | None,
    q_out: Tensor,
    k_out: Tensor | None,
    coords: Tensor,
    frequencies: Tensor,
    groups: int,
    choice: Tile | None = None,
) -> None:
    """Write RoPE(r Θ) q to q_out and RoPE(r Θ) k to k_out, in one launch. `choice` overrides the heuristic."""
    tensors = q, k, q_out, k_out, coords, frequencies
    if q.numel():
        _forward_launch(*map(_layout, tensors), groups, q.itemsize > 2, choice)(*tensors)


@lru_cache(maxsize=1024)
def _forward_launch(
    q: Layout, k: Layout | None, q_out: Layout, k_out: Layout | None, coords: Layout, theta: Layout,
    groups: int, wide: bool, choice: Tile | None,
) -> KernelLaunch:  # fmt: skip
    (batch, _, n, _), (heads, c, planes) = _checked(q, k, coords, theta, groups)
    choice = choice or tile(planes, n, batch, heads, coords[0][0] == 1, c, wide=wide)
    inputs, outputs = [_strides(x) for x in (q, k)], [_strides(x)[:3] for x in (q_out, k_out)]
    unit, strides = _in_units(*inputs, *outputs)
    numbers = *strides, *_strides(coords), batch, n, heads
    sizes = _sizes(theta, groups, unit, choice)
    programs = blocks(heads * planes, choice.columns) * blocks(n, choice.tokens) * blocks(batch, choice.batch)
    return KernelLaunch(forward_kernel, programs, numbers, sizes, choice.options)


def backward(
    grad_q: Tensor,
    grad_k: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    dq: Tensor,
    dk: Tensor | None,
    coords: Tensor,
    frequencies: Tensor,
    groups: int,
    need_coords: bool,
    need_frequencies: bool,
    choice: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """Write the gradients of the inputs to dq and dk, given the outputs q and k of `forward`, and return those of
    coords and frequencies, empty where they are not needed. One launch, and one for the sums of both."""
    d_coords = coords.new_empty(coords.shape if need_coords else 0)
    d_theta = frequencies.new_empty(frequencies.shape if need_frequencies else 0)
    if q.numel() == 0:
        return d_coords.zero_(), d_theta.zero_()
    q, k = _channels_side_by_side(q), None if k is None else _channels_side_by_side(k)
    tensors = grad_q, grad_k, q, k, dq, dk, coords, frequencies
    launch, coord_shape, theta_shape = _backward_launch(
        *map(_layout, tensors), groups, q.itemsize > 2, need_coords, need_frequencies, choice
    )
    coord_sums, theta_sums = _empty(coord_shape, q), _empty(theta_shape, q)
    launch(*tensors, coord_sums, theta_sums)
    sum_rows(coord_sums, d_coords if need_coords else None, theta_sums, d_theta if need_frequencies else None)
    return d_coords, d_theta


@lru_cache(maxsize=1024)
def _backward_launch(
    grad_q: Layout, grad_k: Layout | None, q: Layout, k: Layout | None, dq: Layout, dk: Layout | None,
    coords: Layout, theta: Layout, groups: int, wide: bool,
    need_coords: bool, need_frequencies: bool, choice: Tile | None,
) -> tuple[KernelLaunch, Sizes | None, Sizes | None]:  # fmt: skip
    """The launch, and the shapes of what it leaves to sum over its first dimension."""
    (batch, _, n, _), (heads, c, planes) = _checked(q, k, coords, theta, groups)
    shared = coords[0][0] == 1
    choice = choice or tile(planes, n, batch, heads, shared, c, wide=wide, backward=True)
    gradients, others = [_strides(x) for x in (grad_q, grad_k)], [_strides(x)[:3] for x in (q, k, dq, dk)]
    unit, strides = _in_units(*gradients, *others)
    numbers = *strides, *_strides(coords), batch, n, heads
    sizes = _sizes(theta, groups, unit, choice) | {"STEPS": choice.steps, "STAGES": choice.stages}
    across, chunks = blocks(heads * planes, choice.columns), blocks(batch, choice.batch)
    shares = blocks(blocks(n, choice.tokens) * chunks, choice.steps)
    return (
        KernelLaunch(backward_kernel, across * shares, numbers, sizes, choice.options),
        ((across * chunks, n, c) if shared else (across, chunks, n, c)) if need_coords else None,
        (shares, heads, c, planes) if need_frequencies else None,
    )


def _empty(shape: Sizes | None, like: Tensor) -> Tensor | None:
    return None if shape is None else like.new_empty(shape, dtype=torch.float32)


def _layout(x: Tensor | None) -> Layout | None:
    return None if x is None else (x.shape, x.stride())


def _checked(q: Layout, k: Layout | None, coords: Layout, theta: Layout, groups: int) -> tuple[Sizes, Sizes]:
    """The shapes of q and frequencies, if all go together."""
    (b, h, n, d), (heads, c, planes) = q[0], theta[0]
    assert h == groups * heads, f"{h} heads are not {groups} groups of {heads}"
    assert d == 2 * planes, f"{planes} planes do not make a head of {d}"
    assert k is None or k[0] == (b, heads, n, d), f"k {tuple(k[0])} does not go with q {tuple(q[0])}"
    assert coords[0] in ((b, n, c), (1, n, c)), f"coords {tuple(coords[0])} do not go with q {tuple(q[0])}"
    return q[0], theta[0]


def _sizes(theta: Layout, groups: int, unit: int, choice: Tile) -> dict[str, int]:
    """The constants that both kernels have, in the order of their arguments."""
    (_, c, planes), (t_h, t_c, t_d) = theta
    sizes = {"t_h": t_h, "t_c": t_c, "t_d": t_d, "C": c, "PLANES": planes, "GROUPS": groups, "UNIT": unit}
    return sizes | {"TOKENS": choice.tokens, "WIDTH": choice.width, "COLUMNS": choice.columns, "BATCH": choice.batch}


def _strides(x: Layout | None) -> Sizes:
    """Strides, 0 along dimensions of one element: there they are arbitrary, and would spoil the unit."""
    return (0, 0, 0, 0) if x is None else tuple(0 if size == 1 else s for size, s in zip(*x, strict=True))


def _in_units(*strides: Sizes) -> tuple[int, list[int]]:
    """The largest power of two up to 16 that divides all strides but those between channels, and all strides, these
    divided by it. Triton can tell from it that 16 bytes are aligned, which a stride of 24 does not show."""
    unit = math.gcd(16, *(s for each in strides for s in each[:3]))
    return unit, [s if i == 3 else s // unit for each in strides for i, s in enumerate(each)]


def _channels_side_by_side(y: Tensor) -> Tensor:
    """y, or a copy of it if something (a hook that packs saved tensors) has spread its channels."""
    return y if y.stride(3) == 1 else y.contiguous()
