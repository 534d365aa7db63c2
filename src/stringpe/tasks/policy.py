"""Robot policies from demonstrations: chunks of actions from cameras, the robot's state and the text of a task.

Validation measures, on held-out episodes, how near predicted actions come to the demonstrated ones. What counts in the
end is success in simulation: `stringpe eval RUN --env TASK`. With policy.simulate=TASK,TASK every evaluation during
training also tries the policy in simulation, and val/success in metrics.jsonl is a curve of success over training.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from .. import robots
from ..data.demo_batches import augment_cameras, augment_intrinsics, load_demos
from ..data.loader import shares, training_requests
from ..data.order import Batch, Order, Place
from ..data.transforms import uniforms
from ..io.checkpoint import read_model
from ..io.registry import look_up
from ..recipes.schema import Recipe
from ..robots.calibration import intrinsics_key, pose_key
from ..robots.data.columns import ACTION, DEPTH, IMAGES, STATE
from ..robots.data.pack import Demos
from ..robots.evaluate import run_trials
from ..robots.policies.base import FLAT, PolicyNet, PolicySpec, RobotPolicy, read_spec
from ..robots.policies.diffusion_policy import DiffusionPolicy
from ..robots.policies.energy_policy import EnergyPolicy
from ..robots.policies.observer import ImageEncoder, hash_words
from ..robots.policies.vision_tower import TOWER
from ..robots.rollout import Planner, TrialSetting
from ..seeds import derive, generator
from .base import Parts, Sample, Task, average, sum_batches, with_one_layer
from .build import backbone, set_initial_weights
from .load import load_run
from .policy_encoder import build_image_encoder, find_tower_config, is_tower
from .warm_start import load_weights, refuse_other_shapes, start_folder

NEAR = 0.05
"""An action counts as right if it is no farther than this from the demonstrated one, as a share of the joint's
demonstrated range. Joints that no demonstration moves do not count."""

FIRST_TRIAL = 2_000_000
"""Seed of the first trial during training. Neither demonstrations nor the trials of `stringpe eval` use such seeds."""

_VAL_FRAMES = 512  # held-out frames that are evaluated, unless data.val_size says otherwise


class PolicyTask(Task):
    """Chunks of actions learned from demonstrations, which are all held in the device's memory.

    near: the share of predicted actions, over held-out frames, that come near the demonstrated ones; error: their mean
    distance from them, as a share of the range. near_first, error_first: the same for the first frames of held-out
    episodes, where the state does not reveal where the arm will go and only the cameras help. success: with
    policy.simulate, the share of trials in simulation that succeed, over all tasks named there; success_MugOnPlate, …:
    the share of each task, if there are several."""

    metric = "near"
    meanings: ClassVar = {name: Task.meanings[name] for name in ("loss", "count")} | {
        "near": f"the share of predicted actions within {100 * NEAR:.0f} % of a joint's range of the demonstrated ones",
        "error": "the mean distance of predicted actions to the demonstrated ones, as a share of the joints' ranges",
        "near_first": "the same as near, for the first frames of episodes",
        "error_first": "the same as error, for the first frames of episodes",
        "success": "the share of trials in simulation that succeed",
    }
    metric_name = f"actions within {100 * NEAR:.0f} % of the range"

    config_file = TOWER
    reads = (
        *("policy.kind", "policy.cameras", "policy.encoder", "policy.freeze", "policy.chunk", "policy.execute"),
        *("policy.blind", "policy.dim", "policy.heads", "policy.encoder_layers", "policy.decoder_layers"),
        *("policy.stride", "policy.first", "policy.held_out", "policy.simulate", "policy.trials", "model.start"),
        "policy.frame",
    )

    @classmethod
    def keys(cls, recipe: Recipe) -> tuple[str, ...]:
        return (*super().keys(recipe), *option_keys(recipe.policy.kind))

    @classmethod
    def check_task(cls, recipe: Recipe) -> None:
        if not is_tower(recipe.policy.encoder):  # a tower brings its own layers
            backbone(with_one_layer(recipe).model, image_size=recipe.data.image_size)

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.capturable = recipe.policy.kind == "diffusion"  # the energy policy differentiates inside its loss
        self.demos = load_demos(recipe, recipe.data.train)
        self.val_demos = load_demos(recipe, recipe.data.val) if recipe.data.val else self.demos
        episode = self.demos.episode[self.demos.seen]
        if recipe.data.val:
            self.train = torch.arange(len(episode))
            held_out = torch.arange(len(self.val_demos.seen))
        else:
            chosen = torch.isin(episode, _choose_held_out(int(episode.max()) + 1, recipe))
            self.train, held_out = torch.nonzero(~chosen)[:, 0], torch.nonzero(chosen)[:, 0]
        count = min(len(held_out), recipe.data.val_size or _VAL_FRAMES)
        self.held_out = held_out[torch.linspace(0, len(held_out) - 1, count).round().long()]
        self.first = _first_frames(self.val_demos, held_out)[:_VAL_FRAMES]

    @property
    def examples(self) -> int:
        return len(self.train)

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        return new_policy(recipe, parts.spec, pretrained=False, tower=parts.config)

    @cached_property
    def parts(self) -> Parts:
        d, size = self.demos, self.recipe.data.image_size
        spec = PolicySpec(d.cameras, d.state.shape[1], d.action.shape[1], size, d.fps, d.tasks)
        return Parts(spec=spec, config=find_tower_config(self.recipe))

    def model(self) -> nn.Module:
        """A new policy. All of it starts from `model.start`, or its image encoder alone from `policy.encoder`."""
        folder = start_folder(self.recipe)
        policy = new_policy(self.recipe, self.parts.spec, pretrained=folder is None, tower=self.parts.config)
        policy.set_statistics(self.demos.state, self.demos.action)
        if folder is not None:
            self.start(policy, folder)
        return policy

    def start(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, RobotPolicy)
        start_policy(model, self.recipe, folder)

    @classmethod
    def read_parts(cls, folder: Path, weights: Mapping[str, Tensor]) -> Parts:
        return replace(super().read_parts(folder, weights), spec=read_spec(weights))

    @classmethod
    def changes_to_reopen(cls, recipe: Recipe, folder: Path) -> list[str]:
        encoder = [f"policy.encoder=siglip:{folder}"] if (folder / TOWER).exists() else []
        return [*super().changes_to_reopen(recipe, folder), *encoder]

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        seed, batch, augment = self.recipe.seed, self.recipe.loop.batch_size, self.recipe.augment
        demos, train = self.demos.to(place.device), self.train.to(place.device)
        words = hash_words(demos.tasks).to(place.device)
        starts, share = _first_frames(self.demos, self.train).to(place.device), self.recipe.policy.first
        columns = 2 * len(demos.cameras) + 3
        for number, step in training_requests(Order(len(train), batch, seed), start, place):
            index = train[number.to(place.device)]
            u = uniforms(seed, step, batch, place, columns + 2)
            index = torch.where(u[:, -1] < share, starts[(u[:, -2] * len(starts)).long()], index)
            u = u[:, :columns]
            depth = None if demos.depth is None else demos.depth[index]
            image, depth = augment_cameras(demos.image[index], depth, u, augment)
            k = None if demos.intrinsics is None else augment_intrinsics(demos.intrinsics[index], u, augment)
            yield self._batch(demos, index, image, depth, k, words)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch)
        return loss

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        devices = [place.device] if place.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # the same noise in every evaluation, and training's generator untouched
            torch.manual_seed(derive(self.recipe.data.seed, "validation", place.rank))
            metrics = self._measure(model, self.held_out, place, loss=True)
            first = self._measure(model, self.first, place)
        metrics |= {f"{name}_first": first[name] for name in ("near", "error")}
        tasks = filter(None, map(str.strip, self.recipe.policy.simulate.split(",")))
        shares = {task: self._success(model, place, task) for task in tasks}
        if len(shares) > 1:
            metrics |= {f"success_{name}": share for name, share in shares.items()}
        return metrics | ({"success": sum(shares.values()) / len(shares)} if shares else {})

    def _measure(self, model: nn.Module, frames: Tensor, place: Place, *, loss: bool = False) -> dict[str, float]:
        """near and error over validation frames, their count, and perhaps the loss."""
        span = (self.demos.action.amax(0) - self.demos.action.amin(0)).to(place.device)
        moving = span > FLAT  # a joint that never moves has no range to measure distances by
        sums = []
        for batch, weight in self._validation(frames, place, self.recipe.loop.eval_batch):
            distance = ((model(batch, predict=True) - batch[ACTION]).abs() / span)[..., moving]  # (b, chunk, a)
            by_example = {"near": (distance <= NEAR).double(), "error": distance.double()}
            sums.append({name: (value.mean((1, 2)) * weight).sum() for name, value in by_example.items()})
            if loss:
                sums[-1]["loss"] = model(batch).double() * weight.sum()  # a mean, padding included
            sums[-1]["count"] = weight.sum()
        return average(sum_batches(sums), place)

    def _success(self, model: nn.Module, place: Place, task: str) -> float:
        """The share of a task's trials in simulation that succeed with the current weights."""
        if place.world > 1:
            raise ValueError(f"policy.simulate works with one process, got {place.world}: evaluate checkpoints instead")
        p, d, size = self.recipe.policy, self.demos, self.recipe.data.image_size
        observed = {"depth": d.depth is not None, "calibration": p.frame == "world"}
        env = partial(robots.make, task, size=(size, size), cameras=d.cameras, **observed)
        seeds = range(FIRST_TRIAL, FIRST_TRIAL + p.trials)
        policy = cast(Planner, getattr(model, "module", model))  # without the wrapper of parallel training
        return sum(trial.success for trial in run_trials(TrialSetting(env, lambda: policy), seeds)) / len(seeds)

    def samples(self, count: int) -> list[Sample]:
        demos = self.val_demos
        samples = []
        for i in self.held_out[:: max(len(self.held_out) // count, 1)][:count].tolist():
            task = demos.tasks[int(demos.task[demos.seen[i]])]
            samples.append(Sample(torch.cat(list(demos.image[i].permute(0, 2, 3, 1)), dim=1), task))
        return samples

    def counters(self) -> dict[str, float]:
        return {"broken_episodes": float(self.demos.broken)} if self.demos.broken else {}

    def _batch(
        self,
        demos: Demos,
        index: Tensor,
        image: Tensor,
        depth: Tensor | None,
        intrinsics: Tensor | None,
        words: Tensor,
    ) -> Batch:
        steps = demos.seen[index]
        batch = {STATE: demos.state[steps], ACTION: demos.chunks(steps, self.recipe.policy.chunk)}
        batch["task"] = words[demos.task[steps]]
        for i, name in enumerate(demos.cameras):
            batch[IMAGES + name] = image[:, i]
            if depth is not None:
                batch[DEPTH + name] = depth[:, i]
            if intrinsics is not None and demos.pose is not None:
                batch[intrinsics_key(name)], batch[pose_key(name)] = intrinsics[:, i], demos.pose[index, i]
        return batch

    def _validation(self, frames: Tensor, place: Place, size: int) -> Iterator[tuple[Batch, Tensor]]:
        demos = self.val_demos
        words = hash_words(demos.tasks)
        for share, weight in shares(len(frames), size, place):
            index = frames[share]
            depth = None if demos.depth is None else demos.depth[index]
            k = None if demos.intrinsics is None else demos.intrinsics[index]
            batch = self._batch(demos, index, demos.image[index], depth, k, words)
            yield {name: t.to(place.device) for name, t in batch.items()}, weight.to(place.device)


def _first_frames(demos: Demos, frames: Tensor) -> Tensor:
    """The first of the frames of every episode; frames are numbers of pictures, in order."""
    episode = demos.episode[demos.seen][frames]
    return frames[episode != torch.cat([episode.new_tensor([-1]), episode[:-1]])]


def _choose_held_out(episodes: int, recipe: Recipe) -> Tensor:
    """Numbers of the episodes held out for validation: a share of all, at least one, and the same for every seed."""
    share = recipe.policy.held_out
    if episodes < 2 or not 0 < share < 1:
        raise ValueError(
            f"validation needs data.val, or 0 < policy.held_out < 1 of at least 2 episodes; got {share:g} of {episodes}"
        )
    count = min(max(round(share * episodes), 1), episodes - 1)
    return torch.randperm(episodes, generator=generator(recipe.data.seed, "held out"))[:count]


POLICIES: dict[str, Callable[..., RobotPolicy]] = {"diffusion": DiffusionPolicy, "energy": EnergyPolicy}
"""The kinds of policies. The keyword parameters of each are its options, and keys of the recipe: policy.repeats, …"""


def option_keys(kind: str) -> tuple[str, ...]:
    """The keys of a recipe that only a policy of this kind reads."""
    parameters = inspect.signature(look_up("policy.kind", kind, POLICIES)).parameters.values()
    return tuple(f"policy.{p.name}" for p in parameters if p.kind is p.KEYWORD_ONLY)


def new_policy(
    recipe: Recipe, spec: PolicySpec, *, pretrained: bool = True, tower: Mapping[str, Any] | None = None
) -> RobotPolicy:
    """The policy of a recipe. pretrained=False leaves the encoder at random, for weights that come from a checkpoint.
    tower: the configuration of an encoder of transformers; by default that of its folder."""
    encoder = build_image_encoder(recipe, pretrained=pretrained, tower=tower)
    policy = _build(recipe, spec, encoder)
    set_initial_weights(policy, recipe, skip=[encoder])
    return policy


def _build(recipe: Recipe, spec: PolicySpec, encoder: ImageEncoder) -> RobotPolicy:
    p = recipe.policy
    net = PolicyNet(
        dim=p.dim,
        num_heads=p.heads,
        encoder_layers=p.encoder_layers,
        decoder_layers=p.decoder_layers,
        chunk=p.chunk,
        execute=p.execute,
        blind=p.blind,
        frame=p.frame,
        encoding=recipe.model.encoding,
        encoding_options=recipe.model.options,
    )
    options = {key.removeprefix("policy."): getattr(p, key.removeprefix("policy.")) for key in option_keys(p.kind)}
    return POLICIES[p.kind](encoder, spec, net, **options)


def load_policy(path: str | Path) -> RobotPolicy:
    """The policy of a run's folder, or of one of its checkpoints/<step>, ready to act."""
    policy = load_run(path, "policy").model
    assert isinstance(policy, RobotPolicy)
    return policy


@torch.no_grad()
def start_policy(policy: RobotPolicy, recipe: Recipe, folder: Path) -> None:
    """Start a whole policy from that of another run, to tune it on other demonstrations.

    Normalisation stays as the loaded weights have it, except that the range of actions grows where the new
    demonstrations exceed it: with the data of the other run, training starts from exactly its policy."""
    old, weights = read_model(folder)
    where = f"model.start={folder}"
    if old.task != "policy":
        raise ValueError(
            f"{where} is a run of {old.task}: give a run of policy, or set policy.encoder to start the encoder alone"
        )
    trained, new = read_spec(weights), policy.spec
    for name in ("cameras", "state_dim", "action_dim", "image_size"):
        if getattr(trained, name) != getattr(new, name):
            raise ValueError(
                f"{where} was trained with {name}={getattr(trained, name)}, but these demonstrations have "
                f"{getattr(new, name)}: they must be of the same robot and cameras"
            )
    if find_tower_config(recipe) is None:
        refuse_other_shapes(old, recipe, where)
    low, high = policy.action_low.clone(), policy.action_high.clone()
    load_weights(policy, weights | {"about": policy.about}, where)
    policy.action_low.copy_(torch.minimum(policy.action_low, low))
    policy.action_high.copy_(torch.maximum(policy.action_high, high))
