"""Files of every kind that is read, each whole, with its reader: what `corrupt` damages."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import material
import robot_targets
import torch
from mutate import Target, damage, damage_json, damage_lines, damage_tensors

from stringpe.io.pictures import BadSample


def targets(folder: Path) -> dict[str, Target]:
    """Every kind of file, whole, with its reader."""
    torch.manual_seed(0)
    found = _runs(folder) | _captions_and_labels(folder) | _annotations(folder)
    found |= robot_targets.targets(folder) | _archives(folder) | _settings(folder) | _models(folder)
    return found | _clouds(folder) | _bench(folder) | _shipped_detector(folder) | _streams(folder) | _starts(folder)


def _runs(folder: Path) -> dict[str, Target]:
    """A classifier, a text and image model, and a policy."""
    from stringpe.io import checkpoint as checkpoints
    from stringpe.tasks.load import load_run

    found: dict[str, Target] = {}
    for name, run in material.runs(folder / "runs").items():
        last = checkpoints.list_checkpoints(run)[-1]
        for file in sorted(path for path in last.rglob("*") if path.is_file()):
            how = {".json": damage_json, ".safetensors": damage_tensors}.get(file.suffix, damage)
            how = damage if file.name == "tokenizer.json" else how
            inside = file.parent.name == "pretrained_model"
            found[f"checkpoint of {name}, {file.name}"] = Target(
                file,
                (lambda run=run: load_run(run)) if inside else (lambda last=last: checkpoints.read(last)),
                how,
                _finite_model if inside else _finite_state,
                (str(run), "model.safetensors" if file.name == "config.json" else file.name),
            )
    return found


def _finite_model(loaded: Any) -> bool:
    return all(bool(p.isfinite().all()) for p in loaded.model.parameters() if p.is_floating_point())


def _finite_state(checkpoint: Any) -> bool:
    return isinstance(checkpoint.step, int) and all(bool(t.isfinite().all()) for t in checkpoint.model.values())


def _captions_and_labels(folder: Path) -> dict[str, Target]:
    from stringpe.data.captioned_batches import load_captioned
    from stringpe.data.captioned_images import FolderCaptions
    from stringpe.data.labelled_batches import load_labelled
    from stringpe.recipes.schema import Data

    found: dict[str, Target] = {}
    for name, path in material.captions(folder / "captions").items():

        def read(path: Path = path) -> Any:
            made = FolderCaptions(str(path.parent))
            return [made.captions(i) for i in range(len(made))]

        how = damage_json if path.suffix == ".json" else damage
        found[f"captions, {name}"] = Target(path, read, how, _texts, ("0.png",))
    for kind, tar in material.samples(folder / "samples").items():
        data = Data(
            source="shards", train=str(tar), val=str(tar), image_size=16, num_classes=3, cache=str(folder / "c")
        )
        if kind == "labels":
            found["tar, labels"] = Target(tar, lambda d=data: load_labelled(d, "train"), damage, _labelled)
        else:
            found["tar, captions and depth"] = Target(
                tar, lambda d=data: load_captioned(d, "train", True), damage, _pairs
            )
    return found


def _texts(found: Any) -> bool:
    return all(isinstance(text, str) and text.strip() for texts in found for text in texts)


def _labelled(found: Any) -> bool:
    labels = found[0]["label"]
    return 0 < len(labels) <= 12 and bool(((labels >= 0) & (labels < 3)).all())


def _pairs(found: Any) -> bool:
    return 0 < len(found) <= 12 and len(found.captions) == len(found) and bool(found.depth.isfinite().all())


def _annotations(folder: Path) -> dict[str, Target]:
    from stringpe.data import omni3d
    from stringpe.data.coco import read_coco

    paths = material.annotations(folder / "annotations")
    return {
        "COCO": Target(paths["coco"], lambda: read_coco(paths["coco"]), damage_json, _coco),
        "LVIS": Target(paths["lvis"], lambda: read_coco(paths["lvis"]), damage_json, _coco),
        "Omni3D": Target(paths["omni3d"], lambda: omni3d.read(paths["omni3d"]), damage_json, _omni3d),
    }


def _coco(found: Any) -> bool:
    numbers = [v for p in found.pictures for v in (*p.areas, *(x for box in p.boxes for x in box))]
    inside = all(
        0 <= x0 <= x1 <= p.width and 0 <= y0 <= y1 <= p.height for p in found.pictures for x0, y0, x1, y1 in p.boxes
    )
    distinct = len({p.id for p in found.pictures}) == len(found.pictures)
    return inside and distinct and bool(torch.tensor(numbers).isfinite().all())


def _omni3d(found: Any) -> bool:
    distinct = len({p.id for p in found.images}) == len(found.images)
    return distinct and all(bool(p.boxes.abs().le(1e4).all()) for p in found.images)


def _archives(folder: Path) -> dict[str, Target]:
    """Tars, plain and compressed, and a zip: pictures by name."""
    from stringpe.data.images import PictureFiles

    found: dict[str, Target] = {}
    for name, path in material.archives(folder / "archives").items():

        def read(path: Path = path) -> Any:
            files = PictureFiles(str(path))
            sizes = []
            for i in range(8):
                try:
                    sizes.append(files.decode(f"{i}.png").size)
                except BadSample as error:
                    warnings.warn(f"1 of 8 pictures cannot be used and are left out: {error}", RuntimeWarning, 2)
            return sizes

        found[f"pictures in a {name}"] = Target(path, read, damage, lambda sizes: set(sizes) <= {(20, 16)})
    return found


def _settings(folder: Path) -> dict[str, Target]:
    """Files that say what made a folder, results, curves, costs, and what is kept in a cache."""
    from stringpe.data.cache import load_or_make
    from stringpe.data.depth_lifting import add_up
    from stringpe.io.files import claim_folder
    from stringpe.training.comparison import read_curve_lines
    from stringpe.training.comparison_costs import load_or_measure_costs
    from stringpe.training.launch import read_result

    made = material.comparison(folder / "comparison")
    run, rows = made.run, {"rope": made.recipe}
    folder = folder / "settings"
    folder.mkdir()
    settings, kept = {"size": [2, 3], "seed": 0}, {"x": torch.arange(6.0).view(2, 3)}
    claim_folder(folder, settings, file="made.json", what="data set")
    load_or_make(str(folder), "kept", lambda: kept)
    summary = folder / "0.tar.summary.json"
    summary.write_text('{"kept": 3, "dropped": {"outdoor": 1}, "corrupt": 1, "problems": ["x.png: cut"]}')
    (folder / "0.tar").touch()
    return {
        "result.json": Target(run / "result.json", lambda: read_result(made.recipe, run), damage_json, _result),
        "recipe.json": Target(
            run / "recipe.json", lambda: read_result(made.recipe, run), damage_json, _result, (str(run),)
        ),
        "metrics.jsonl": Target(run / "metrics.jsonl", lambda: list(read_curve_lines(made.plan[0])), damage_lines),
        "costs.json": Target(
            made.out / "costs.json",
            lambda: load_or_measure_costs(made.out / "costs.json", rows, "rope", quiet=True),
            damage_json,
            _has_costs,
        ),
        "settings of a folder": Target(
            folder / "made.json",
            lambda: claim_folder(folder, settings, file="made.json", what="data set"),
            damage_json,
            called=(str(folder),),
        ),
        "cache": Target(
            folder / "kept.safetensors",
            lambda: load_or_make(str(folder), "kept", lambda: kept),
            damage,
            lambda found: found["x"].shape == (2, 3),
        ),
        "summary of lifted depth": Target(summary, lambda: add_up(folder, ["0.tar"]), damage_json, _counts),
    }


def _result(found: Any) -> bool:
    return found is None or all(isinstance(v, float | int) for v in found["metrics"].values())


def _has_costs(found: Any) -> bool:
    return all(len(cost["step_ms"]) == 3 for cost in found.values())


def _counts(found: Any) -> bool:
    return all(isinstance(found[name], int) for name in ("kept", "corrupt", "shards"))


def _models(folder: Path) -> dict[str, Target]:
    """Model folders that others wrote: an attached host, a detector and a depth model of transformers, a tokeniser."""
    from stringpe.models.depth_estimator import DepthEstimator
    from stringpe.models.tokenizer import Tokenizer
    from stringpe.pretrained import from_pretrained
    from stringpe.tasks.load import load_run

    made = material.models(folder / "models")

    def estimate() -> Any:
        return DepthEstimator(made["depth"])([torch.zeros(3, 42, 42, dtype=torch.uint8)])[0]

    readers: dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]] = {
        "attached": (lambda: from_pretrained(made["attached"]), _finite_parameters),
        "owl": (lambda: load_run(made["owl"]), _finite_model),
        "depth": (estimate, lambda depth: depth.shape == (42, 42) and bool(depth.isfinite().all())),
    }
    found = {
        f"{name} model, {file.name}": Target(
            file, read, damage_json if file.suffix == ".json" else damage_tensors, sound, (str(made[name]),)
        )
        for name, (read, sound) in readers.items()
        for file in sorted(made[name].iterdir())
        if file.name in ("config.json", "model.safetensors", "preprocessor_config.json")
    }
    file = made["tokenizer"]
    return found | {"tokenizer.json": Target(file, lambda: Tokenizer.load(file).encode(["a dog"], 8), damage_json)}


def _finite_parameters(model: Any) -> bool:
    return all(bool(p.isfinite().all()) for p in model.parameters())


def _clouds(folder: Path) -> dict[str, Target]:
    """Point clouds, grouped anew from the damaged file."""
    from cloud_files import KINDS, write_clouds
    from stringpe.data.clouds import load_clouds
    from stringpe.recipes.schema import Data

    (folder / "clouds").mkdir()
    path = write_clouds(folder / "clouds" / "clouds.npz", train=6, test=3)
    sizes = {"num_classes": KINDS, "groups": 4, "group_size": 5}
    data = Data(source="clouds", train=str(path), val=str(path), cache=str(folder / "clouds" / "cache"), **sizes)

    def sound(found: Any) -> bool:
        return bool(found["points"].isfinite().all()) and found["points"].shape[1:] == (4, 5, 3)

    return {"point clouds": Target(path, lambda: load_clouds(data, "train"), damage, sound)}


def _bench(folder: Path) -> dict[str, Target]:
    """A bench.json to check another run against."""
    from stringpe.bench.regressions import compare_runs, describe, read_earlier

    timing = {"median": 1.0, "low": 1.0, "high": 1.0, "repeats": 5, "memory": 0.0, "ratio": [1.0, 1.1, 1.2]}
    op = {"shape": "(8, 1)", "floor": 1.0, "backend": "torch", "way": "ours", "forward": timing, "both": timing}
    rows = [{"mode": "eager", "way": way, "train": timing, "inference": timing} for way in ("none", "ours")]
    train = [{"recipe": "scenes", "encoding": "cayley", "loop": timing}]
    run = {"runs": [{"device": "cpu"}], "op": [op], "vit": rows, "train": train}
    path = folder / "bench.json"
    path.write_text(json.dumps(run))

    def check() -> Any:
        earlier = read_earlier(path)
        now = run | {"runs": [{"device": earlier["runs"][-1]["device"]}]}
        return compare_runs(now, earlier)

    def sound(outcome: Any) -> bool:
        return "nan" not in describe(outcome) and all(change.before > 0 for change in outcome.changes)

    return {"bench.json": Target(path, check, damage_json, sound, ("the two runs have no ratio in common",))}


def _shipped_detector(folder: Path) -> dict[str, Target]:
    """The detector in models/ with a picture, its depth and a page, as `stringpe predict --depth --html` reads them."""
    from stringpe.tasks.predict import predict
    from stringpe.tasks.predictor import Query

    shipped = Path(__file__).parents[1] / "models" / "detection3d-demo"
    where = folder / "shipped"
    shutil.copytree(shipped, where)
    depth, out = where / "room-8.depth.png", folder / "shipped-out"

    def look() -> Any:
        query = Query(texts=("chair", "table"), depth=depth, intrinsics=(256, 256, 128, 128), top=2, threshold=0.0)
        return predict(where, where / "room-8.png", query, out, html=True)

    def sound(outcome: Any) -> bool:
        numbers = [value for found in outcome[1] for value in (*found["box"], found["score"])]
        return len(outcome[0]) == 3 and bool(torch.tensor(numbers).isfinite().all())

    ways = {"config.json": damage_json, "model.safetensors": damage_tensors, "room-8.json": damage_json}
    names = (*ways, "tokenizer.json", "room-8.png", "room-8.depth.png")
    return {
        f"shipped detector, {name}": Target(where / name, look, ways.get(name, damage), sound, (str(where),))
        for name in names
    }


def _streams(folder: Path) -> dict[str, Target]:
    """A tar and its index, from which a stream goes on; and a video."""
    import numpy as np

    from stringpe.data.stream import Samples, Stream
    from stringpe.data.tars import write_index
    from stringpe.io.problems import Problems
    from stringpe.recipes.schema import Data, Loop, Recipe
    from stringpe.robots.data.parquet import BrokenEpisode
    from stringpe.robots.data.video import read_frames, write_video

    tar = material.samples(folder / "streams")["labels"]
    index = write_index(tar)

    def go_on() -> Any:
        data = Data(source="stream", train=str(tar), train_size=12, workers=0)
        recipe = Recipe(data=data, loop=Loop(batch_size=4))
        stream = Stream(recipe, lambda key, files: {}, list, Problems("samples"))  # type: ignore[arg-type]
        samples = Samples(stream, 0, 1, skip=5)
        found = [(key, dict(files)) for key, files in samples.epoch(0)]
        if samples.problems:
            warnings.warn(f"some cannot be used and are left out: {samples.problems[0]}", RuntimeWarning, 2)
        return found

    whole = dict(go_on())

    def is_part(found: Any) -> bool:
        return all(whole.get(key) == files for key, files in found)

    film = write_video(folder / "streams" / "film.mp4", [np.full((16, 16, 3), 20 * i, np.uint8) for i in range(6)])

    def play() -> Any:
        try:
            return [frame.shape for frame in read_frames(film, 0, 6, 10)]
        except BrokenEpisode as error:
            warnings.warn(f"1 cannot be used and are left out: {error}", RuntimeWarning, 2)
            return []

    return {
        "index of a tar": Target(index, go_on, damage, is_part, (tar.name,)),
        "tar with an index": Target(tar, go_on, damage, lambda found: len(found) <= 12, (index.name,)),
        "video": Target(film, play, damage, lambda shapes: set(shapes) <= {(16, 16, 3)}),
    }


def _starts(folder: Path) -> dict[str, Target]:
    """A run that another one starts from."""
    from dataclasses import replace

    from stringpe.io import checkpoint as checkpoints
    from stringpe.tasks import create

    before = folder / "runs" / "a policy"
    recipe, _ = checkpoints.read_model(before)
    asked = replace(recipe, model=replace(recipe.model, start=str(before)))
    place = checkpoints.model_folder(before)
    return {
        f"start of a run, {name}": Target(
            place / name, lambda: create(asked).model(), how, _finite_parameters, (str(before),)
        )
        for name, how in (("config.json", damage_json), ("model.safetensors", damage_tensors))
    }
