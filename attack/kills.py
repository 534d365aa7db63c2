"""Processes killed at random moments, alone and two on one folder: the next one goes on, and what it leaves is, byte
for byte, what a process leaves that nobody killed."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forks import DRAFT, Process
from tally import Tally

_BUSY = "is in use by"
_IMPORTED = (  # here, so that no fork has to
    "stringpe.scenes", "stringpe.robots.data.demos", "stringpe.robots.data.hdf5", "stringpe.robots.data.pack", "h5py",
    "pyarrow.parquet", "stringpe.training.loop", "stringpe.training.comparison", "stringpe.training.report",
    "stringpe.training.simulation", "stringpe.data.depth_lifting", "stringpe.tasks.classification", "matplotlib.pyplot",
    "actors", "stand_in", "training_toy", "cloud_files", "stringpe.tasks.relations", "stringpe.tasks.shapes",
    "captioned_files", "scipy.stats", "safetensors.torch", "PIL.Image", "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A job that fills a folder and, called again, goes on. leaves: digests, by name, of what must not depend on
    kills. shared: several processes share the work; else the second is told of the first and ends."""

    work: Callable[[Path], Any]
    leaves: Callable[[Path], Mapping[str, str]]
    shared: bool


def attack(kills: int, seed: int, *, pairs: int | None = None, only: tuple[str, ...] = ()) -> Tally:
    """At least so many kills over all families, at least `pairs` of them (a quarter) with two processes at work."""
    tally, dice = Tally("kills"), random.Random(seed)
    torch.set_num_threads(1)
    pairs = kills // 4 if pairs is None else pairs
    with tempfile.TemporaryDirectory() as folder:
        known = {n: f for n, f in families(Path(folder)).items() if not only or n in only}
        truths = {name: _reference(family, Path(folder), name) for name, family in known.items()}
        numbers = itertools.count()
        for two in (True, False):
            wanted = pairs if two else kills - pairs
            done = 0
            for name in itertools.cycle(known):
                if done >= wanted:
                    break
                place = Path(folder) / f"{name}-{next(numbers)}"
                done += _round(tally, dice, name, known[name], truths[name], place, two)
                shutil.rmtree(place, ignore_errors=True)
    return tally


def _reference(family: Family, folder: Path, name: str) -> tuple[Mapping[str, str], float]:
    """What a process leaves that nobody kills, and how long it takes."""
    place = folder / f"{name}-whole"
    process = Process(partial(family.work, place), folder / "log")
    if process.wait() != 0:
        raise RuntimeError(f"{name} does not work at all: {process.said()}")
    return family.leaves(place), time.monotonic() - process.began


def _round(
    tally: Tally,
    dice: random.Random,
    name: str,
    family: Family,
    truth: tuple[Mapping[str, str], float],
    place: Path,
    two: bool,
) -> int:
    """Kill processes at work in one folder a few times, let the last finish, and compare. Returns the kills."""
    wanted, seconds = truth
    line = f"{name}, {'two processes' if two else 'one process'}"
    killed, log = 0, place.with_suffix(".log")
    for _ in range(dice.randint(1, 4)):
        processes = [Process(partial(family.work, place), log.with_suffix(f".log{i}")) for i in range(1 + two)]
        time.sleep(dice.uniform(0, 0.7 * seconds))
        victims = processes if dice.random() < 0.3 else processes[: 1 + (not two)]
        killed += sum(process.kill() for process in victims)
        for process in processes:
            _end(tally, line, process, family)
    last = Process(partial(family.work, place), log)
    _end(tally, line, last, family, must=True)
    found = family.leaves(place) if last.status == 0 else wanted
    other = [key for key in sorted(found.keys() | wanted.keys()) if found.get(key) != wanted.get(key)]
    drafts = [path.name for path in place.rglob(".*") if DRAFT.match(path.name)]
    if other:
        tally.fault("lost, doubled or changed", f"{line}: {', '.join(other[:5])}")
    if drafts:
        tally.fault("drafts left behind", f"{line}: {drafts[0]}")
    tally.count(f"{'two processes, ' if two else ''}resumed byte-equal", killed)
    return killed


def _end(tally: Tally, line: str, process: Process, family: Family, must: bool = False) -> None:
    """Wait for a process that was not killed; it may only fail because another one is at work."""
    status = process.wait()
    if status is None:
        tally.fault("hang", line)
    elif status == 1 and (must or family.shared or _BUSY not in process.said()):
        tally.fault("failed", f"{line}: {process.said()[:200]}")


