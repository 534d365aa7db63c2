import pytest
import torch

from stringpe.geometry.boxes import to_corners
from stringpe.models.owl import OwlViT, patch_bias
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
    from stringpe.geometry.boxes import iou

    for b in range(2):
        all_iou = iou(to_corners(found.boxes[b]), box[b])
        assert all_iou[overlapping[b]] >= 0.8 * all_iou.max()


def test_without_overlap_the_nearest_box_is_the_query():
    model = detector()  # boxes are patches
    far = torch.tensor([[0.99, 0.99, 0.99, 0.99]])
    image = torch.rand(1, 3, 32, 32)
    query = model.image_queries(image, far)
    assert (model(image, queries=query).embeddings[0] @ query[0]).argmax() == 15
