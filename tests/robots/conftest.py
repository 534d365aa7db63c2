"""What the robot tests share. Tests with pictures are skipped where no library can render, and say so."""

import pytest

from stringpe import robots


@pytest.fixture(scope="session")
def eyes():
    """For tests that render."""
    from stringpe.robots.sim.simulator import check_rendering  # the tests of policies and data need no simulator

    try:
        check_rendering()
        env = robots.make("MugOnPlate", cameras=("overhead",), size=(8, 8))
        env.reset(seed=0)
        env.close()
    except OSError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def blind():
    """Environments without cameras, one per task, kept for a module."""
    made = {}

    def get(task):
        if task not in made:
            made[task] = robots.make(task, cameras=())
        return made[task]

    return get


@pytest.fixture
def home():
    """The action that keeps the arms where they start."""

    def get(env):
        return [number for arm in env.robot.arms for number in (*arm.home, 1.0)]

    return get