# What there is to kill.


def families(folder: Path) -> dict[str, Family]:
    """The jobs. Material that they read is made in `folder`, by another process: threads of libraries that were used
    here would be missing in forks."""
    for module in _IMPORTED:
        importlib.import_module(module)
    made = Process(partial(_make_material, folder), folder / "log")
    if made.wait() != 0:
        raise RuntimeError(f"there is nothing to work with: {made.said()}")
    recordings = sorted((folder / "hdf5").glob("*.hdf5"))
    return {
        "scenes": Family(_scenes, _files(("*.tar", "*.json", "*.png")), True),
        "demos": Family(_demos, _episodes, True),
        "train": Family(_train, _run, False),
        "stacked": Family(_stacked, _run, False),
        "clouds": Family(partial(_clouds, folder / "clouds.npz"), _run, False),
        "compare": Family(_compare, _comparison, False),
        "eval": Family(_simulate, _trials, False),
        "depth": Family(partial(_depth, folder / "pictures"), _files(("*.tar", "*.json")), True),
        "hdf5": Family(partial(_hdf5, recordings), _episodes, False),
        "pack": Family(partial(_pack, folder / "episodes"), _files(("*.safetensors",)), True),
    }


def _files(patterns: tuple[str, ...]) -> Callable[[Path], Mapping[str, str]]:
    def leaves(folder: Path) -> Mapping[str, str]:
        found = [path for pattern in patterns for path in folder.rglob(pattern) if not path.name.startswith(".")]
        return {path.relative_to(folder).as_posix(): _digest(path.read_bytes()) for path in found}

    return leaves


def _digest(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _scenes(out: Path) -> None:
    from stringpe import scenes

    scenes.write(out, 6, size=(8, 8), families=("tables",), shard_size=1, batch=1)


def _demos(out: Path) -> None:
    """Episodes of a point in the plane, whose pictures need no renderer."""
    from stand_in import Reach, demonstration

    from stringpe.robots.data import demos

    class Env(Reach):
        robot = type("robot", (), {"name": "point"})

        def intrinsics(self, camera: str) -> torch.Tensor:
            return torch.eye(3)

    demos._check_expert = lambda settings: None
    demos.DemoSettings.env = lambda self: Env()  # type: ignore[method-assign,assignment,return-value]
    demos.demonstrate = lambda env, seed, noise: None if seed % 7 == 3 else seed  # type: ignore[assignment,return-value]
    demos.replay = lambda env, seed, actions: demonstration(seed)  # type: ignore[assignment]
    demos.write(out, 12, demos.DemoSettings("Reach", quality=0))


def _episodes(folder: Path) -> Mapping[str, str]:
    """The content of every episode by its seed: two processes number the same episodes in another order."""
    from stringpe.robots.data.dataset import Dataset

    data = Dataset(folder)
    found: dict[str, str] = {}
    for number, episode in enumerate(data.episodes):
        columns = data.read_encoded(number)
        parts = [_digest(b"".join(v) if isinstance(v, list) else v.tobytes()) for _, v in sorted(columns.items())]
        key = f"seed {episode.seed}"
        found[f"{key} again" if key in found else key] = _digest([parts, episode.length, episode.task])
    return found | {"broken": str(len(data.broken)), "listed": str(data.info["total_episodes"])}


def _toy() -> Any:
    from dataclasses import replace

    from material import classifier

    toy = classifier()
    return replace(toy, loop=replace(toy.loop, steps=10, eval_every=5))


def _train(out: Path) -> None:
    from stringpe.training import train

    train(_toy(), out, quiet=True)


def _stacked(out: Path) -> None:
    """Three seeds in one step."""
    from stringpe import recipes
    from stringpe.recipes.overrides import override
    from stringpe.training import train

    sizes = ["model.dim=8", "model.heads=2", "model.layers=1", "data.val_size=8", "optim.ema=0.9", "loop.batch_size=4"]
    steps = ["loop.steps=12", "loop.save_every=2", "loop.log_every=1", "loop.eval_every=5", "optim.warmup_steps=2"]
    train(override(recipes.load("relations"), [*sizes, *steps, "loop.seeds=3"]), out, quiet=True)


def _clouds(file: Path, out: Path) -> None:
    """A model of point clouds, with the groups of its points in a cache beside it."""
    from stringpe.recipes.schema import Data, Loop, Model, Optim, Recipe
    from stringpe.training import train

    sizes = {"num_classes": 3, "groups": 4, "group_size": 5, "cache": str(out / "cache")}
    recipe = Recipe(
        name="clouds",
        task="shapes",
        model=Model(dim=8, layers=1, heads=1, encoding="cayley", pool="mean"),
        data=Data(source="clouds", train=str(file), **sizes),  # type: ignore[arg-type]
        optim=Optim(lr=1e-2, ema=0.9),
        loop=Loop(batch_size=8, steps=10, save_every=2, log_every=1, eval_every=5),
    )
    train(recipe, out, quiet=True)


def _run(folder: Path) -> Mapping[str, str]:
    """Weights, optimiser and curve of a run; not the saved states of random generators, which a fork inherits."""
    found = _files(("metrics.jsonl", "*.safetensors", "optimizer.json"))(folder)
    found = {name: digest for name, digest in found.items() if not name.endswith("rng.safetensors")}
    return {**found, "metrics": _digest(json.loads((folder / "result.json").read_text())["metrics"])}


def _compare(out: Path) -> None:
    from stringpe.training.comparison import compare

    compare(_toy(), ["rope", "none"], 1, out, jobs=1, costs=False, quiet=True)


def _comparison(folder: Path) -> Mapping[str, str]:
    scores = json.loads((folder / "results.json").read_text())["scores"]
    runs = {f"{path.name}/{k}": v for path in sorted((folder / "runs").glob("*/*")) for k, v in _run(path).items()}
    return {"scores": _digest(scores), "curves": _digest((folder / "metrics.jsonl").read_bytes()), **runs}


def _simulate(out: Path) -> None:
    from actors import Expert
    from stand_in import Reach

    from stringpe.robots.evaluate import TrialWorkers
    from stringpe.training.simulation import EvaluationPlan, evaluate_policy

    with TrialWorkers(0) as workers:
        evaluate_policy(EvaluationPlan(Expert, Reach, out, "Reach", "digest", videos=2), range(100, 148), workers)


def _trials(folder: Path) -> Mapping[str, str]:
    """Outcomes by seed, as the log and the summary have them; times differ from run to run."""
    info = json.loads((folder / "eval_info.json").read_text())
    outcomes = {f"seed {e['seed']}": _digest([e["success"], e["sum_reward"], e["steps"]]) for e in info["per_episode"]}
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines() if line.endswith("}")]
    return {**outcomes, "trials in the log": str(len({line["seed"] for line in lines})), "count": str(len(outcomes))}


