"""The average of the weights, and the state of random generators."""

import random

import numpy as np
import pytest
import torch

from stringpe.training.state import Ema, restore_generators, save_generators


def test_the_average_follows_the_formula_and_swaps():
    layer = torch.nn.Linear(2, 1, bias=False)
    start = layer.weight.detach().clone()
    ema = Ema(layer, decay=0.9)
    with torch.no_grad():
        layer.weight += 1
    ema.update(step=0)  # decay 1/10 at the first step
    assert torch.allclose(ema.average["weight"], start + 0.9)
    with torch.no_grad():
        layer.weight += 1
    ema.update(step=1000)
    with ema.swap():
        assert torch.allclose(layer.weight, start + 0.9 * 0.9 + 0.1 * 2)
    assert torch.allclose(layer.weight, start + 2)


def test_the_average_follows_its_power():
    model = torch.nn.Linear(1, 1, bias=False)
    ema = Ema(model, 0.9999, power=0.75)
    average = np.float64(model.weight.item())
    for step in range(5):
        with torch.no_grad():
            model.weight.fill_(float(step))
        ema.update(step)
        decay = 1 - (1 + step) ** -0.75
        average = decay * average + (1 - decay) * step
    assert ema.average["weight"].item() == pytest.approx(average, rel=1e-5)


def test_generators_come_back_exactly():
    random.gauss(0, 1)  # leaves a second value waiting, which is part of the state
    np.random.seed(0)  # noqa: NPY002
    np.random.randn()  # noqa: NPY002
    state = save_generators(torch.device("cpu"))

    def draw():
        return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.randn()  # noqa: NPY002

    first = draw()
    draw()
    restore_generators(state, torch.device("cpu"))
    assert draw() == first
    assert all(isinstance(t, torch.Tensor) for t in state.values())
