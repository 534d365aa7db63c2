import math
import time

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull, HalfspaceIntersection

from geometry import attack_box3d
from stringpe import box3d

EYE = torch.eye(3, dtype=torch.float64)


def box(centre=(0.0, 0.0, 0.0), size=(1.0, 1.0, 1.0), rotation=EYE):
    centre, size = (torch.tensor(v, dtype=torch.float64) for v in (centre, size))
    return box3d.from_parts(centre, rotation, size)


def turn(angle, axis=2):
    c, s = math.cos(angle), math.sin(angle)
    r = EYE.clone()
    i, j = [k for k in range(3) if k != axis]
    r[i, i], r[i, j], r[j, i], r[j, j] = c, -s, s, c
    return r


def random_boxes(count, seed=0, spread=0.4, away=0.0):
    random = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(count, 3, 3, generator=random, dtype=torch.float64)).Q
    q = q * torch.linalg.det(q)[:, None, None]
    centre = torch.randn(count, 3, generator=random, dtype=torch.float64) * spread + away
    return box3d.from_parts(centre, q, torch.rand(count, 3, generator=random, dtype=torch.float64) + 0.1)


class TestKnownVolumes:
    @pytest.mark.parametrize(
        ("other", "shared"),
        [
            (box(), 1.0),
            (box((0.5, 0, 0)), 0.5),
            (box((0.5, 0.5, 0.5)), 0.125),
            (box((1.0, 0, 0)), 0.0),  # a face touches
            (box((1.0, 1.0, 1.0)), 0.0),  # a corner touches
            (box((3.0, 0, 0)), 0.0),
            (box(size=(0.2, 0.3, 0.4)), 0.024),  # inside
            (box(size=(2.0, 2.0, 0.5)), 0.5),  # through it
            (box(rotation=turn(math.pi / 4)), 2 * (math.sqrt(2) - 1)),  # two squares make an octagon
            (box(rotation=turn(math.pi / 2)), 1.0),
            (box(rotation=turn(math.pi)), 1.0),
            (box((0.5, 0, 0), (math.sqrt(0.5), math.sqrt(0.5), 1), turn(math.pi / 4)), 0.25),  # half of a diamond
        ],
    )
    def test_intersections_are_those_by_hand(self, other, shared):
        assert box3d.intersection(box(), other).item() == pytest.approx(shared, abs=1e-12)
        assert box3d.intersection(other, box()).item() == pytest.approx(shared, abs=1e-12)
        union = 1 + box3d.volume(other).item() - shared
        assert box3d.iou(box(), other).item() == pytest.approx(shared / union, abs=1e-12)

    def test_axis_permutations_of_one_cube_coincide(self):
        for axis in range(3):
            for quarter in range(4):
                assert box3d.iou(box(), box(rotation=turn(quarter * math.pi / 2, axis))).item() > 1 - 1e-12


@pytest.mark.parametrize("away", [0.0, 1e2, 1e6])
def test_a_box_is_itself_at_any_distance(away):
    boxes = random_boxes(500, away=away)
    assert (box3d.iou(boxes, boxes) > 1 - 1e-12).all()


def test_stacked_boxes_touch():
    boxes = random_boxes(200)
    above = boxes.clone()
    above[:, :3] += box3d.rotation(boxes)[..., 2] * boxes[:, 11:12]
    assert (box3d.intersection(boxes, above) < 1e-12).all()


