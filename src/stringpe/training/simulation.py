"""Evaluating policies in simulation: the same initial states for all, success with intervals, paired differences.

Each evaluation leaves a folder with trials.jsonl (one line per trial, so that a stopped evaluation can go on),
eval_info.json as lerobot writes it, and videos of successes and failures. Everything in it is tied to the weights that
were evaluated: their digest is in evaluation.json, in every line of trials.jsonl, in eval_info.json and in the table.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import robots
from ..io.checkpoint import digest_weights, model_folder, read_model
from ..io.files import claim_folder, find_mismatch, hold_lock, refuse_link, write_json, write_text
from ..io.progress import progress
from ..robots.evaluate import FIRST_SEED, PATIENCE, TrialWorkers
from ..robots.policies.base import PolicySpec, read_spec
from ..robots.rollout import Planner, Trial, TrialSetting
from ..tasks.policy import load_policy
from .evaluation import evaluation_folder
from .simulation_report import Result, draw_success, format_overview, format_table, write_simulation


@dataclass(frozen=True)
class Candidate:
    """A policy to evaluate. folder: of its checkpoint, <step>/pretrained_model. weights: the digest of its weights.
    depth, calibration: whether it needs the cameras' depth, and their calibration."""

    folder: Path
    label: str
    spec: PolicySpec
    depth: bool
    weights: str
    calibration: bool = False


def simulate(
    checkpoints: Sequence[str | Path],
    tasks: str | Sequence[str],
    *,
    count: int = 50,
    options: Mapping[str, Any] | None = None,
    shifts: bool = False,
    out: str | Path | None = None,
    jobs: int = 0,
    videos: int = 3,
    seed: int = FIRST_SEED,
    patience: float = PATIENCE,
    html: bool = False,
    quiet: bool = False,
) -> str:
    """Evaluate every checkpoint on the initial states seed, seed + 1, … of one task or several; returns the tables.

    options: of the environment, for example {"lighting": "dim"}. shifts: evaluate also under each shift of the task
    (`robots.shifts`). out: folder of the results, with table.md, report.html and success.svg; by default
    `eval/<step>/<task>` in the folder of each run, and, of one policy, `eval/<step>/simulation` for the table. jobs:
    processes; 0 for one per core. patience: seconds after which a simulation counts as hung. html: write
    a page beside every video, to step through its cameras."""
    settings = _list_settings([tasks] if isinstance(tasks, str) else tasks, options or {}, shifts)
    candidates = [
        read_candidate(*pair) for pair in zip(map(Path, checkpoints), label_checkpoints(checkpoints), strict=True)
    ]
    # One policy after another; all environments are checked before the first trial.
    plans = [(c, _plan(c, setting, out, videos, html)) for c in candidates for setting in settings]
    results: dict[str, dict[str, Result]] = {setting_name(*setting): {} for setting in settings}
    with TrialWorkers(jobs or os.cpu_count() or 1, patience) as workers:
        for candidate, plan in plans:
            results[plan.setting][candidate.label] = evaluate_policy(plan, range(seed, seed + count), workers, quiet)
    tables = [format_table(result, name) for name, result in results.items()]
    text = "\n".join([*([format_overview(results)] if len(results) > 1 else []), *tables])
    if out or len(candidates) == 1:
        folder = Path(out) if out else evaluation_folder(candidates[0].folder) / "simulation"
        write_text(folder / "table.md", text)
        report = write_simulation(folder, results, draw_success(results, folder / "success.svg"), candidates[0].folder)
        text += f"\nreport: {report}"
    shown = [plan.folder / "videos" for _, plan in plans if plan.videos and (plan.folder / "videos").is_dir()]
    text += "".join(f"\nvideos{' and pages' if html else ''}: {path}" for path in shown)
    return text


def read_candidate(checkpoint: Path, label: str) -> Candidate:
    """What an evaluation needs to know of a checkpoint; refuses weights that are not finite."""
    folder = model_folder(checkpoint)
    recipe, weights = read_model(folder)
    spec = read_spec(weights)
    damaged = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if damaged:
        raise ValueError(
            f"{checkpoint} holds weights that are not finite ({damaged[0]}): evaluate another checkpoint of the run"
        )
    world = recipe.policy.frame == "world"
    return Candidate(folder, label, spec, world or recipe.model.depth != "none", digest_weights(weights), world)


def setting_name(task: str, options: Mapping[str, Any]) -> str:
    """For example "KukaPick, lighting=dim"."""
    return ", ".join([task, *(f"{k}={v}" for k, v in sorted(options.items()))])


def _list_settings(
    tasks: Sequence[str], options: Mapping[str, Any], shifts: bool
) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Every task with its options, and again under each of its shifts."""
    if not tasks:
        raise ValueError(f"name at least one task: {', '.join(robots.tasks())}")
    return [(task, {**options, **shift}) for task in tasks for shift in ({}, *(robots.shifts(task) if shifts else ()))]


@dataclass(frozen=True)
class EvaluationPlan:
    """The evaluation of one policy in one setting. setting: its name. weights: the digest of the policy's weights.
    videos: how many to keep of successes, and of failures. html: whether to write a page beside each video."""

    policy: Callable[[], Planner]
    env: Callable[[], Any]
    folder: Path
    setting: str
    weights: str
    videos: int = 3
    html: bool = False


def _plan(
    candidate: Candidate, setting: tuple[str, Mapping[str, Any]], out: str | Path | None, videos: int, html: bool
) -> EvaluationPlan:
    """The evaluation of a policy in a setting; refuses an environment that is not the policy's."""
    (task, options), spec = setting, candidate.spec
    name = setting_name(task, options)
    size = (spec.image_size, spec.image_size)
    sensors: dict[str, Any] = {"depth": candidate.depth, "calibration": candidate.calibration}
    env = partial(robots.make, task, size=size, cameras=spec.cameras, **sensors, **options)
    check_env(env, spec.action_dim, spec.state_dim)
    folder = Path(out) / candidate.label if out else evaluation_folder(candidate.folder)
    folder = folder / name.replace(", ", "-").replace("/", "-").replace(":", "-")
    policy = partial(load_policy, candidate.folder)
    return EvaluationPlan(policy, env, folder, name, candidate.weights, videos, html)


