"""The pages: data as JSON and base64, with a script that draws them."""

import base64
import html
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_finite, check_number, check_tensor
from ..geometry import box3d
from ..io.files import write_text
from ..io.pictures import encode_png

KINDS = ("true", "predicted")
_FARTHEST = 1e9  # metres; depth beyond it counts as a hole


@dataclass(frozen=True)
class Box:
    """A box with a name.

    box: (12,) in the camera frame, in the form of `stringpe.geometry.box3d`. kind: "true" or "predicted". score: of a
    prediction.
    """

    box: Tensor
    label: str
    kind: str = "true"
    score: float | None = None

    def __post_init__(self) -> None:
        check_choice("the kind of a box", self.kind, KINDS)
        if self.score is not None:
            check_number("the score of a box", self.score)


@dataclass(frozen=True)
class Frame:
    """An RGB-D frame with boxes.

    rgb (3, h, w) uint8; depth (h, w) in metres, where 0, NaN and infinity are holes; intrinsics (3, 3) in pixels, with
    pixel centres at + ½.
    """

    rgb: Tensor
    depth: Tensor
    intrinsics: Tensor
    boxes: Sequence[Box] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        rgb, depth = self.rgb, self.depth
        _check_list("the boxes of a frame", self.boxes)
        wrong = next((box for box in self.boxes if not isinstance(box, Box)), None)
        if wrong is not None:
            raise TypeError(f"the boxes of a frame must be viewer.Box objects, got {wrong!r:.40}")
        _check_picture("rgb", rgb)
        check_tensor("depth", depth)
        check_tensor("intrinsics", self.intrinsics)
        if self.intrinsics.is_meta:
            raise ValueError("intrinsics must be known numbers, got a tensor on the meta device")
        if depth.shape != rgb.shape[1:] or not depth.is_floating_point():
            raise ValueError(f"depth must be {tuple(rgb.shape[1:])} in metres, got {tuple(depth.shape)} {depth.dtype}")
        k = self.intrinsics.detach().cpu()
        if k.shape != (3, 3) or not (k.isfinite().all() and k[0, 0] > 0 and k[1, 1] > 0 and k[2, 2] > 0):
            raise ValueError(
                "intrinsics must be [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] with positive focal lengths, got "
                f"{k.tolist()}"
            )

    def points(self) -> tuple[Tensor, Tensor]:
        """Points (n, 3) float32 in the camera frame and their colours (n, 3) uint8, without holes."""
        rgb, depth = self.rgb.cpu(), self.depth.cpu().double()
        height, width = depth.shape
        v, u = torch.meshgrid(
            torch.arange(height, dtype=torch.float64) + 0.5,
            torch.arange(width, dtype=torch.float64) + 0.5,
            indexing="ij",
        )
        rays = torch.stack([u, v, torch.ones_like(u)], -1) @ torch.linalg.inv(self.intrinsics.cpu().double()).T
        valid = depth.isfinite() & (depth > 0) & (depth < _FARTHEST)
        return (rays[valid] * depth[valid][:, None]).float(), rgb.permute(1, 2, 0)[valid].contiguous()


@dataclass(frozen=True)
class Rollout:
    """The pictures (3, h, w) uint8 of one or more cameras, as many from each, and a caption that says what happened."""

    cameras: Mapping[str, Sequence[Tensor]]
    caption: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.cameras, Mapping):
            raise TypeError(f"cameras must be pictures by the name of the camera, got {self.cameras!r:.40}")
        lengths = {name: len(pictures) for name, pictures in self.cameras.items()}
        if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"every camera needs the same number of pictures, at least one; got {lengths}")
        for name, pictures in self.cameras.items():
            for picture in pictures:
                _check_picture(f"a picture of {name!r}", picture)


def _check_list(what: str, value: object) -> None:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{what} must be a list, got {type(value).__name__}")


def _check_picture(what: str, picture: Tensor) -> None:
    check_tensor(what, picture)
    if picture.ndim != 3 or picture.shape[0] != 3 or picture.dtype != torch.uint8 or not picture.numel():
        raise ValueError(f"{what} must be (3, h, w) uint8, got {tuple(picture.shape)} {picture.dtype}")


def show_scene(
    rgb: Tensor, depth: Tensor, intrinsics: Tensor, boxes: Sequence[Box] = (), *, title: str = "RGB-D frame"
) -> str:
    """A page with one `Frame`: a cloud of coloured points with boxes in it."""
    return show_frames([Frame(rgb, depth, intrinsics, boxes)], title=title)


def show_frames(frames: Sequence[Frame], *, title: str = "RGB-D frames") -> str:
    """A page with several frames, shown one at a time: clouds of coloured points with boxes in them."""
    _check_list("frames", frames)
    if not frames:
        raise ValueError("a page needs at least one frame")
    wrong = next((frame for frame in frames if not isinstance(frame, Frame)), None)
    if wrong is not None:
        raise TypeError(f"a page shows viewer.Frame objects, got {wrong!r:.40}")
    edges = [[i, i | bit] for i in range(8) for bit in (1, 2, 4) if not i & bit]
    return _write_page(title, "scene", {"frames": [_describe_frame(frame) for frame in frames], "edges": edges})


