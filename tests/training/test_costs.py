"""Time per step and the peak of memory."""

import torch

from stringpe.training.costs import Clock, peak_bytes, reset_peak


def test_the_clock_leaves_out_the_first_window():
    clock = Clock()
    assert clock.milliseconds() is None
    clock._windows = [500.0]
    assert clock.milliseconds() == 500.0
    clock._windows += [10.0, 12.0, 11.0]
    assert clock.milliseconds() == 11.0


def test_peak_memory_sees_a_large_tensor_and_forgets_it():
    device = torch.device("cpu")
    reset_peak(device)
    before = peak_bytes(device)
    held = torch.ones(50_000_000)
    assert peak_bytes(device) - before > 150e6
    del held
    reset_peak(device)
    assert peak_bytes(device) - before < 100e6
