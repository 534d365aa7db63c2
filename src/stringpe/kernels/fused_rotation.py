# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""The fused rotation: its Triton kernels, how the work is cut into programs, and the launches. Imports triton.

A program works on one key head, a block of tokens, and, where the batch shares its coordinates, several batch entries.
It forms its angles once and turns the key head and the query heads of its group with them. Its blocks are (TOKENS,
WIDTH): some tokens by all planes of a head, padded to a power of two.

Angles. Σ_k r_k θ_k is formed in float64, in quarter turns (θ · 2/π), where subtracting the nearest integer is exact:
what is left, at most 1/2, keeps its precision in float32 whatever the coordinate. Sine and cosine of it are polynomials
and not libdevice's functions: they need no second range reduction, no slow path and no local memory, and their error is
at most 2e-7.
Hopper does float64 at half the rate of float32, and a plane of q and k moves 16 bytes for its c + 3 float64
operations, so that this hides behind memory. The fused multiply-adds are written out because Triton counts operations:
with more of them it would no longer form sine and cosine in the threads that need them, but pass them there through
shared memory.

Offsets are 64-bit, because the indices that `_place` returns are. Loops have constant bounds; entries past the end of
the batch are masked. With None in place of a pointer, a kernel is compiled without that part.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

QUARTER_TURNS = tl.constexpr(0.6366197723675814)  # 2/π, of a radian
ROUNDER = tl.constexpr(6755399441055744.0)  # 1.5 · 2⁵²: adding it to a float64 leaves an integer in the low bits


class Tile(NamedTuple):
    """What one program does: `tokens` (a power of two) by `batch` entries, on `warps` warps."""

    tokens: int
    batch: int
    warps: int


# Tokens and warps of a forward program by the width of a block, measured on an H200 (`tests/kernels/tune.py`).
_FORWARD = {8: (16, 1), 16: (16, 1), 32: (32, 2), 64: (32, 4)}
_FORWARD_MANY = _FORWARD | {32: (64, 2), 64: (4, 1)}  # with more than four coordinates
_WIDE = (4, 1)  # wider than all of these
_BACKWARD_PLANES, _BACKWARD_TOKENS = 512, 16  # of a backward program, at most, on one warp: it sums without others
_SUM_ROWS, _SUM_COLUMNS = 64, 32  # of a program that sums what backward programs leave
_SHORT = 4096  # rows; taller tables are left to torch's reduction, which splits them (the limit is not measured)
# Enough programs for four rounds on 132 multiprocessors that hold eight each: only then may they grow along the batch.
ENOUGH_PROGRAMS, MOST_ENTRIES = 4096, 8


