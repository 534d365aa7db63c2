"""The public calls that are attacked: each with arguments that work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import stringpe
from stringpe import compat, coords, testing, viewer
from stringpe.data.clouds import draw_rotations, principal_axes
from stringpe.geometry import box3d
from stringpe.models.owl3d import Detector3D
from stringpe.models.owl_loss import match, match_repeatedly
from stringpe.models.points import PointTransformer, group_points
from stringpe.models.text import TextTower

Target = tuple[Callable[..., Any], dict[str, Any]]


def targets() -> dict[str, Target]:
    """Public calls by name, with arguments that work."""
    return _encodings() | _layers() | _packing_and_caches() | _models() | _towers() | _geometry() | _pages()


def _encodings() -> dict[str, Target]:
    sizes = {"head_dim": 8, "num_heads": 2, "coord_dim": 2}
    encoding = stringpe.cayley(**sizes)
    q, places = torch.randn(1, 2, 3, 8), torch.randn(3, 2)

    def register(**given: Any) -> None:
        stringpe.register(replace=True, **given)

    def create(name: str) -> Callable[..., Any]:
        return getattr(stringpe, name, None) or (lambda **given: stringpe.create(name, **given))

    found: dict[str, Target] = {f"stringpe.{name}": (create(name), dict(sizes)) for name in stringpe.names()}
    return found | {
        "stringpe.create": (stringpe.create, {"name": "cayley", **sizes}),
        "stringpe.create, factory": (stringpe.create, {"name": "stringpe.named:cayley", **sizes}),
        "stringpe.register": (register, {"name": "attacked", "factory": stringpe.cayley, "kind": "string"}),
        "encoding": (encoding, {"q": q, "k": q, "coords": places}),
        "encoding.rotate": (encoding.rotate, {"x": q, "coords": places}),
        "encoding.matrix": (encoding.matrix, {"coords": places}),
        "stringpe.from_generators": (
            stringpe.from_generators,
            {"generators": stringpe.generators(encoding).detach()},
        ),
        "testing.check": (testing.check, {"encoding": encoding}),
        "stringpe.use_backend": (stringpe.use_backend, {"name": "torch"}),
        "RoPE2D": (compat.RoPE2D, {"freq": 100.0, "F0": 1.0}),
        "RoPE2D, called": (compat.RoPE2D(), {"tokens": q, "positions": torch.randint(0, 9, (1, 3, 2))}),
        "PointROPE, called": (
            compat.PointROPE(),
            {"tokens": torch.randn(1, 2, 3, 12), "positions": torch.randn(1, 3, 3)},
        ),
    }


def _layers() -> dict[str, Target]:
    sizes = {"head_dim": 8, "num_heads": 2, "coord_dim": 2}
    encoding = stringpe.cayley(**sizes)
    x, places = torch.randn(1, 3, 16), torch.randn(3, 2)
    layer = stringpe.Attention(16, 2, encoding=encoding)
    linear = stringpe.LinearAttention(16, 2, encoding=stringpe.cayley(**sizes))
    positions = stringpe.Projections(stringpe.cayley(**sizes))
    cross = {"context": torch.randn(1, 4, 16), "context_coords": torch.randn(4, 2)}
    mask = torch.ones(1, 3, dtype=torch.bool)
    return {
        "stringpe.Attention": (stringpe.Attention, {"dim": 16, "num_heads": 2, "encoding": encoding}),
        "attention": (layer, {"x": x, "coords": places}),
        "attention, masked": (layer, {"x": x, "coords": places, "mask": mask, "causal": False}),
        "cross attention": (layer, {"x": x, "coords": places, **cross}),
        "linear attention": (linear, {"x": x, "coords": places}),
        "stringpe.Projections": (
            stringpe.Projections,
            {"encoding": encoding, "qkv": "qkv", "num_heads": 2, "q_norm": "q_norm"},
        ),
        "projections": (positions, {"owner": stringpe.Attention(16, 2), "x": x, "coords": places}),
        "projections of parts": (
            _project_with,
            {
                "x": x,
                "coords": places,
                "qkv": nn.Linear(16, 48),
                "q_norm": nn.RMSNorm(8),
                "k_norm": nn.RMSNorm(8),
            },
        ),
        "stringpe.fold": (stringpe.fold, {"model": layer}),
        "stringpe.param_groups": (stringpe.param_groups, {"model": layer, "lr": 1e-3}),
    }


def _project_with(x: Any, coords: Any, **parts: Any) -> Any:
    """`Projections` of a module that holds these parts."""
    owner = nn.Module()
    for name, part in parts.items():
        setattr(owner, name, part)
    return stringpe.Projections(stringpe.cayley(head_dim=8, num_heads=2, coord_dim=2))(owner, x, coords)


def _packing_and_caches() -> dict[str, Target]:
    sizes = {"head_dim": 8, "num_heads": 2, "coord_dim": 2}
    layer = stringpe.Attention(16, 2, encoding=stringpe.cayley(**sizes))
    linear = stringpe.LinearAttention(16, 2, encoding=stringpe.cayley(**sizes), features="relu")
    x, places = torch.randn(1, 5, 16), torch.randn(5, 2)
    keys = torch.randn(1, 2, 3, 8)

    def attend(layer: Any, cache: Any) -> Callable[..., Any]:
        """A layer with a fresh cache in every call, unless the call has another one."""
        return lambda **given: layer(**{"cache": cache(), **given})

    def append(**given: Any) -> Any:
        cache = stringpe.KVCache()
        cache.append(keys, keys)
        return cache.append(**given)

    return {
        "stringpe.Packing": (stringpe.Packing, {"lengths": [2, 3]}),
        "Packing.from_offsets": (
            stringpe.Packing.from_offsets,
            {"offsets": torch.tensor([0, 2, 5]), "total": 5, "longest": 3},
        ),
        "packed attention": (layer, {"x": x, "coords": places, "lengths": torch.tensor([2, 3])}),
        "packed cross attention": (
            layer,
            {
                "x": x,
                "coords": places,
                "context": torch.randn(1, 4, 16),
                "context_coords": torch.randn(4, 2),
                "lengths": [2, 3],
                "context_lengths": [1, 3],
            },
        ),
        "packed linear attention": (linear, {"x": x, "coords": places, "lengths": [2, 3]}),
        "stringpe.KVCache": (stringpe.KVCache, {"capacity": 4}),
        "KVCache.append": (append, {"keys": keys, "values": keys}),
        "cached attention": (attend(layer, stringpe.KVCache), {"x": x, "coords": places}),
        "cached linear attention": (attend(linear, stringpe.LinearCache), {"x": x, "coords": places}),
        "attention, cache": (layer, {"x": x, "coords": places, "cache": stringpe.KVCache()}),
        "linear attention, cache": (linear, {"x": x, "coords": places, "cache": stringpe.LinearCache()}),
    }


def _models() -> dict[str, Target]:
    image, depth = torch.randn(1, 3, 32, 32), torch.rand(1, 32, 32) + 0.5
    vit = stringpe.vit("vit_test_patch16", encoding="rope", num_classes=3)
    deep = {"encoding": "cayley", "coord_dim": 3}
    vit3 = stringpe.vit("vit_test_patch16", num_classes=3, **deep)
    world = stringpe.vit("vit_test_patch16", num_classes=3, frame="world", **deep)
    camera = coords.Calibration(torch.eye(3)[None] * 20, torch.eye(4)[None])
    text = TextTower(vocab=20, dim=32, layers=1, num_heads=2, width=32, context=4)
    detector = Detector3D(stringpe.vit("vit_test_patch16", **deep), text, centre="point")
    points = torch.randn(1, 30, 3)
    clouds = PointTransformer(dim=16, layers=1, num_heads=2, num_classes=3, encoding="cayley")
    return {
        "stringpe.vit": (stringpe.vit, {"name": "vit_test_patch16", "encoding": "rope", "num_classes": 3}),
        "stringpe.vit, world": (
            stringpe.vit,
            {"name": "vit_test_patch16", "encoding": "cayley", "coord_dim": 3, "frame": "world"},
        ),
        "vit": (vit, {"image": image}),
        "vit with depth": (vit3, {"image": image, "depth": depth}),
        "vit in the world frame": (world, {"image": image, "depth": depth, "calibration": camera}),
        "stringpe.attach": (stringpe.attach, {"model": vit, "encoding": "cayley"}),
        "Detector3D": (Detector3D, {"image": vit3, "text": text, "factor": 1.0, "centre": "point"}),
        "detector": (
            detector,
            {"image": image, "depth": depth, "queries": torch.ones(2, 4, dtype=torch.long), "calibration": camera},
        ),
        "text tower": (text, {"tokens": torch.ones(2, 4, dtype=torch.long)}),
        "match": (match, {"cost": torch.randn(1, 4, 3), "valid": torch.ones(1, 3, dtype=torch.bool)}),
        "match_repeatedly": (
            match_repeatedly,
            {"cost": torch.randn(1, 4, 3), "valid": torch.ones(1, 3, dtype=torch.bool), "times": 2},
        ),
        "point transformer": (clouds, {"points": torch.randn(1, 4, 5, 3), "centres": torch.randn(1, 4, 3)}),
        "group_points": (group_points, {"points": points, "groups": 4, "size": 5}),
        "principal_axes": (principal_axes, {"points": points}),
        "draw_rotations": (draw_rotations, {"count": 3, "kind": "any", "dice": torch.Generator()}),
    }


def _towers() -> dict[str, Target]:
    """Classes of models, with sizes that work."""
    return {
        "ViT": (
            stringpe.ViT,
            {
                "dim": 32,
                "layers": 1,
                "num_heads": 2,
                "patch_size": 16,
                "encoding": "rope",
                "coord_dim": 2,
                "depth": "none",
                "num_classes": 3,
                "pool": "mean",
                "registers": 1,
                "units": "index",
                "image_size": 32,
                "mlp_ratio": 2.0,
                "dropout": 0.0,
                "drop_path": 0.0,
                "attention": "softmax",
                "qk_norm": "rms",
                "stem": "patch",
            },
        ),
        "TextTower": (
            TextTower,
            {
                "vocab": 20,
                "dim": 16,
                "layers": 1,
                "num_heads": 2,
                "context": 4,
                "encoding": "sincos",
                "pool": "map",
                "width": 8,
                "padding": 0,
                "mlp_ratio": 2.0,
                "dropout": 0.0,
                "drop_path": 0.0,
            },
        ),
        "PointTransformer": (
            PointTransformer,
            {
                "dim": 16,
                "layers": 1,
                "num_heads": 2,
                "num_classes": 3,
                "encoding": "cayley",
                "scale": 8.0,
                "pool": "mean",
                "mlp_ratio": 4.0,
                "dropout": 0.0,
                "drop_path": 0.0,
            },
        ),
    }


def _geometry() -> dict[str, Target]:
    box = torch.tensor([[0.0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1]])
    depth, k, pose = torch.rand(1, 32, 32) + 0.5, torch.eye(3) * 20, torch.eye(4)
    return {
        "coords.grid": (coords.grid, {"height": 3, "width": 4, "prefix": 1}),
        "coords.lift_depth": (coords.lift_depth, {"depth": depth, "patch_size": 16}),
        "coords.polar": (coords.polar, {"points": torch.randn(3, 2)}),
        "coords.backproject": (coords.backproject, {"depth": depth, "intrinsics": k, "pose": pose}),
        "coords.patch_points": (
            coords.patch_points,
            {"depth": depth, "intrinsics": k, "patch_size": 16, "pose": pose},
        ),
        "box3d.iou": (box3d.iou, {"a": box, "b": box}),
        "box3d.corners": (box3d.corners, {"box": box}),
        "box3d.project_edges": (box3d.project_edges, {"box": box, "intrinsics": k, "near": 0.05}),
    }


def _pages() -> dict[str, Target]:
    rgb, depth, k = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.ones(8, 8), torch.eye(3) * 8
    box = torch.tensor([0.0, 0, 2, 1, 0, 0, 0, 1, 0, 1, 1, 1])
    scene = {"rgb": rgb, "depth": depth, "intrinsics": k}
    return {
        "viewer.Box": (viewer.Box, {"box": box, "label": "mug", "kind": "predicted", "score": 0.5}),
        "viewer.show_scene": (viewer.show_scene, {**scene, "boxes": [viewer.Box(box, "mug")], "title": "Scene"}),
        "viewer.show_frames": (viewer.show_frames, {"frames": [viewer.Frame(**scene)], "title": "Frames"}),
        "viewer.show_attention": (
            viewer.show_attention,
            {"image": rgb, "maps": {"rope": torch.eye(4)}, "grid": (2, 2), "note": "", "title": "Attention"},
        ),
        "viewer.show_rollout": (
            viewer.show_rollout,
            {"cameras": {"front": [rgb]}, "caption": "a try", "title": "Rollout"},
        ),
        "viewer.show_rollouts": (
            viewer.show_rollouts,
            {"rollouts": [viewer.Rollout({"front": [rgb]})], "title": "Rollouts"},
        ),
    }
