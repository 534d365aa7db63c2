"""A policy learns: a point reaches a target that only the image shows.

python tests/robots/test_reach.py    # both policies for longer: the numbers of docs/policies.md
"""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from policy_toy import RECIPE
from stand_in import Reach, demonstration

from stringpe.metrics.statistics import paired_shares
from stringpe.recipes.overrides import override
from stringpe.robots.data.writer import Writer
from stringpe.robots.evaluate import FIRST_SEED, run_trials
from stringpe.robots.rollout import TrialSetting
from stringpe.tasks.policy import load_policy
from stringpe.training.launch import train

pytestmark = pytest.mark.slow


class Constant:
    """The best policy that ignores its cameras: go to the middle, and pass some targets on the way."""

    def plan_actions(self, observations, generators):
        return np.zeros((len(observations), 1, 2), np.float32)


def successes(make_policy):
    """Whether the policy succeeds, by seed, in 50 trials."""
    seeds = range(FIRST_SEED, FIRST_SEED + 50)
    return {trial.seed: trial.success for trial in run_trials(TrialSetting(Reach, make_policy), seeds)}


def learned(folder, demonstrations, steps, *changes):
    """The same of a policy that is trained on so many demonstrations for so many steps of 32."""
    with Writer(folder / "reach", fps=10) as writer:
        for seed in range(demonstrations):
            writer.add(demonstration(seed), task="reach the red target", seed=seed)
    recipe = replace(
        RECIPE,
        model=replace(RECIPE.model, patch_size=2),
        data=replace(RECIPE.data, train=str(folder / "reach"), cache=str(folder)),
        policy=replace(RECIPE.policy, repeats=4, sample_steps=8, held_out=0.05),
        optim=replace(RECIPE.optim, lr=4e-3, warmup_steps=30, ema=0.95),
        loop=replace(RECIPE.loop, batch_size=32, steps=steps, log_every=60, eval_every=0, save_every=steps),
    )
    train(override(recipe, changes), folder / "run", quiet=True)
    return successes(partial(load_policy, folder / "run"))


@pytest.mark.filterwarnings("ignore:.*image encoder starts at random")
def test_the_diffusion_policy_reaches_what_it_sees(tmp_path):
    found = paired_shares(learned(tmp_path, 150, 180), successes(Constant))
    assert found.difference.low > 0.2


def main():
    warnings.filterwarnings("ignore", ".*image encoder starts at random")
    torch.set_num_threads(1)
    print(f"going to the middle: {sum(successes(Constant).values())} of 50")
    energy = ("policy.kind=energy", "policy.repeats=1", "policy.sample_steps=10")
    for name, steps, changes in (("diffusion", 500, ()), ("energy", 800, energy)):
        for seed in range(3):
            with TemporaryDirectory() as folder:
                reached = sum(learned(Path(folder), 400, steps, *changes, f"seed={seed}").values())
            print(f"{name}, 400 demonstrations, {steps} steps, seed {seed}: {reached} of 50", flush=True)


if __name__ == "__main__":
    main()
