"""Scenes as data: reproducible, hierarchical, and without interpenetration."""

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stringpe import scenes
from stringpe.scenes.assembly import assemble
from stringpe.scenes.deterministic import TURN, Dice, cos_sin
from stringpe.scenes.families import RULES
from stringpe.scenes.placement import Plot
from stringpe.scenes.templates import ALL_KINDS

WORLD = scenes.sample(11, 48)


def equal(a, b):
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name != "seed")


@given(seed=st.integers(0, 2**40), index=st.integers(0, 2**40))
@settings(max_examples=20, deadline=None)
def test_numbers_depend_on_seed_and_index_alone(seed, index):
    alone = Dice(seed, torch.tensor([index]))
    among = Dice(seed, torch.tensor([5, index, 9]))
    for shape in ((3,), (700,), (2, 400)):
        a, b = alone.uniform(*shape), among.uniform(*shape)
        assert torch.equal(a[0], b[1])
        assert a.min() >= 0
        assert a.max() < 1


def test_numbers_are_uniform_and_uncorrelated():
    draws = Dice(3, torch.arange(2000)).uniform(64)
    assert abs(float(draws.mean()) - 0.5) < 0.005
    assert abs(float(draws.var()) - 1 / 12) < 0.002
    assert torch.corrcoef(draws.T).fill_diagonal_(0).abs().max() < 0.12
    assert torch.corrcoef(draws[:64]).fill_diagonal_(0).abs().max() < 0.6
    other = Dice(4, torch.arange(2000)).uniform(64)
    assert not torch.equal(draws, other)


def test_same_seed_same_scene_whatever_the_batch():
    single = [scenes.sample(11, [i]) for i in range(8)]
    assert all(equal(WORLD[i : i + 1], one) for i, one in enumerate(single))
    assert equal(scenes.sample(11, [7, 2, 30]), WORLD[torch.tensor([7, 2, 30])])
    assert not torch.equal(scenes.sample(12, 4).centre, WORLD[:4].centre)


def test_what_two_views_see_of_an_object_is_at_one_place_in_the_room():
    frames = scenes.render(scenes.sample(0, 6, views=2), (64, 64))
    points, world = frames.points(world=True), frames.scenes
    seen = []
    for b in range(6):
        for o in frames.visible[b].nonzero()[:, 0].tolist():
            surface = points[b][frames.instance[b] == o + 1] - world.centre[b, o]
            inside = (surface @ world.rotation[b, o]).abs() <= world.size[b, o] / 2 + 2e-3
            assert inside.all(), (b, o)  # in the object's own box, where the room's layout says that it is
            seen.append((b // 2, o))
    assert len(set(seen)) < len(seen)  # some objects are seen by both cameras


def test_frames_are_grouped_by_scene():
    frames = scenes.render(scenes.sample(0, 4, views=2), (16, 16))
    image, depth, calibration = frames.group(2)
    assert image.shape == (2, 2, 3, 16, 16)
    assert image.min() >= -1
    torch.testing.assert_close(image[1, 0], 2 * frames.rgb[2] - 1)
    torch.testing.assert_close(depth[1, 1], frames.depth[3])
    torch.testing.assert_close(calibration.pose[0, 1], frames.pose[1])
    torch.testing.assert_close(calibration.intrinsics[1, 0], frames.intrinsics[2])
    for numbers, views in (([1, 2], 2), ([0, 1, 2], 2)):
        with pytest.raises(
            ValueError, match=f"not whole groups of 2 views, received the indices .{numbers[0]}, {numbers[1]}"
        ):
            scenes.render(scenes.sample(0, numbers, views=views), (16, 16)).group(2)


def test_views_share_the_room_but_not_the_camera():
    world = scenes.sample(0, 6, views=3)
    for name in ("centre", "kind", "room", "light"):
        column = getattr(world, name)
        assert torch.equal(column[0], column[2])
        assert torch.equal(column[3], column[5])
    assert not torch.equal(world.pose[0], world.pose[1])


def test_families_take_turns():
    assert [scenes.FAMILIES[f] for f in WORLD.family[:5]] == [*scenes.FAMILIES, "living"]
    assert (scenes.sample(0, 3, families=["trays"]).family == scenes.FAMILIES.index("trays")).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: scenes.sample(0, 2, families=["kitchen"]),
        lambda: scenes.sample(0, []),
        lambda: scenes.single_object("unicorn"),
        lambda: scenes.single_object("mug", 9),
    ],
)
def test_errors_say_what_to_do(call):
    with pytest.raises(ValueError, match=r": (pass|ask|count)|The names are sofa"):
        call()


