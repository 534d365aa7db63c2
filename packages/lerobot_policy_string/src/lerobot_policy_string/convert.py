"""Converts a policy trained by stringpe to a folder that LeRobot loads: for lerobot-eval, robots or further training.

python -m lerobot_policy_string.convert runs/pick/checkpoints/last lerobot/pick
lerobot-eval --policy.path=lerobot/pick --env.type=string --env.task=KukaPick
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature

from stringpe.robots.policies.base import RobotPolicy
from stringpe.tasks.load import load_run

from .configuration_string import DEPTH, IMAGES, StringConfig
from .modeling_string import StringPolicy
from .processor_string import make_string_pre_post_processors


def convert(run: str | Path, out: str | Path) -> Path:
    """Write the policy of a run or of a checkpoint to a folder; its normalisation becomes that of the processors."""
    loaded = load_run(run, "policy")
    trained = loaded.model
    assert isinstance(trained, RobotPolicy)
    if loaded.recipe.policy.frame == "world":
        raise ValueError(
            f"{run} works in the world frame and does not store its cameras' calibration: train it in LeRobot"
        )
    config = _describe(trained, loaded.recipe)
    policy = StringPolicy(config)
    policy.model.load_state_dict(trained.state_dict())
    with torch.no_grad():
        policy.model.state_mean.zero_()
        policy.model.state_std.fill_(1)
        policy.model.action_low.fill_(-1)
        policy.model.action_high.fill_(1)
    out = Path(out)
    policy.save_pretrained(out)
    stats = {
        "observation.state": {"mean": trained.state_mean, "std": trained.state_std},
        "action": {"min": trained.action_low, "max": trained.action_high},
    }
    for processor in make_string_pre_post_processors(config, stats):
        processor.save_pretrained(out)
    return out


def _describe(trained: RobotPolicy, recipe: Any) -> StringConfig:
    spec = trained.spec
    side = spec.image_size
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (spec.state_dim,))}
    for name in spec.cameras:
        inputs[IMAGES + name] = PolicyFeature(FeatureType.VISUAL, (3, side, side))
        if recipe.model.depth != "none":
            inputs[f"{IMAGES}{name}{DEPTH}"] = PolicyFeature(FeatureType.VISUAL, (1, side, side))
    return StringConfig(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (spec.action_dim,))},
        cameras=list(spec.cameras),
        as_built=json.dumps(recipe.to_dict()),
        fps=spec.fps,
        tasks=list(spec.tasks),
        push_to_hub=False,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Convert a stringpe policy to a LeRobot policy.")
    parser.add_argument("run", help="folder of a run of stringpe train, or of one of its checkpoints")
    parser.add_argument("out", help="folder to write")
    args = parser.parse_args()
    print(f"wrote {convert(args.run, args.out)}")
