"""Pixels against geometry: analytic depth, back-projection into boxes, visibility, shadows, invariance to batching."""

from dataclasses import fields, replace

import pytest
import torch

from stringpe import scenes
from stringpe.scenes.cameras import look_at
from stringpe.scenes.templates import ALL_KINDS, load_templates

FRAMES = scenes.render(scenes.sample(21, 16))


def local_points(frames, b, o):
    """Pixels of object o lifted to 3D and expressed in its box, in metres from the centre along its own axes."""
    points = frames.points()[b][frames.instance[b] == o + 1]
    return (points - frames.centre[b, o]) @ frames.rotation[b, o]


def test_depth_of_a_box_and_the_floor_is_analytic():
    """A camera that looks straight down on a placemat: depth is its height above the two planes."""
    scene = scenes.single_object("placemat", size=(0.4, 0.3, 0.1))
    pose = look_at(torch.tensor([[0.0, -1e-4, 2.0]]), torch.tensor([[0.0, 0.0, 0.0]]))
    frames = scenes.render(replace(scene, pose=pose), (64, 64))
    on = frames.instance[0] == 1
    assert torch.allclose(frames.depth[0][on], torch.tensor(1.9), atol=1e-3)
    assert torch.allclose(frames.depth[0][~on], torch.tensor(2.0), atol=1e-3)
    # f = 64 px and 1.9 m away: 0.4 m × 0.3 m covers 13.5 × 10.1 pixels.
    x0, y0, x1, y1 = frames.box2d[0, 0].tolist()
    assert (x1 - x0, y1 - y0) == (pytest.approx(13.5, abs=1.01), pytest.approx(10.1, abs=1.01))
    assert frames.pixels[0, 0] == pytest.approx(13.47 * 10.1, rel=0.12)


def test_ball_silhouette_and_nearest_depth_are_analytic():
    scene = scenes.single_object("ball", size=(0.2, 0.2, 0.2), height=0.3)
    frames = scenes.render(scene, (256, 256))
    distance = float(frames.centre[0, 0].norm())
    on = frames.instance[0] == 1
    assert float(frames.points()[0][on].norm(dim=-1).min()) == pytest.approx(distance - 0.1, abs=5e-4)
    # The outline of a ball in the middle of the image is a circle of radius f tan(asin(r / distance)).
    radius = 256 * torch.tan(torch.asin(torch.tensor(0.1 / distance)))
    assert int(on.sum()) == pytest.approx(float(torch.pi * radius**2), rel=0.01)


@pytest.mark.parametrize("kind", scenes.kinds())
@pytest.mark.slow
def test_each_kind_alone_fills_its_box(kind):
    """Points of the instance lie in the box; looked at from six sides, they touch all six faces."""
    shelf = load_templates(torch.device("cpu"))
    for variant in range(int(shelf.variants[scenes.kinds().index(kind)])):
        scene = scenes.single_object(kind, variant)
        low, high = torch.full((3,), 9.0), torch.full((3,), -9.0)
        reach = float(scene.size.norm()) * 1.3
        room = scene.room.clone()
        room[:, 2] += 8 * reach
        raised = scene.centre + torch.tensor([0.0, 0.0, 4 * reach])
        for axis in range(3):
            for sign in (-1.0, 1.0):
                away = torch.tensor([0.013, 0.017, 0.011])
                away[axis] = sign
                target = raised[:, 0]
                pose = look_at(target + away * reach, target)
                frames = scenes.render(replace(scene, centre=raised, room=room, pose=pose), (96, 96), shadows=False)
                points = local_points(frames, 0, 0)
                assert len(points) > 20
                low, high = torch.minimum(low, points.amin(0)), torch.maximum(high, points.amax(0))
        half = scene.size[0, 0] / 2
        slack = 1e-4 + 1e-3 * half.max()
        assert (high <= half + slack).all()
        assert (low >= -half - slack).all()
        # A face may be a thin tip between two pixels: it must be reached to within two pixels' width.
        touch = 0.04 * half.max() + 0.01 * half
        assert (high >= half - touch).all(), (variant, high, half)
        assert (low <= -half + touch).all(), (variant, low, half)


def test_there_are_kinds_enough():
    assert len(set(scenes.kinds())) == len(ALL_KINDS) >= 24


def test_back_projected_points_lie_in_their_boxes():
    checked = 0
    for b, o in FRAMES.visible.nonzero().tolist():
        points = local_points(FRAMES, b, o)
        assert (points.abs() <= FRAMES.size[b, o] / 2 + 2e-3).all()
        checked += 1
    assert checked > 100


def test_depth_is_positive_and_the_background_is_the_room():
    assert (FRAMES.depth > 0).all()
    world = torch.einsum("bij,bhwj->bhwi", FRAMES.pose[:, :3, :3], FRAMES.points()) + FRAMES.pose[:, None, None, :3, 3]
    half = FRAMES.scenes.room / 2
    gap = torch.stack(
        [
            (half[:, 0, None, None] - world[..., 0].abs()).abs(),
            (half[:, 1, None, None] - world[..., 1].abs()).abs(),
            world[..., 2].abs(),
            (world[..., 2] - FRAMES.scenes.room[:, 2, None, None]).abs(),
        ]
    ).amin(0)
    assert gap[FRAMES.instance == 0].max() < 5e-3


