"""A data set as one file: what training needs of it, at its size, readable with torch, safetensors and Pillow alone.

    pack(Dataset("data/pick"), "pick.safetensors", size=128)
    demos = load("pick.safetensors", cameras=["overhead"])          # decoded, ready to go to a device

The file holds state and action of every step, and of every `stride`-th step the pictures of every camera, as WebP
(depth as 16-bit PNG) one after the other: tens of megabytes where the tensors would be gigabytes.
"""

import io
import json
import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...io.files import find_mismatch, open_tensors, write_tensors
from ...io.pictures import BadSample, decode_deep, decode_picture
from ...io.progress import track
from ..calibration import fit_intrinsics, pose_key, read_matrix
from . import parquet
from .columns import ACTION, DEPTH, IMAGES, STATE
from .dataset import Dataset
from .parquet import BrokenEpisode

FORMAT = "stringpe demonstrations 1"
_ADVICE = "make it again with stringpe data pack"


@dataclass(frozen=True)
class Demos:
    """Demonstrations in memory. n steps, m of them with pictures, k cameras.

    state (n, s), action (n, a) float32; episode (n,) and task (n,) int64; seen (m,) int64: the steps with pictures;
    image (m, k, 3, S, S) uint8; depth (m, k, S, S) float16 in metres, or None; intrinsics (m, k, 3, 3) in pixels of
    these pictures and pose (m, k, 4, 4) of the cameras, or None. broken: episodes that were left out.
    """

    state: Tensor
    action: Tensor
    episode: Tensor
    task: Tensor
    seen: Tensor
    image: Tensor
    depth: Tensor | None
    intrinsics: Tensor | None
    pose: Tensor | None
    cameras: tuple[str, ...]
    tasks: tuple[str, ...]
    fps: float
    broken: int

    def chunks(self, steps: Tensor, length: int) -> Tensor:
        """Actions (b, length, a) from steps (b,) on; after an episode's end its last action, which means: stay."""
        index = steps[:, None] + torch.arange(length, device=steps.device)
        return self.action[torch.minimum(index, self.ends[steps][:, None])]

    @cached_property
    def ends(self) -> Tensor:
        """Last step (n,) of the episode of every step."""
        last = torch.nonzero(self.episode != torch.cat([self.episode[1:], self.episode.new_tensor([-1])]))[:, 0]
        return last[torch.searchsorted(last, torch.arange(len(self.episode), device=last.device))]

    def to(self, device: torch.device) -> "Demos":
        """The same, with every tensor on a device."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            moved[field.name] = value.to(device) if isinstance(value, Tensor) else value
        return Demos(**moved)


def pack(
    data: Dataset,
    path: str | Path,
    *,
    size: int,
    cameras: Sequence[str] = (),
    depth: bool = True,
    stride: int = 1,
    quality: int = 80,
    depth_step: int = 1,
) -> Path:
    """Write a data set's good episodes to one file.

    size: side of the stored pictures in pixels. stride: steps between stored pictures. quality: of WebP, a third of
    JPEG's size for such pictures; 100 keeps pictures that have the size already as they are. depth_step:
    millimetres per step of stored depth; coarser is smaller. depth: whether to store it, where there is any."""
    names = list(cameras) or data.cameras
    data.check_cameras(names, [])
    keys = [IMAGES + n for n in names] + [DEPTH + n for n in names if depth and n in data.depths]
    parts: dict[str, list[Any]] = {name: [] for name in ("state", "action", "episode", "task", "seen")}
    blobs: dict[str, list[bytes]] = {key: [] for key in keys}
    tasks: dict[str, int] = {}
    first = 0
    intrinsics, still = _known_cameras(data, names, size)
    poses = {pose_key(name): list[Any]() for name in names if pose_key(name) in data.columns}

    def read(number: int) -> dict[str, Any]:
        content = data.read_encoded(number, [STATE, ACTION, *keys, *poses], stride=stride)
        return content | {key: [_fit_picture(key, b, size, quality, depth_step) for b in content[key]] for key in keys}

    for count, (episode, content) in enumerate(
        track(data.read_all(read), f"packing {data.folder}", len(data), "episodes")
    ):
        length = len(content[ACTION])
        parts["state"].append(torch.from_numpy(content[STATE]))
        parts["action"].append(torch.from_numpy(content[ACTION]))
        parts["episode"].append(torch.full((length,), count))
        parts["task"].append(torch.full((length,), tasks.setdefault(episode.task, len(tasks))))
        parts["seen"].append(first + torch.arange(0, length, stride))
        for key in keys:
            blobs[key] += content[key]
        for key, each in poses.items():
            each.append(torch.as_tensor(content[key][::stride]).reshape(-1, 4, 4).float())
        first += length
    if not first:
        raise ValueError(f"{data.folder} has no readable episode: record some, for example with stringpe data demos")
    tensors = {name: torch.cat(each) for name, each in parts.items()}
    for key in keys:
        tensors[key] = torch.from_numpy(np.frombuffer(b"".join(blobs[key]), np.uint8).copy())
        tensors[f"{key}.ends"] = torch.tensor([len(b) for b in blobs[key]]).cumsum(0)
    tensors |= {key: torch.cat(each) for key, each in poses.items()}
    about: dict[str, Any] = {"cameras": names, "size": size, "intrinsics": intrinsics, "poses": still}
    about |= {"depths": [k.removeprefix(DEPTH) for k in keys if k.startswith(DEPTH)]}
    about |= {"tasks": list(tasks), "fps": data.fps, "broken": len(data.broken), "depth_step": depth_step}
    write_tensors(Path(path), tensors, {"format": FORMAT, "about": json.dumps(about)})
    return Path(path)


def load(
    path: str | Path,
    *,
    cameras: Sequence[str] = (),
    depth: bool = False,
    calibration: bool = False,
    size: int = 0,
) -> Demos:
    """Decode a packed file. cameras: which, in what order, all by default; depth, calibration: load them too; size:
    refuse others."""
    about, tensors = _read(Path(path))
    names = tuple(cameras) or tuple(about["cameras"])
    _need(path, names, about, depth, size)
    if calibration:
        _need_calibration(path, names, about, tensors)
    try:
        image = torch.stack([_decode_all(tensors, IMAGES + n, about["size"]) for n in names], 1).permute(0, 1, 4, 2, 3)
        metres = None
        if depth:
            step = about["depth_step"]
            metres = torch.stack([_decode_all(tensors, DEPTH + n, about["size"]) * step for n in names], 1).half()
        plain = {name: tensors[name] for name in ("state", "action", "episode", "task", "seen")}
        _check_steps(plain, len(image), len(about["tasks"]))
        intrinsics, pose = _read_calibration(tensors, names, about, len(image)) if calibration else (None, None)
    except (BrokenEpisode, KeyError, ValueError, RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is damaged ({error}): {_ADVICE}") from None
    if about["broken"]:
        warnings.warn(f"{about['broken']} broken episodes were left out of {path} when it was made", RuntimeWarning, 2)
    return Demos(
        **plain,
        image=image.contiguous(),
        depth=metres,
        intrinsics=intrinsics,
        pose=pose,
        cameras=names,
        tasks=tuple(about["tasks"]),
        fps=about["fps"],
        broken=about["broken"],
    )


_ABOUT = {
    "cameras": [str],
    "depths": [str],
    "tasks": [str],
    "size": int,
    "fps": float,
    "broken": int,
    "depth_step": int,
    "intrinsics": {str: list},
    "poses": {str: list},
}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a packed file says of itself, and its tensors."""
    with open_tensors(path, _ADVICE) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} does not hold packed demonstrations: make it with stringpe data pack")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dictionary
    try:
        about = json.loads(metadata.get("about", "null"))
        if isinstance(about, dict):
            about = {"intrinsics": {}, "poses": {}} | about  # older packs have neither
        wrong = find_mismatch(about, _ABOUT)
    except (json.JSONDecodeError, RecursionError) as error:
        wrong = str(error)
    if wrong or not 1 <= about["size"] <= 8192:
        raise ValueError(f"{path} is damaged ({wrong or 'its size'}): {_ADVICE}")
    return about, tensors