def show_attention(
    image: Tensor,
    maps: Mapping[str, Tensor],
    grid: tuple[int, int],
    *,
    variants: Sequence[str] = ("",),
    note: str = "",
    title: str = "Attention",
) -> str:
    """A page that shows the attention weights of a chosen patch, under each of several models or encodings.

    image: (3, h, w) uint8. maps: by the name of the model, weights (n, n) from patch to patch, with rows that sum to
    one; grid: (rows, columns) of the n patches. variants: names of v states of the models, for example how far all
    coordinates were moved. With v > 1, maps are (v, n, n), a slider chooses the state, and the captions say how much
    the weights differ from those of the first. note: a line below the pictures.
    """
    _check_picture("image", image)
    if not isinstance(maps, Mapping):
        raise TypeError(f"maps must be weights by the name of the model, got {maps!r:.40}")
    if not maps:
        raise ValueError("a page of attention needs at least one map")
    if not isinstance(grid, (tuple, list)) or len(grid) != 2:
        raise ValueError(f"grid must be (rows, columns) of the patches, got {grid!r:.40}")
    for size in grid:
        check_count("a size of the grid", size)
    patches = grid[0] * grid[1]
    wanted = (patches, patches) if len(variants) == 1 else (len(variants), patches, patches)
    for name, weights in maps.items():
        check_tensor(f"the map of {name!r}", weights)
        check_finite(f"the map of {name!r}", weights.detach().cpu())
        if weights.shape != wanted:
            raise ValueError(
                f"the map of {name!r} must be {wanted} for {grid[0]} × {grid[1]} patches, got {tuple(weights.shape)}"
            )
    data = {
        "image": "data:image/png;base64," + _encode_picture(image),
        "size": [image.shape[2], image.shape[1]],
        "grid": list(grid),
        "variants": list(variants),
        "note": note,
        "maps": {name: _encode_numbers(weights.detach().float().cpu()) for name, weights in maps.items()},
    }
    return _write_page(title, "attention", data)


def show_rollout(cameras: Mapping[str, Sequence[Tensor]], caption: str = "", *, title: str = "Rollout") -> str:
    """A page that plays one `Rollout`, its cameras side by side."""
    return show_rollouts([Rollout(cameras, caption)], title=title)


def show_rollouts(rollouts: Sequence[Rollout], *, title: str = "Rollouts") -> str:
    """A page with several rollouts, played one at a time, their cameras side by side."""
    _check_list("rollouts", rollouts)
    if not rollouts:
        raise ValueError("a page needs at least one rollout")
    wrong = next((rollout for rollout in rollouts if not isinstance(rollout, Rollout)), None)
    if wrong is not None:
        raise TypeError(f"a page plays viewer.Rollout objects, got {wrong!r:.40}")
    data = [
        {
            "caption": rollout.caption,
            "cameras": {name: list(map(_encode_picture, pictures)) for name, pictures in rollout.cameras.items()},
        }
        for rollout in rollouts
    ]
    return _write_page(title, "rollout", {"rollouts": data})


def save(page: str, path: str | Path) -> Path:
    """Write a page to a file."""
    write_text(Path(path), page)
    return Path(path)


def _describe_frame(frame: Frame) -> dict[str, Any]:
    (points, colours), k = frame.points(), frame.intrinsics / frame.intrinsics[2, 2]
    return {
        "caption": frame.caption,
        "points": _encode_numbers(points),
        "colours": _encode_numbers(colours),
        "size": [frame.rgb.shape[2], frame.rgb.shape[1]],
        "intrinsics": [float(k[0, 0]), float(k[1, 1]), float(k[0, 2]), float(k[1, 2])],
        "boxes": [
            {
                "corners": box3d.corners(box.box.detach().cpu().double()).tolist(),
                "label": box.label,
                "kind": box.kind,
                "score": box.score,
            }
            for box in frame.boxes
        ],
    }


def _encode_picture(picture: Tensor) -> str:
    """A picture (3, h, w) uint8 as a PNG file in base64."""
    return base64.b64encode(encode_png(picture.cpu().permute(1, 2, 0).contiguous())).decode()


def _encode_numbers(tensor: Tensor) -> str:
    """The bytes of a float32 or uint8 tensor, little-endian, as text."""
    flat = tensor.contiguous().flatten()
    if flat.dtype == torch.uint8:
        return base64.b64encode(bytes(flat.tolist())).decode()
    return base64.b64encode(struct.pack(f"<{flat.numel()}f", *flat.tolist())).decode()


def _write_page(title: str, kind: str, data: dict[str, Any]) -> str:
    """The page of a kind, "scene", "attention" or "rollout", which are the names of the scripts."""
    if not isinstance(title, str):
        raise TypeError(f"the title of a page must be a text, got {title!r:.40}")
    folder = files(__package__)
    style = (folder / "style.css").read_text(encoding="utf-8")
    script = (folder / f"{kind}.js").read_text(encoding="utf-8")
    # Parsed JSON and not a literal of JavaScript, in which a camera named __proto__ would be lost. "<" is escaped, so
    # that no label can end the script.
    try:
        content = json.dumps(json.dumps(data, allow_nan=False)).replace("<", "\\u003c")
    except TypeError:
        raise TypeError("captions, notes and names on a page must be texts, and one of them is not") from None
    title = title.encode(errors="replace").decode()  # UTF-8 has no half of a surrogate pair
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{style}</style></head>\n<body><h1>{html.escape(title)}</h1>'
        f'<main id="main"></main>\n<script>const data = JSON.parse({content});\n{script}</script></body></html>\n'
    )
