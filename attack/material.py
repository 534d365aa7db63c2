"""Small whole things to damage: runs, data sets, archives, annotations, models."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from captioned_files import depth, picture, shard, words

COUNT = 12
OUTCOME = [(seed, True) for seed in range(100, 106)]
"""What `evaluate` finds: the stand-in's expert always gets there."""


def classifier() -> Any:
    """A recipe that trains in a moment."""
    from training_toy import TOY

    return replace(
        TOY,
        model=replace(TOY.model, dim=8, layers=1),
        data=replace(TOY.data, train_size=24, val_size=8),
        optim=replace(TOY.optim, ema=0.9),
        loop=replace(TOY.loop, steps=4, batch_size=4, save_every=2, log_every=1, eval_every=0),
    )


def runs(folder: Path) -> dict[str, Path]:
    """A trained classifier, a model of pictures and texts, a policy, three seeds in one, and a model of clouds."""
    from policy_toy import RECIPE

    from cloud_files import KINDS, write_clouds
    from stringpe.recipes.schema import Data, Loop, Loss, Model, Recipe, Text
    from stringpe.training import train

    folder.mkdir(parents=True)
    tar = samples(folder / "samples")["captions"]
    retrieval = Recipe(
        task="retrieval",
        model=Model(dim=8, layers=1, heads=2, patch_size=8, encoding="rope"),
        text=Text(dim=8, layers=1, heads=2, width=8, vocab=280, context=12),
        data=Data(source="shards", image_size=16, train=str(tar), val=str(tar)),
        loss=Loss(kind="siglip"),
        loop=Loop(batch_size=4, steps=1),
    )
    episodes = _record(folder / "episodes")
    policy = replace(
        RECIPE,
        data=replace(RECIPE.data, train=str(episodes), cache=str(folder / "cache")),
        loop=replace(RECIPE.loop, steps=1, batch_size=4),
    )
    points = Recipe(
        task="relations",
        model=Model(dim=8, layers=1, heads=2),
        data=Data(source="points", val_size=4),
        loop=Loop(batch_size=4, steps=2, seeds=3),
    )
    file = write_clouds(folder / "clouds.npz", train=8, test=4)
    clouds = Recipe(
        task="shapes",
        model=Model(dim=8, layers=1, heads=1, pool="mean"),
        data=Data(source="clouds", train=str(file), num_classes=KINDS, groups=4, group_size=5, cache=str(folder)),
        loop=Loop(batch_size=4, steps=2),
    )
    recipes = {"a classifier": classifier(), "retrieval": retrieval, "a policy": policy}
    recipes |= {"stacked seeds": points, "clouds": clouds}
    for name, recipe in recipes.items():
        train(recipe, folder / name, quiet=True)
    return {name: folder / name for name in recipes}


