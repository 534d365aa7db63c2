"""Demonstrations of reaching a point, and the recipe of a small policy on them."""

from dataclasses import replace

import pytest
from policy_toy import RECIPE
from stand_in import demonstration

from stringpe.robots.data.writer import Writer


@pytest.fixture(scope="session")
def reach_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "reach"
    with Writer(path, fps=10) as writer:
        for seed in range(8):
            writer.add(demonstration(seed, depth=True), task=f"reach {seed % 2}", seed=seed)
    return path


@pytest.fixture
def reach_recipe(reach_folder, tmp_path):
    return replace(RECIPE, data=replace(RECIPE.data, train=str(reach_folder), cache=str(tmp_path / "cache")))
