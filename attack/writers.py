"""Several processes that write at the same moment: one wins or all share, and nothing is lost, doubled or torn."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forks import Process
from kills import Family, families
from tally import Tally

from stringpe.io.files import claim_folder, hold_lock, read_json, write_json

_BUSY = "is in use by"


def attack(rounds: int, seed: int, *, most: int = 8) -> Tally:
    """So many rounds of every kind, each with two to `most` processes that begin at the same moment."""
    tally, dice = Tally("concurrent writers"), random.Random(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        known = families(Path(folder))
        for number in range(rounds):
            for name, kind in KINDS.items():
                place = Path(folder) / f"{name}-{number}"
                place.mkdir()
                _report(tally, name, dice.randint(2, most), kind, place)
            for name in ("scenes", "demos", "depth", "eval", "train", "hdf5"):
                place = Path(folder) / f"{name}-{number}"
                _fill(tally, name, dice.randint(2, 3), known[name], Path(folder), place)
    return tally


def _report(tally: Tally, name: str, count: int, kind: Callable[[Path, int], str], place: Path) -> None:
    wrong = kind(place, count)
    if wrong:
        tally.fault("lost, doubled or torn", f"{name}, {count} processes: {wrong}")
    else:
        tally.count("whole", count)
    shutil.rmtree(place)


def _together(works: Sequence[Callable[[], Any]], place: Path) -> list[int | None]:
    """Exit statuses of processes that begin at the same moment."""
    start = time.time() + 0.03 + 0.01 * len(works)

    def wait_and(work: Callable[[], Any]) -> None:
        while time.time() < start:
            pass
        work()

    logs = [place.with_name(f"{place.name}.log{i}") for i in range(len(works))]
    processes = [Process(partial(wait_and, work), log) for work, log in zip(works, logs, strict=True)]
    return [process.wait() for process in processes]


def _claim(place: Path, count: int) -> str:
    """Folders begun with different settings at once: one process gets it, and its settings stand."""

    def claim(number: int) -> None:
        claim_folder(place, {"seed": number, "text": "x" * 2000 * number}, file="made.json", what="data set")

    statuses = _together([partial(claim, i) for i in range(count)], place)
    winners = [i for i, status in enumerate(statuses) if status == 0]
    found = read_json(place / "made.json")
    if len(winners) != 1 or found["seed"] != winners[0]:
        return f"processes {winners} got the folder, which says {found['seed']}"
    left = [path.name for path in place.iterdir() if path.name != "made.json"]
    return f"{left[0]} is left" if left else ""


def _count(place: Path, count: int) -> str:
    """Numbers that are read, raised and written under a lock."""
    from stringpe.robots.data.claims import wait_for_lock

    (place / "n").write_text("0")

    def raise_it() -> None:
        for _ in range(20):
            with wait_for_lock(place / "lock", "the number"):
                (place / "n").write_text(str(int((place / "n").read_text()) + 1))

    statuses = _together([raise_it] * count, place)
    found = int((place / "n").read_text())
    return "" if found == 20 * count and not any(statuses) else f"{found} of {20 * count}, statuses {statuses}"


def _same_file(place: Path, count: int) -> str:
    """One file that all write and all read: whoever reads it finds it whole."""
    write_json(place / "x.json", [-1] * 500)

    def write(number: int) -> None:
        for _ in range(20):
            write_json(place / "x.json", [number] * 500)
            found = read_json(place / "x.json")
            assert len(found) == 500
            assert len(set(found)) == 1

    statuses = _together([partial(write, i) for i in range(count)], place)
    left = [path.name for path in place.iterdir() if path.name != "x.json"]
    return f"statuses {statuses}" if any(statuses) else (f"{left[0]} is left" if left else "")


def _exclusive(place: Path, count: int) -> str:
    """A lock that all want at once is held by one at a time, and the others are told by whom."""

    def hold() -> None:
        with hold_lock(place / "lock", "the folder"):
            (place / "held").touch(exist_ok=False)
            time.sleep(0.05)
            (place / "held").unlink()

    statuses = _together([hold] * count, place)
    logs = [place.with_name(f"{place.name}.log{i}").read_text() for i in range(count)]
    told = [_BUSY in log for log, status in zip(logs, statuses, strict=True) if status]
    return "" if 0 in statuses and all(told) else f"statuses {statuses}"


def _cache(place: Path, count: int) -> str:
    """One file of a cache that all make."""
    from stringpe.data.cache import load_or_make

    def make() -> None:
        found = load_or_make(str(place), "kept", lambda: {"x": torch.arange(1000.0)})
        assert torch.equal(found["x"], torch.arange(1000.0))

    statuses = _together([make] * count, place)
    left = [path.name for path in place.iterdir() if path.name != "kept.safetensors"]
    return f"statuses {statuses}" if any(statuses) else (f"{left[0]} is left" if left else "")


def _episodes(place: Path, count: int) -> str:
    """Episodes that all add: numbers without gaps, each episode once."""
    from stand_in import demonstration

    from stringpe.robots.data.dataset import Dataset
    from stringpe.robots.data.writer import Writer

    def add(number: int) -> None:
        writer = Writer(place, fps=10, quality=0)
        for i in range(3):
            writer.add(demonstration(3 * number + i), task="reach", seed=3 * number + i)

    statuses = _together([partial(add, i) for i in range(count)], place)
    data = Dataset(place)
    seeds, numbers = sorted(e.seed or 0 for e in data.episodes), sorted(e.number for e in data.episodes)
    wanted = list(range(3 * count))
    return "" if seeds == numbers == wanted and not any(statuses) else f"seeds {seeds}, statuses {statuses}"


KINDS: dict[str, Callable[[Path, int], str]] = {
    "claims of a folder": _claim,
    "a number under a lock": _count,
    "one file": _same_file,
    "one lock": _exclusive,
    "a cache": _cache,
    "a data set": _episodes,
}


_truths: dict[str, Any] = {}


def _fill(tally: Tally, name: str, count: int, family: Family, folder: Path, place: Path) -> None:
    """A job that several processes begin in one folder at once."""
    if name not in _truths:
        whole = folder / f"{name}-alone"
        Process(partial(family.work, whole), folder / "log").wait()
        _truths[name] = json.dumps(dict(family.leaves(whole)), sort_keys=True)
    statuses = _together([partial(family.work, place)] * count, place)
    logs = [place.with_name(f"{place.name}.log{i}").read_text() for i in range(count)]
    failed = [log for log, status in zip(logs, statuses, strict=True) if status]
    told = [_BUSY in log for log in failed]
    found = json.dumps(dict(family.leaves(place)), sort_keys=True)
    if 0 not in statuses or not all(told) or (family.shared and told):
        tally.fault("failed", f"{name}, {count} processes: statuses {statuses}\n" + "\n".join(failed))
    elif found != _truths[name]:
        tally.fault("lost, doubled or torn", f"{name}, {count} processes")
    else:
        tally.count("whole", count)
    shutil.rmtree(place)
