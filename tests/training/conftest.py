from dataclasses import replace

import pytest
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
