"""How the fused rotation is cut into programs, and its two launches. Imports triton.

A program owns one key head, a block of tokens, and, where the batch shares its coordinates, several batch entries. It
forms its angles once and turns the key head and the query heads of its group with them.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import fused


class Tile(NamedTuple):
    """What one program does: `tokens` (a power of two) by `batch` entries, on `warps` warps."""

    tokens: int
    batch: int
    warps: int


# A program's planes, of one head and entry, and a thread's. Eight in a row are one 16-byte access in bfloat16.
FORWARD_PLANES, BACKWARD_PLANES, THREAD_PLANES = 2048, 1024, 16
# Enough programs for four rounds on 132 multiprocessors that hold eight each: only then may they grow along the batch.
ENOUGH_PROGRAMS, MOST_ENTRIES = 4096, 8


def tile(planes: int, n: int, batch: int, heads: int, shared: bool, program_planes: int) -> Tile:
    """The heuristic choice for `heads` key heads of `planes` planes: 16 to 64 tokens, as `program_planes` allow; fewer
    tokens where the last block would otherwise hang over the end by more than a sixth of all; several entries only if
    `shared` coordinates give them the same angles, and if enough programs remain."""
    width = _power_of_two(planes)
    tokens = min(max(program_planes // width, 16), _power_of_two(n), 64)
    while tokens > 16 and _blocks(n, tokens) * tokens * 6 > n * 7:
        tokens //= 2
    # More threads than rows or columns: else Triton shares out the loads of coords and frequencies among the threads,
    # and with them the angles, which then have to reach their planes through shared memory.
    warps = 1
    while 32 * warps <= max(tokens, width) or THREAD_PLANES * 32 * warps < tokens * width:
        warps *= 2
    programs = _blocks(n, tokens) * heads * batch
    entries = min(max(programs // ENOUGH_PROGRAMS, 1), MOST_ENTRIES, batch) if shared else 1
    return Tile(tokens, entries, warps)


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
    _check(q, k, coords, frequencies, groups)
    batch, _, n, _ = q.shape
    heads, c, planes = frequencies.shape
    if q.numel() == 0:
        return
    choice = choice or tile(planes, n, batch, heads, coords.shape[0] == 1, FORWARD_PLANES)
    with torch.cuda.device_of(q):
        fused.forward[(heads * _blocks(n, choice.tokens) * _blocks(batch, choice.batch),)](
            q, k, q_out, k_out, coords, frequencies,
            *_strides(q), *_strides(k), *_strides(q_out)[:3], *_strides(k_out)[:3],
            *_strides(coords), *frequencies.stride(),
            batch, n, heads,
            C=c, PLANES=planes, GROUPS=groups,
            BATCH=choice.batch, TOKENS=choice.tokens, WIDTH=_power_of_two(planes), num_warps=choice.warps,
        )  # fmt: skip


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
    """Write the gradients of the inputs to dq and dk, given the outputs q and k of forward, and return those of coords
    and frequencies, empty where they are not needed. One launch, and one sum for each of the two."""
    _check(q, k, coords, frequencies, groups)
    batch, _, n, _ = q.shape
    heads, c, planes = frequencies.shape
    if q.numel() == 0:
        return (
            coords.new_zeros(coords.shape if need_coords else 0),
            frequencies.new_zeros(frequencies.shape if need_frequencies else 0),
        )
    q, k = _channels_side_by_side(q), None if k is None else _channels_side_by_side(k)
    choice = choice or tile(planes, n, batch, heads, coords.shape[0] == 1, BACKWARD_PLANES)
    blocks, chunks = _blocks(n, choice.tokens), _blocks(batch, choice.batch)
    empty = partial(torch.empty, dtype=torch.float32, device=q.device)
    coord_sums = empty((heads, chunks, n, c)) if need_coords else None
    theta_sums = empty((chunks * blocks, heads, c, planes)) if need_frequencies else None
    with torch.cuda.device_of(q):
        fused.backward[(heads * blocks * chunks,)](
            grad_q, grad_k, q, k, dq, dk, coords, frequencies, coord_sums, theta_sums,
            *_strides(grad_q), *_strides(grad_k), *_strides(q)[:3], *_strides(k)[:3],
            *_strides(dq)[:3], *_strides(dk)[:3],
            *_strides(coords), *frequencies.stride(),
            batch, n, heads,
            C=c, PLANES=planes, GROUPS=groups,
            BATCH=choice.batch, TOKENS=choice.tokens, WIDTH=_power_of_two(planes), num_warps=choice.warps,
        )  # fmt: skip
    if coord_sums is None:
        d_coords = coords.new_empty(0)
    else:
        d_coords = (coord_sums.sum((0, 1))[None] if coords.shape[0] == 1 else coord_sums.sum(0)).to(coords.dtype)
    d_theta = frequencies.new_empty(0) if theta_sums is None else theta_sums.sum(0).to(frequencies.dtype)
    return d_coords, d_theta


def _check(q: Tensor, k: Tensor | None, coords: Tensor, frequencies: Tensor, groups: int) -> None:
    (b, h, n, d), (heads, c, planes) = q.shape, frequencies.shape
    assert h == groups * heads, f"{h} heads are not {groups} groups of {heads}"
    assert d == 2 * planes, f"{planes} planes do not make a head of {d}"
    assert k is None or k.shape == (b, heads, n, d), f"k {tuple(k.shape)} does not go with q {tuple(q.shape)}"
    assert coords.shape in ((b, n, c), (1, n, c)), f"coords {tuple(coords.shape)} do not go with q {tuple(q.shape)}"


def _strides(x: Tensor | None) -> tuple[int, ...]:
    """The strides of x, 0 along dimensions of one element: theirs is arbitrary, and if 1, triton would read it as an
    unaligned tensor."""
    if x is None:
        return (0, 0, 0, 0)
    strides = x.stride()
    if 1 not in x.shape:  # a third of the time, and there are eight of these in a backward
        return strides
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape, strides, strict=True))


def _channels_side_by_side(y: Tensor) -> Tensor:
    """y, or a copy of it if something (a hook that packs saved tensors) has spread its channels."""
    return y if y.stride(3) == 1 else y.contiguous()


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _power_of_two(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << (n - 1).bit_length()
