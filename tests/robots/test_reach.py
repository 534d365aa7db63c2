"""A policy learns: a point reaches a target that only the image shows."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from policy_toy import RECIPE
from stand_in import Reach, demonstration

from stringpe.robots.dataset import Writer
from stringpe.robots.rollout import FIRST_SEED, Setting, trials
from stringpe.tasks.robot import load_policy
from stringpe.training.launch import train
from stringpe.training.statistics import paired_shares


class Constant:
    """The best that an action without looking can do: the middle, where a fast point passes some targets."""

    def reset(self):
        pass

    def select_action(self, observation):
        return np.zeros(2, np.float32)


@pytest.mark.filterwarnings("ignore:.*image encoder starts at random")
def test_the_diffusion_policy_reaches_what_it_sees(tmp_path):
    with Writer(tmp_path / "reach", fps=10) as writer:
        for seed in range(150):
            writer.add(demonstration(seed), task="reach the red target", seed=seed)
    recipe = replace(
        RECIPE,
        model=replace(RECIPE.model, patch_size=2),
        data=replace(RECIPE.data, train=str(tmp_path / "reach"), cache=str(tmp_path)),
        policy=replace(RECIPE.policy, repeats=4, sample_steps=8, held_out=0.05),
        optim=replace(RECIPE.optim, lr=4e-3, warmup_steps=30, ema=0.95),
        loop=replace(RECIPE.loop, batch_size=32, steps=180, log_every=60, eval_every=0, save_every=180),
    )
    train(recipe, tmp_path / "run", quiet=True)
    seeds = range(FIRST_SEED, FIRST_SEED + 50)
    learned = {t.seed: t.success for t in trials(Setting(Reach, partial(load_policy, tmp_path / "run")), seeds)}
    constant = {t.seed: t.success for t in trials(Setting(Reach, Constant), seeds)}
    found = paired_shares(learned, constant)
    print(f"learned {sum(learned.values())} / 50, constant {sum(constant.values())} / 50, {found}")
    assert found.difference.low > 0.2
