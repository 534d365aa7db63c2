import math
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stringpe
from cases import CASES, build, perturbed
from stringpe import coords, testing


class TestGrid:
    def test_row_then_column_on_a_grid_that_is_not_square(self):
        r = coords.grid(2, 3)
        assert r.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        assert r.dtype == torch.float32
        image = torch.arange(6.0).view(1, 2, 3)  # as patches are flattened
        assert (image.flatten(1)[0] == r[:, 0] * 3 + r[:, 1]).all()

    def test_units_are_centred_or_normalised(self):
        torch.testing.assert_close(coords.grid(3, 4, units="centred").mean(0), torch.zeros(2))
        normal = coords.grid(2, 4, units="normalised")
        assert normal[:, 1].unique().tolist() == [-0.75, -0.25, 0.25, 0.75]
        assert normal[:, 0].unique().tolist() == [-0.5, 0.5]

    def test_more_patches_extend_the_index_and_refine_what_is_normalised(self):
        assert coords.grid(28, 28).max() == 27
        assert coords.grid(28, 28, units="normalised").max().item() == pytest.approx(27 / 28)

    def test_more_axes_and_prefix(self):
        r = coords.grid(2, 3, 4, prefix=5)
        assert r.shape == (5 + 24, 3)
        assert (r[:5] == 0).all()

    @pytest.mark.parametrize("sizes", [(), (0, 3), (-1,)])
    def test_refuses_sizes(self, sizes):
        with pytest.raises(ValueError, match=r"one positive size per axis|a size of the grid must be at least 1"):
            coords.grid(*sizes)

    @pytest.mark.parametrize("size", [2.5, 2.0, True, "3", None])
    def test_refuses_sizes_that_are_not_whole(self, size):
        with pytest.raises(ValueError, match="a size of the grid must be a whole number, got"):
            coords.grid(3, size)

    @pytest.mark.parametrize("prefix", [-1, 1.0])
    def test_refuses_prefixes(self, prefix):
        with pytest.raises(ValueError, match="prefix must be"):
            coords.grid(2, 2, prefix=prefix)
        with pytest.raises(ValueError, match="prefix must be"):
            coords.lift_depth(torch.ones(1, 4, 4), 2, prefix=prefix)

    def test_refuses_half_precision_and_other_units(self):
        with pytest.raises(ValueError, match=r"float32 or float64, got torch\.bfloat16"):
            coords.grid(300, 2, dtype=torch.bfloat16)
        with pytest.raises(ValueError, match="units must be one of index, centred, normalised, got 'pixels'"):
            coords.grid(2, 2, units="pixels")


class TestDepth:
    def test_mean_of_the_valid_pixels(self):
        depth = torch.tensor([[1.0, 3.0, 0.0, float("nan")], [float("inf"), -2.0, 5.0, 0.0]])[None]
        assert coords.pool_depth(depth, 2).tolist() == [[[2.0, 5.0]]]

    def test_a_patch_without_depth_takes_the_images_mean(self):
        depth = torch.full((2, 4, 4), 2.0)
        depth[0, :2, :2] = 0
        depth[0, 2:, 2:] = 5.0
        depth[1] = float("nan")
        pooled = coords.pool_depth(depth, 2)
        assert pooled[0].tolist() == [[3.0, 2.0], [2.0, 5.0]]
        assert pooled[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]

    def test_samples_do_not_mix(self):
        depth = torch.rand(3, 8, 8) + 0.5
        alone = torch.cat([coords.pool_depth(depth[i : i + 1], 4) for i in range(3)])
        torch.testing.assert_close(coords.pool_depth(depth, 4), alone)

    def test_gradients_stay_finite_through_holes(self):
        depth = torch.tensor([[[0.0, 1.0], [float("nan"), 2.0]]]).requires_grad_()
        coords.pool_depth(depth, 2).sum().backward()
        assert depth.grad[0].tolist() == [[0.0, 0.5], [0.0, 0.5]]

    def test_the_third_column_is_depth_times_scale_plus_offset(self):
        depth = torch.full((2, 4, 6), 3.0)
        r = coords.lift_depth(depth, 2, scale=torch.tensor(2.0), offset=-1.0, prefix=1)
        assert r.shape == (2, 7, 3)
        assert (r[:, 0] == 0).all()
        torch.testing.assert_close(r[0, 1:, :2], coords.grid(2, 3))
        assert (r[:, 1:, 2] == 5.0).all()

    def test_lift_is_learnable(self):
        scale, offset = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        r = coords.lift_depth(torch.rand(1, 4, 4) + 1, 2, scale=scale, offset=offset)
        assert (r[..., 2] == 0).all()  # scale 0: the 2D model
        enc = stringpe.rope_mixed(head_dim=8, num_heads=1, coord_dim=3)
        x = torch.randn(1, 1, 4, 8)
        (enc.rotate(x, r) * torch.randn(1, 1, 4, 8)).sum().backward()
        assert scale.grad != 0
        assert offset.grad != 0

    @pytest.mark.parametrize(
        ("depth", "match"),
        [
            (torch.ones(4, 4), r"depth must be \(b, H, W\) floats, in metres, got torch.float32 \(4, 4\)"),
            (torch.ones(1, 4, 4, dtype=torch.int32), "in metres, got torch.int32"),
            (torch.ones(1, 5, 4), "5×4 does not divide into patches of 2×2"),
        ],
    )
    def test_refuses(self, depth, match):
        with pytest.raises(ValueError, match=match):
            coords.lift_depth(depth, 2)

    def test_refuses_arrays_and_sizes_that_are_not_sizes(self):
        with pytest.raises(TypeError, match="depth must be a torch tensor, got ndarray"):
            coords.lift_depth(torch.ones(1, 4, 4).numpy(), 2)
        for bad, match in ((0, "at least 1"), (2.5, "whole number"), ((2, 2, 2), "a height and a width")):
            with pytest.raises(ValueError, match=f"patch_size must be .*{match}"):
                coords.lift_depth(torch.ones(1, 4, 4), bad)


