"""Prints what the kernels become on a Hopper GPU, which need not be there, for bfloat16 heads of the given d:

python tests/kernels/hopper.py 64            the fused rotation, with 3 coordinates
python tests/kernels/hopper.py 64 6          with 6
python tests/kernels/hopper.py 64 projection
python tests/kernels/hopper.py 64 attention
"""

import re
import subprocess
import sys
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from stringpe.kernels import fused_projection, fused_rotation, short_attention
from stringpe.kernels.kernel_launch import KernelLaunch

ALIGNED = [["tt.divisibility", 16]]


def main(d: int, c: int = 3) -> None:
    for launch in rotation(d, c):
        built = compiled(launch)
        print(f"// {launch.kernel.__name__}, {resources(built)}")
        print(built.asm["ttgir"], built.asm["ptx"])


def rotation(d: int, c: int, heads: int = 12) -> tuple[KernelLaunch, KernelLaunch]:
    """Both launches for bfloat16 views of a packed projection, (8, 12, 4096, d), each entry with its coordinates."""
    b, n = 8, 4096
    packed, dense = (((b, heads, n, d), (n * heads * d * w, d, heads * d * w, 1)) for w in (3, 1))
    coords, theta = ((b, n, c), (n * c, c, 1)), ((heads, c, d // 2), (c * d // 2, d // 2, 1))
    forward = fused_rotation._forward_launch(packed, packed, dense, dense, coords, theta, 1, False, None)
    backward, *_ = fused_rotation._backward_launch(*[dense] * 6, coords, theta, 1, False, True, True, None)
    return forward, backward


def compiled(launch: KernelLaunch) -> Any:
    """The kernel of a launch on aligned tensors."""
    signature, constants, hints = {}, {}, {}
    names = launch.kernel.arg_names
    tensors = len(names) - len(launch.rest)
    for i, name in enumerate(names):
        value = launch.rest[i - tensors] if i >= tensors else None
        if i < tensors:
            wide = name in ("coords", "theta", "coord_sums", "theta_sums")
            signature[name], hints[i,] = "*fp32" if wide else "*bf16", ALIGNED
        elif name in launch.sizes or (value == 1 and re.fullmatch("[a-z]+_d|r_c", name)):  # strides of 1
            signature[name], constants[i,] = "constexpr", value
        else:
            signature[name] = "i32"
    source = triton.compiler.ASTSource(launch.kernel, signature, constants, hints)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(launch.options))


def resources(built: Any) -> dict[str, int]:
    """Registers per thread, and bytes of stack and local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", listing)}


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
    d, *rest = sys.argv[1:]
    if rest and rest[0] in kinds:
        kinds[rest[0]](int(d))
    else:
        main(int(d), *map(int, rest))
