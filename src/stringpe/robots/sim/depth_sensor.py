"""Depth as a stereo or structured-light sensor measures it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Depth = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DepthSensor:
    """Noise, steps and holes (0) for exact depth.

    It measures 1/z, with noise and in steps, so that both grow with z²: at 1 m they are `noise` and `step` metres.
    Pixels are lost with probability `edge_loss` at edges, where one of its two eyes does not see what is behind, and
    `loss` elsewhere; nearer than `nearest` nothing is measured.
    """

    noise: float = 0.002
    step: float = 0.001
    edge_loss: float = 0.6
    loss: float = 0.005
    jump: float = 0.03  # difference between neighbours, as a share of the depth, that makes an edge
    nearest: float = 0.05

    def __call__(self, depth: Depth, rng: np.random.Generator) -> Depth:
        """What the sensor would measure for exact depth (h, w) in metres; 0 is a hole, before and after."""
        disparity = 1 / np.maximum(depth, 1e-3) + self.noise * rng.standard_normal(depth.shape)
        if self.step:
            disparity = np.round(disparity / self.step) * self.step
        noisy = 1 / np.maximum(disparity, 1e-3)
        lost = rng.random(depth.shape) < np.where(self.edges(depth), self.edge_loss, self.loss)
        noisy[lost | (depth <= self.nearest)] = 0.0
        return noisy.astype(np.float32)

    def edges(self, depth: Depth) -> npt.NDArray[np.bool_]:
        """Pixels with a neighbour across a jump."""
        found = np.zeros(depth.shape, bool)
        down = np.abs(np.diff(depth, axis=0)) > self.jump * depth[1:]
        across = np.abs(np.diff(depth, axis=1)) > self.jump * depth[:, 1:]
        found[1:] |= down
        found[:-1] |= down
        found[:, 1:] |= across
        found[:, :-1] |= across
        return found