def test_no_object_box_meets_another():
    """Separating axes in 3D for all pairs; only an object and what it stands on (or in) may touch boxes."""
    for s in range(len(WORLD)):
        keep = WORLD.present[s].nonzero()[:, 0]
        c, r, h = WORLD.centre[s, keep], WORLD.rotation[s, keep], WORLD.size[s, keep] / 2
        gap = c[:, None] - c[None]  # (n, n, 3)
        apart = torch.zeros(len(keep), len(keep), dtype=torch.bool)
        axes = r.transpose(1, 2)  # (n, 3, 3): rows are box axes
        for k in range(3):
            axis = axes[:, k]  # (n, 3), of the first box
            own = h[:, k, None]
            other = ((axis[:, None, None] * axes[None]).sum(-1).abs() * h[None]).sum(-1)  # (n, n)
            split = (gap * axis[:, None]).sum(-1).abs() >= own + other - 1e-4
            apart |= split | split.T
        parent = WORLD.parent[s, keep]
        related = (parent[:, None] == keep[None]) | (parent[None] == keep[:, None])
        clash = ~apart & ~related & ~torch.eye(len(keep), dtype=torch.bool)
        names = [
            (ALL_KINDS[int(WORLD.kind[s, keep[i]])].name, ALL_KINDS[int(WORLD.kind[s, keep[j]])].name)
            for i, j in clash.nonzero().tolist()
        ]
        assert not names, f"scene {s}: {names}"


def test_objects_stay_in_the_room_and_on_what_carries_them():
    corners = torch.tensor([[i, j, k] for i in (-0.5, 0.5) for j in (-0.5, 0.5) for k in (-0.5, 0.5)])
    points = (corners * WORLD.size[:, :, None]) @ WORLD.rotation.transpose(-1, -2) + WORLD.centre[:, :, None]
    there = WORLD.present
    assert (points[..., :2].abs() <= WORLD.room[:, None, None, :2] / 2 + 1e-4)[there].all()
    assert (points[..., 2] >= -1e-4)[there].all()
    assert (points[..., 2].amax(-1) < WORLD.light[:, None, 2])[there].all()
    standing = there & (WORLD.parent >= 0)
    for s, o in standing.nonzero().tolist():
        p = int(WORLD.parent[s, o])
        top = ALL_KINDS[int(WORLD.kind[s, p])].top
        assert top is not None
        assert WORLD.present[s, p]
        base = WORLD.centre[s, p, 2] + (top.height - 0.5) * WORLD.size[s, p, 2]
        assert points[s, o, :, 2].min() == pytest.approx(float(base), abs=1e-4)
        local = (points[s, o] - WORLD.centre[s, p]) @ WORLD.rotation[s, p]
        assert (local[:, :2].abs() <= WORLD.size[s, p, :2] / 2).all()


