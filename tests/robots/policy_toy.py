"""Small policies and their recipe, for the tests of this folder."""

from dataclasses import replace

import torch

from stringpe.models.vit import ViT
from stringpe.recipes.schema import Data, Loop, Model, Optim, Policy, Recipe
from stringpe.robots.calibration import intrinsics_key, pose_key
from stringpe.robots.policies.base import PolicyNet, PolicySpec
from stringpe.robots.policies.diffusion_policy import DiffusionPolicy
from stringpe.robots.policies.energy_policy import EnergyPolicy
from stringpe.robots.policies.observer import ImageEncoder

SPEC = PolicySpec(("top", "wrist"), 3, 4, 16, 10.0, ("pick the cup", "place it"))
NET = PolicyNet(dim=32, num_heads=2, encoder_layers=1, decoder_layers=2, chunk=6, execute=3)
KINDS = {"diffusion": {"sample_steps": 4}, "energy": {"negatives": 4, "candidates": 3, "langevin_steps": 3}}
RECIPE = Recipe(
    name="reach",
    task="policy",
    model=Model(dim=32, layers=1, heads=2, patch_size=4, encoding="cayley"),
    data=Data(source="demos", image_size=16, val_size=8),
    policy=Policy(
        chunk=6,
        execute=3,
        dim=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=2,
        repeats=2,
        sample_steps=4,
        held_out=0.25,
    ),
    optim=Optim(lr=2e-3, beta1=0.95, weight_decay=1e-6, warmup_steps=2, ema=0.99, ema_power=0.75),
    loop=Loop(batch_size=8, steps=6, log_every=3, eval_every=3, save_every=3),
)
ENERGY = [
    *("policy.kind=energy", "policy.repeats=1", "policy.sample_steps=10"),
    *("policy.negatives=4", "policy.candidates=2", "policy.langevin_steps=3"),
]
"""The changes that make it a recipe of an energy policy."""


def policy(kind="diffusion", encoding="cayley", depth=None, spec=SPEC, net=NET, frame="camera", **options):
    """A policy with a ViT of one layer; depth as in `ViT`."""
    torch.manual_seed(0)
    depth = depth or "none"
    vit = ViT(
        dim=32,
        layers=1,
        num_heads=2,
        patch_size=4,
        encoding=encoding,
        coord_dim=3 if "lift" in depth else 2,
        depth=depth,
        frame=frame if "lift" in depth else "camera",
        image_size=16,
    )
    make = {"diffusion": DiffusionPolicy, "energy": EnergyPolicy}[kind]
    net = replace(net, frame=frame, encoding=encoding)
    return make(ImageEncoder(vit), spec, net, **(KINDS[kind] | options))


def calibrations(count, generator):
    """Random poses (count, 4, 4) with rotations about the optical axis, and the intrinsics of 16 pixels."""
    angle = torch.rand(count, generator=generator)
    pose = torch.eye(4).repeat(count, 1, 1)
    pose[:, 0, 0], pose[:, 1, 1] = angle.cos(), angle.cos()
    pose[:, 0, 1], pose[:, 1, 0] = -angle.sin(), angle.sin()
    pose[:, :3, 3] = torch.rand(count, 3, generator=generator)
    return torch.tensor([[16.0, 0, 8], [0, 16, 8], [0, 0, 1]]).repeat(count, 1, 1), pose


def batch(count=3, spec=SPEC, net=NET, depth=False, calibration=False, seed=0):
    """Random observations and actions in LeRobot's keys."""
    generator = torch.Generator().manual_seed(seed)
    found = {
        "observation.state": torch.randn(count, spec.state_dim, generator=generator),
        "action": torch.rand(count, net.chunk, spec.action_dim, generator=generator) * 2 - 1,
        "task": ["pick the cup"] * count,
    }
    for camera in spec.cameras:
        found[f"observation.images.{camera}"] = torch.rand(count, 3, 16, 16, generator=generator)
        if depth:
            found[f"observation.depth.{camera}"] = 0.5 + torch.rand(count, 16, 16, generator=generator)
        if calibration:
            found[intrinsics_key(camera)], found[pose_key(camera)] = calibrations(count, generator)
    return found
