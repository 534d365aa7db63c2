import math

import pytest
import torch

from stringpe.geometry.boxes import iou, to_corners
from stringpe.models.owl import ClassHead, OwlViT, patch_bias, unit
from stringpe.models.text import TextTower
from stringpe.models.vit import vit


def detector(encoding="rope", pool="mean", **options):
    torch.manual_seed(0)
    image = vit("vit_test_patch8", encoding=encoding, pool=pool, **options)
    return OwlViT(image, TextTower(vocab=50, dim=16, layers=1, num_heads=2, context=8, width=24))


def lively(model):
    for parameter in model.box_head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


TEXT = torch.tensor([[4, 5, 1, 0], [7, 1, 0, 0], [9, 8, 7, 1]])


def test_boxes_start_as_the_patches():
    found = detector()(torch.rand(2, 3, 32, 16), TEXT)
    assert found.logits.shape == (2, 8, 3)
    assert found.embeddings.shape == (2, 8, 24)
    wanted = [[x + 0.25, y + 0.125, 0.5, 0.25] for y in (0, 0.25, 0.5, 0.75) for x in (0, 0.5)]
    assert torch.allclose(found.boxes, torch.tensor(wanted).expand(2, 8, 4), atol=1e-3)


def test_the_bias_is_the_logit_of_place_and_size():
    centre, corner = patch_bias((2, 4)).sigmoid(), patch_bias((2, 4), "corner").sigmoid()
    assert torch.allclose(centre[5], torch.tensor([0.375, 0.75, 0.25, 0.5]), atol=1e-3)
    assert torch.allclose(corner[5], torch.tensor([0.5, 1.0, 0.25, 0.5]), atol=1e-3)


@pytest.mark.parametrize("pool", ["mean", "cls", "map"])
def test_every_parameter_is_used(pool):
    model = lively(detector("cayley", pool, registers=2))
    found = model(torch.rand(2, 3, 32, 32), TEXT)
    (found.logits.square().sum() + found.boxes.square().sum()).backward()
    # encodings of layers whose tensors are empty have nothing to learn
    without = [n for n, p in model.named_parameters() if p.grad is None and p.numel()]
    assert without == []


def test_queries_by_image_and_by_index():
    model = detector()
    image = torch.rand(2, 3, 32, 32)
    whole = model(image, TEXT).logits
    index = torch.tensor([[2, 0], [1, 1]])
    picked = model(image, TEXT, index=index).logits
    assert torch.allclose(picked[0], whole[0][:, [2, 0]], atol=1e-6)
    assert torch.allclose(picked[1], whole[1][:, [1, 1]], atol=1e-6)
    own = model(image, queries=model.queries(TEXT)).logits
    assert torch.allclose(own, whole, atol=1e-6)
    with pytest.raises(ValueError, match=r"either text .* or queries"):
        model(image)


def test_depth_reaches_the_detector():
    model = lively(detector("rope", coord_dim=3, depth="lift+channel"))
    image, depth = torch.rand(1, 3, 32, 32), torch.rand(1, 32, 32) + 1
    assert not torch.allclose(model(image, TEXT, depth=depth).boxes, model(image, TEXT, depth=2 * depth).boxes)


