"""The average of the weights."""

import numpy as np
import pytest
import torch

from stringpe.training.state import Ema


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
