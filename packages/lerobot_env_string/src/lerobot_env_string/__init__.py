"""Robot tasks of stringpe in LeRobot: `--env.type=string`. LeRobot imports this package to register them."""

from .environment import StringEnv

__all__ = ["StringEnv"]
