"""Demonstrations some of which never end, in a module of their own so that spawned processes can import it."""

import ctypes
import time
from dataclasses import dataclass

import torch
from stand_in import Reach, demonstration

from stringpe.robots.data import demos


class Env(Reach):
    """A point in the plane, with what demonstrations ask of a robot."""

    robot = type("robot", (), {"name": "point"})

    def intrinsics(self, camera):
        return torch.eye(3)


@dataclass(frozen=True)
class Hanging(demos.DemoSettings):
    """Seed 1 hangs in Python, seed 2 in a C function that keeps the interpreter to itself."""

    def env(self):
        demos.demonstrate, demos.replay = _demonstrate, lambda env, seed, actions: demonstration(seed)
        return Env()


@dataclass(frozen=True)
class NeverOpen(demos.DemoSettings):
    """The environment is never ready."""

    def env(self):
        time.sleep(3600)


def _demonstrate(env, seed, noise):
    if seed == 1:
        time.sleep(3600)
    if seed == 2:
        ctypes.PyDLL(None).sleep(3600)
    return seed
