"""Laws of layers and models: packed sequences, caches, adapters, attention classes that are not ours, drop-in layers,
cameras and clouds. Each function draws one case at random and yields its laws: name and error per entry."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import stringpe
from stringpe.compat import PointROPE, RoPE2D
from stringpe.coords import Calibration, backproject, patch_points
from stringpe.data.clouds import principal_axes
from stringpe.models.owl3d import Detector3D
from stringpe.models.owl_loss import match
from stringpe.models.points import group_points
from stringpe.models.text import TextTower

Laws = Iterator[tuple[str, Tensor]]
"""Names of laws, and by how much each is broken: one entry per token, pair of tokens or point."""


def relative(found: Tensor, wanted: Tensor) -> Tensor:
    """The largest difference per token, relative to the largest number wanted."""
    return (found - wanted).abs().amax(-1) / wanted.abs().amax().clamp(min=1e-6)


def draw_layer(dice: random.Random, *, linear: bool = False) -> tuple[Any, stringpe.Encoding]:
    """A layer of attention with random heads, key heads, norms and encoding, and the encoding."""
    groups, heads, d = dice.choice((1, 1, 2)), dice.randint(1, 3), dice.choice((8, 12, 16))
    name = dice.choice((*stringpe.names(), "random:factory"))
    sizes = {"head_dim": d, "num_heads": heads, "coord_dim": dice.randint(1, 3)}
    encoding = _register_factory(**sizes) if ":" in name else stringpe.create(name, **sizes)
    options = {"num_kv_heads": heads, "qk_norm": dice.choice((None, None, "rms", "rms_gain", "layer"))}
    kind: Any = stringpe.Attention
    if linear:
        kind = stringpe.LinearAttention
        options |= {"features": "relu", "encode": dice.choice(("before", "after"))}
    layer = kind(groups * heads * d, groups * heads, encoding=encoding, **options).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return layer, encoding


def _register_factory(**sizes: int) -> stringpe.Encoding:
    """An encoding that is registered under a name of its own and created by it."""
    stringpe.register("attacked", lambda **given: stringpe.cayley(**given), replace=True)
    return stringpe.create("attacked", **sizes)


def packed(dice: random.Random) -> Laws:
    """Packed sequences attend as each of them does alone."""
    layer, encoding = draw_layer(dice, linear=dice.random() < 0.5)
    lengths = [dice.randint(1, 9) for _ in range(dice.randint(1, 5))]
    causal = dice.random() < 0.5
    x, coords = torch.randn(1, sum(lengths), layer.dim), torch.randn(sum(lengths), encoding.coord_dim)
    given = stringpe.Packing(lengths) if dice.random() < 0.5 else dice.choice((lengths, torch.tensor(lengths)))
    alone = [layer(a, r, causal=causal) for a, r in zip(x.split(lengths, 1), coords.split(lengths), strict=True)]
    yield "packed", relative(layer(x, coords, lengths=given, causal=causal), torch.cat(alone, 1))


def cached(dice: random.Random) -> Laws:
    """Tokens that come in parts, with a cache, attend as all of them at once do."""
    linear = dice.random() < 0.5
    layer, encoding = draw_layer(dice, linear=linear)
    parts = [dice.randint(1, 5) for _ in range(dice.randint(1, 5))]
    x, coords = torch.randn(2, sum(parts), layer.dim), torch.randn(2, sum(parts), encoding.coord_dim)
    cache: Any = stringpe.LinearCache() if linear else stringpe.KVCache(dice.choice((0, 4, 64)))
    pieces = zip(x.split(parts, 1), coords.split(parts, 1), strict=True)
    found = torch.cat([layer(a, r, causal=True, cache=cache) for a, r in pieces], 1)
    yield "cached", relative(found, layer(x, coords, causal=True))


class Adapter(nn.Module):
    """A projection with a low-rank update beside it, as LoRA puts one."""

    def __init__(self, base: nn.Linear, rank: int):
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted(dice: random.Random) -> Laws:
    """An adapter on a projection counts as its update added to the weight does, before folding and after it."""
    layer, encoding = draw_layer(dice, linear=dice.random() < 0.3)
    x, coords = torch.randn(2, 6, layer.dim), torch.randn(6, encoding.coord_dim)
    plain = layer.qkv
    adapter = Adapter(plain, 2)
    layer.qkv = adapter
    found = layer(x, coords)
    plain.weight += adapter.up.weight @ adapter.down.weight
    layer.qkv = plain
    wanted = layer(x, coords)
    yield "adapter", relative(found, wanted)
    if layer.fold_obstacle() is None:
        yield "adapter, folded", relative(stringpe.fold(layer)(x, coords), wanted)


class OwnAttention(nn.Module):
    """An attention class that is not ours, with the weights of one that is."""

    def __init__(self, layer: stringpe.Attention, encoding: stringpe.Encoding):
        super().__init__()
        self.qkv, self.out, self.q_norm, self.k_norm = layer.qkv, layer.out, layer.q_norm, layer.k_norm
        self.positions = stringpe.Projections(encoding, num_heads=layer.num_heads)

    def forward(self, x: Tensor, coords: Tensor) -> Tensor:
        q, k, v = self.positions(self, x, coords)
        mixed = scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def projected(dice: random.Random) -> Laws:
    """`Projections` in a class of one's own give what our attention gives, before folding and after it."""
    layer, encoding = draw_layer(dice)
    own = OwnAttention(layer, encoding)
    x, coords = torch.randn(2, 6, layer.dim), torch.randn(2, 6, encoding.coord_dim)
    wanted = layer(x, coords)
    yield "projections", relative(own(x, coords), wanted)
    if layer.fold_obstacle() is None:
        yield "projections, folded", relative(stringpe.fold(own)(x, coords), wanted)