def test_nearly_coplanar_unit_cubes():
    """The second is turned by 0.5 about z and by 1e-9 about x: their top and bottom faces almost coincide."""
    a, b = box(), box((0.3, -0.2, 0.0), rotation=turn(0.5) @ turn(1e-9, axis=0))
    assert box3d.iou(a, b).item() == pytest.approx(0.4097, abs=5e-5)
    assert box3d.iou(a, b).item() == pytest.approx(box3d.iou(b, a).item(), abs=1e-14)
    flat = box3d.iou(a, box((0.3, -0.2, 0.0), rotation=turn(0.5))).item()
    assert box3d.iou(a, b).item() == pytest.approx(flat, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", attack_box3d.KINDS)
def test_pairs_of_every_kind_against_an_independent_truth(kind, dtype):
    error, asymmetry = attack_box3d.attack(kind, dtype, 400, seed=7)
    assert error <= attack_box3d.LIMIT[dtype]
    assert asymmetry <= attack_box3d.LIMIT[dtype]


def test_the_truth_itself_is_right():
    """In one frame, the volume shared is a product of three overlaps of intervals."""
    a, b = random_boxes(200, 1), random_boxes(200, 2)
    b[:, 3:9] = a[:, 3:9]
    move = (box3d.rotation(a).mT @ (b[:, :3] - a[:, :3])[..., None])[..., 0]
    high = torch.minimum(a[:, 9:] / 2, move + b[:, 9:] / 2)
    shared = (high - torch.maximum(-a[:, 9:] / 2, move - b[:, 9:] / 2)).clamp_min(0).prod(-1)
    assert (shared > 0).sum() > 20
    found = attack_box3d.true_intersection(*(x.numpy().astype("longdouble") for x in (a, b)))
    torch.testing.assert_close(torch.tensor(found.astype("float64")), shared, atol=1e-14, rtol=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_agrees_with_a_convex_hull(seed):
    """scipy: the vertices of the half-space intersection, and the volume of their hull."""
    a, b = random_boxes(2, seed, spread=0.2)
    planes = []
    for one in (a, b):
        for axis, half in zip(box3d.rotation(one).T, one[9:] / 2, strict=True):
            for sign in (1, -1):
                planes.append([*(sign * axis).tolist(), (-half - sign * axis @ one[:3]).item()])
    inner = torch.cat([box3d.corners(a), box3d.corners(b), a[None, :3], b[None, :3]])
    candidates = torch.cat([inner, torch.rand(20_000, 3, dtype=torch.float64) * 2 - 1])
    planes = torch.tensor(planes, dtype=torch.float64)
    room = -(candidates @ planes[:, :3].T + planes[:, 3]).amax(1)
    assume(room.max() > 1e-2)
    vertices = HalfspaceIntersection(planes.numpy(), candidates[room.argmax()].numpy()).intersections
    assert box3d.intersection(a, b).item() == pytest.approx(ConvexHull(vertices).volume, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_symmetry_and_rigid_motion(seed):
    a, b = random_boxes(8, seed), random_boxes(8, seed + 1)
    exact = box3d.iou(a, b)
    torch.testing.assert_close(box3d.iou(b, a), exact, atol=1e-12, rtol=0)
    motion = box3d.rotation(random_boxes(1, seed + 2))[0]
    moved = [box3d.from_parts(x[:, :3] @ motion.T + 5, motion @ box3d.rotation(x), x[:, 9:]) for x in (a, b)]
    torch.testing.assert_close(box3d.iou(*moved), exact, atol=1e-12, rtol=0)
    assert ((exact >= 0) & (exact <= 1)).all()


@pytest.mark.slow
def test_monte_carlo_agrees_within_its_error():
    """10,000 pairs, with 1,000 points each."""
    a, b = random_boxes(10_000, 1), random_boxes(10_000, 2)
    exact = box3d.iou(a, b)
    estimate = box3d.monte_carlo_iou(a, b, points=1_000)
    seen = estimate.error > 0.002  # where a thousand points saw both inside and outside often enough to be normal
    z = (exact - estimate.value)[seen] / estimate.error[seen]
    assert seen.sum() > 2_000
    assert z.abs().max() < 5.5
    assert 0.9 < z.square().mean().sqrt() < 1.15
    assert abs(z.mean()) < 0.1
    rare = (exact - estimate.value)[~seen]  # almost all points in, or almost none: 15 of 1,000 more are out of reach
    assert rare.abs().max() < 0.015


def test_exact_is_fifty_times_faster_than_the_papers_monte_carlo():
    a, b = random_boxes(512, 1), random_boxes(512, 2)

    def seconds(run):
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    exact = min(seconds(lambda: box3d.iou(a, b)) for _ in range(5)) / 512
    monte_carlo = min(seconds(lambda: box3d.monte_carlo_iou(a[:4], b[:4])) for _ in range(5)) / 4
    assert monte_carlo > 50 * exact


def test_the_papers_formula():
    a, b = box(), box((0.5, 0, 0), (1.0, 2.0, 3.0))
    value, error = box3d.monte_carlo_iou(a, b)
    r = 0.5
    assert value.item() == pytest.approx(r * 1 / (6 + (1 - r) * 1), abs=5 * error.item())
    assert box3d.iou(a, b, method="monte_carlo").item() == value.item()


def test_gradient_where_there_is_one():
    a, b = random_boxes(6, 3, spread=0.1), random_boxes(6, 4, spread=0.1)
    assert torch.autograd.gradcheck(box3d.iou, (a.requires_grad_(), b.requires_grad_()), atol=1e-5)


@pytest.mark.parametrize("kind", attack_box3d.KINDS)
def test_gradient_stays_finite_for_pairs_of_every_kind(kind):
    a, b = attack_box3d.make_pairs(kind, 100, np.random.default_rng(3), wide=True)
    a, b = (torch.tensor(x).requires_grad_() for x in (a, b))
    box3d.iou(a, b).sum().backward()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()


def test_gradient_stays_finite_for_touching_identical_and_distant_boxes():
    a = torch.stack([box(), box(), box()]).requires_grad_()
    b = torch.stack([box(), box((1.0, 0, 0)), box((9.0, 0, 0))])
    box3d.iou(a, b).sum().backward()
    assert a.grad.isfinite().all()


class TestRotation:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 10_000))
    def test_columns_round_trip(self, seed):
        boxes = random_boxes(4, seed)
        r = box3d.rotation(boxes)
        torch.testing.assert_close(r.mT @ r, EYE.expand(4, 3, 3))
        torch.testing.assert_close(torch.linalg.det(r), torch.ones(4).double())
        again = box3d.from_parts(boxes[:, :3], r, boxes[:, 9:])
        torch.testing.assert_close(again, boxes)
        torch.testing.assert_close(again[:, 3:6], r[:, :, 0])  # a column, not a row

    def test_predictions_are_made_orthonormal(self):
        raw = torch.randn(5, 12).double()
        r = box3d.rotation(raw)
        torch.testing.assert_close(r.mT @ r, EYE.expand(5, 3, 3))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        ("columns", "match"),
        [
            ([0, 0, 0, 1, 0, 0], "first column .* zero"),
            ([math.inf, 0, 0, 0, 1, 0], "first column .* not finite"),
            ([1, 0, 0, 2, 0, 0], "parallel"),
            ([0.1, 0.2, 0.3, 0.7, 1.4, 2.1], "parallel"),  # parallel up to rounding
            ([1, 0, 0, math.nan, 1, 0], "not finite"),
        ],
    )
    def test_degenerate_columns_are_refused(self, columns, match, dtype):
        bad = torch.tensor([0, 0, 0, *columns, 1, 1, 1], dtype=dtype)
        with pytest.raises(ValueError, match=match):
            box3d.rotation(bad)

    @pytest.mark.parametrize("make", [box3d.rotation, lambda box: box3d.rotation(box3d.complete(box))])
    @pytest.mark.parametrize(("dtype", "sines"), [(torch.float32, (1e-2, 1e-5)), (torch.float64, (1e-5, 1e-13))])
    def test_oblique_columns_give_orthonormal_ones(self, make, dtype, sines):
        for sine in sines:
            boxes = random_boxes(50).to(dtype)
            boxes[:, 6:9] = boxes[:, 3:6] + sine * boxes[:, 6:9]
            r = make(boxes)
            torch.testing.assert_close(
                r.mT @ r, EYE.to(dtype).expand(50, 3, 3), atol=8 * torch.finfo(dtype).eps, rtol=0
            )


