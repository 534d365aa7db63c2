"""Planners without a network, in a module of their own so that spawned processes can import them."""

import numpy as np
from stand_in import Reach


class Expert:
    """Looks up the answer: where the red pixels are."""

    def plan_actions(self, observations, generators):
        return np.stack([self.plan(observation)[None] for observation in observations])

    def plan(self, observation):
        image = observation["observation.images.top"].astype(int)
        ys, xs = np.nonzero(image[..., 0] - image[..., 2] > 100)
        side = image.shape[0] - 1
        if not len(xs):
            return observation["observation.state"]
        return np.array([xs.mean(), ys.mean()], np.float32) / side * 2 - 1


class Still(Expert):
    """Stays where it is."""

    def plan(self, observation):
        assert observation["task"] == Reach.task_text
        return observation["observation.state"]
