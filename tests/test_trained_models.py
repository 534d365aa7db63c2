"""The small trained models of models/ load with this version and do what their cards say."""

import json
from pathlib import Path

import torch

from stringpe import box3d
from stringpe.cli.main import main
from stringpe.data.one_object import KINDS

DEMO = Path(__file__).parent.parent / "models/detection3d-demo"


def test_the_detector_finds_the_objects_of_its_rooms(tmp_path, capsys):
    """As the README shows it, on held-out rooms that lie beside the model: its best box has the right name."""
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
