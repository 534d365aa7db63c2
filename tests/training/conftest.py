from dataclasses import replace

import pytest
import torch
from training_toy import TOY


@pytest.fixture
def toy():
    return TOY


@pytest.fixture
def changed():
    """The toy recipe with groups changed: changed(loop={"steps": 3})."""

    def change(**groups):
        return replace(TOY, **{name: replace(getattr(TOY, name), **values) for name, values in groups.items()})

    return change


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models lose more to waiting for each other's threads than they win."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
