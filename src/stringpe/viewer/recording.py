"""Frames for rerun, the viewer of robotics logs: `pip install 'stringpe[rerun]'`, then `rerun scene.rrd`."""

from collections.abc import Sequence
from pathlib import Path

from ..geometry import box3d
from ..io.files import new_file
from .pages import KINDS, Box, Frame

_COLOURS = {"true": (0, 160, 0), "predicted": (0, 90, 255)}
_EDGES = (0, 1, 3, 2, 0, 4, 5, 7, 6, 4), (1, 5), (3, 7), (2, 6)  # four lines along the twelve edges, by corner


def record_frames(frames: Sequence[Frame], path: str | Path) -> Path:
    """Write frames as an .rrd file: per frame a cloud of points, the picture, the caption and one entity of boxes per
    kind. The time line is called `frame`."""
    import rerun

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = rerun.RecordingStream("stringpe")
    with new_file(path) as draft:
        stream.save(str(draft))
        stream.log("world", rerun.ViewCoordinates.RDF, static=True)  # x right, y down, z forward
        for number, frame in enumerate(frames):
            stream.set_time("frame", sequence=number)
            points, colours = frame.points()
            stream.log("world/points", rerun.Points3D(points.numpy(), colors=colours.numpy()))
            stream.log("picture", rerun.Image(frame.rgb.cpu().permute(1, 2, 0).contiguous().numpy()))
            if frame.caption:
                stream.log("caption", rerun.TextDocument(frame.caption))
            for kind in KINDS:
                stream.log(f"world/{kind}", _draw_boxes(rerun, frame, kind))
        stream.flush()
        stream.disconnect()
    return path


def _draw_boxes(rerun: object, frame: Frame, kind: str) -> object:
    """The edges of all boxes of a kind, as lines through their corners."""
    lines, labels = [], []
    for box in (box for box in frame.boxes if box.kind == kind):
        corners = box3d.corners(box.box.detach().cpu().double()).float()
        for number, line in enumerate(_EDGES):
            lines.append(corners[list(line)].numpy())
            labels.append(_describe(box) if number == 0 else "")
    return rerun.LineStrips3D(lines, colors=[_COLOURS[kind]], labels=labels)  # type: ignore[attr-defined]


def _describe(box: Box) -> str:
    return box.label if box.score is None else f"{box.label} {box.score:.2f}"