def test_annotations_agree_with_the_masks():
    for b, o in FRAMES.visible.nonzero().tolist():
        rows, columns = (FRAMES.instance[b] == o + 1).nonzero().unbind(1)
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert FRAMES.box2d[b, o].tolist() == [float(v) for v in box]
        assert FRAMES.pixels[b, o] == len(rows)
    assert (FRAMES.pixels.sum(1) == (FRAMES.instance > 0).flatten(1).sum(1)).all()
    assert not FRAMES.visible[~FRAMES.scenes.present].any()
    twelve = FRAMES.box3d
    assert torch.equal(twelve[..., 3:6], FRAMES.rotation[..., 0])
    assert torch.equal(twelve[..., 6:9], FRAMES.rotation[..., 1])


def test_visibility_is_the_share_of_pixels_left_by_others():
    """Against rendering each object with all others removed."""
    world = FRAMES.scenes[1:3]
    for s in range(2):
        for o in FRAMES.visible[1 + s].nonzero()[:, 0].tolist():
            only = world[s : s + 1]
            present = torch.zeros_like(only.present)
            present[0, o] = True
            whole = int(scenes.render(replace(only, present=present), shadows=False).pixels[0, o])
            expected = int(FRAMES.pixels[1 + s, o]) / whole
            assert float(FRAMES.visibility[1 + s, o]) == pytest.approx(expected, abs=0.02 + 2 / whole)


def test_frames_do_not_depend_on_the_batch():
    one = scenes.render(scenes.sample(21, [5]))
    assert torch.equal(one.instance[0], FRAMES.instance[5])
    assert torch.allclose(one.depth[0], FRAMES.depth[5], atol=1e-5)
    assert (one.rgb[0] - FRAMES.rgb[5]).abs().mean() < 1e-4
    first = next(scenes.stream(21, batch=8))
    assert torch.equal(first.instance, FRAMES.instance[:8])


def test_any_size_sees_the_same_scene():
    """Odd sizes that are not whole tiles: boxes scale with the image, K with them."""
    world = scenes.sample(21, 4)
    small, large = scenes.render(world, (60, 100)), scenes.render(world, (120, 200))
    assert small.rgb.shape == (4, 3, 60, 100)
    assert torch.allclose(small.intrinsics[:, :2] * 2, large.intrinsics[:, :2])
    both = (small.pixels > 30) & (large.pixels > 120)
    assert ((small.box2d * 2 - large.box2d).abs().amax(-1)[both] <= 8).float().mean() > 0.95
    assert torch.allclose(small.depth.median(), large.depth.median(), rtol=0.02)


def test_lenses_and_light_vary():
    world = scenes.sample(2, 32)
    ratio = world.lens[:, 1] / world.lens[:, 0]
    assert len({round(float(r), 3) for r in ratio}) == 5
    assert world.light_colour.std(0).min() > 0.05
    assert len({tuple(round(v, 2) for v in t) for t in world.surface_tint[:, 1, 0].tolist()}) > 8


def test_shadows_darken_and_only_darken():
    world = FRAMES.scenes[:8]
    plain = scenes.render(world, shadows=False)
    darker = FRAMES.rgb[:8] - plain.rgb
    assert darker.max() < 1e-4
    assert (darker.amin(1) < -0.02).float().mean() > 0.02
    assert torch.equal(plain.depth, FRAMES.depth[:8])


def test_shadow_of_a_ball_falls_where_the_light_says():
    """The centre of the shadow is where the line from the light through the ball meets the floor."""
    scene = scenes.single_object("ball", size=(0.2, 0.2, 0.2))
    lifted = replace(
        scene,
        centre=scene.centre + torch.tensor([0.0, 0.0, 0.3]),
        light=torch.tensor([[-0.5, 0.4, 2.0]]),
        pose=look_at(torch.tensor([[0.0, -1e-4, 2.4]]), torch.zeros(1, 3)),
    )
    with_shadow, without = scenes.render(lifted, (128, 128)), scenes.render(lifted, (128, 128), shadows=False)
    dark = ((without.rgb - with_shadow.rgb).amax(1)[0] > 0.02) & (with_shadow.instance[0] == 0)
    world = with_shadow.points()[0][dark] @ with_shadow.pose[0, :3, :3].T + with_shadow.pose[0, :3, 3]
    ball = lifted.centre[0, 0]
    expected = lifted.light[0] + (ball - lifted.light[0]) * 2.0 / (2.0 - ball[2])
    assert torch.allclose(world.mean(0), expected, atol=0.03)


def test_size_must_be_height_and_width():
    with pytest.raises(ValueError, match="pass for example"):
        scenes.render(FRAMES.scenes, (0, 128))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_makes_no_difference():
    here, there = scenes.sample(4, 512), scenes.sample(4, 512, device="cuda").to("cpu")
    columns = [column.name for column in fields(here) if column.name != "seed"]
    assert [name for name in columns if not torch.equal(getattr(here, name), getattr(there, name))] == []
    a, b = scenes.render(here[:16]), scenes.render(here[:16], device="cuda")
    assert (a.instance != b.instance.cpu()).float().mean() < 1e-3
    assert (a.depth - b.depth.cpu()).abs().median() < 1e-5