def test_boxes_keep_their_digits_under_autocast():
    model = lively(detector())
    image = torch.rand(1, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(image, TEXT)
    assert found.boxes.dtype == found.logits.dtype == torch.float32


def test_an_image_query_finds_what_it_shows():
    """The query of a box is the embedding of a token whose box is that box, and that token answers it best."""
    model = lively(detector())
    image = torch.rand(2, 3, 32, 32)
    found = model(image, TEXT)
    token = torch.tensor([5, 10])
    box = to_corners(found.boxes[torch.arange(2), token])
    query = model.image_queries(image, box)
    again = model(image, queries=query[:, None])
    cosine = (again.embeddings @ query[:, :, None])[..., 0]
    overlapping = cosine.argmax(1)
    assert torch.allclose(cosine.amax(1), torch.ones(2), atol=1e-4)
    for b in range(2):
        all_iou = iou(to_corners(found.boxes[b]), box[b])
        assert all_iou[overlapping[b]] >= 0.8 * all_iou.max()


def test_without_overlap_the_nearest_box_is_the_query():
    model = detector()  # boxes are patches
    far = torch.tensor([[0.99, 0.99, 0.99, 0.99]])
    image = torch.rand(1, 3, 32, 32)
    query = model.image_queries(image, far)
    assert (model(image, queries=query).embeddings[0] @ query[0]).argmax() == 15


@pytest.mark.parametrize("pool", ["mean", "cls", "map"])
def test_a_detector_leaves_the_vit_that_it_is_given_as_it_was(pool):
    tower = vit("vit_test_patch8", encoding="rope", pool=pool, num_classes=3)
    torch.nn.init.normal_(tower.head.weight)
    image = torch.rand(2, 3, 32, 32)
    before, names = tower(image), set(tower.state_dict())
    model = OwlViT(tower, TextTower(vocab=50, dim=16, layers=1, num_heads=2, context=8, width=24))
    assert torch.equal(tower(image), before)
    assert set(tower.state_dict()) == names
    assert not any(name.startswith(("image.head", "image.map_pool")) for name in model.state_dict())
    assert model.image.patch.weight is tower.patch.weight  # trained together
    torch.testing.assert_close(model.image.features(image).tokens, tower.features(image).tokens)


def head(dim=8, query_dim=6, seed=0):
    torch.manual_seed(seed)
    made = ClassHead(dim, query_dim)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def test_a_logit_is_the_formula():
    made, x, q = head(), torch.randn(2, 5, 8), unit(torch.randn(3, 6))
    logits = made(x, q).logits
    for b, i, j in ((0, 0, 0), (1, 4, 2)):
        e = made.project(x[b, i])
        cos = torch.dot(e, q[j]) / e.norm()
        scale = made.scale(x[b, i])
        scale = scale + 1 if scale > 0 else scale.exp()
        assert torch.allclose(logits[b, i, j], ((cos + made.shift(x[b, i])) * scale)[0], atol=1e-5)


def test_a_token_that_looks_like_nothing_starts_at_one_percent():
    made = ClassHead(8, 6)
    torch.nn.init.zeros_(made.project.weight)
    torch.nn.init.zeros_(made.project.bias)
    logits = made(torch.randn(2, 5, 8), unit(torch.randn(3, 6))).logits
    assert torch.allclose(logits.sigmoid(), torch.tensor(0.01))
    assert made.shift.bias.item() == pytest.approx(math.log(0.01 / 0.99))


def test_a_larger_factor_has_the_same_prior():
    made = ClassHead(8, 6, factor=10)
    x = torch.randn(2, 5, 8)
    named = made(x, torch.randn(3, 6))
    prior = math.log(0.01 / 0.99)
    queries = torch.eye(6)
    assert torch.allclose(made(x, queries).logits, 10 * named.embeddings + prior, atol=1e-4)
    with pytest.raises(ValueError, match=r"must start at 1 or above, got 0.5"):
        ClassHead(8, 6, factor=0.5)


def test_queries_shared_by_the_batch_or_per_image():
    made, x, q = head(), torch.randn(2, 5, 8), unit(torch.randn(2, 3, 6))
    own = made(x, q).logits
    for b in range(2):
        assert torch.allclose(own[b], made(x, q[b]).logits[b], atol=1e-6)


def test_masked_queries_have_probability_zero():
    made, x, q = head(), torch.randn(2, 5, 8), unit(torch.randn(3, 6))
    mask = torch.tensor([[True, False, True], [True, True, True]])
    logits = made(x, q, mask).logits
    assert (logits[0, :, 1].sigmoid() == 0).all()
    assert logits.isfinite().all()
    assert torch.equal(logits[1], made(x, q).logits[1])
    assert torch.equal(made(x, q, mask[0]).logits[1, :, 1], logits[0, :, 1])


def test_the_logit_of_mean_queries_is_the_mean_of_logits():
    made, x, q = head(), torch.randn(2, 5, 8), unit(torch.randn(7, 3, 6))
    mean = torch.stack([made(x, t).logits for t in q]).mean(0)
    assert torch.allclose(made(x, q.mean(0)).logits, mean, atol=1e-5)


def test_embeddings_of_tokens_can_be_queries():
    made, x = head(), torch.randn(1, 5, 8)
    out = made(x, made(x, unit(torch.randn(2, 6))).embeddings[0])
    same = (out.logits[0] / (torch.nn.functional.elu(made.scale(x[0])) + 1) - made.shift(x[0])).diagonal()
    assert torch.allclose(same, torch.ones(5), atol=1e-4)


def test_class_logits_keep_float32_under_autocast():
    made, x, q = head(), torch.randn(2, 5, 8), unit(torch.randn(3, 6))
    with torch.autocast("cpu", torch.bfloat16):
        half = made(x, q).logits
    assert torch.equal(half, made(x, q).logits)


def test_bad_queries_are_refused():
    made, x = head(), torch.randn(2, 5, 8)
    for shape in ((3, 5), (0, 6), (3, 4, 6), (6,)):
        with pytest.raises(ValueError, match=r"queries must be \(q, 6\) or \(2, q, 6\) with at least one"):
            made(x, torch.randn(shape))
    with pytest.raises(ValueError, match=r"mask must be bool \(3,\) or \(2, 3\), got torch.bool \(2,\)"):
        made(x, torch.randn(3, 6), torch.ones(2, dtype=torch.bool))


def test_patches_are_multiplied_by_a_class_token():
    """OWL-ViT's way with CLIP's towers."""
    torch.manual_seed(0)
    image, text = vit("vit_test_patch16", pool="cls"), TextTower(vocab=20, dim=16, layers=1, num_heads=2, width=12)
    detector = OwlViT(image, text).eval()
    pixels = torch.randn(2, 3, 32, 48)
    seen = image.features(pixels)
    wanted = torch.nn.functional.layer_norm(seen.tokens * seen.pooled[:, None], (32,), eps=1e-6)
    torch.testing.assert_close(detector.encode_image(pixels)[0], wanted)
    assert OwlViT(vit("vit_test_patch16"), text).merge is None