class TestBackprojection:
    K = torch.tensor([[100.0, 0, 32.0], [0, 120.0, 24.0], [0, 0, 1]])

    def test_points_project_back_to_their_pixels(self):
        depth = torch.rand(2, 48, 64) * 3 + 0.5
        points = coords.backproject(depth, self.K)
        pixels = points @ self.K.T
        pixels = pixels[..., :2] / pixels[..., 2:]
        torch.testing.assert_close(pixels[0, 10, 20], torch.tensor([20.5, 10.5]))
        assert torch.equal(points[..., 2], depth)

    def test_holes_go_to_the_origin(self):
        depth = torch.zeros(1, 2, 2)
        depth[0, 0, 0] = float("nan")
        assert (coords.backproject(depth, self.K) == 0).all()

    def test_intrinsics_per_sample(self):
        k = torch.stack([self.K, 2 * self.K])
        depth = torch.ones(2, 4, 4)
        for i in (0, 1):
            torch.testing.assert_close(coords.backproject(depth, k)[i], coords.backproject(depth[:1], k[i])[0])

    def test_patch_points_lie_on_the_ray_through_the_patch(self):
        depth = torch.full((1, 48, 64), 2.0)
        points = coords.patch_points(depth, self.K, 16, prefix=2)
        assert points.shape == (1, 2 + 12, 3)
        centre = points[0, 2] @ self.K.T
        torch.testing.assert_close(centre[:2] / centre[2], torch.tensor([8.0, 8.0]))
        assert (points[0, 2:, 2] == 2.0).all()

    def test_refuses(self):
        with pytest.raises(ValueError, match=r"intrinsics \(3, 3\) or \(b, 3, 3\), or .* got \(1, 4, 4\) and \(4, 4\)"):
            coords.backproject(torch.ones(1, 4, 4), torch.eye(4))
        with pytest.raises(ValueError, match=r"pose \(4, 4\) or \(b, 4, 4\), or .* got \(1, 4, 4\) and \(3, 4\)"):
            coords.backproject(torch.ones(1, 4, 4), self.K, torch.eye(4)[:3])
        with pytest.raises(ValueError, match=r"got \(2, 3, 4, 4\) and \(2, 4, 4\)"):  # per sample or per camera?
            coords.backproject(torch.ones(2, 3, 4, 4), self.K, torch.eye(4).expand(2, 4, 4))
        with pytest.raises(ValueError, match=r"pose must be floats, got torch.int64"):
            coords.backproject(torch.ones(1, 4, 4), self.K, torch.eye(4).long())


def random_poses(*lead, seed=0):
    """World from camera: rotations drawn at random, and cameras within a few metres."""
    random = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(*lead, 3, 3, generator=random, dtype=torch.float64)).Q
    turn = turn * torch.linalg.det(turn)[..., None, None]
    pose = torch.eye(4, dtype=torch.float64).repeat(*lead, 1, 1)
    pose[..., :3, :3], pose[..., :3, 3] = turn, torch.randn(*lead, 3, generator=random, dtype=torch.float64)
    return pose