def test_objects_on_trays_do_not_cut_into_them():
    """Points inside an object's box, as it stands in a tray, lie in none of the tray's solids."""
    world = scenes.sample(5, 8, families=["trays"])
    assembly = assemble(world)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-0.49, 0.49, 5)] * 3, indexing="ij"), -1).reshape(-1, 3)
    checked = 0
    for s, o in (world.present & (world.parent >= 0)).nonzero().tolist():
        points = (grid * world.size[s, o]) @ world.rotation[s, o].T + world.centre[s, o]
        for row in (assembly.owner[s] == world.parent[s, o]).nonzero()[:, 0].tolist():
            own = (points - assembly.centre[s, row]) @ assembly.inverse[s, row].T
            q_r, q_z, linear, constant = assembly.quadric[s, row]

            def held(p, q=(q_r, q_z, linear, constant)):
                value = q[0] * (p[:, 0] ** 2 + p[:, 1] ** 2) + q[1] * p[:, 2] ** 2 + q[2] * p[:, 2] + q[3]
                return (p.abs() <= 1).all(-1) & (value <= 0)

            k = assembly.cavity[s, row]
            meets = held(own)
            if k[0] > 0:
                meets &= ~held((own - torch.stack([k[3] * 0, k[3] * 0, k[3]])) * k[:3])
            assert not meets.any(), (
                ALL_KINDS[int(world.kind[s, o])].name,
                ALL_KINDS[int(world.kind[s, world.parent[s, o]])].name,
            )
            checked += 1
    assert checked > 40


def test_packing_varies_and_families_differ():
    count = {}
    for family in RULES:
        world = scenes.sample(1, 24, families=[family], decorated=True)
        count[family] = (world.present & (world.parent >= 0)).sum(1).float()
    assert count["tabletop"].std() > 2
    assert count["tabletop"].max() >= 12
    assert count["living"].mean() < count["tabletop"].mean()
    trays = scenes.sample(1, 24, families=["trays"])
    grandparent = trays.parent.gather(1, trays.parent.clamp(min=0))
    assert (trays.present & (trays.parent >= 0) & (grandparent >= 0)).sum(1).float().mean() > 2
    tables = scenes.sample(1, 24, families=["tables"])
    used = [len(set(tables.parent[s][tables.present[s]].tolist()) - {-1}) for s in range(24)]
    assert sum(used) / 24 > 1.8


def test_living_rooms_have_objects_on_furniture_only_if_decorated():
    def standing(world):
        return (world.present & (world.parent >= 0)).sum(1)

    plain = scenes.sample(1, 24, families=["living"])
    assert (standing(plain) == 0).all()
    decorated = scenes.sample(1, 24, families=["living"], decorated=True)
    assert standing(decorated).float().mean() > 2
    furniture = [{int(k) for k in w.kind[0][w.present[0] & (w.parent[0] < 0)]} for w in (plain, decorated)]
    assert furniture[0] == furniture[1]  # the rooms themselves are the same
    assert equal(
        scenes.sample(1, 24, families=["tabletop"]), scenes.sample(1, 24, families=["tabletop"], decorated=True)
    )


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_placed_rectangles_are_disjoint(seed):
    """Corner and centre samples of one rectangle never fall into another."""
    dice = Dice(seed, torch.arange(4))
    plot = Plot(torch.full((4, 2), 1.0), gap=0.01, capacity=12)
    done = []
    for _ in range(12):
        half = dice.uniform(2, low=0.05, high=0.4)
        at, yaw, ok = plot.place(dice.uniform(6, 2, low=-1.0, high=1.0), dice.below(TURN, 6), half, dice.chance(0.9))
        done.append((at, cos_sin(yaw), half, ok))
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9), indexing="ij"), -1).view(
        -1, 2
    )
    for i, (at, turn, half, ok) in enumerate(done):
        local = grid * half[:, None]
        c, s = turn[:, None].unbind(-1)
        points = (
            torch.stack([c * local[..., 0] - s * local[..., 1], s * local[..., 0] + c * local[..., 1]], -1)
            + at[:, None]
        )
        assert (points[ok].abs() <= 1 + 1e-5).all()
        for at2, turn2, half2, ok2 in done[:i]:
            away = points - at2[:, None]
            c2, s2 = turn2[:, None].unbind(-1)
            u, v = c2 * away[..., 0] + s2 * away[..., 1], c2 * away[..., 1] - s2 * away[..., 0]
            hit = (u.abs() < half2[:, None, 0]) & (v.abs() < half2[:, None, 1])
            assert not (hit.any(1) & ok & ok2).any()


