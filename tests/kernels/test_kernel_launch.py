"""What a launch hands to Triton, and what it starts without Triton once it is compiled; with stand-ins for both."""

import torch

from stringpe.kernels.kernel_launch import KernelLaunch, blocks, power_of_two


class Kernel:
    """A stand-in for a Triton kernel: notes what it is launched on, and returns what it would have compiled."""

    def __init__(self, compiles=True):
        self.compiles, self.seen, self.started = compiles, [], []

    def __getitem__(self, grid):
        def launch(*arguments, **named):
            self.seen.append((grid, arguments, named))
            return Compiled(self.started) if self.compiles else None

        return launch


class Compiled:
    """A stand-in for a compiled kernel."""

    def __init__(self, started):
        self.started = started

    def __getitem__(self, grid):
        return lambda *arguments: self.started.append((grid, arguments))


def launch_of(kernel):
    return KernelLaunch(kernel, 6, (7, 8), {"C": 3, "D": 4}, {"num_warps": 2})


def test_the_first_launch_goes_through_triton_and_the_next_ones_do_not():
    kernel = Kernel()
    launch, x = launch_of(kernel), torch.zeros(8)
    launch(x, None)
    ((grid, arguments, named),) = kernel.seen
    assert grid == (6, 1, 1)
    assert arguments[0] is x
    assert arguments[1:] == (None, 7, 8)
    assert named == {"C": 3, "D": 4, "num_warps": 2}
    y = torch.ones(8)
    launch(y, None)
    assert len(kernel.seen) == 1
    assert kernel.started == [((6, 1, 1), (y.data_ptr(), None, 7, 8, 3, 4))]  # constants as Triton counts arguments


def test_what_triton_compiles_for_anew_goes_through_triton_again():
    """Another dtype, another alignment, a tensor in place of none: the compiled code would be wrong for these."""
    kernel = Kernel()
    launch, x = launch_of(kernel), torch.zeros(16)
    for tensors in ((x, None), (x.double(), None), (x[1:9], None), (x, x)):
        before = len(kernel.seen)
        launch(*tensors)
        assert len(kernel.seen) == before + 1
        launch(*tensors)
        assert len(kernel.seen) == before + 1


def test_where_nothing_is_compiled_every_launch_goes_through_triton():
    kernel = Kernel(compiles=False)  # as in the interpreter
    launch, x = launch_of(kernel), torch.zeros(8)
    for count in (1, 2, 3):
        launch(x, None)
        assert len(kernel.seen) == count
    assert not kernel.started


def test_lengths_in_blocks():
    assert [blocks(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [power_of_two(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
