# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""The projection to queries and keys with the rotation in its epilogue: queries and keys are written to memory once,
rotated.

    q = RoPE(r Θ) (W_q x + b_q)        k = RoPE(r Θ) (W_k x + b_k)

A tile is TOKENS tokens by the queries and the keys of HEADS heads, so that one set of angles serves both. After the
product, channels j and j + d/2 of a token are in the same thread: splitting a tile into its planes moves no data. A
program walks over tiles, and its loops over tiles and over channels of x are flattened into one, so that the first
loads of a tile overlap with the epilogue of the one before. Imports triton; for GPUs with a tensor memory accelerator.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .rotation_kernels import sin_cos

TOKENS, DEPTH, STAGES = 128, 64, 3


@triton.jit
def _halves(x, TOKENS: tl.constexpr, HEADS: tl.constexpr, PLANES: tl.constexpr):
    """The two channels of every plane, (TOKENS, HEADS · PLANES) each, of (TOKENS, HEADS, PLANES, 2)."""
    first, second = tl.split(x)
    return tl.reshape(first, (TOKENS, HEADS * PLANES)), tl.reshape(second, (TOKENS, HEADS * PLANES))


@triton.jit
def _whole(first, second, dtype, TOKENS: tl.constexpr, HEADS: tl.constexpr, PLANES: tl.constexpr):
    """Their inverse: heads side by side, (TOKENS, HEADS · d), rounded to dtype."""
    pair = tl.reshape(tl.join(first.to(dtype), second.to(dtype)), (TOKENS, HEADS, PLANES, 2))
    return tl.reshape(tl.permute(pair, (0, 1, 3, 2)), (TOKENS, 2 * HEADS * PLANES))


@triton.jit
def _tile(
    tile, x, weight, bias, coords, theta, q, k, tokens, n, heads, r_n, r_c, t_h, t_c, t_d,
    DIM: tl.constexpr, C: tl.constexpr, PLANES: tl.constexpr, HEADS: tl.constexpr, SHARED: tl.constexpr,
    TOKENS: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile, from the product to the stores. Rows past the last token are read as zeros and not written."""
    D: tl.constexpr = 2 * PLANES
    WIDTH: tl.constexpr = 2 * HEADS * D
    columns = heads // HEADS
    head, start = tile % columns * HEADS, tile // columns * TOKENS
    both = tl.zeros((TOKENS, WIDTH), tl.float32)
    for step in range(DIM // DEPTH):
        left = x.load([start, step * DEPTH])
        right = tl.reshape(weight.load([0, head * D, step * DEPTH]), (WIDTH, DEPTH))
        if WIDE:
            left, right = left.to(tl.float32), right.to(tl.float32)
        both = tl.dot(left, right.T, both)
    if bias is not None:
        channel = tl.arange(0, WIDTH)
        row = channel // (HEADS * D) * (heads * D) + head * D + channel % (HEADS * D)
        both += tl.load(bias + row).to(tl.float32)[None, :]
    token, plane = start + tl.arange(0, TOKENS), tl.arange(0, HEADS * PLANES)
    place = (token % n if SHARED else token).to(tl.int64) * r_n
    column = (head + plane // PLANES) * t_h + plane % PLANES * t_d
    known, real = token < tokens, plane < HEADS * PLANES
    sin, cos = sin_cos(coords, theta, place, column, known, real, r_c, t_c, C, TOKENS, HEADS * PLANES)
    parts = tl.permute(tl.reshape(both, (TOKENS, 2, HEADS, 2, PLANES)), (0, 2, 4, 3, 1))
    queries, keys = tl.split(parts)
    q1, q2 = _halves(queries, TOKENS, HEADS, PLANES)
    k1, k2 = _halves(keys, TOKENS, HEADS, PLANES)
    turned = _whole(q1 * cos - q2 * sin, q1 * sin + q2 * cos, q.dtype, TOKENS, HEADS, PLANES)
    q.store([start, head * D], turned)
    turned = _whole(k1 * cos - k2 * sin, k1 * sin + k2 * cos, k.dtype, TOKENS, HEADS, PLANES)
    k.store([start, head * D], turned)


@triton.jit(do_not_specialize=["tokens", "n"])
def kernel(
    x, weight, bias, coords, theta, q, k, tokens, n, heads, r_n, r_c, t_h, t_c, t_d,
    DIM: tl.constexpr, C: tl.constexpr, PLANES: tl.constexpr, HEADS: tl.constexpr, SHARED: tl.constexpr,
    TOKENS: tl.constexpr, DEPTH: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """x (tokens, DIM), weight (2, heads · d, DIM), q and k (tokens, heads · d) are descriptors. PROGRAMS of 0 is for
    the interpreter, which loops over constants only and has no half precision: one program per tile, in float32."""
    if PROGRAMS == 0:
        _tile(
            tl.program_id(0), x, weight, bias, coords, theta, q, k, tokens, n, heads, r_n, r_c, t_h, t_c, t_d,
            DIM, C, PLANES, HEADS, SHARED, TOKENS, DEPTH, True,
        )  # fmt: skip
    else:
        tiles = heads // HEADS * tl.cdiv(tokens, TOKENS)
        for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
            _tile(
                tile, x, weight, bias, coords, theta, q, k, tokens, n, heads, r_n, r_c, t_h, t_c, t_d,
                DIM, C, PLANES, HEADS, SHARED, TOKENS, DEPTH, False,
            )  # fmt: skip


def heads_of_tile(d: int) -> int:
    """Heads of a tile: 128 channels of queries and keys, or one head if it has more."""
    return max(1, 64 // d)


def warps(d: int) -> tuple[int, int]:
    """Warps of a program, and programs that a multiprocessor holds."""
    return (4, 2) if d <= 64 else (8, 1)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    """q and k, (b, n, h, d), of x (b, n, m), weight (2 h d, m) and bias (2 h d), all of one half-precision dtype,
    coords (b or 1, n, c) and frequencies (h, c, d/2)."""
    (b, n, m), (h, c, planes) = x.shape, frequencies.shape
    d = 2 * planes
    q, k = x.new_empty(b, n, h, d), x.new_empty(b, n, h, d)
    if x.numel() == 0:
        return q, k
    heads = heads_of_tile(d)
    x, weight = x.reshape(b * n, m).contiguous(), weight.contiguous()
    tiles = h // heads * -(-b * n // TOKENS)
    count, fitting = warps(d)
    programs = 0 if x.device.type == "cpu" else fitting * _multiprocessors(x.device)
    with torch.cuda.device_of(x):
        kernel[(min(programs or tiles, tiles),)](
            TensorDescriptor(x, [b * n, m], [m, 1], [TOKENS, DEPTH]),
            TensorDescriptor(weight, [2, h * d, m], [h * d * m, m, 1], [2, heads * d, DEPTH]),
            bias, coords, frequencies,
            TensorDescriptor(q, [b * n, h * d], [h * d, 1], [TOKENS, heads * d]),
            TensorDescriptor(k, [b * n, h * d], [h * d, 1], [TOKENS, heads * d]),
            b * n, n, h, coords.stride(1), coords.stride(2), *frequencies.stride(),
            DIM=m, C=c, PLANES=planes, HEADS=heads, SHARED=coords.shape[0] == 1 and b > 1,
            TOKENS=TOKENS, DEPTH=DEPTH, PROGRAMS=programs, num_warps=count, num_stages=STAGES,
        )  # fmt: skip
    return q, k


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
