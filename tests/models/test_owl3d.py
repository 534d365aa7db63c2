import pytest
import torch

from cases import perturbed
from stringpe import box3d
from stringpe.coords import Calibration, patch_points
from stringpe.models.owl3d import START, BoxHead3D, Detector3D, Predictions3D, assign, best_boxes, detection3d_loss
from stringpe.models.text import TextTower
from stringpe.models.vit import ViT


def boxes(*lead, seed=0):
    random = torch.Generator().manual_seed(seed)
    raw = torch.randn(*lead, 12, generator=random)
    raw[..., 9:] = raw[..., 9:].abs() + 0.2
    return box3d.complete(raw)


def detector(centre=None, **options):
    torch.manual_seed(0)
    image = ViT(dim=32, layers=2, num_heads=2, patch_size=8, image_size=32, **options)
    return Detector3D(image, TextTower(vocab=50, dim=16, layers=1, num_heads=2, context=8, width=24), centre=centre)


class TestHead:
    def test_starts_in_front_of_the_camera_with_tokens_that_differ(self):
        torch.manual_seed(0)
        out = BoxHead3D(64)(torch.randn(2, 9, 64))
        assert out.shape == (2, 9, 12)
        assert (out.mean((0, 1)) - torch.tensor(START)).abs().max() < 0.2
        assert (out.std((0, 1)) > 1e-3).all()

    def test_sizes_are_positive_whatever_the_tokens(self):
        assert (BoxHead3D(8)(1e3 * torch.randn(50, 8))[..., 9:] >= 0).all()
        assert (BoxHead3D(8)(torch.randn(50, 8))[..., 9:] > 0).all()

    def test_three_layers_with_gelu(self):
        head = BoxHead3D(8)
        assert [type(m).__name__ for m in head.mlp] == ["Linear", "GELU", "Linear", "GELU", "Linear"]
        assert head.mlp[-1].out_features == 12

    def test_no_place_of_a_patch_is_added(self):
        """Absolute: equal tokens say equal boxes, wherever they are."""
        out = BoxHead3D(8)(torch.ones(1, 5, 8))
        assert torch.equal(out[:, 0], out[:, 4])

    def test_computes_in_float32_under_autocast(self):
        head, x = BoxHead3D(64), torch.randn(4, 64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(head(x), head(x.float()))
            assert head(x).dtype == torch.float32

    def test_a_start_without_volume_is_refused(self):
        with pytest.raises(ValueError, match=r"the last three \(sizes\) above 0"):
            BoxHead3D(8, start=(*START[:9], 0.4, 0.0, 0.4))


class TestDetector:
    def test_shapes_with_and_without_depth(self):
        image, depth = torch.randn(2, 3, 32, 32), torch.rand(2, 32, 32) + 1
        text = torch.randint(1, 50, (5, 8))
        found = detector(coord_dim=3)(image, depth, text)
        assert found.logits.shape == (2, 16, 5)
        assert found.boxes.shape == (2, 16, 12)
        assert detector(coord_dim=2)(image, None, text).boxes.shape == (2, 16, 12)

    def test_logits_are_averaged_over_templates(self):
        model, image = detector(), torch.randn(2, 3, 32, 32)
        text = torch.randint(1, 50, (5, 3, 8))
        each = torch.stack([model(image, None, text[:, t]).logits for t in range(3)])
        torch.testing.assert_close(model(image, None, text).logits, each.mean(0))

    def test_embeddings_can_be_kept(self):
        model, image = detector(), torch.randn(1, 3, 32, 32)
        text = torch.randint(1, 50, (4, 2, 8))
        torch.testing.assert_close(model(image, None, model.embed(text)).logits, model(image, None, text).logits)

    def test_hundreds_of_queries_are_answered_at_once(self):
        model = detector()
        assert model(torch.randn(1, 3, 32, 32), None, torch.randint(1, 50, (700, 8))).logits.shape == (1, 16, 700)

    def test_no_queries_are_refused(self):
        with pytest.raises(ValueError, match="at least one"):
            detector()(torch.randn(1, 3, 32, 32), None, torch.zeros(0, 24))

    def test_every_parameter_has_gradient(self):
        for pool in ("mean", "map"):
            model = detector(coord_dim=3, encoding="cayley", pool=pool)
            found = model(torch.randn(2, 3, 32, 32), torch.rand(2, 32, 32) + 1, torch.randint(1, 50, (5, 8)))
            detection3d_loss(found, torch.randint(0, 5, (2, 3)), boxes(2, 3)).total.backward()
            without = [n for n, p in model.named_parameters() if p.grad is None]
            assert without == []


class TestCentresRelativeToPoints:
    image, depth = torch.rand(2, 3, 32, 32), torch.rand(2, 32, 32) + 1
    text = torch.randint(1, 50, (5, 8), generator=torch.Generator().manual_seed(0))
    camera = Calibration(torch.tensor([[30.0, 0, 16], [0, 30, 16], [0, 0, 1]]), torch.eye(4))

    def test_the_point_of_the_patch_is_added(self):
        model = detector("point", coord_dim=3).eval()
        found = model(self.image, self.depth, self.text, self.camera)
        raw = model.box_head(model.image.features(self.image, self.depth).tokens)
        points = patch_points(self.depth, self.camera.intrinsics, 8)
        torch.testing.assert_close(found.boxes[..., :3] - raw[..., :3], points)
        assert torch.equal(found.boxes[..., 3:], raw[..., 3:])

    def test_boxes_move_with_the_camera(self):
        """The tokens see the camera's own picture, so that another pose moves all centres alike."""
        model = detector("point", coord_dim=3).eval()
        pose = torch.eye(4)
        pose[:3, 3] = torch.tensor([1.0, -2, 3])
        here = model(self.image, self.depth, self.text, self.camera)
        there = model(self.image, self.depth, self.text, Calibration(self.camera.intrinsics, pose))
        torch.testing.assert_close(there.boxes[..., :3] - here.boxes[..., :3], pose[:3, 3].expand(2, 16, 3))
        assert torch.equal(there.logits, here.logits)

    def test_it_starts_at_the_patches(self):
        boxes = detector("point", coord_dim=3)(self.image, self.depth, self.text, self.camera).boxes
        points = patch_points(self.depth, self.camera.intrinsics, 8)
        assert (boxes[..., :3] - points).abs().max() < 0.6

    def test_what_is_missing_is_named(self):
        with pytest.raises(ValueError, match="pass depth in metres and calibration"):
            detector("point", coord_dim=3)(self.image, self.depth, self.text)
        with pytest.raises(ValueError, match="centre='point' needs depth to place patches"):
            detector("point", coord_dim=2)
        with pytest.raises(ValueError, match="centre must be one of absolute, point, got 'patch'"):
            detector("patch")
        with pytest.raises(ValueError, match="would ignore calibration"):
            detector("absolute", coord_dim=3)(self.image, self.depth, self.text, self.camera)
        with pytest.raises(ValueError, match="in the world frame centres are relative"):
            detector("absolute", frame="world")


def perfect(labels, target, queries=4, tokens=6):
    """Token j + 1 says object j and is sure of it; the others say nothing, far away."""
    b, m = labels.shape
    logits = torch.full((b, tokens, queries), -12.0)
    said = boxes(b, tokens, seed=9)
    said[..., 2] += 50
    for i in range(b):
        for j in range(m):
            if labels[i, j] >= 0:
                logits[i, j + 1, labels[i, j]] = 12.0
                said[i, j + 1] = target[i, j]
    return Predictions3D(logits, said)


class TestLoss:
    labels = torch.tensor([[2, 0, -1], [3, 3, 1]])

    def test_a_perfect_answer_costs_nothing(self):
        target = boxes(2, 3)
        out = detection3d_loss(perfect(self.labels, target), self.labels, target)
        assert out.matched.tolist() == [[1, 2, -1], [1, 2, 3]]
        assert out.total.item() == pytest.approx(0, abs=1e-4)

    def test_terms_of_a_moved_box_are_those_by_hand(self):
        """One object per image, one of them moved by (0.1, 0, 0): L1 0.1, and every corner by as much."""
        labels, target = torch.tensor([[0], [1]]), boxes(2, 1)
        found = perfect(labels, target)
        found.boxes[0, 1, 0] += 0.1
        out = detection3d_loss(found, labels, target)
        assert out.box.item() == pytest.approx(0.1 / 2, rel=1e-4)
        assert out.corner.item() == pytest.approx(8 * 0.1 / 2, rel=1e-4)

    def test_divided_by_each_images_own_number_of_objects(self):
        labels, target = torch.tensor([[0, 1, 2], [1, -1, -1]]), boxes(2, 3)
        found = perfect(labels, target)
        found.boxes[..., 0] += 0.3  # every object of both images is off by the same
        out = detection3d_loss(found, labels, target)
        assert out.box.item() == pytest.approx(0.3, rel=1e-4)

    def test_unmatched_boxes_get_no_gradient_and_padding_is_never_looked_at(self):
        target = boxes(2, 3)
        found = perfect(self.labels, target)
        said = found.boxes.clone().requires_grad_()
        strange = target.clone()
        strange[0, 2] = torch.nan
        out = detection3d_loss(Predictions3D(found.logits, said), self.labels, strange)
        out.total.backward()
        assert out.total.isfinite()
        assert (said.grad[:, [0, 4, 5]] == 0).all()

    def test_images_without_objects_have_a_loss_of_labels_alone(self):
        labels, target = torch.full((2, 3), -1), torch.zeros(2, 3, 12)
        found = Predictions3D(torch.zeros(2, 6, 4, requires_grad=True), boxes(2, 6).requires_grad_())
        out = detection3d_loss(found, labels, target)
        assert out.box.item() == out.corner.item() == 0
        assert out.label.item() > 0
        out.total.backward()
        empty = detection3d_loss(found, labels[:, :0], target[:, :0])
        assert empty.total.item() == pytest.approx(out.total.item())

    def test_more_objects_than_tokens(self):
        labels, target = torch.zeros(1, 9, dtype=torch.long), boxes(1, 9)
        out = detection3d_loss(Predictions3D(torch.zeros(1, 6, 4), boxes(1, 6)), labels, target)
        assert (out.matched >= 0).sum() == 6
        assert out.total.isfinite()

    def test_degenerate_rotations_neither_raise_nor_poison_the_gradient(self):
        said = boxes(1, 6)
        said[0, :, 3:9] = 0
        said[0, 1, 3:9] = torch.tensor([1.0, 0, 0, 2, 0, 0])
        said.requires_grad_()
        out = detection3d_loss(
            Predictions3D(torch.zeros(1, 6, 4), said), torch.zeros(1, 6, dtype=torch.long), boxes(1, 6)
        )
        out.total.backward()
        assert out.total.isfinite()
        assert said.grad.isfinite().all()
        assert (said.grad[..., 3:9] != 0).any()  # L1 pulls them out

    def test_matching_weighs_class_box_and_corners(self):
        labels, target = torch.tensor([[0]]), boxes(1, 1)
        close, far = target.repeat(1, 2, 1), target.repeat(1, 2, 1)
        logits = torch.tensor([[[-3.0], [3.0]]])
        assert assign(Predictions3D(logits, close), labels, target).item() == 1  # equal boxes: the surer token
        far[0, 1, 0] += 5
        assert assign(Predictions3D(logits, far), labels, target).item() == 0  # 5 m off outweighs it

    def test_a_step_of_training_lowers_it(self):
        model = detector(coord_dim=2)
        optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
        image, text = torch.randn(2, 3, 32, 32), torch.randint(1, 50, (4, 8))
        target = boxes(2, 3)
        losses = []
        for _ in range(30):
            loss = detection3d_loss(model(image, None, text), self.labels, target).total
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0]


def test_detections_are_the_best_pairs_with_proper_rotations():
    found = Predictions3D(torch.randn(2, 6, 4), torch.randn(2, 6, 12))
    out = best_boxes(found, most=5)
    assert len(out) == 2
    flat = found.logits[0].sigmoid().flatten().sort(descending=True).values
    torch.testing.assert_close(out[0].score, flat[:5])
    i = int(found.logits[0].flatten().argmax())
    assert out[0].label[0] == i % 4
    torch.testing.assert_close(out[0].box[0, :3], found.boxes[0, i // 4, :3])
    r = box3d.rotation(out[0].box)
    torch.testing.assert_close(r.mT @ r, torch.eye(3).expand(5, 3, 3), atol=1e-5, rtol=0)
    assert len(best_boxes(found, most=100)[0].score) == 24


def test_a_state_says_the_whole_model():
    model, again = detector(), perturbed(detector())
    image, text = torch.randn(1, 3, 32, 32), torch.randint(1, 50, (2, 8))
    assert not torch.equal(model(image, None, text).boxes, again(image, None, text).boxes)
    again.load_state_dict(model.state_dict())
    for ours, theirs in zip(model(image, None, text), again(image, None, text), strict=True):
        assert torch.equal(ours, theirs)
