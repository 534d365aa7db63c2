"""The small trained models of models/ load with this version and do what their cards say."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from stringpe import box3d
from stringpe.cli.main import main
from stringpe.scenes.one_object import KINDS

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "models/detection3d-demo"


@pytest.mark.parametrize("page", ["README.md", "models/detection3d-demo/README.md"])
def test_the_command_that_pages_show_runs(page, tmp_path, monkeypatch):
    text = (ROOT / page).read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^    stringpe (predict models/detection3d-demo .*)$", text, flags=re.MULTILINE)
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    main(shlex.split(command))
    assert {path.name for path in tmp_path.glob("found.*")} == {"found.html", "found.json", "found.png"}
    (best,) = json.loads(Path("found.json").read_text())["found"]
    assert best["text"] == json.loads((DEMO / "room-8.json").read_text())["kind"]


def test_the_detector_finds_the_objects_of_its_rooms(tmp_path, capsys):
    """On held-out rooms that lie beside the model: its best box has the right name."""
    rooms = sorted(DEMO.glob("*.depth.png"))
    assert len(rooms) == 3
    for depth in rooms:
        name = depth.name.removesuffix(".depth.png")
        words = [
            "predict",
            str(DEMO),
            str(DEMO / f"{name}.png"),
            "--depth",
            str(depth),
            "--text",
            *KINDS,
            "--intrinsics",
            "256",
            "256",
            "128",
            "128",
        ]
        main([*words, "--out", str(tmp_path / name), "--html"])
        truth = json.loads((DEMO / f"{name}.json").read_text())
        best = json.loads((tmp_path / f"{name}.json").read_text())["found"][0]
        assert best["text"] == truth["kind"]
        assert box3d.iou(torch.tensor(best["box"]).double(), torch.tensor(truth["box"]).double()) > 0.6
        assert (tmp_path / f"{name}.html").exists()