class TestWorld:
    """Patches of several cameras in one frame."""

    K = TestBackprojection.K.double()

    def depth(self, *lead):
        random = torch.Generator().manual_seed(1)
        depth = torch.rand(*lead, 48, 64, generator=random, dtype=torch.float64) * 3 + 0.5
        depth[..., :20, :20] = 0  # a whole patch of 16 without depth, and more
        return depth

    def test_identity_is_the_single_camera(self):
        depth, eye = self.depth(2), torch.eye(4, dtype=torch.float64)
        assert torch.equal(coords.backproject(depth, self.K, eye), coords.backproject(depth, self.K))
        one = coords.patch_points(depth[:, None], self.K, 16, pose=eye.expand(1, 4, 4), prefix=1)
        assert torch.equal(one, coords.patch_points(depth, self.K, 16, prefix=1))

    def test_points_project_back_to_their_pixels_in_their_own_camera(self):
        depth, pose = self.depth(2, 3), random_poses(2, 3)
        points = coords.backproject(depth, self.K, pose)
        assert points.shape == (2, 3, 48, 64, 3)
        ahead = torch.linalg.solve(pose[1, 2], torch.cat([points[1, 2, 30, 40], torch.ones(1).double()]))[:3]
        pixel = self.K @ ahead
        torch.testing.assert_close(pixel[:2] / pixel[2], torch.tensor([40.5, 30.5]).double())
        torch.testing.assert_close(ahead[2], depth[1, 2, 30, 40])

    def test_two_cameras_see_one_point_at_one_place(self):
        point, pose = torch.tensor([0.3, -0.2, 4.0]).double(), random_poses(2)
        pose[..., :3, 3] *= 0.1
        pose[..., :3, :3] = torch.eye(3).double()
        pose[1, :3, :3] = torch.tensor([[0.96, 0, 0.28], [0, 1, 0], [-0.28, 0, 0.96]]).double()
        for each in pose:
            ahead = each[:3, :3].T @ (point - each[:3, 3])
            pixel = self.K @ ahead
            k = self.K.clone()
            k[:2, 2] += 0.5 - pixel[:2] / pixel[2]  # the point falls on the centre of the only pixel
            found = coords.backproject(ahead[2].view(1, 1, 1), k, each)
            torch.testing.assert_close(found.flatten(), point)

    def test_cameras_come_one_after_the_other_in_any_order(self):
        depth, pose, order = self.depth(2, 3), random_poses(2, 3), torch.tensor([2, 0, 1])
        points = coords.patch_points(depth, self.K, 16, pose=pose).unflatten(1, (3, 12))
        again = coords.patch_points(depth[:, order], self.K, 16, pose=pose[:, order]).unflatten(1, (3, 12))
        assert torch.equal(again, points[:, order])
        alone = coords.patch_points(depth[:, 1], self.K, 16, pose=pose[:, 1])
        torch.testing.assert_close(points[:, 1], alone)

    def test_calibration_is_per_sample_per_camera_or_one(self):
        depth, pose, k = self.depth(2, 3), random_poses(3), torch.stack([self.K, 2 * self.K, 3 * self.K])
        every = coords.backproject(depth, k.expand(2, 3, 3, 3), pose.expand(2, 3, 4, 4))
        assert torch.equal(coords.backproject(depth, k, pose), every)

    def test_holes_are_at_the_camera_or_at_the_mean_of_its_patches(self):
        depth, pose = self.depth(1, 2), random_poses(1, 2)
        points = coords.backproject(depth, self.K, pose)
        assert torch.equal(points[0, 1, 0, 0], pose[0, 1, :3, 3])
        depth[0, 1] = 0  # this camera measures nothing
        patches = coords.patch_points(depth, self.K, 16, pose=pose).unflatten(1, (2, 12))
        assert torch.equal(patches[0, 1], pose[0, 1, :3, 3].expand(12, 3))
        away = (patches[0, 0] - pose[0, 0, :3, 3]) @ pose[0, 0, :3, 2]  # along the optical axis
        torch.testing.assert_close(away[0], away[1:].mean())

    def test_gradients_are_finite_and_zero_in_holes(self):
        depth, pose = self.depth(1, 2), random_poses(1, 2)
        depth[0, 0, 40, 40] = torch.nan
        k = self.K.clone()
        inputs = [x.requires_grad_() for x in (depth, k, pose)]
        coords.backproject(depth, k, pose).square().sum().backward()
        assert all(x.grad.isfinite().all() for x in inputs)
        assert (depth.grad[~coords.valid_depth(depth)] == 0).all()
        assert (depth.grad[coords.valid_depth(depth)] != 0).all()
        assert (pose.grad[..., :3, :] != 0).all()
        assert k.grad[0, 0] != 0

    @pytest.mark.parametrize("case", CASES)
    def test_a_shift_of_the_world_changes_no_score(self, case):
        encoding = build(case, coord_dim=3, dtype=torch.float64)
        depth, pose = self.depth(1, 2), random_poses(1, 2)
        q, k = torch.randn(2, 1, 3, 24, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        moved = pose.clone()
        moved[..., :3, 3] += torch.tensor([13.0, -40.0, 7.5]).double()
        before, after = (coords.patch_points(depth, self.K, 16, pose=p) for p in (pose, moved))
        assert not torch.allclose(before, after)
        error = testing.relative_error(testing.scores(encoding, q, k, after), testing.scores(encoding, q, k, before))
        assert error < testing.tolerance(torch.float64)

    def test_moving_one_camera_alone_changes_scores_across_cameras_only(self):
        encoding = build("cayley", coord_dim=3, dtype=torch.float64)
        depth, pose = self.depth(1, 2), random_poses(1, 2)
        q, k = torch.randn(2, 1, 3, 24, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        moved = pose.clone()
        moved[:, 1, :3, 3] += 1
        before, after = (
            testing.scores(encoding, q, k, coords.patch_points(depth, self.K, 16, pose=p)) for p in (pose, moved)
        )
        same = (before - after).abs().amax((0, 1)) < 1e-9
        assert same[:12, :12].all()
        assert same[12:, 12:].all()
        assert not same[:12, 12:].any()


class TestAugment:
    def test_draws_per_sample_within_bounds(self):
        r = coords.grid(4, 4).expand(64, -1, -1)
        out = coords.augment(r, shift=3.0, generator=torch.Generator().manual_seed(0))
        moved = out - r
        torch.testing.assert_close(moved, moved[:, :1].expand_as(moved))  # one shift for all tokens of a sample
        assert moved.abs().max() <= 3
        assert moved[:, 0].std(0).min() > 1

    def test_factors_are_drawn_within_their_bounds(self):
        r = torch.ones(256, 1, 3)
        out = coords.augment(r, jitter=2.0, rescale=3.0, generator=torch.Generator().manual_seed(0))
        assert 1 / 6 <= out.min() < 0.4 < 2.5 < out.max() <= 6
        assert (out[:, 0, 0] != out[:, 0, 2]).all()  # jitter is of each axis on its own
        one = coords.augment(r, rescale=3.0, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(one[:, :, 0], one[:, :, 2])
        assert one.std() > 0.3

    def test_nothing_asked_nothing_done(self):
        r = torch.randn(2, 5, 2)
        assert torch.equal(coords.augment(r), r)

    def test_one_set_of_coordinates_becomes_a_batch(self):
        out = coords.augment(coords.grid(2, 2), batch=3, shift=1.0)
        assert (out.shape, len(out[:, 0].unique(dim=0))) == ((3, 4, 2), 3)

    @pytest.mark.parametrize("bad", [{"jitter": 0.5}, {"rescale": 0.0}, {"shift": -1.0}, {"shift": math.nan}])
    def test_refuses(self, bad):
        with pytest.raises(ValueError, match=r"need shift|shift must be a finite number, got nan"):
            coords.augment(torch.zeros(1, 1, 2), **bad)
        with pytest.raises(ValueError, match="draws per sample"):
            coords.augment(torch.zeros(1, 2))


class TestGroups:
    """Extension 2: scores are invariant under the group itself, not only under shifts of coordinates."""

    dims: ClassVar = {"polar": 2, "log_polar": 2, "spherical": 3, "cylindrical": 3}

    def points(self, name, seed, count=12):
        random = torch.Generator().manual_seed(seed)
        points = torch.randn(count, self.dims[name], generator=random, dtype=torch.float64)
        if name == "spherical":  # near the equator, so that a polar rotation does not cross a pole
            points[:, 2] *= 0.2
            points[:, :2] /= points[:, :2].norm(dim=1, keepdim=True)
        return points

    def psi(self, name, seed):
        random = torch.Generator().manual_seed(seed + 1)
        limit = 0.3 if name == "spherical" else 2.0
        psi = (torch.rand(len(coords.GROUPS[name].moves), generator=random, dtype=torch.float64) * 2 - 1) * limit
        if name == "spherical":
            psi[1] *= 10  # azimuth is free, and crosses the seam
        return psi

    @settings(max_examples=30, deadline=None)
    @given(st.sampled_from(list(dims)), st.integers(0, 10_000))
    def test_charts_are_canonical(self, name, seed):
        assert testing.canonical_error(coords.GROUPS[name], self.points(name, seed), self.psi(name, seed)) < 1e-12

    @settings(max_examples=30, deadline=None)
    @given(st.sampled_from(list(dims)), st.sampled_from(["cayley", "circulant", "rope_mixed"]), st.integers(0, 10_000))
    def test_scores_are_invariant_under_the_group(self, name, encoding, seed):
        group, points, psi = coords.GROUPS[name], self.points(name, seed), self.psi(name, seed)
        before, after = group.chart(points), group.chart(group.act(points, psi))
        torch.manual_seed(seed)
        enc = perturbed(
            stringpe.create(
                encoding, head_dim=16, num_heads=2, coord_dim=before.shape[-1], periodic=group.periodic
            ).double()
        )
        q, k = torch.randn(2, 1, 2, len(points), 16, dtype=torch.float64)
        changed = testing.relative_error(testing.scores(enc, q, k, after), testing.scores(enc, q, k, before))
        assert changed < 1e-10

    def test_without_the_integer_frequencies_there_is_a_seam(self):
        enc = stringpe.rope_mixed(head_dim=16, num_heads=1, coord_dim=2)
        points = torch.tensor([[-1.0, 0.1], [-1.0, -0.1]])  # on both sides of ±π
        q, k = torch.randn(2, 1, 1, 2, 16)
        turned = coords.polar(coords.GROUPS["polar"].act(points, torch.tensor([1.0])))
        before = testing.scores(enc, q, k, coords.polar(points))
        assert testing.relative_error(testing.scores(enc, q, k, turned), before) > 1e-2

    def test_spherical_as_the_paper_defines_it(self):
        point = torch.tensor([1.0, 2.0, 2.0])
        theta, phi = coords.spherical(point)
        torch.testing.assert_close(theta.sin(), torch.tensor(math.sqrt(5) / 3))
        torch.testing.assert_close(phi.tan(), torch.tensor(2.0))
        assert coords.spherical(point, radius=True)[2] == pytest.approx(math.log(3))

    def test_a_group_of_ones_own(self):
        """Hyperbolic rotations of the plane, x y = const: canonical in (log x, log y) along (1, −1)."""
        group = coords.Group(
            chart=lambda x: torch.stack([(x[..., 0] / x[..., 1]).log() / 2, (x[..., 0] * x[..., 1]).log()], dim=-1),
            act=lambda x, psi: x * torch.stack([psi[0].exp(), (-psi[0]).exp()]),
            moves=(0,),
        )
        points = torch.rand(8, 2, dtype=torch.float64) + 0.1
        assert testing.canonical_error(group, points, torch.tensor([0.7], dtype=torch.float64)) < 1e-12
        wrong = coords.Group(chart=group.chart, act=lambda x, psi: x + psi[0], moves=(0,))
        assert testing.canonical_error(wrong, points, torch.tensor([0.7], dtype=torch.float64)) > 1e-2

    @pytest.mark.parametrize("name", dims)
    def test_the_origin_has_a_value_and_a_gradient(self, name):
        points = torch.zeros(3, self.dims[name], requires_grad=True)
        r = coords.GROUPS[name].chart(points)
        assert (r == 0).all()
        r.sum().backward()
        assert points.grad.isfinite().all()

    def test_refuses_points_of_another_dimension(self):
        with pytest.raises(ValueError, match=r"points must be \(…, 2\) floats, got torch.float32 \(4, 3\)"):
            coords.polar(torch.zeros(4, 3))


def test_cameras_that_cannot_be_are_refused():
    def refuse(words, k=(30.0, 30.0), pose=None):
        with pytest.raises(ValueError, match=words):
            coords.backproject(torch.ones(1, 8, 8), torch.diag(torch.tensor([*k, 1.0])), pose)

    for k in ((0.0, 30.0), (30.0, -30.0)):
        refuse("focal lengths fx and fy", k)
    refuse("intrinsics must be finite", (30.0, math.nan))
    refuse("pose must be finite", pose=torch.full((4, 4), math.inf))
    for pose in (torch.ones(4, 4), torch.diag(torch.tensor([-1.0, 1, 1, 1])), torch.eye(4) + torch.eye(4).flip(0)):
        refuse("pose must be rigid", pose=pose)