class _Estimator:
    """Depth from brightness, in place of a network."""

    def provenance(self) -> dict[str, Any]:
        return {"model": "brightness"}

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def __call__(self, images: list[torch.Tensor]) -> list[torch.Tensor]:
        return [1 + image.float().mean(0) / 100 for image in images]


def _make_material(folder: Path) -> None:
    """Captioned pictures, recordings of a stand-in robot, and the same recordings as a data set."""
    import h5py
    from stand_in import demonstration

    from captioned_files import picture
    from cloud_files import write_clouds

    write_clouds(folder / "clouds.npz", train=24, test=6)
    for name in ("pictures", "hdf5"):
        (folder / name).mkdir()
    for i in range(48):
        (folder / "pictures" / f"{i:03d}.png").write_bytes(picture(5 * i, size=(64, 48)))
        (folder / "pictures" / f"{i:03d}.txt").write_text(f"picture {i}")
    for i in range(12):
        frames = demonstration(i)
        with h5py.File(folder / "hdf5" / f"episode_{i:02d}.hdf5", "w") as file:
            file["action"], file["observations/qpos"] = frames["action"], frames["observation.state"]
            file["observations/images/top"] = frames["observation.images.top"]
    _hdf5(sorted((folder / "hdf5").glob("*.hdf5")), folder / "episodes")


def _depth(source: Path, out: Path) -> None:
    from stringpe.data.depth_lifting import LiftSettings, lift_shards

    lift_shards(str(source), out, _Estimator(), LiftSettings((), shard_size=4, batch=2))  # type: ignore[arg-type]


def _hdf5(files: list[Path], out: Path) -> None:
    from stringpe.robots.data.hdf5 import import_hdf5

    import_hdf5(files, out, task="reach")


def _pack(episodes: Path, out: Path) -> None:
    from stringpe.robots.data.dataset import Dataset
    from stringpe.robots.data.pack import pack

    pack(Dataset(episodes), out / "demos.safetensors", size=16)