def _check_steps(plain: dict[str, Tensor], pictures: int, tasks: int) -> None:
    """Refuse tables of steps that do not fit each other."""
    steps, seen = len(plain["state"]), plain["seen"]
    lengths = {name: len(tensor) for name, tensor in plain.items() if name != "seen"}
    if set(lengths.values()) != {steps} or not steps:
        raise ValueError(f"its parts differ in length: {lengths}")
    if len(seen) != pictures or not pictures or not 0 <= int(seen.min()) <= int(seen.max()) < steps:
        raise ValueError(f"{len(seen)} steps with pictures, {pictures} pictures and {steps} steps do not fit")
    if not 0 <= int(plain["task"].min()) <= int(plain["task"].max()) < tasks:
        raise ValueError(f"there are steps of a task beyond its {tasks} tasks")
    if not all(bool(plain[name].isfinite().all()) for name in ("state", "action")):
        raise ValueError("states or actions are not finite")


def join(parts: Sequence[Demos]) -> Demos:
    """Several sets of demonstrations as one; tasks of the same text become one task."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for part in parts[1:]:
        sizes = [(p.cameras, p.state.shape[1], p.action.shape[1], tuple(p.image.shape[2:])) for p in (first, part)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"these demonstrations do not go together: {sizes[0]} and {sizes[1]}")
    tasks = tuple(dict.fromkeys(t for p in parts for t in p.tasks))
    steps = [0, *np.cumsum([len(p.state) for p in parts]).tolist()]
    episodes = [0, *np.cumsum([int(p.episode.max()) + 1 for p in parts]).tolist()]
    depth, intrinsics, pose = (
        [getattr(p, name) for p in parts if getattr(p, name) is not None] for name in ("depth", "intrinsics", "pose")
    )
    return Demos(
        state=torch.cat([p.state for p in parts]),
        action=torch.cat([p.action for p in parts]),
        episode=torch.cat([p.episode + e for p, e in zip(parts, episodes, strict=False)]),
        task=torch.cat([torch.tensor([tasks.index(t) for t in p.tasks])[p.task] for p in parts]),
        seen=torch.cat([p.seen + s for p, s in zip(parts, steps, strict=False)]),
        image=torch.cat([p.image for p in parts]),
        depth=torch.cat(depth) if len(depth) == len(parts) else None,
        intrinsics=torch.cat(intrinsics) if len(intrinsics) == len(parts) else None,
        pose=torch.cat(pose) if len(pose) == len(parts) else None,
        cameras=first.cameras,
        tasks=tasks,
        fps=first.fps,
        broken=sum(p.broken for p in parts),
    )


def _known_cameras(data: Dataset, names: Sequence[str], size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Intrinsics of the cameras in pixels of pictures of `size`, and poses of cameras that do not move, where the data
    set knows them."""
    intrinsics, poses, features = {}, {}, data.info["features"]
    for name in names:
        info = data.camera_info(name)
        if "intrinsics" in info:
            shape = features[data.columns[IMAGES + name].stored]["shape"]
            known = read_matrix(info["intrinsics"], 3, f"the intrinsics of {name} in {data.folder}/meta/info.json")
            intrinsics[name] = fit_intrinsics(known, shape[:2], size).tolist()
        if pose_key(name) in features and math.prod(features[pose_key(name)]["shape"]) != 16:
            shape = tuple(features[pose_key(name)]["shape"])
            raise ValueError(f"{pose_key(name)} must be a matrix (4, 4), robot from camera; {data.folder} has {shape}")
        if "pose" in info:
            poses[name] = read_matrix(info["pose"], 4, f"the pose of {name} in {data.folder}/meta/info.json").tolist()
    return intrinsics, poses


