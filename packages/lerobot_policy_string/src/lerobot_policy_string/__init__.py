"""Policies of stringpe in LeRobot: `--policy.type=string`. LeRobot imports this package to register them."""

from .configuration_string import StringConfig

__all__ = ["StringConfig"]
