# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""The fused rotation: its Triton kernels, how the work is cut into programs, and the launches. Imports triton.

The planes of all key heads lie side by side: column j is plane j % PLANES of head j // PLANES. A block is TOKENS tokens
by WIDTH columns, so that it holds several small heads or a part of a large one, and only the last block of columns may
hang over the end. A program turns the keys of its block, and the query heads of their groups, by the same angles; where
the batch shares its coordinates, it does so for several entries. A backward program goes through several blocks of
tokens and adds up what they contribute to the gradient of Θ, so that few partial sums go through memory.

Angles. Σ_k r_k θ_k is formed in float64, in quarter turns (r · 2/π), where subtracting the nearest integer is exact:
what is left, at most 1/2, keeps its precision in float32 whatever the coordinate. Sine and cosine of it are polynomials
and not libdevice's functions: they need no second range reduction, no slow path and no local memory, and their error is
at most 2e-7.
Hopper does float64 at half the rate of float32, and a plane of q and k moves 16 bytes for its c + 3 float64
operations, so that this hides behind memory. The fused multiply-adds are written out because Triton counts operations:
with more of them it would no longer form sine and cosine in the threads that need them, but pass them there through
shared memory. Where angles serve one entry only, its loads come before them in the program, and are on their way while
angles are formed.

Offsets are 64-bit, because one tensor may have more elements than 32 bits count. Strides come in multiples of UNIT,
from which Triton knows how wide it may load. Loops have constant bounds; entries past the end of the batch are masked.
With None in place of a pointer, a kernel is compiled without that part.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, blocks, power_of_two
from .row_sums import sum_rows

QUARTER_TURNS = tl.constexpr(0.6366197723675814)  # 2/π, of a radian
ROUNDER = tl.constexpr(6755399441055744.0)  # 1.5 · 2⁵²: adding it to a float64 leaves an integer in the low bits

Sizes = tuple[int, ...]
Layout = tuple[Sizes, Sizes]  # shape and strides of a tensor


class Tile(NamedTuple):
    """What one program does: `steps` times `tokens` by `width` columns by `batch` entries, on `warps` warps. Tokens and
    width are powers of two, and `steps` is 1 in forward programs."""

    tokens: int
    width: int
    batch: int
    warps: int
    steps: int = 1
    stages: int = 1


# Elements of a block (tokens by columns), warps, and widths of a block, the best first.
_FORWARD, _FORWARD_MANY = (1024, 2, (32, 64, 16)), (512, 1)  # with more than four coordinates
_BACKWARD, _BACKWARD_MANY = (256, 1, (64, 128, 32, 16)), (128, 1)  # one warp sums without waiting for others
# Enough programs for two rounds on 132 multiprocessors with 16 warps each: only then may they grow.
ENOUGH_PROGRAMS, MOST_ENTRIES, MOST_STEPS = 4096, 8, 64


@triton.jit
def sin_cos(coords, theta, row, column, rows, columns, r_c, t_c, C, TOKENS, WIDTH):
    """sin and cos of a = Σ_k r_k θ_k: (TOKENS, WIDTH) in float32. r_0 of a token is at coords + row and θ_0 of a plane
    at theta + column; `rows` and `columns` mask those that exist."""
    return _sin_cos(_vectors(coords + row, rows, r_c, C), _vectors(theta + column, columns, t_c, C), C, TOKENS, WIDTH)


@triton.jit
def _vectors(at, mask, step, C):
    """C vectors, the first of them at `at`."""
    vectors = ()
    for k in tl.static_range(C):
        vectors += (tl.load(at + k * step, mask=mask, other=0.0),)  # type: ignore[assignment]
    return vectors


@triton.jit
def _sin_cos(r, t, C, TOKENS, WIDTH):
    """sin and cos of Σ_k r_k θ_k, given the vectors r_k along tokens and θ_k along columns."""
    turns = tl.zeros((TOKENS, WIDTH), tl.float64)
    for k in tl.static_range(C):
        quarters = r[k].to(tl.float64) * QUARTER_TURNS
        turns = tl.fma(quarters[:, None], t[k].to(tl.float64)[None, :], turns)
    rounded = turns + ROUNDER
    f = (turns - (rounded - ROUNDER)).to(tl.float32)  # in [−1/2, 1/2], of a quarter turn
    quadrant = rounded.to(tl.int64, bitcast=True).to(tl.int32)
    z = f * f
    # sin(π f / 2) and cos(π f / 2): minimax polynomials, off by 2e-9 and 1e-10 before rounding
    sin = f * tl.fma(tl.fma(tl.fma(z, -0.0045923316, 0.07967592), z, -0.64596295), z, 1.5707963)
    cos = tl.fma(tl.fma(tl.fma(tl.fma(z, 0.00090402557, -0.02086029), z, 0.25366923), z, -1.2337005), z, 1.0)
    odd = (quadrant & 1) != 0
    turned_sin, turned_cos = tl.where(odd, cos, sin), tl.where(odd, sin, cos)
    return (
        tl.where((quadrant & 2) != 0, -turned_sin, turned_sin),
        tl.where(((quadrant + 1) & 2) != 0, -turned_cos, turned_cos),
    )