def dropped_in(dice: random.Random) -> Laws:
    """Drop-in layers: scores depend on differences of positions alone, and lengths stay."""
    layer = dice.choice((RoPE2D, PointROPE))(freq=dice.choice((10.0, 100.0)))
    q, k = torch.randn(2, 2, 3, 6, 4 * layer.axes)
    places = torch.randint(0, 40, (2, 6, layer.axes))
    places = places if dice.random() < 0.5 else places + torch.rand(places.shape)

    def scores(r: Tensor) -> Tensor:
        return layer(q, r) @ layer(k, r).mT

    yield "drop-in, shift", relative(scores(places + dice.randint(-50, 50)), scores(places))
    yield "drop-in, length", (layer(q, places).norm(dim=-1) - q.norm(dim=-1)).abs() / q.norm(dim=-1).amax()


def draw_cameras(count: int) -> Calibration:
    """Cameras of pictures of 32 × 32 pixels at random poses."""
    k = torch.eye(3).repeat(count, 1, 1)
    k[:, 0, 0], k[:, 1, 1] = 20 + 20 * torch.rand(2, count)
    k[:, :2, 2] = 16 + torch.randn(count, 2)
    pose = torch.eye(4).repeat(count, 1, 1)
    turn = torch.linalg.qr(torch.randn(count, 3, 3)).Q
    pose[:, :3, :3] = turn * torch.linalg.det(turn)[:, None, None]
    pose[:, :3, 3] = torch.randn(count, 3)
    return Calibration(k, pose)


def seen_by_cameras(dice: random.Random) -> Laws:
    """Points in the world project back to their pixels; moving a camera moves its points rigidly; a patch lies among
    the points of its pixels."""
    views = dice.randint(1, 3)
    k, pose = draw_cameras(views)
    depth = 0.5 + 3 * torch.rand(views, 32, 32)
    points = backproject(depth, k, pose)
    local = torch.einsum("vji,vhwj->vhwi", pose[:, :3, :3], points - pose[:, None, None, :3, 3])
    pixels = torch.einsum("vij,vhwj->vhwi", k, local)
    grid = stringpe.coords.grid(32, 32).view(32, 32, 2).flip(-1) + 0.5
    yield "camera, pixels", (pixels[..., :2] / pixels[..., 2:] - grid).abs().amax(-1) / 32
    yield "camera, depth", (local[..., 2] - depth).abs()
    motion = draw_cameras(1).pose[0]
    moved = backproject(depth, k, motion @ pose)
    yield "camera, motion", (moved - (points @ motion[:3, :3].T + motion[:3, 3])).norm(dim=-1) / 4
    flat = torch.full_like(depth, dice.uniform(0.5, 3))
    centres = backproject(flat, k, pose).unflatten(1, (4, 8)).unflatten(3, (4, 8)).mean((2, 4)).flatten(1, 2)
    yield "camera, patches", (patch_points(flat, k, 8, pose=pose).view(views, 16, 3) - centres).norm(dim=-1) / 4


