"""Host time of one eager call of the fused rotation: everything but the launch and the GPU.

    TRITON_INTERPRET=1 OMP_NUM_THREADS=1 python benchmarks/host_time.py

The launches are replaced by calls that do nothing, so that a CPU is enough; the results are meaningless. What is
timed is the choice of a backend, the way to the kernel, autograd, and the new tensors. Times are of the process, in
microseconds: median and quartiles over rounds of five calls.
"""

import statistics
import time

import torch

import stringpe
from stringpe.kernels import fused_rotation, row_sums
from stringpe.rotate import rotate_pair

ROUNDS, CALLS = 300, 5


class NoLaunch:
    """Stands in for a Triton kernel: kernel[grid](arguments) does nothing."""

    def __getitem__(self, grid):
        return lambda *arguments, **options: None


def main():
    torch.set_num_threads(1)
    fused_rotation.forward_kernel = fused_rotation.backward_kernel = row_sums.sum_kernel = NoLaunch()
    q, k, gradient = (torch.randn(2, 2, 4, 16) for _ in range(3))
    coords = torch.randn(2, 4, 3)
    encoding = stringpe.rope_mixed(head_dim=16, num_heads=2, coord_dim=3)
    theta = encoding.frequencies().detach().requires_grad_()
    q.requires_grad_()
    k.requires_grad_()

    def backward(rotated, weight):
        torch.autograd.grad(rotated, (q, k, weight), (gradient, gradient))

    calls = {
        "rotate_pair, forward": lambda: rotate_pair(q, k, coords, theta),
        "rotate_pair, forward and backward": lambda: backward(rotate_pair(q, k, coords, theta), theta),
        "encoding, forward": lambda: encoding(q, k, coords),
        "encoding, forward and backward": lambda: backward(encoding(q, k, coords), encoding.frequencies.weight),
        "two products, forward and backward": lambda: torch.autograd.grad((q * 2, k * 2), (q, k), (gradient, gradient)),
    }
    times = {name: [] for name in calls}
    for _ in range(ROUNDS + 10):
        for name, call in calls.items():
            start = time.process_time_ns()
            for _ in range(CALLS):
                call()
            times[name].append((time.process_time_ns() - start) / CALLS / 1000)
    for name, values in times.items():
        low, median, high = statistics.quantiles(values[10:], n=4)
        print(f"{name:35} {median:6.1f} ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
