"""Prints what the kernels become on a Hopper GPU, which need not be there, for bfloat16 heads of the given d:

python tests/kernels/hopper.py 64
python tests/kernels/hopper.py 64 projection
python tests/kernels/hopper.py 64 attention
"""

import re
import sys

import triton
from triton.backends.compiler import GPUTarget

from stringpe.kernels import fused_projection, fused_rotation, short_attention

ALIGNED = [["tt.divisibility", 16]]


def main(d: int) -> None:
    for kernel in (fused_rotation.forward_kernel, fused_rotation.backward_kernel):
        backward = kernel is fused_rotation.backward_kernel
        print(f"// {kernel.__name__}")
        tile = fused_rotation.tile(d // 2, 1024, 32, 12, True, 3, backward=backward)
        sizes = {"C": 3, "PLANES": d // 2, "WIDTH": d // 2, "GROUPS": 1, "BATCH": tile.batch, "TOKENS": tile.tokens}
        signature, constants, hints = {}, {}, {}
        for i, name in enumerate(kernel.arg_names):
            if name in sizes or re.fullmatch("[a-z]+_d|r_c", name):  # sizes, and strides of 1
                signature[name], constants[i,] = "constexpr", sizes.get(name, 1)
            elif name in ("batch", "n", "heads"):
                signature[name] = "i32"
            elif re.fullmatch("[a-z]+_[bhnc]", name):  # strides; coordinates of three columns are not aligned
                signature[name], hints[i,] = "i32", [] if name.startswith("r_") else ALIGNED
            else:
                small = name in ("coords", "theta", "coord_sums", "theta_sums")
                signature[name], hints[i,] = "*fp32" if small else "*bf16", ALIGNED
        source = triton.compiler.ASTSource(kernel, signature, constants, hints)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": tile.warps})
        print(built.asm["ttgir"], built.asm["ptx"])


def projection(d: int) -> None:
    heads, tokens, depth = fused_projection.heads_of_tile(d), fused_projection.TOKENS, fused_projection.DEPTH
    sizes = {"DIM": 768, "C": 3, "PLANES": d // 2, "HEADS": heads, "SHARED": False, "PROGRAMS": 264}
    sizes |= {"TOKENS": tokens, "DEPTH": depth, "r_c": 1, "t_d": 1}
    tile = f"tensordesc<bf16[{tokens}, {heads * d}]>"
    descriptors = {"x": f"tensordesc<bf16[{tokens}, {depth}]>", "q": tile, "k": tile}
    descriptors["weight"] = f"tensordesc<bf16[2, {heads * d}, {depth}]>"
    signature, constants, hints = {}, {}, {}
    for i, name in enumerate(fused_projection.kernel.arg_names):
        if name in sizes:
            signature[name], constants[i,] = "constexpr", sizes[name]
        elif name in ("bias", "coords", "theta"):
            signature[name], hints[i,] = "*bf16" if name == "bias" else "*fp32", ALIGNED
        else:
            signature[name] = descriptors.get(name, "i32")
    source = triton.compiler.ASTSource(fused_projection.kernel, signature, constants, hints)
    options = {"num_warps": fused_projection.warps(d)[0], "num_stages": fused_projection.STAGES}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    print(built.asm["ttgir"], built.asm["ptx"])


def attention(d: int) -> None:
    for kernel in (short_attention.attention_forward_kernel, short_attention.attention_backward_kernel):
        sizes = {"D": d, "WIDTH": d, "N": 64, "M": 64, "WIDE": False}
        signature, constants, hints = {}, {}, {}
        for i, name in enumerate(kernel.arg_names):
            if name in sizes or name.endswith("_d"):  # sizes, and strides of 1
                signature[name], constants[i,] = "constexpr", sizes.get(name, 1)
            elif name in ("n", "m", "heads"):
                signature[name] = "i32"
            elif name == "scale":
                signature[name] = "fp32"
            else:
                signature[name], hints[i,] = "i32" if re.fullmatch("[a-z]+_[bhn]", name) else "*bf16", ALIGNED
        source = triton.compiler.ASTSource(kernel, signature, constants, hints)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        print(built.asm["ptx"])


if __name__ == "__main__":
    kinds = {"projection": projection, "attention": attention}
    kinds.get(sys.argv[-1], main)(int(sys.argv[1]))
