"""Policies in simulation: the same initial states for every policy, success with intervals, paired differences.

Each policy leaves a folder with trials.jsonl (a line a trial, so that a stopped evaluation goes on), eval_info.json as
lerobot writes it, and videos of successes and failures.
"""

import dataclasses
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .. import robots
from ..io.checkpoint import read_model
from ..io.files import write_json, write_text
from ..metrics.statistics import Estimate, paired_shares, wilson
from ..robots.evaluate import FIRST_SEED, Actor, Setting, Trial, trials
from ..robots.policies.policy import read_spec
from ..tasks.policy_model import load_policy


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
    quiet: bool = False,
) -> str:
    """Try every checkpoint on initial states seed, seed + 1, … of one task or several; returns the tables.

    options: of the environment, for example {"lighting": "dim"}. shifts: then also under each shift that the task has
    (`robots.SHIFTS`). out: folder of the results, where table.md and success.svg are written too; by default each run's
    own folder `eval/<task>`. jobs: processes; 0 for one a core."""
    known = []
    for checkpoint, label in zip(map(Path, checkpoints), labels(checkpoints), strict=True):
        recipe, weights = read_model(checkpoint)
        known.append((checkpoint, label, read_spec(weights), recipe.model.depth != "none"))
    todo: list[tuple[str, str, Callable[[], Actor], Callable[[], Any], Path]] = []
    for task, chosen in _settings([tasks] if isinstance(tasks, str) else tasks, options or {}, shifts):
        name = setting_name(task, chosen)
        place = name.replace(", ", "-").replace("/", "-")
        for checkpoint, label, spec, depth in known:
            size = (spec.image_size, spec.image_size)
            env = partial(robots.make, task, size=size, cameras=spec.cameras, depth=depth, **chosen)
            check_env(env, spec.action_dim, spec.state_dim)  # all of them, before the first is tried
            folder = Path(out) / label / place if out else _run_folder(checkpoint) / "eval" / place
            todo.append((name, label, partial(load_policy, checkpoint), env, folder))
    found: dict[str, dict[str, list[Trial]]] = {}
    for name, label, policy, made, folder in todo:
        found.setdefault(name, {})[label] = evaluate(policy, made, folder, count, seed, jobs, videos, quiet)
    text = "\n".join([*([overview(found)] if len(found) > 1 else []), *(table(f, n) for n, f in found.items())])
    if out:
        write_text(Path(out) / "table.md", text)
        _draw(found, Path(out) / "success.svg")
    return text


def setting_name(task: str, options: Mapping[str, Any]) -> str:
    """KukaPick, lighting=dim."""
    return ", ".join([task, *(f"{k}={v}" for k, v in sorted(options.items()))])


def short_names(settings: Sequence[str]) -> list[str]:
    """Names of settings without what all have in common; "usual" where nothing else is left."""
    parts = [name.split(", ") for name in settings]
    if len(parts) == 1:
        return list(settings)
    common = set.intersection(*map(set, parts))
    return [", ".join(part for part in each if part not in common) or "usual" for each in parts]


def _settings(
    tasks: Sequence[str], options: Mapping[str, Any], shifts: bool
) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Every task with its options; and again under each of its shifts."""
    if not tasks:
        raise ValueError(f"name at least one task: {', '.join(robots.tasks())}")
    without = [task for task in tasks if task not in robots.SHIFTS]
    if shifts and without:
        raise ValueError(f"{without[0]} has no shifts; there are some for {', '.join(robots.SHIFTS)}")
    return [(task, {**options, **shift}) for task in tasks for shift in ({}, *(robots.SHIFTS[task] if shifts else ()))]


def _draw(found: Mapping[str, Mapping[str, Sequence[Trial]]], path: Path) -> None:
    if not importlib.util.find_spec("matplotlib"):
        warnings.warn(
            f"matplotlib is not installed, so there is no {path.name}: repeat the command where it is", stacklevel=3
        )
        return
    from .figures import draw_shares

    shares = [{label: _share(each) for label, each in policies.items()} for policies in found.values()]
    groups = dict(zip(short_names(list(found)), shares, strict=True))
    path.write_bytes(draw_shares(groups, "success (%), 95 % interval"))


def overview(found: Mapping[str, Mapping[str, Sequence[Trial]]]) -> str:
    """Markdown: a row a policy, a column a setting: success in per cent with Wilson's interval."""
    first, *_ = found.values()
    rows = [["policy", *short_names(list(found))]]
    for label in first:
        shares = [_share(policies[label]) for policies in found.values()]
        rows.append([label, *(f"{100 * s.mean:.0f} ({_range(s, '', 0)})" for s in shares)])
    return _markdown(rows) + "\n"


