"""Files for rerun. The package is optional: without it, a stand-in notes what it is told."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from stringpe import viewer
from stringpe.cli.main import main
from stringpe.geometry import box3d


def frames():
    box = box3d.from_parts(torch.tensor([0.0, 0.0, 2.0]), torch.eye(3), torch.tensor([0.4, 0.5, 0.6]))
    boxes = [viewer.Box(box, "mug"), viewer.Box(box, "bowl", "predicted", 0.5)]
    rgb = torch.zeros(3, 4, 5, dtype=torch.uint8)
    intrinsics = torch.tensor([[5.0, 0, 2.5], [0, 5, 2], [0, 0, 1]])
    return [viewer.Frame(rgb, torch.full((4, 5), 2.0), intrinsics, boxes, "a kitchen")] * 2


class Stream:
    """What `rerun.RecordingStream` offers of what we use."""

    def __init__(self, name):
        self.log_entries, self.frame = [], None
        Stream.last = self

    def save(self, path):
        self.path = path
        open(path, "wb").close()

    def set_time(self, line, *, sequence):
        self.frame = (line, sequence)

    def log(self, path, value, static=False):
        self.log_entries.append((self.frame, path, value))

    def flush(self):
        pass

    def disconnect(self):
        pass


@pytest.fixture
def rerun(monkeypatch):
    module = ModuleType("rerun")
    module.RecordingStream = Stream
    module.ViewCoordinates = SimpleNamespace(RDF="RDF")
    for name in ("Points3D", "Image", "TextDocument", "LineStrips3D"):
        setattr(module, name, lambda *given, _name=name, **options: (_name, given, options))
    monkeypatch.setitem(sys.modules, "rerun", module)


def test_every_frame_is_logged_with_its_points_and_boxes(rerun, tmp_path):
    path = viewer.record_frames(frames(), tmp_path / "new" / "scene.rrd")
    assert path.exists()
    entries = Stream.last.log_entries
    assert {frame for frame, *_ in entries[1:]} == {("frame", 0), ("frame", 1)}
    (points, _), *_ = [value[1:] for _, path, value in entries if path == "world/points"]
    assert points[0].shape == (20, 3)
    for kind, label in (("true", "mug"), ("predicted", "bowl 0.50")):
        (lines,), options = next(value[1:] for _, path, value in entries if path == f"world/{kind}")
        assert options["labels"] == [label, "", "", ""]
        edges = {frozenset(map(tuple, line[i : i + 2].tolist())) for line in lines for i in range(len(line) - 1)}
        corners = box3d.corners(frames()[0].boxes[0].box)
        wanted = {
            frozenset((tuple(corners[i].tolist()), tuple(corners[i | bit].tolist())))
            for i in range(8)
            for bit in (1, 2, 4)
            if not i & bit
        }
        assert edges == wanted


def test_without_the_package_the_command_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rerun", None)
    words = ["data", "scenes", "--out", str(tmp_path), "--count", "1", "--size", "16", "16", "--rrd"]
    with pytest.raises(SystemExit, match=r"this needs the package rerun-sdk, which is not installed: pip install "):
        main(words)