def evaluate_policy(plan: EvaluationPlan, seeds: range, workers: TrialWorkers, quiet: bool = True) -> Result:
    """Make one trial per seed; those that the folder holds already are not repeated. Writes eval_info.json."""
    if not len(seeds):
        raise ValueError("an evaluation needs at least one trial")
    began, folder = time.monotonic(), plan.folder
    identity = {"setting": plan.setting, "weights": plan.weights}
    claim_folder(folder, identity, file="evaluation.json", what="evaluation")
    with hold_lock(folder / ".lock", f"the evaluation in {folder}"):
        done = {t.seed: t for t in read_trials(folder, plan.weights) if t.seed in seeds}
        left = [s for s in seeds if s not in done]
        setting = TrialSetting(plan.env, plan.policy, folder / "videos", plan.videos, html=plan.html)
        with open(folder / "trials.jsonl", "a+b", opener=refuse_link) as log:
            if log.tell() and not _ends_a_line(folder / "trials.jsonl"):
                log.write(b"\n")  # an earlier process was killed while it wrote
            with progress(str(folder), len(seeds), len(done), "trials", quiet=quiet or not left) as job:
                for trial in workers.run(setting, left):
                    done[trial.seed] = trial
                    log.write(json.dumps({"weights": plan.weights, **dataclasses.asdict(trial)}).encode() + b"\n")
                    log.flush()
                    job.show(len(done), f"{sum(t.success for t in done.values())} succeeded")
        result = Result([done[s] for s in seeds], plan.weights)
        write_json(folder / "eval_info.json", make_info(result, time.monotonic() - began, folder))
    return result


def read_trials(folder: Path, weights: str) -> list[Trial]:
    """Trials of an earlier evaluation of the same weights; a line cut short by a kill does not count."""
    path = folder / "trials.jsonl"
    trials = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            fields = json.loads(line)
            digest = fields.pop("weights", "unknown")
            trial = Trial(**fields)
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue
        if find_mismatch(dataclasses.asdict(trial), _TRIAL):
            continue
        if digest != weights:
            raise ValueError(
                f"{path} holds trials of other weights ({digest}, not {weights}): choose another folder with --out"
            )
        trials.append(trial)
    return trials


_TRIAL = {"seed": int, "success": bool, "sum_reward": float, "max_reward": float, "steps": int, "seconds": float}
_TRIAL |= {"crashed": str, "video": str, "hung": bool}


def make_info(result: Result, seconds: float, folder: Path) -> dict[str, Any]:
    """eval_info.json: lerobot's keys, and beside them Wilson's interval, crashes and the digest of the weights."""
    trials, share, n = result.trials, result.share, len(result.trials)
    return {
        "per_episode": [
            {
                "episode_ix": i,
                "sum_reward": t.sum_reward,
                "max_reward": t.max_reward,
                "success": t.success,
                "seed": t.seed,
                "steps": t.steps,
                "crashed": t.crashed,
            }
            for i, t in enumerate(trials)
        ],
        "aggregated": {
            "avg_sum_reward": sum(t.sum_reward for t in trials) / n,
            "avg_max_reward": sum(t.max_reward for t in trials) / n,
            "pc_success": 100 * share.mean,
            "pc_success_interval": [100 * bound for bound in share.bounds],
            "n_episodes": n,
            "n_crashed": sum(bool(t.crashed) for t in trials),
            "n_hung": sum(t.hung for t in trials),
            "eval_s": seconds,
            "eval_ep_s": seconds / n,
        },
        "weights": result.weights,
        "video_paths": [str(folder / "videos" / t.video) for t in trials if t.video],
    }


def check_env(env: Callable[[], Any], action_dim: int, state_dim: int) -> None:
    """Make the environment once, here where a failure is an error and not a crash, and compare its sizes."""
    example = env()
    try:
        action = example.action_space.shape
        state = example.observation_space["observation.state"].shape
    finally:
        example.close()
    if action != (action_dim,) or state != (state_dim,):
        raise ValueError(
            f"the policy was trained with states of {state_dim} and actions of {action_dim} numbers, this environment "
            f"has {state} and {action}: evaluate it on the robot that it was trained for"
        )


def label_checkpoints(checkpoints: Sequence[str | Path]) -> list[str]:
    """Short and distinct names: the paths without what they have in common at the start."""
    parts = [Path(c).resolve().parts for c in checkpoints]
    if len(set(parts)) < len(parts):
        raise ValueError(f"the same checkpoint is named twice: {', '.join(map(str, checkpoints))}")
    if len(parts) == 1:
        return [_run_folder(Path(checkpoints[0])).name]
    start = next(i for i in range(min(map(len, parts)) + 1) if len({p[: i + 1] for p in parts}) > 1)
    return ["-".join(p[start:]) or Path(*p).name for p in parts]


def _run_folder(checkpoint: Path) -> Path:
    """The run that a checkpoint belongs to, or the folder itself."""
    path = checkpoint.resolve()
    for parent in (path, *path.parents[:3]):
        if parent.name == "checkpoints":
            return parent.parent
    return path


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