@triton.jit
def sin_cos(coords, theta, row, column, rows, columns, r_c, t_c, C, TOKENS, WIDTH):
    """sin and cos of a = Σ_k r_k θ_k: (TOKENS, WIDTH) in float32. r_0 of a token is at coords + row and θ_0 of a plane
    at theta + column; `rows` and `columns` mask those that exist."""
    turns = tl.zeros((TOKENS, WIDTH), tl.float64)
    for k in tl.static_range(C):
        r = tl.load(coords + row + k * r_c, mask=rows, other=0.0).to(tl.float64)
        t = tl.load(theta + column + k * t_c, mask=columns, other=0.0).to(tl.float64) * QUARTER_TURNS
        turns = tl.fma(r[:, None], t[None, :], turns)
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
def _load(x, x_n, x_d, token, plane, mask, PLANES):
    """The two channels of every plane of one head, in float32."""
    x += token[:, None] * x_n
    first = tl.load(x + plane[None, :] * x_d, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + (plane + PLANES)[None, :] * x_d, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _store(y, y_n, token, plane, mask, first, second, PLANES):
    """Their inverse, for a tensor whose channels are contiguous; rounds to its dtype."""
    y += token[:, None] * y_n + plane[None, :]
    tl.store(y, first, mask=mask)
    tl.store(y + PLANES, second, mask=mask)


@triton.jit
def _turn_back(g, y, dx, g_n, g_d, y_n, dx_n, token, plane, mask, sin, cos, da, ANGLES, PLANES):
    """dx = RoPE(−a) g for one head; returns da with g_{j+d/2} y_j − g_j y_{j+d/2} added if ANGLES."""
    g_first, g_second = _load(g, g_n, g_d, token, plane, mask, PLANES)
    if ANGLES:
        y_first, y_second = _load(y, y_n, 1, token, plane, mask, PLANES)
        da += g_second * y_first - g_first * y_second
    dx_first, dx_second = g_first * cos + g_second * sin, g_second * cos - g_first * sin
    _store(dx, dx_n, token, plane, mask, dx_first, dx_second, PLANES)
    return da


@triton.jit
def _place(n, heads, PLANES, TOKENS, WIDTH):
    """What this program works on: a head, a block of tokens and a chunk of the batch; then the tokens and planes of its
    block and which of them exist. Neighbouring programs have neighbouring heads, as a packed projection has."""
    program = tl.program_id(0)
    blocks = tl.cdiv(n, TOKENS)
    head = (program % heads).to(tl.int64)
    block = (program // heads % blocks).to(tl.int64)
    chunk = (program // heads // blocks).to(tl.int64)
    token, plane = block * TOKENS + tl.arange(0, TOKENS), tl.arange(0, WIDTH).to(tl.int64)
    return head, block, chunk, token, plane, (token < n)[:, None] & (plane < PLANES)[None, :]


@triton.jit(do_not_specialize=["batch", "n", "heads"])
def forward_kernel(
    q, k, q_out, k_out, coords, theta,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d,
    qo_b, qo_h, qo_n, ko_b, ko_h, ko_n,
    r_b, r_n, r_c, t_h, t_c, t_d,
    batch, n, heads,
    C: tl.constexpr, PLANES: tl.constexpr, GROUPS: tl.constexpr,
    BATCH: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """q_out = RoPE(r Θ) q and k_out = RoPE(r Θ) k; see `forward`."""
    head, _, chunk, token, plane, inside = _place(n, heads, PLANES, TOKENS, WIDTH)
    coords += chunk * BATCH * r_b
    theta += head * t_h
    known, real = token < n, plane < PLANES
    sin, cos = sin_cos(coords, theta, token * r_n, plane * t_d, known, real, r_c, t_c, C, TOKENS, WIDTH)
    for entry in range(BATCH):
        b = chunk * BATCH + entry
        mask = inside & (b < batch)
        if k is not None:  # loaded before and stored after q, to have more bytes on their way
            k1, k2 = _load(k + b * k_b + head * k_h, k_n, k_d, token, plane, mask, PLANES)
        for member in range(GROUPS):
            i = head * GROUPS + member
            q1, q2 = _load(q + b * q_b + i * q_h, q_n, q_d, token, plane, mask, PLANES)
            at = q_out + b * qo_b + i * qo_h
            _store(at, qo_n, token, plane, mask, q1 * cos - q2 * sin, q1 * sin + q2 * cos, PLANES)
        if k is not None:
            at = k_out + b * ko_b + head * ko_h
            _store(at, ko_n, token, plane, mask, k1 * cos - k2 * sin, k1 * sin + k2 * cos, PLANES)


@triton.jit(do_not_specialize=["batch", "n", "heads"])
def backward_kernel(
    grad_q, grad_k, q, k, dq, dk, coords, theta, coord_sums, theta_sums,
    gq_b, gq_h, gq_n, gq_d, gk_b, gk_h, gk_n, gk_d,
    q_b, q_h, q_n, k_b, k_h, k_n,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n,
    r_b, r_n, r_c, t_h, t_c, t_d,
    batch, n, heads,
    C: tl.constexpr, PLANES: tl.constexpr, GROUPS: tl.constexpr,
    BATCH: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dq, dk, and this program's share of dr in coord_sums (h, chunks, n, c) and of dΘ in theta_sums (chunks · blocks,
    h, c, d/2); see `backward`. q and k are the outputs of `forward`."""
    ANGLES: tl.constexpr = coord_sums is not None or theta_sums is not None
    head, block, chunk, token, plane, inside = _place(n, heads, PLANES, TOKENS, WIDTH)
    coords += chunk * BATCH * r_b
    theta += head * t_h
    known, real = token < n, plane < PLANES
    sin, cos = sin_cos(coords, theta, token * r_n, plane * t_d, known, real, r_c, t_c, C, TOKENS, WIDTH)
    da = tl.zeros((TOKENS, WIDTH), tl.float32)
    for entry in range(BATCH):
        b = chunk * BATCH + entry
        mask = inside & (b < batch)
        if k is not None:
            g_at, at, to = grad_k + b * gk_b + head * gk_h, k + b * k_b + head * k_h, dk + b * dk_b + head * dk_h
            da = _turn_back(g_at, at, to, gk_n, gk_d, k_n, dk_n, token, plane, mask, sin, cos, da, ANGLES, PLANES)
        for member in range(GROUPS):
            i = head * GROUPS + member
            g_at, at, to = grad_q + b * gq_b + i * gq_h, q + b * q_b + i * q_h, dq + b * dq_b + i * dq_h
            da = _turn_back(g_at, at, to, gq_n, gq_d, q_n, dq_n, token, plane, mask, sin, cos, da, ANGLES, PLANES)
    if coord_sums is not None:
        coord_sums += ((head * tl.cdiv(batch, BATCH) + chunk) * n + token) * C
        for i in tl.static_range(C):
            t = tl.load(theta + i * t_c + plane * t_d, mask=plane < PLANES, other=0.0).to(tl.float32)
            tl.store(coord_sums + i, tl.sum(da * t[None, :], axis=1), mask=token < n)
    if theta_sums is not None:
        theta_sums += ((chunk * tl.cdiv(n, TOKENS) + block) * heads + head) * (C * PLANES) + plane
        for i in tl.static_range(C):
            r = tl.load(coords + token * r_n + i * r_c, mask=token < n, other=0.0).to(tl.float32)
            tl.store(theta_sums + i * PLANES, tl.sum(da * r[:, None], axis=0), mask=plane < PLANES)


@triton.jit(do_not_specialize=["rows"])
def sum_kernel(x, out, rows, columns, STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out = Σ_rows x (rows, columns), for COLUMNS columns, in an order that is always the same. STEPS · ROWS ≥ rows."""
    row, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(STEPS):
        at = (step * ROWS + row).to(tl.int64)
        mask = (at < rows)[:, None] & (column < columns)[None, :]
        total += tl.load(x + at[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < columns)


@lru_cache(maxsize=1024)
def tile(planes: int, n: int, batch: int, heads: int, shared: bool, coords: int, *, backward: bool = False) -> Tile:
    """The choice for `heads` key heads of `planes` planes at n tokens with that many coordinates: fewer tokens where
    the last block would otherwise hang over the end by more than a sixth of all; several entries only if `shared`
    coordinates give them the same angles, and if enough programs remain."""
    width = _power_of_two(planes)
    if backward:
        tokens, warps = min(max(_BACKWARD_PLANES // width, 1), _BACKWARD_TOKENS), 1
    else:
        tokens, warps = (_FORWARD if coords <= 4 else _FORWARD_MANY).get(max(width, 8), _WIDE)
    tokens = min(tokens, _power_of_two(n))
    while tokens > 16 and _blocks(n, tokens) * tokens * 6 > n * 7:
        tokens //= 2
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
    choice = choice or tile(planes, n, batch, heads, coords.shape[0] == 1, c)
    with torch.cuda.device_of(q):
        forward_kernel[(heads * _blocks(n, choice.tokens) * _blocks(batch, choice.batch),)](
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
    """Write the gradients of the inputs to dq and dk, given the outputs q and k of `forward`, and return those of
    coords and frequencies, empty where they are not needed. One launch, and one sum for each of the two."""
    _check(q, k, coords, frequencies, groups)
    batch, _, n, _ = q.shape
    heads, c, planes = frequencies.shape
    if q.numel() == 0:
        return (
            coords.new_zeros(coords.shape if need_coords else 0),
            frequencies.new_zeros(frequencies.shape if need_frequencies else 0),
        )
    q, k = _channels_side_by_side(q), None if k is None else _channels_side_by_side(k)
    choice = choice or tile(planes, n, batch, heads, coords.shape[0] == 1, c, backward=True)
    blocks, chunks = _blocks(n, choice.tokens), _blocks(batch, choice.batch)
    empty = partial(torch.empty, dtype=torch.float32, device=q.device)
    coord_sums = empty((heads, chunks, n, c)) if need_coords else None
    theta_sums = empty((chunks * blocks, heads, c, planes)) if need_frequencies else None
    with torch.cuda.device_of(q):
        backward_kernel[(heads * blocks * chunks,)](
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
    d_theta = frequencies.new_empty(0) if theta_sums is None else sum_rows(theta_sums).to(frequencies.dtype)
    return d_coords, d_theta


def sum_rows(x: Tensor) -> Tensor:
    """Σ_i x[i] of a contiguous float32 tensor (rows, …). Torch takes 42 µs on an H200 for the 1,024 rows of 256 that a
    small ViT leaves, and clears a buffer before it."""
    rows, columns = len(x), x[0].numel()
    if rows > _SHORT:
        return x.sum(0)
    out = torch.empty(x.shape[1:], dtype=x.dtype, device=x.device)
    steps = _power_of_two(_blocks(rows, _SUM_ROWS))
    with torch.cuda.device_of(x):
        sum_kernel[(_blocks(columns, _SUM_COLUMNS),)](
            x, out, rows, columns, STEPS=steps, ROWS=_SUM_ROWS, COLUMNS=_SUM_COLUMNS
        )
    return out


def _check(q: Tensor, k: Tensor | None, coords: Tensor, frequencies: Tensor, groups: int) -> None:
    (b, h, n, d), (heads, c, planes) = q.shape, frequencies.shape
    assert h == groups * heads, f"{h} heads are not {groups} groups of {heads}"
    assert d == 2 * planes, f"{planes} planes do not make a head of {d}"
    assert k is None or k.shape == (b, heads, n, d), f"k {tuple(k.shape)} does not go with q {tuple(q.shape)}"
    assert coords.shape in ((b, n, c), (1, n, c)), f"coords {tuple(coords.shape)} do not go with q {tuple(q.shape)}"


def _strides(x: Tensor | None) -> tuple[int, ...]:
    """The strides of x, 0 along dimensions of one element: their stride is arbitrary, and where it is 1, Triton would
    take the tensor for an unaligned one."""
    if x is None:
        return (0, 0, 0, 0)
    strides = x.stride()
    if 1 not in x.shape:  # takes a third of the time, and a backward has seven of these calls
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
