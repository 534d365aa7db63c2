"""docs/scale.md: every command on it runs, on a few pictures; and the array's script in two processes at once."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from captioned_files import picture
from depth_model import write_model
from stringpe.cli.main import main
from stringpe.data.captioned_images import ShardCaptions
from stringpe.io.files import read_json, write_text
from stringpe.models.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "benchmarks/results/2026-11-15-h200-projection/bench.json"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "scale.md").read_text(), flags=re.DOTALL | re.MULTILINE)
SCRIPT = next(block for block in BLOCKS if block.startswith("#!/bin/bash"))
COMMANDS = [
    shlex.split(line)
    for block in BLOCKS
    if block is not SCRIPT
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
SMALL = [
    *("data.image_size=32", "data.train_size=6", "data.workers=0"),
    *("model.dim=16", "model.layers=1", "model.heads=2", "model.drop_path=0"),
    *("loop.batch_size=2", "loop.steps=2", "loop.eval_every=0", "loop.eval_batch=4", "loop.precision=no"),
    "loop.compile=false",
]
ONE_MORE = {
    "imagenet2012": ["data.num_classes=2"],
    "places365": ["data.num_classes=2"],
    "webli3d": ["text.dim=16", "text.layers=1", "text.heads=2", "text.width=16", "loss.chunk=0"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with everything that the page expects to find, small."""
    made = tmp_path_factory.mktemp("scale")
    for data in ("imagenet", "places365"):
        for split in ("train", "val"):
            for name in ("cat", "dog"):
                (made / data / split / name).mkdir(parents=True)
                for i in range(3):
                    (made / data / split / name / f"{i}.png").write_bytes(picture(40 * i, (40, 32)))
    (made / "web").mkdir()
    for i in range(8):
        Image.effect_noise((60, 48), 40 + i).convert("RGB").save(made / "web" / f"{i}.jpg")
        (made / "web" / f"{i}.txt").write_text(f"picture number {i}")
    write_model(made / "depth-anything-v2-metric-indoor-small")
    write_text(made / "tokenizer.json", Tokenizer.train(["picture number one"], vocab=300).to_json())
    return made


def test_every_command_of_the_page_runs(folder, monkeypatch, capsys):
    """In this process, without the launcher's others, and trainings with models of one layer."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("stringpe.data.depth_lifting.FILTERS", {})  # they rightly refuse noise
    names = []
    for words in COMMANDS:
        if words[0] == "accelerate":
            words = ["stringpe", *words[words.index("stringpe") + 1 :]]
        command, *rest = words
        assert command == "stringpe"
        if rest[0] == "train":
            rest += [*SMALL, *ONE_MORE[rest[1]]]
        if rest[:2] == ["data", "depth"]:
            rest += ["--filters"]
        main(rest)
        names.append(" ".join(rest[:2]))
    assert set(names) == {
        *("data shards", "data index", "data depth", "train imagenet2012", "train places365", "train webli3d"),
    }
    assert read_json(folder / "runs/webli3d-cayley/result.json")["step"] == 2
    assert "8 images with depth in 1 shards under webli3d" in capsys.readouterr().out


@pytest.fixture
def on_the_path(folder):
    """A program called stringpe, which is this package beside whatever torchvision there is (see conftest)."""
    run = "import sys; sys.path.insert(0, sys.argv.pop(1)); import conftest; from stringpe.cli.main import main; main()"
    program = folder / "bin" / "stringpe"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(run)} {shlex.quote(str(Path(__file__).parent))} "$@"\n'
    )
    program.chmod(0o755)
    source = str(ROOT / "src")
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def test_the_array_shares_the_shards_between_two_processes(folder, on_the_path, tmp_path):
    (tmp_path / "depth-anything-v2-metric-indoor-small").symlink_to(folder / "depth-anything-v2-metric-indoor-small")
    main(["data", "shards", str(folder / "web"), str(tmp_path / "shards/web"), "--captions", "--shard-size", "2"])
    script = SCRIPT.replace("metric-indoor-small\n", "metric-indoor-small --filters\n")
    assert script != SCRIPT

    def task(number):
        place = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "2"}
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=os.environ | on_the_path | place,
            stdout=subprocess.PIPE,
            text=True,
        )

    both = [task(0), task(1)]
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("images per second and process" in text for text in printed)
    summary = read_json(tmp_path / "webli3d/summary.json")
    assert (summary["shards"], summary["kept"]) == (4, 8)
    found = ShardCaptions(f"{tmp_path}/webli3d/*.tar")
    assert sorted(found.captions(i)[0] for i in range(8)) == [f"picture number {i}" for i in range(8)]
    assert all(found.depth(i).shape == (48, 60) for i in range(8))


def test_the_gpu_hours_of_the_page_follow_from_the_measured_steps():
    steps = {row["way"]: row["train"] for row in read_json(MEASURED)["vit"] if row["mode"] == "compiled"}
    page = (ROOT / "docs" / "scale.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", page, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["absolute", "rope_mixed", "cayley", "circulant"]
    for name, *shown in rows:
        step = steps[name if name == "absolute" else f"ours, {name}"]
        seconds = step["median"] / 1e3 / 128
        hours = [300 * images * seconds / 3600 for images in (1_281_167, 1_803_460)]
        assert shown == [
            f"{step['median']:.1f} ({step['low']:.1f}–{step['high']:.1f})",
            f"{1 / seconds:,.0f}",
            *(f"{value:.1f}" for value in hours),
        ]
