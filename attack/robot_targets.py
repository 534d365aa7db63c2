"""Files of robots, each whole, with its reader: data sets, recordings, packs and trials."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import material
from mutate import Target, damage, damage_json, damage_lines


def targets(folder: Path) -> dict[str, Target]:
    """Every kind of file of robots, whole, with its reader."""
    from stringpe.robots.data.dataset import Dataset
    from stringpe.robots.data.hdf5 import read_hdf5
    from stringpe.robots.data.pack import load

    made = material.demonstrations(folder / "robots")

    def read(data: Path) -> Any:
        found = Dataset(data)
        return found, [columns for _, columns in found.read_all(found.read)]

    found: dict[str, Target] = {}
    for name in ("data set", "data set of LeRobot", "data set of format 2"):
        data = made[name]
        files = [
            data / "meta" / "info.json",
            *sorted(data.glob("meta/tasks.*")),
            *sorted(data.glob("meta/episodes/*/*")),
        ]
        for file in (*files, sorted((data / "data").rglob("*.parquet"))[0]):
            how = {".json": damage_json, ".jsonl": damage_lines}.get(file.suffix, damage)
            found[f"{name}, {file.relative_to(data)}"] = Target(file, partial(read, data), how, _episodes, (str(data),))
    return found | {
        "HDF5": Target(made["hdf5"], lambda: read_hdf5(made["hdf5"]), damage, _frames),
        "pack": Target(made["pack"], lambda: load(made["pack"], depth=True), damage, _demos),
        "trials.jsonl": Target(made["trials"], lambda: material.evaluate(made["trials"].parent), damage_lines, _same),
        "evaluation.json": Target(
            made["trials"].with_name("evaluation.json"),
            lambda: material.evaluate(made["trials"].parent),
            damage_json,
            _same,
            (str(made["trials"].parent),),
        ),
    }


def _episodes(found: Any) -> bool:
    import numpy as np

    data, columns = found
    return len(columns) + len(data.broken) <= 3 and all(np.isfinite(c["action"]).all() for c in columns)


def _frames(found: Any) -> bool:
    import numpy as np

    return bool(np.isfinite(found["action"]).all() and np.isfinite(found["observation.state"]).all())


def _demos(found: Any) -> bool:
    return bool(found.action.isfinite().all()) and len(found.image) == len(found.seen)


def _same(outcome: Any) -> bool:
    return outcome == material.OUTCOME