def _need_calibration(
    path: str | Path, names: Sequence[str], about: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Refuse a file that does not say how its cameras are calibrated."""
    known, still, moving = about.get("intrinsics", {}), about.get("poses", {}), set(tensors)
    missing = [name for name in names if name not in known or (name not in still and pose_key(name) not in moving)]
    if missing:
        raise ValueError(
            f"{path} does not say how its cameras {', '.join(missing)} are calibrated, which policy.frame=world needs: "
            f"record with --depth, or give intrinsics and pose in the info of {IMAGES}{missing[0]} in meta/info.json "
            f"(or the column {pose_key(missing[0])}) and pack again"
        )


def _read_calibration(
    tensors: dict[str, Tensor], names: Sequence[str], about: dict[str, Any], frames: int
) -> tuple[Tensor, Tensor]:
    """Intrinsics (m, k, 3, 3) and poses (m, k, 4, 4) of every picture."""
    known, still = about["intrinsics"], about.get("poses", {})
    each = [read_matrix(known[name], 3, f"the intrinsics of {name}") for name in names]
    poses = [
        tensors[pose_key(name)]
        if pose_key(name) in tensors
        else read_matrix(still[name], 4, f"the pose of {name}").expand(frames, 4, 4)
        for name in names
    ]
    pose = torch.stack(poses, 1)
    if pose.shape != (frames, len(names), 4, 4) or not pose.isfinite().all():
        raise ValueError(f"poses are {tuple(pose.shape)}, and must be {frames} × {len(names)} finite matrices (4, 4)")
    return torch.stack(each).expand(frames, -1, 3, 3).contiguous(), pose


def _need(path: str | Path, names: Sequence[str], about: dict[str, Any], depth: bool, size: int) -> None:
    for what, there in (("cameras", about["cameras"]), *([("depth of cameras", about["depths"])] if depth else [])):
        missing = [name for name in names if name not in there]
        if missing:
            raise ValueError(f"{path} has no {what} {', '.join(missing)}; it has {', '.join(there) or 'none'}")
    if size and size != about["size"]:
        raise ValueError(
            f"{path} has pictures of {about['size']} px, not {size}: set data.image_size, or pack it again"
        )


def _fit_picture(key: str, data: bytes, size: int, quality: int, depth_step: int) -> bytes:
    """A picture at that size; its own bytes where nothing changes. Depth takes the nearest pixel: holes do not mix."""
    from PIL import Image

    file = io.BytesIO()
    try:
        if key.startswith(DEPTH):
            deep = Image.fromarray(decode_deep(data, key).numpy())
            if deep.size == (size, size) and depth_step == 1:
                return data
            small = np.asarray(deep.resize((size, size), Image.Resampling.NEAREST)).astype(np.float64)
            Image.fromarray(np.rint(small / depth_step).astype(np.uint16)).save(file, "PNG", optimize=True)
            return file.getvalue()
        image = decode_picture(data, key)
    except BadSample as error:
        raise BrokenEpisode(f"a picture of {key} cannot be decoded ({error})") from None
    if image.size == (size, size) and quality == 100:
        return data
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2)
    resized.save(file, "WEBP", quality=quality)
    return file.getvalue()


def _decode_all(tensors: dict[str, Tensor], key: str, size: int) -> Tensor:
    """All pictures of a key: (m, S, S, 3) uint8, or (m, S, S) float16 metres."""
    blob = tensors[key].numpy()
    ends = tensors[f"{key}.ends"].tolist()
    deep = key.startswith(DEPTH)
    out = np.empty((len(ends), size, size) if deep else (len(ends), size, size, 3), np.float16 if deep else np.uint8)

    def one(i: int) -> None:
        out[i] = parquet.decode(key, blob[ends[i - 1] if i else 0 : ends[i]].tobytes())

    with ThreadPoolExecutor() as pool:  # Pillow lets go of the interpreter while it decodes
        list(pool.map(one, range(len(ends)), chunksize=64))
    return torch.from_numpy(out)
