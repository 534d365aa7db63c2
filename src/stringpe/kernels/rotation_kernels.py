# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""The kernels of the fused rotation. Imports triton.

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
operations, so that this hides behind memory. Where angles serve one entry only, its loads come before them in the
program, and are on their way while angles are formed. The fused multiply-adds are written out because Triton counts
operations: with too many of them it no longer forms sine and cosine in the threads that need them, but passes them
there through shared memory (see `_zeros`, too).

A backward program best is one warp: it sums over tokens and planes without waiting for others. Θ is read from the cache
in every step, because its float64 values, kept, would take more registers than all else.

Offsets are 64-bit, because one tensor may have more elements than 32 bits count. Strides come in multiples of UNIT,
from which Triton knows how wide it may load. Loops have constant bounds; entries past the end of the batch are masked.
With None in place of a pointer, a kernel is compiled without that part.
"""

import triton
import triton.language as tl

QUARTER_TURNS = tl.constexpr(0.6366197723675814)  # 2/π, of a radian
ROUNDER = tl.constexpr(6755399441055744.0)  # 1.5 · 2⁵²: adding it to a float64 leaves an integer in the low bits

# Numbers whose values a kernel is not compiled for: strides in units, and sizes.
_SIZES = ["r_b", "r_n", "batch", "n", "heads"]
_FORWARD_NUMBERS = [f"{x}_{axis}" for x in ("q", "k", "qo", "ko") for axis in "bhn"] + _SIZES
_BACKWARD_NUMBERS = [f"{x}_{axis}" for x in ("gq", "gk", "q", "k", "dq", "dk") for axis in "bhn"] + _SIZES


@triton.jit
def sin_cos(coords, theta, row, column, rows, columns, r_c, t_c, C, TOKENS, WIDTH):
    """sin and cos of a = Σ_k r_k θ_k: (TOKENS, WIDTH) in float32. r_0 of a token is at coords + row and θ_0 of a plane
    at theta + column; `rows` and `columns` mask those that exist."""
    zeros = tl.zeros((TOKENS, WIDTH), tl.float64)
    return _sin_cos(_vectors(coords + row, rows, r_c, C), _vectors(theta + column, columns, t_c, C), zeros, C)


@triton.jit
def _vectors(at, mask, step, C):
    """C vectors, the first of them at `at`."""
    vectors = ()
    for k in tl.static_range(C):
        vectors += (tl.load(at + k * step, mask=mask, other=0.0),)  # type: ignore[assignment]
    return vectors


@triton.jit
def _zeros(x):
    """Float64 zeros in the threads that hold x. Triton takes this for a result of x and forms in these threads what
    starts with it, where it would otherwise pass sines and cosines through shared memory if they take many operations;
    LLVM sees that no bit is left."""
    return (x.to(tl.float32).to(tl.uint32, bitcast=True).to(tl.uint64) >> 32).to(tl.float64)


@triton.jit
def _sin_cos(r, t, turns, C):
    """sin and cos of Σ_k r_k θ_k, given the vectors r_k along tokens and θ_k along columns, and float64 zeros."""
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
def _columns(block, heads, PLANES, COLUMNS, WIDTH):
    """Head and plane of each of the WIDTH columns of a block, of which COLUMNS are used, and which of them exist. For
    blocks of whole heads, the first form lets Triton see which planes lie side by side."""
    local = tl.arange(0, WIDTH)
    column = block * COLUMNS + local
    real = (local < COLUMNS) & (column < heads * PLANES)
    if COLUMNS % PLANES == 0:
        head, plane = block * (COLUMNS // PLANES) + local // PLANES, local % PLANES
    else:
        head, plane = column // PLANES, column % PLANES
    return head.to(tl.int64), plane.to(tl.int64), real


@triton.jit
def _tokens(block, n, chunks, TOKENS):
    """Of block number `block` along the chunks of the batch and tokens: its chunk, its tokens, and which of them
    exist."""
    blocks = tl.cdiv(n, TOKENS)
    token = (block % blocks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    return (block // blocks).to(tl.int64), token, (token < n) & (block // blocks < chunks)


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


@triton.jit
def _add_products(sums, da, r, C):
    """Every sum, with da times its coordinate added."""
    new = ()
    for i in tl.static_range(C):
        new += (sums[i] + da * r[i].to(tl.float32)[:, None],)  # type: ignore[assignment]
    return new


@triton.jit(do_not_specialize=_FORWARD_NUMBERS)
def forward_kernel(
    q, k, q_out, k_out, coords, theta,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, qo_b, qo_h, qo_n, ko_b, ko_h, ko_n, r_b, r_n, r_c,
    batch, n, heads,
    t_h: tl.constexpr, t_c: tl.constexpr, t_d: tl.constexpr, C: tl.constexpr, PLANES: tl.constexpr,
    GROUPS: tl.constexpr, UNIT: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    BATCH: tl.constexpr,
):  # fmt: skip
    """q_out = RoPE(r Θ) q and k_out = RoPE(r Θ) k; see `forward`."""
    across = tl.cdiv(
        heads * PLANES, COLUMNS
    )  # neighbouring programs have neighbouring heads, as projections leave them
    head, plane, real = _columns(tl.program_id(0) % across, heads, PLANES, COLUMNS, WIDTH)
    chunk, token, known = _tokens(tl.program_id(0) // across, n, tl.cdiv(batch, BATCH), TOKENS)
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
            r, t = _vectors(coords + row, known, r_c, C), _vectors(theta + column, real, t_c, C)
            sin, cos = _sin_cos(r, t, _zeros(q_pair[0]), C)
        _turn(_at(q_out, b, head * GROUPS, token, qo_b, qo_h, qo_n, UNIT), q_pair, plane, mask, sin, cos, PLANES)
        if k is not None:
            _turn(_at(k_out, b, head, token, ko_b, ko_h, ko_n, UNIT), k_pair, plane, mask, sin, cos, PLANES)
        for member in range(1, GROUPS):
            i = head * GROUPS + member
            q_pair = _load(_at(q, b, i, token, q_b, q_h, q_n, UNIT), plane, q_d, mask, PLANES)
            _turn(_at(q_out, b, i, token, qo_b, qo_h, qo_n, UNIT), q_pair, plane, mask, sin, cos, PLANES)


@triton.jit(do_not_specialize=_BACKWARD_NUMBERS)
def backward_kernel(
    grad_q, grad_k, q, k, dq, dk, coords, theta, coord_sums, theta_sums,
    gq_b, gq_h, gq_n, gq_d, gk_b, gk_h, gk_n, gk_d, q_b, q_h, q_n, k_b, k_h, k_n,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n, r_b, r_n, r_c,
    batch, n, heads,
    t_h: tl.constexpr, t_c: tl.constexpr, t_d: tl.constexpr, C: tl.constexpr, PLANES: tl.constexpr,
    GROUPS: tl.constexpr, UNIT: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    BATCH: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dq, dk, this program's share of dr in coord_sums (blocks of columns, chunks of the batch, n, c), and of dΘ in
    theta_sums (programs along the tokens, h, c, d/2); see `backward`. q and k are the outputs of `forward`."""
    ANGLES: tl.constexpr = coord_sums is not None or theta_sums is not None
    across, chunks = tl.cdiv(heads * PLANES, COLUMNS), tl.cdiv(batch, BATCH)
    position, share = tl.program_id(0) % across, tl.program_id(0) // across
    head, plane, real = _columns(position, heads, PLANES, COLUMNS, WIDTH)
    column = head * t_h + plane * t_d
    sums = (tl.zeros((TOKENS, WIDTH), tl.float32),) * C
    for step in tl.range(0, STEPS, num_stages=STAGES):
        chunk, token, known = _tokens(share * STEPS + step, n, chunks, TOKENS)
        r = _vectors(coords + chunk * BATCH * r_b + token * r_n, known, r_c, C)
        t = _vectors(theta + column, real, t_c, C)
        if BATCH > 1:
            sin, cos = _sin_cos(r, t, tl.zeros((TOKENS, WIDTH), tl.float64), C)
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
                sin, cos = _sin_cos(r, t, _zeros(q_pair[0]), C)
            _turn(_at(dq, b, head * GROUPS, token, dq_b, dq_h, dq_n, UNIT), q_pair, plane, mask, -sin, cos, PLANES)
            if k is not None:
                _turn(_at(dk, b, head, token, dk_b, dk_h, dk_n, UNIT), k_pair, plane, mask, -sin, cos, PLANES)
                if ANGLES:
                    da += _slope(k_pair, k_was)
            if ANGLES:
                da += _slope(q_pair, q_was)
            for member in range(1, GROUPS):
                i = head * GROUPS + member
                q_pair = _load(_at(grad_q, b, i, token, gq_b, gq_h, gq_n, UNIT), plane, gq_d, mask, PLANES)
                if ANGLES:
                    q_was = _load(_at(q, b, i, token, q_b, q_h, q_n, UNIT), plane, 1, mask, PLANES)
                    da += _slope(q_pair, q_was)
                _turn(_at(dq, b, i, token, dq_b, dq_h, dq_n, UNIT), q_pair, plane, mask, -sin, cos, PLANES)
        if coord_sums is not None:
            at = coord_sums + ((position * chunks + chunk) * n + token) * C
            again = _vectors(theta + column, real, t_c, C)  # and not t, which would stay in registers
            for i in tl.static_range(C):
                tl.store(at + i, tl.sum(da * again[i].to(tl.float32)[None, :], axis=1), mask=known)
        sums = _add_products(sums, da, r, C)  # which the compiler leaves out where they are not stored
    if theta_sums is not None:
        at = theta_sums + share.to(tl.int64) * (heads * C * PLANES) + head * (C * PLANES) + plane
        for i in tl.static_range(C):
            tl.store(at + i * PLANES, tl.sum(sums[i], axis=0), mask=real)