def evaluate(
    policy: Callable[[], Actor],
    env: Callable[[], Any],
    folder: Path,
    count: int,
    seed: int = FIRST_SEED,
    jobs: int = 0,
    videos: int = 3,
    quiet: bool = True,
) -> list[Trial]:
    """Trials of one policy, those that `folder` has already included; writes eval_info.json there."""
    if count < 1:
        raise ValueError(f"an evaluation needs at least one trial, got {count}")
    began = time.monotonic()
    seeds = range(seed, seed + count)
    done = {t.seed: t for t in _finished(folder) if t.seed in seeds}
    left = [s for s in seeds if s not in done]
    setting = Setting(env, policy, folder / "videos", videos)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "trials.jsonl", "a", encoding="utf-8") as log:
        for trial in trials(setting, left, min(jobs or os.cpu_count() or 1, max(len(left), 1))):
            done[trial.seed] = trial
            log.write(json.dumps(dataclasses.asdict(trial)) + "\n")
            log.flush()
            if not quiet:
                good = sum(t.success for t in done.values())
                print(f"{folder}: {len(done)} / {count} trials, {good} succeeded", flush=True)
    ordered = [done[s] for s in seeds]
    write_json(folder / "eval_info.json", info(ordered, time.monotonic() - began, folder))
    return ordered


def info(found: Sequence[Trial], seconds: float, folder: Path) -> dict[str, Any]:
    """eval_info.json: lerobot's keys, and Wilson's interval and the crashes beside them."""
    n = len(found)
    share = _share(found)
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
            for i, t in enumerate(found)
        ],
        "aggregated": {
            "avg_sum_reward": sum(t.sum_reward for t in found) / n,
            "avg_max_reward": sum(t.max_reward for t in found) / n,
            "pc_success": 100 * share.mean,
            "pc_success_interval": [100 * bound for bound in share.bounds],
            "n_episodes": n,
            "n_crashed": sum(bool(t.crashed) for t in found),
            "eval_s": seconds,
            "eval_ep_s": sum(t.seconds for t in found) / n,
        },
        "video_paths": [str(folder / "videos" / t.video) for t in found if t.video],
    }


def table(found: Mapping[str, Sequence[Trial]], setting: str) -> str:
    """Markdown: success with Wilson's interval, and differences to the first policy, paired by initial state."""
    rows = [["policy", "success (%)", "95 % interval", "difference", "95 % interval", "McNemar p", "crashed"]]
    first = next(iter(found))
    base = {t.seed: t.success for t in found[first]}
    for label, each in found.items():
        share = _share(each)
        row = [label, f"{100 * share.mean:.1f}", _range(share, "")]
        if label == first:
            row += ["baseline", "", ""]
        else:
            pair = paired_shares({t.seed: t.success for t in each}, base)
            row += [f"{100 * pair.difference.mean:+.1f}", _range(pair.difference, "+"), f"{pair.p_value:.3f}"]
        rows.append([*row, str(sum(bool(t.crashed) for t in each))])
    notes = [
        f"{setting}: {len(base)} trials each, initial states {min(base)} to {max(base)}, the same for all. A crashed "
        f"simulation counts as no success. Intervals: Wilson's, and Newcombe's for paired shares."
    ]
    if len(base) < 50:
        notes.append(f"{len(base)} trials say little: 6 of 10 is 31 to 83 %. Use at least 50.")
    return "\n".join([_markdown(rows), *notes, ""])


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:], ""])


def check_env(env: Callable[[], Any], action_dim: int, state_dim: int) -> None:
    """Make the environment once here, where what fails is an error and not a crash, and compare sizes."""
    made = env()
    try:
        action = made.action_space.shape
        state = made.observation_space["observation.state"].shape
    finally:
        made.close()
    if action != (action_dim,) or state != (state_dim,):
        raise ValueError(
            f"the policy was trained with states of {state_dim} and actions of {action_dim} numbers, this environment "
            f"has {state} and {action}: evaluate it on the robot that it was trained for"
        )


def labels(checkpoints: Sequence[str | Path]) -> list[str]:
    """Short names that differ: the paths without what they have in common at both ends."""
    parts = [Path(c).resolve().parts for c in checkpoints]
    if len(set(parts)) < len(parts):
        raise ValueError(f"the same checkpoint is named twice: {', '.join(map(str, checkpoints))}")
    if len(parts) == 1:
        return [_run_folder(Path(checkpoints[0])).name]
    start = next(i for i in range(min(map(len, parts)) + 1) if len({p[: i + 1] for p in parts}) > 1)
    return ["-".join(p[start:]) for p in parts]


def _share(found: Sequence[Trial]) -> Estimate:
    return wilson(sum(t.success for t in found), len(found))


def _range(estimate: Estimate, sign: str, digits: int = 1) -> str:
    low, high = estimate.bounds
    return f"{100 * low:{sign}.{digits}f} to {100 * high:{sign}.{digits}f}"


def _run_folder(checkpoint: Path) -> Path:
    """The run that a checkpoint belongs to, or the folder itself."""
    path = checkpoint.resolve()
    for parent in (path, *path.parents[:3]):
        if parent.name == "checkpoints":
            return parent.parent
    return path


def _finished(folder: Path) -> list[Trial]:
    """Trials of an earlier evaluation; a last line cut short by a kill does not count."""
    path = folder / "trials.jsonl"
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(Trial(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return found