def boxes_at_points(dice: random.Random) -> Laws:
    """Boxes whose centres are relative to points (`model.box_centre=point`) move with the camera's pose, and in the
    world frame with the world; and folding changes none of them."""
    frame = dice.choice(("camera", "world"))
    sizes = {"coord_dim": 3, "num_classes": 0}
    vit = stringpe.vit("vit_test_patch16", encoding=dice.choice(stringpe.names()), frame=frame, **sizes)
    text = TextTower(vocab=20, dim=32, layers=1, num_heads=2, width=32, context=4)
    detector = Detector3D(vit, text, centre="point").eval()
    image, depth = torch.rand(2, 3, 32, 32), 0.5 + 3 * torch.rand(2, 32, 32)
    k, pose = draw_cameras(2)
    queries, shift = torch.randint(1, 20, (2, 4)), torch.randn(3) * dice.choice((0.1, 1.0, 5.0))
    moved = pose.clone()
    moved[:, :3, 3] += shift
    found = detector(image, depth, queries, Calibration(k, pose))
    again = detector(image, depth, queries, Calibration(k, moved))
    yield "boxes, centres", (again.boxes[..., :3] - shift - found.boxes[..., :3]).norm(dim=-1) / 10
    yield "boxes, rest", relative(again.boxes[..., 3:], found.boxes[..., 3:])
    stringpe.fold(detector)
    yield "boxes, folded", relative(detector(image, depth, queries, Calibration(k, pose)).boxes, found.boxes)


def clouds(dice: random.Random) -> Laws:
    """Groups and the principal frame of a cloud follow it when it is turned and moved."""
    points = torch.randn(3, 30, 3, dtype=torch.float64) * torch.tensor([3.0, 2.0, 1.0]) + torch.rand(3) ** 2
    points = (points + points.pow(3) * 0.05).float().double()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    turn = turn * torch.linalg.det(turn)
    before, after = (group_points(p, 5, 4) for p in (points, points @ turn.T + 1))
    yield "clouds, groups", (before[0] != after[0]).double()
    centred = points - points.mean(1, keepdim=True)
    own, theirs = (p @ principal_axes(p) for p in (centred, centred @ turn.T))
    yield "clouds, frame", (own - theirs).norm(dim=-1) / own.norm(dim=-1).amax()


def matched(dice: random.Random) -> Laws:
    """Matching costs as little as the best of all matchings, and leaves padding out."""
    n, m = dice.randint(1, 5), dice.randint(0, 4)
    cost, valid = torch.randn(8, n, m) * 10.0 ** dice.randint(-3, 3), torch.rand(8, m) < 0.8
    if dice.random() < 0.3:
        cost = cost.round()  # ties
    found = match(cost, valid)
    yield "matching, padding", ((found >= 0) & ~valid).double()
    errors = []
    for table, mask, row in zip(cost.double(), valid, found, strict=True):
        objects = mask.nonzero()[:, 0].tolist()
        taken = [(int(row[j]), j) for j in objects if row[j] >= 0]
        wanted = min(n, len(objects))
        free = len({i for i, _ in taken}) == len(taken) == wanted
        ways = ([*zip(rows, some, strict=True)] for some in combinations(objects, wanted)
                for rows in permutations(range(n), wanted))  # fmt: skip
        best = min((sum(float(table[i, j]) for i, j in way) for way in ways), default=0.0)
        excess = abs(sum(float(table[i, j]) for i, j in taken) - best) / (1 + abs(best))
        errors.append(excess if free else 1.0)
    yield "matching, cost", torch.tensor(errors)


def changed_norms(dice: random.Random) -> Laws:
    """What a hook adds to the norms of queries and keys comes before the rotation."""
    layer, encoding = draw_layer(dice)
    own = OwnAttention(layer, encoding)
    x, coords = torch.randn(2, 6, layer.dim), torch.randn(2, 6, encoding.coord_dim)
    added = torch.randn(layer.head_dim)
    for norm in (layer.q_norm, layer.k_norm):
        norm.register_forward_hook(lambda module, given, out: out + added)
    sizes = [layer.num_heads * layer.head_dim] + [layer.num_kv_heads * layer.head_dim] * 2
    parts = (t.unflatten(-1, (-1, layer.head_dim)).transpose(1, 2) for t in layer.qkv(x).split(sizes, -1))
    q, k, v = parts
    q, k = encoding(layer.q_norm(q), layer.k_norm(k), coords)
    heads = scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    wanted = layer.out(heads.transpose(1, 2).flatten(2))
    yield "norms with hooks", relative(layer(x, coords), wanted)
    yield "norms with hooks, projections", relative(own(x, coords), wanted)


LAWS: tuple[Callable[[random.Random], Laws], ...] = (
    packed, cached, adapted, projected, changed_norms, dropped_in, seen_by_cameras, boxes_at_points, clouds, matched,
)  # fmt: skip