def test_corners_in_their_stated_order():
    c = box3d.corners(box((1.0, 2.0, 3.0), (2.0, 4.0, 6.0)))
    assert c[0].tolist() == [0, 0, 0]
    assert c[1].tolist() == [0, 0, 6]
    assert c[2].tolist() == [0, 4, 0]
    assert c[4].tolist() == [2, 0, 0]
    assert c[7].tolist() == [2, 4, 6]
    turned = box3d.corners(box(rotation=turn(math.pi / 2)))
    torch.testing.assert_close(turned[7], torch.tensor([-0.5, 0.5, 0.5]).double())


def test_shapes_dtypes_and_bad_input():
    a, b = random_boxes(6).float().view(2, 3, 12), random_boxes(3).float()
    assert box3d.iou(a, b).shape == (2, 3)
    assert box3d.iou(a, b).dtype == torch.float32
    assert box3d.iou(a[:, :, None], b).shape == (2, 3, 3)
    assert box3d.iou(a[:0], b).shape == (0, 3)
    with pytest.raises(ValueError, match=r"boxes must be \(…, 12\) floats.* got torch.float32 \(3, 7\)"):
        box3d.iou(b[:, :7], b[:, :7])
    with pytest.raises(ValueError, match="'exact' or 'monte_carlo', got 'fast'"):
        box3d.iou(b, b, method="fast")
    flat = box(size=(1.0, 1.0, 0.0))
    for method in ("exact", "monte_carlo"):
        assert box3d.iou(flat, flat, method=method).item() == 0.0
        assert box3d.iou(flat, box(), method=method).item() == 0.0
        assert box3d.iou(box(), flat, method=method).item() == 0.0