@triton.jit
def _columns(block, heads, PLANES, WIDTH):
    """Head and plane of every column of a block, and which columns exist."""
    column = block * WIDTH + tl.arange(0, WIDTH)
    return (column // PLANES).to(tl.int64), (column % PLANES).to(tl.int64), column < heads * PLANES


@triton.jit
def _tokens(block, n, TOKENS):
    """Of block number `block` along batch and tokens: its chunk of the batch, its tokens, and which of them exist."""
    blocks = tl.cdiv(n, TOKENS)
    token = (block % blocks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    return (block // blocks).to(tl.int64), token, token < n


@triton.jit
def _at(x, entry, head, token, x_b, x_h, x_n, UNIT):
    """Where the first channel of every token and column is."""
    return x + entry * x_b * UNIT + (token * x_n * UNIT)[:, None] + (head * x_h * UNIT)[None, :]


@triton.jit
def _load(x, plane, x_d, mask, PLANES):
    """The two channels of every plane, as they are."""
    x += (plane * x_d)[None, :]
    return tl.load(x, mask=mask, other=0.0), tl.load(x + PLANES * x_d, mask=mask, other=0.0)


@triton.jit
def _turn(y, x, plane, mask, sin, cos, PLANES):
    """Store x turned, in a tensor whose channels are contiguous; rounds to its dtype."""
    first, second = x[0].to(tl.float32), x[1].to(tl.float32)
    y += plane[None, :]
    tl.store(y, first * cos - second * sin, mask=mask)
    tl.store(y + PLANES, first * sin + second * cos, mask=mask)


@triton.jit
def _slope(g, y):
    """g_{j+d/2} y_j − g_j y_{j+d/2}: the derivative by the angle, given the gradient g at y."""
    return g[1].to(tl.float32) * y[0].to(tl.float32) - g[0].to(tl.float32) * y[1].to(tl.float32)


@triton.jit(
    do_not_specialize=[
        "r_b",
        "r_n",
        "batch",
        "n",
        "heads",
        "q_b",
        "q_h",
        "q_n",
        "k_b",
        "k_h",
        "k_n",
        "qo_b",
        "qo_h",
        "qo_n",
        "ko_b",
        "ko_h",
        "ko_n",
    ]
)
def forward_kernel(
    q, k, q_out, k_out, coords, theta,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, qo_b, qo_h, qo_n, ko_b, ko_h, ko_n, r_b, r_n, r_c,
    batch, n, heads,
    t_h: tl.constexpr, t_c: tl.constexpr, t_d: tl.constexpr,
    C: tl.constexpr, PLANES: tl.constexpr, GROUPS: tl.constexpr, UNIT: tl.constexpr,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    """q_out = RoPE(r Θ) q and k_out = RoPE(r Θ) k; see `forward`."""
    across = tl.cdiv(heads * PLANES, WIDTH)  # neighbouring programs have neighbouring heads, as projections leave them
    head, plane, real = _columns(tl.program_id(0) % across, heads, PLANES, WIDTH)
    chunk, token, known = _tokens(tl.program_id(0) // across, n, TOKENS)
    coords += chunk * BATCH * r_b
    row, column = token * r_n, head * t_h + plane * t_d
    if BATCH > 1:
        sin, cos = sin_cos(coords, theta, row, column, known, real, r_c, t_c, C, TOKENS, WIDTH)
    for entry in range(BATCH):
        b = chunk * BATCH + entry
        mask = (known & (b < batch))[:, None] & real[None, :]
        q_pair = _load(_at(q, b, head * GROUPS, token, q_b, q_h, q_n, UNIT), plane, q_d, mask, PLANES)
        if k is not None:
            k_pair = _load(_at(k, b, head, token, k_b, k_h, k_n, UNIT), plane, k_d, mask, PLANES)
        if BATCH == 1:
            sin, cos = sin_cos(coords, theta, row, column, known, real, r_c, t_c, C, TOKENS, WIDTH)
        _turn(_at(q_out, b, head * GROUPS, token, qo_b, qo_h, qo_n, UNIT), q_pair, plane, mask, sin, cos, PLANES)
        if k is not None:
            _turn(_at(k_out, b, head, token, ko_b, ko_h, ko_n, UNIT), k_pair, plane, mask, sin, cos, PLANES)
        for member in range(1, GROUPS):
            i = head * GROUPS + member
            q_pair = _load(_at(q, b, i, token, q_b, q_h, q_n, UNIT), plane, q_d, mask, PLANES)
            _turn(_at(q_out, b, i, token, qo_b, qo_h, qo_n, UNIT), q_pair, plane, mask, sin, cos, PLANES)


@triton.jit(
    do_not_specialize=[
        "r_b",
        "r_n",
        "batch",
        "n",
        "heads",
        "gq_b",
        "gq_h",
        "gq_n",
        "gk_b",
        "gk_h",
        "gk_n",
        "q_b",
        "q_h",
        "q_n",
        "k_b",
        "k_h",
        "k_n",
        "dq_b",
        "dq_h",
        "dq_n",
        "dk_b",
        "dk_h",
        "dk_n",
    ]
)
def backward_kernel(
    grad_q, grad_k, q, k, dq, dk, coords, theta, coord_sums, theta_sums,
    gq_b, gq_h, gq_n, gq_d, gk_b, gk_h, gk_n, gk_d, q_b, q_h, q_n, k_b, k_h, k_n,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n, r_b, r_n, r_c,
    batch, n, heads,
    t_h: tl.constexpr, t_c: tl.constexpr, t_d: tl.constexpr,
    C: tl.constexpr, PLANES: tl.constexpr, GROUPS: tl.constexpr, UNIT: tl.constexpr,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, BATCH: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dq, dk, this program's share of dr in coord_sums (blocks of columns, chunks of the batch, n, c), and of dΘ in
    theta_sums (programs along the tokens, h, c, d/2); see `backward`. q and k are the outputs of `forward`."""
    ANGLES: tl.constexpr = coord_sums is not None or theta_sums is not None
    across, chunks = tl.cdiv(heads * PLANES, WIDTH), tl.cdiv(batch, BATCH)
    position, share = tl.program_id(0) % across, tl.program_id(0) // across
    head, plane, real = _columns(position, heads, PLANES, WIDTH)
    column = head * t_h + plane * t_d
    sums = (tl.zeros((TOKENS, WIDTH), tl.float32),) * C
    for step in tl.range(0, STEPS, num_stages=STAGES):
        chunk, token, known = _tokens(share * STEPS + step, n, TOKENS)
        known = known & (chunk < chunks)
        r = _vectors(coords + chunk * BATCH * r_b + token * r_n, known, r_c, C)
        t = _vectors(theta + column, real, t_c, C)
        if BATCH > 1:
            sin, cos = _sin_cos(r, t, C, TOKENS, WIDTH)
        da = tl.zeros((TOKENS, WIDTH), tl.float32)
        for entry in range(BATCH):
            b = chunk * BATCH + entry
            mask = (known & (b < batch))[:, None] & real[None, :]
            q_pair = _load(_at(grad_q, b, head * GROUPS, token, gq_b, gq_h, gq_n, UNIT), plane, gq_d, mask, PLANES)
            if ANGLES:
                q_was = _load(_at(q, b, head * GROUPS, token, q_b, q_h, q_n, UNIT), plane, 1, mask, PLANES)
            if k is not None:
                k_pair = _load(_at(grad_k, b, head, token, gk_b, gk_h, gk_n, UNIT), plane, gk_d, mask, PLANES)
                if ANGLES:
                    k_was = _load(_at(k, b, head, token, k_b, k_h, k_n, UNIT), plane, 1, mask, PLANES)
            if BATCH == 1:
                sin, cos = _sin_cos(r, t, C, TOKENS, WIDTH)
            _turn(_at(dq, b, head * GROUPS, token, dq_b, dq_h, dq_n, UNIT), q_pair, plane, mask, -sin, cos, PLANES)
            if ANGLES:
                da += _slope(q_pair, q_was)
            if k is not None:
                _turn(_at(dk, b, head, token, dk_b, dk_h, dk_n, UNIT), k_pair, plane, mask, -sin, cos, PLANES)
                if ANGLES:
                    da += _slope(k_pair, k_was)
            for member in range(1, GROUPS):
                i = head * GROUPS + member
                q_pair = _load(_at(grad_q, b, i, token, gq_b, gq_h, gq_n, UNIT), plane, gq_d, mask, PLANES)
                if ANGLES:
                    q_was = _load(_at(q, b, i, token, q_b, q_h, q_n, UNIT), plane, 1, mask, PLANES)
                    da += _slope(q_pair, q_was)
                _turn(_at(dq, b, i, token, dq_b, dq_h, dq_n, UNIT), q_pair, plane, mask, -sin, cos, PLANES)
        if coord_sums is not None:
            at = coord_sums + ((position * chunks + chunk) * n + token) * C
            for i in tl.static_range(C):
                tl.store(at + i, tl.sum(da * t[i].to(tl.float32)[None, :], axis=1), mask=known)
        if theta_sums is not None:
            new = ()
            for i in tl.static_range(C):
                new += (sums[i] + da * r[i].to(tl.float32)[:, None],)  # type: ignore[assignment]
            sums = new
    if theta_sums is not None:
        at = theta_sums + share.to(tl.int64) * (heads * C * PLANES) + head * (C * PLANES) + plane
        for i in tl.static_range(C):
            tl.store(at + i * PLANES, tl.sum(sums[i], axis=0), mask=real)


@lru_cache(maxsize=1024)
def tile(planes: int, n: int, batch: int, heads: int, shared: bool, coords: int, *, backward: bool = False) -> Tile:
    """The choice for `heads` key heads of `planes` planes at n tokens with that many coordinates: fewer tokens where
    the last block would otherwise hang over the end by more than a sixth of all; several entries only if `shared`
    coordinates give them the same angles, and if enough programs remain; several steps in backward, likewise."""
    elements, warps, widths = _BACKWARD if backward else _FORWARD
    if coords > 4:
        elements, warps = _BACKWARD_MANY if backward else _FORWARD_MANY
    width = _width(heads * planes, widths)
    tokens = min(elements // width, power_of_two(n))
    while tokens > 16 and blocks(n, tokens) * tokens * 6 > n * 7:
        tokens //= 2
    programs = blocks(n, tokens) * blocks(heads * planes, width) * batch
    entries = min(max(programs // ENOUGH_PROGRAMS, 1), MOST_ENTRIES, batch) if shared else 1
    steps = max(programs // entries // ENOUGH_PROGRAMS, 1) if backward else 1
    return Tile(tokens, width, entries, warps, min(1 << (steps.bit_length() - 1), MOST_STEPS))


def _width(columns: int, widths: Sequence[int]) -> int:
    """The first of these widths whose blocks hang over the last column by a sixteenth of all at most, or else the one
    that does so least."""
    waste = {width: blocks(columns, width) * width - columns for width in widths}
    return next((width for width in widths if waste[width] * 16 <= columns), min(widths, key=waste.__getitem__))


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
        _forward_launch(*map(_layout, tensors), groups, choice)(*tensors)


@lru_cache(maxsize=1024)
def _forward_launch(
    q: Layout, k: Layout | None, q_out: Layout, k_out: Layout | None, coords: Layout, theta: Layout,
    groups: int, choice: Tile | None,
) -> Launch:  # fmt: skip
    (batch, _, n, _), (heads, c, planes) = _checked(q, k, coords, theta, groups)
    choice = choice or tile(planes, n, batch, heads, coords[0][0] == 1, c)
    inputs, outputs = [_strides(x) for x in (q, k)], [_strides(x)[:3] for x in (q_out, k_out)]
    unit, strides = _in_units(*inputs, *outputs)
    numbers = *strides, *_strides(coords), batch, n, heads
    sizes = _sizes(theta, groups, unit, choice)
    programs = blocks(heads * planes, choice.width) * blocks(n, choice.tokens) * blocks(batch, choice.batch)
    return Launch(forward_kernel, programs, numbers, sizes, choice.warps)


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
        *map(_layout, tensors), groups, need_coords, need_frequencies, choice
    )
    coord_sums, theta_sums = _empty(coord_shape, q), _empty(theta_shape, q)
    launch(*tensors, coord_sums, theta_sums)
    sum_rows(coord_sums, d_coords if need_coords else None, theta_sums, d_theta if need_frequencies else None)
    return d_coords, d_theta


@lru_cache(maxsize=1024)
def _backward_launch(
    grad_q: Layout, grad_k: Layout | None, q: Layout, k: Layout | None, dq: Layout, dk: Layout | None,
    coords: Layout, theta: Layout, groups: int, need_coords: bool, need_frequencies: bool, choice: Tile | None,
) -> tuple[Launch, Sizes | None, Sizes | None]:  # fmt: skip
    """The launch, and the shapes of what it leaves to sum over its first dimension."""
    (batch, _, n, _), (heads, c, planes) = _checked(q, k, coords, theta, groups)
    shared = coords[0][0] == 1
    choice = choice or tile(planes, n, batch, heads, shared, c, backward=True)
    gradients, others = [_strides(x) for x in (grad_q, grad_k)], [_strides(x)[:3] for x in (q, k, dq, dk)]
    unit, strides = _in_units(*gradients, *others)
    numbers = *strides, *_strides(coords), batch, n, heads
    sizes = _sizes(theta, groups, unit, choice) | {"STEPS": choice.steps, "STAGES": choice.stages}
    across, chunks = blocks(heads * planes, choice.width), blocks(batch, choice.batch)
    shares = blocks(blocks(n, choice.tokens) * chunks, choice.steps)
    return (
        Launch(backward_kernel, across * shares, numbers, sizes, choice.warps),
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
    return sizes | {"TOKENS": choice.tokens, "WIDTH": choice.width, "BATCH": choice.batch}


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