# Floating-point operations that every device rounds alike, or that only move and choose numbers. A division by a Python
# number is one of them for powers of two alone: a GPU multiplies by the rounded inverse of others.
ROUNDED = ("add.Tensor", "sub.Tensor", "rsub.Scalar", "mul.Tensor", "div.Tensor")
MOVING = (
    *("_to_copy", "_unsafe_view", "abs", "amax", "amin", "cat", "clamp", "clone", "copy_", "expand", "fill_"),
    *("flip", "full_like", "gather", "index", "lift_fresh", "masked_fill", "maximum", "minimum", "neg", "new_full"),
    *("new_zeros", "ones_like", "repeat", "scalar_tensor", "select", "sign", "slice", "sort", "stack", "unbind"),
    *("unsqueeze", "view", "where", "zeros", "zeros_like"),
)


class Recorder(TorchDispatchMode):
    """The operations with floating-point results, and those of them that a device may round in its own way."""

    def __init__(self):
        super().__init__()
        self.seen, self.loose = set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, (tuple, list)) else out
        if isinstance(first, Tensor) and first.is_floating_point():
            name = str(func).removeprefix("aten.")
            self.seen.add(name)
            if not self.exact(name, args, kwargs or {}):
                self.loose.add((name, *(a for a in args if not isinstance(a, Tensor))))
        return out

    @staticmethod
    def exact(name, args, kwargs):
        if name == "div.Tensor" and not isinstance(args[1], Tensor):
            return math.frexp(args[1])[0] == 0.5
        if name == "sqrt.default":
            return args[0].dtype == torch.float64  # rounded once more, to float32
        if name == "pow.Tensor_Scalar":
            return args[1] == 2  # x · x
        if kwargs.get("alpha", 1) != 1:
            return False  # a product and a sum in one
        return name in ROUNDED or name.split(".")[0] in MOVING


def test_layouts_use_only_operations_that_all_devices_round_alike():
    scenes.sample(4, 1)  # the templates are built on the CPU, whatever device it then goes to
    with Recorder() as recorder:
        scenes.sample(4, 16, views=2)
    assert {"mul.Tensor", "sqrt.default", "div.Tensor"} <= recorder.seen
    assert not recorder.loose


def test_the_recorder_sees_what_a_device_may_round_in_its_own_way():
    x = torch.rand(3)
    with Recorder() as recorder:
        x / 6, x / 4, torch.linalg.cross(x, x), torch.add(x, x, alpha=2.0), x.sqrt(), x.double().sqrt()
    assert {name for name, *_ in recorder.loose} == {
        "div.Tensor", "linalg_cross.default", "add.Tensor", "sqrt.default"
    }  # fmt: skip


def test_far_cameras_stand_farther_from_what_they_show_than_near_ones():
    middle = {}
    for distance in ("near", "any", "far"):
        frames = scenes.render(scenes.sample(3, 64, distance=distance), (32, 32))
        assert frames.depth.isfinite().all()
        middle[distance] = frames.depth[:, 12:20, 12:20].flatten(1).median(1).values
    living = torch.arange(64) % len(scenes.FAMILIES) == scenes.FAMILIES.index("living")
    for rooms in (living, ~living):
        assert middle["far"][rooms].mean() > 1.2 * middle["near"][rooms].mean()
        assert middle["near"][rooms].mean() < middle["any"][rooms].mean() < middle["far"][rooms].mean()
    assert torch.equal(scenes.sample(3, 4, distance="any").pose, scenes.sample(3, 4).pose)
    assert torch.equal(scenes.sample(3, 4, distance="far").centre, scenes.sample(3, 4).centre)
    with pytest.raises(ValueError, match="distance is one of any, near, far, received 'nigh'"):
        scenes.sample(3, 4, distance="nigh")