@pytest.mark.parametrize("method", ["exact", "monte_carlo"])
@pytest.mark.parametrize("place", [0, 4, 11])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_numbers_that_make_no_box_are_refused(method, place, value):
    bad = box().repeat(3, 1)
    bad[1, place] = value
    if value < 0 and place < 9:  # a centre or a column may be negative
        assert box3d.iou(bad, box(), method=method).isfinite().all()
        return
    for pair in ((bad, box()), (box(), bad)):
        with pytest.raises(ValueError, match=r"not finite, or a negative size.*\(1 of 3 boxes\)"):
            box3d.iou(*pair, method=method)


def test_monte_carlo_needs_points():
    with pytest.raises(ValueError, match="points is the number of points"):
        box3d.monte_carlo_iou(box(), box(), points=0)


class TestComplete:
    def test_sound_columns_are_those_of_the_rotation(self):
        raw = torch.randn(50, 12).double()
        out = box3d.complete(raw)
        r = box3d.rotation(raw)
        torch.testing.assert_close(out[:, 3:6], r[..., 0])
        torch.testing.assert_close(out[:, 6:9], r[..., 1])
        assert torch.equal(out[:, :3], raw[:, :3])
        assert torch.equal(out[:, 9:], raw[:, 9:])
        torch.testing.assert_close(box3d.complete_corners(raw), box3d.corners(raw))

    @pytest.mark.parametrize(
        "columns",
        [
            [0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 1, 0],
            [0, 0, 0, 1, 0, 0],
            [1, 0, 0, 2, 0, 0],
            [0, 3, 0, 0, -1, 0],
            [1, 1, 1, 1, 1, 1 + 1e-9],
            [math.nan, 0, 0, 0, 1, 0],
            [1, 0, 0, math.inf, 0, 0],
            [1e-20, 0, 0, 0, 1e-20, 0],
        ],
    )
    def test_degenerate_columns_become_a_rotation(self, columns):
        bad = torch.tensor([0, 0, 0, *columns, 1, 1, 1]).double().requires_grad_()
        out = box3d.complete(bad)
        r = box3d.rotation(out)
        torch.testing.assert_close(r.mT @ r, EYE)
        box3d.complete_corners(bad).sum().backward()
        assert bad.grad.isfinite().all()

    def test_the_gradient_is_right(self):
        raw = torch.randn(3, 12).double().requires_grad_()
        assert torch.autograd.gradcheck(box3d.complete_corners, (raw,))

    def test_keeps_its_precision_under_autocast(self):
        raw = torch.randn(20, 12)
        raw[:, 2] += 4
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(box3d.complete_corners(raw), box3d.corners(raw.double()).float())


class TestProjectedEdges:
    K = torch.tensor([[100.0, 0, 50], [0, 100, 40], [0, 0, 1]])

    def test_twelve_edges_of_a_box_ahead(self):
        lines = box3d.project_edges(box((0.0, 0.0, 5.0))[None], self.K)
        assert lines.shape == (12, 2, 2)
        # The front face is at z = 4.5: its corners lie 100 · 0.5 / 4.5 pixels from the middle.
        ends = lines.reshape(-1, 2)
        assert ends[:, 0].max().item() == pytest.approx(50 + 50 / 4.5)
        assert ends[:, 1].min().item() == pytest.approx(40 - 50 / 4.5)

    def test_a_box_around_the_camera_is_cut_at_the_near_plane(self):
        lines = box3d.project_edges(box((0.0, 0.0, 0.0), (2.0, 2.0, 2.0))[None], self.K, near=0.5)
        assert lines.shape == (8, 2, 2)  # the four edges behind are gone
        assert lines.isfinite().all()
        # Edges along z run from z = 0.5 to z = 1: x from 100 · 1 / 0.5 to 100 · 1 / 1 beside the middle.
        right = (lines[..., 0] - 50).abs()
        assert right.max().item() == pytest.approx(200)
        assert right.min().item() == pytest.approx(100)

    def test_a_box_behind_the_camera_is_not_seen(self):
        assert box3d.project_edges(box((0.0, 0.0, -5.0))[None], self.K).shape == (0, 2, 2)
        assert box3d.project_edges(box((0.0, 0.0, 5.0))[None][:0], self.K).shape == (0, 2, 2)

    def test_degenerate_predictions_are_drawn_too(self):
        bad = box((0.0, 0.0, 5.0))[None]
        bad[:, 3:9] = 0
        assert box3d.project_edges(bad, self.K).shape == (12, 2, 2)
