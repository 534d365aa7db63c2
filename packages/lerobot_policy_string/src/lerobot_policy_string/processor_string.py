"""LeRobot's default processors. They normalise states to mean 0 and deviation 1 and actions to [−1, 1]."""

from typing import Any

import torch
from lerobot.processor.factory import make_default_pre_post_processors

from stringpe.robots.policies.base import FLAT

from .configuration_string import StringConfig


def make_string_pre_post_processors(
    config: StringConfig, dataset_stats: dict[str, dict[str, Any]] | None = None
) -> tuple[Any, Any]:
    """The pre- and postprocessors of a policy, from the statistics of a data set."""
    return make_default_pre_post_processors(config, steady(dataset_stats) if dataset_stats else None)


def steady(stats: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Statistics under which a joint that no demonstration moves stays still: its noise is not scaled up to deviation
    1, and its action is the demonstrated one."""
    adjusted = {key: dict(values) for key, values in stats.items()}
    if "observation.state" in adjusted:
        std = torch.as_tensor(adjusted["observation.state"]["std"])
        adjusted["observation.state"]["std"] = torch.where(std > FLAT, std, torch.ones_like(std))
    if "action" in adjusted:
        low, high = (torch.as_tensor(adjusted["action"][name]) for name in ("min", "max"))
        adjusted["action"]["max"] = torch.where(high - low < FLAT, low, high)
    return adjusted