def samples(folder: Path) -> dict[str, Path]:
    """Tars of twelve samples: with labels, and with captions and depth."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [picture(20 * i) for i in range(COUNT)]
    labels = {f"{i:03d}": {"png": p, "cls": str(i % 3).encode()} for i, p in enumerate(pictures)}
    captioned = {
        f"{i:03d}": {"png": p, "json": words("a dog", "it runs"), "depth.png": depth()} for i, p in enumerate(pictures)
    }
    return {
        "labels": shard(folder / "labels.tar", labels),
        "captions": shard(folder / "captions.tar", captioned),
    }


def captions(folder: Path) -> dict[str, Path]:
    """A folder per way of writing captions, with one picture each; the file that holds them."""
    table = io.StringIO()
    csv.writer(table).writerows([["file", "caption"], ["0.png", "a dog"], ["0.png", "it runs"]])
    contents = {
        "COCO's": ("captions.json", json.dumps(
            {"images": [{"id": 1, "file_name": "0.png"}], "annotations": [{"image_id": 1, "caption": "a dog"}]}
        )),
        "rows": ("captions.json", json.dumps([{"file": "0.png", "captions": ["a dog", "it runs"]}])),
        "by name": ("captions.json", json.dumps({"0.png": ["a dog", "it runs"]})),
        "table": ("captions.csv", table.getvalue()),
        "beside": ("0.txt", "a dog\nit runs\n"),
        "record beside": ("0.json", json.dumps({"captions": ["a dog"], "depth_step": 0.001})),
    }  # fmt: skip
    found = {}
    for name, (file, text) in contents.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "0.png").write_bytes(picture())
        (folder / name / file).write_text(text)
        found[name] = folder / name / file
    return found


def annotations(folder: Path) -> dict[str, Path]:
    """Files of COCO, LVIS and Omni3D with four pictures each."""
    folder.mkdir(parents=True)
    numbers, categories = (
        range(4),
        [{"id": 1, "name": "dog", "frequency": "r"}, {"id": 2, "name": "cat", "frequency": "f"}],
    )
    images = [{"id": i, "file_name": f"{i}.png", "width": 20, "height": 16} for i in numbers]
    boxes = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 5, 6], "area": 30, "iscrowd": 0} for i in numbers
    ]
    lvis = [{**image, "neg_category_ids": [2], "not_exhaustive_category_ids": [1]} for image in images]
    camera = [[20.0, 0, 10], [0, 20, 8], [0, 0, 1]]
    images3d = [{**image, "file_path": image["file_name"], "K": camera} for image in images]
    solid = {"category_id": 1, "center_cam": [0, 0, 2], "dimensions": [1, 1, 1], "R_cam": torch.eye(3).tolist()}
    boxes3d = [{"id": i, "image_id": i, "truncation": 0.1, "visibility": 0.9, **solid} for i in numbers]
    contents = {"coco": (images, boxes), "lvis": (lvis, boxes), "omni3d": (images3d, boxes3d)}
    found = {}
    for name, (some, inside) in contents.items():
        found[name] = folder / f"{name}.json"
        found[name].write_text(json.dumps({"images": some, "annotations": inside, "categories": categories}))
    return found


def _record(folder: Path) -> Path:
    """Three episodes of a stand-in robot."""
    from stand_in import demonstration

    from stringpe.robots.data.writer import Writer

    with Writer(folder, fps=10, quality=0) as writer:
        for seed in range(3):
            writer.add(demonstration(seed, depth=True), task="reach", seed=seed)
    return folder


def _without_footers(source: Path, folder: Path) -> Path:
    """The same data set as LeRobot writes it: only meta/episodes says where its episodes are."""
    import pyarrow.parquet

    shutil.copytree(source, folder)
    for path in (folder / "data").rglob("*.parquet"):
        table = pyarrow.parquet.read_table(path)
        pyarrow.parquet.write_table(table.replace_schema_metadata(None), path)
    return folder


def _of_format_2(source: Path, folder: Path) -> Path:
    """The same data set in LeRobot's format 2.1."""
    shutil.copytree(source, folder)
    for number, path in enumerate(sorted((folder / "data").rglob("*.parquet"))):
        path.rename(path.with_name(f"episode_{number:06d}.parquet"))
    (folder / "meta" / "tasks.parquet").unlink()
    shutil.rmtree(folder / "meta" / "episodes")
    (folder / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "reach"}\n')
    info = json.loads((folder / "meta" / "info.json").read_text())
    (folder / "meta" / "info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    return folder


def demonstrations(folder: Path) -> dict[str, Path]:
    """A data set of three episodes, as it is, as LeRobot writes it and in its older format; a pack of it, a recording
    in HDF5, and the trials of an evaluation."""
    import h5py
    from stand_in import demonstration

    from stringpe.robots.data.dataset import Dataset
    from stringpe.robots.data.pack import pack

    data = _record(folder / "data set")
    frames = demonstration(0)
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file["action"], file["observations/qpos"] = frames["action"], frames["observation.state"]
        file["observations/images/top"] = frames["observation.images.top"]
    assert evaluate(folder / "evaluation") == OUTCOME
    return {
        "data set": data,
        "data set of LeRobot": _without_footers(data, folder / "data set of LeRobot"),
        "data set of format 2": _of_format_2(data, folder / "data set of format 2"),
        "pack": pack(Dataset(data), folder / "pack.safetensors", size=16),
        "hdf5": folder / "episode_0.hdf5",
        "trials": folder / "evaluation" / "trials.jsonl",
    }


def evaluate(folder: Path) -> list[tuple[int, bool]]:
    """Seeds and successes of six trials; those that the folder holds are read."""
    from actors import Expert
    from stand_in import Reach

    from stringpe.robots.evaluate import TrialWorkers
    from stringpe.training.simulation import EvaluationPlan
    from stringpe.training.simulation import evaluate_policy as run

    with TrialWorkers(0) as workers:
        found = run(EvaluationPlan(Expert, Reach, folder, "Reach", "digest", videos=0), range(100, 106), workers)
    return [(trial.seed, trial.success) for trial in found.trials]


def archives(folder: Path) -> dict[str, Path]:
    """Eight pictures in a tar, in compressed tars and in a zip."""
    import bz2

    folder.mkdir(parents=True)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for i in range(8):
            entry = tarfile.TarInfo(f"{i}.png")
            content = picture(20 * i)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    plain = file.getvalue()
    contents = {
        "tar": plain,
        "tar.gz": gzip.compress(plain),
        "tar.bz2": bz2.compress(plain),
        "tar.xz": lzma.compress(plain),
    }
    for kind, content in contents.items():
        (folder / f"p.{kind}").write_bytes(content)
    with zipfile.ZipFile(folder / "p.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for i in range(8):
            packed.writestr(f"{i}.png", picture(20 * i))
    return {kind: folder / f"p.{kind}" for kind in (*contents, "zip")}


@dataclass(frozen=True)
class Compared:
    """A finished comparison: its folder, the folder and recipe of one run, and its plan."""

    out: Path
    run: Path
    recipe: Any
    plan: Sequence[Any]


def comparison(folder: Path) -> Compared:
    """A comparison of one row and one seed, with costs."""
    from stringpe.recipes.design import plan_runs
    from stringpe.training.comparison import compare

    compare(classifier(), ["rope"], 1, folder, jobs=1, costs=False, quiet=True)
    plan = plan_runs(classifier(), ["rope"], 1, folder)
    cost = {"step_ms": [1.0, 0.9, 1.1], "ratio": [1.0, 1.0, 1.0], "peak_bytes": 100, "encoding_parameters": 8}
    (folder / "costs.json").write_text(json.dumps({"rope": cost}))
    return Compared(folder, plan[0].out, plan[0].recipe, plan)


def models(folder: Path) -> dict[str, Path]:
    """An attached ViT, an OWL-ViT and a depth model of transformers, and a tokeniser."""
    import transformers

    import stringpe
    from depth_model import write_model
    from stringpe.models.tokenizer import Tokenizer
    from stringpe.pretrained import save_pretrained

    for name in ("owl", "depth"):
        (folder / name).mkdir(parents=True)
    tiny = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**tiny, image_size=16, patch_size=8)
    save_pretrained(stringpe.attach(transformers.ViTModel(config), "cayley"), folder / "attached")
    owl = transformers.OwlViTConfig(
        text_config=tiny | {"vocab_size": 300, "max_position_embeddings": 8},
        vision_config=tiny | {"image_size": 16, "patch_size": 8},
        projection_dim=8,
    )
    transformers.OwlViTForObjectDetection(owl).save_pretrained(folder / "owl")
    tokenizer = Tokenizer.train(["a dog runs", "a cat sleeps"], vocab=280)
    tokenizer.save(folder / "owl" / "tokenizer.json")
    tokenizer.save(folder / "tokenizer.json")
    return {
        "attached": folder / "attached",
        "owl": folder / "owl",
        "depth": write_model(folder / "depth"),
        "tokenizer": folder / "tokenizer.json",
    }
