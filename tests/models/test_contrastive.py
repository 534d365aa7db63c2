import math

import pytest
import torch

from stringpe import vit
from stringpe.models.contrastive import Contrastive, class_embeddings, start_bias
from stringpe.models.text import TextTower
from stringpe.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["a photo of a red mug", "a drawing of a dog", "a cat"], vocab=300)


def build(tokenizer, **options):
    torch.manual_seed(0)
    image = vit("vit_test_patch16", **({"encoding": "cayley", "coord_dim": 3} | options))
    return Contrastive(image, TextTower(vocab=len(tokenizer), dim=32, layers=1, num_heads=2, context=16, width=24))


def test_towers_meet_in_unit_vectors_of_one_width(tokenizer):
    model = build(tokenizer)
    image, depth = torch.randn(3, 3, 32, 32), torch.rand(3, 32, 32) + 1
    out = model(image, tokenizer.encode(["a mug", "a dog"], 16), depth)
    assert out.image.shape == (3, 24)
    assert out.text.shape == (2, 24)
    assert torch.allclose(out.image.norm(dim=-1), torch.ones(3))
    assert torch.allclose(out.text.norm(dim=-1), torch.ones(2))
    assert not torch.allclose(out.image, model.embed_image(image, depth * 2 + image[:, 0].abs()))  # depth is seen


def test_trap_27_siglip_starts_at_log_10_and_minus_10(tokenizer):
    model = build(tokenizer)
    assert math.isclose(model.scale.item(), math.log(10), rel_tol=1e-6)
    assert model.bias.item() == -10
    out = model(torch.zeros(1, 3, 32, 32), tokenizer.encode(["a mug"], 16))
    assert math.isclose(out.scale.item(), 10, rel_tol=1e-6)
    assert out.bias.item() == -10


def test_the_automatic_bias_has_the_least_loss_when_all_look_alike():
    batch = 64
    auto = start_bias("auto", batch)

    def loss(bias):  # one match and batch − 1 others, all with logit `bias`
        return math.log1p(math.exp(-bias)) + (batch - 1) * math.log1p(math.exp(bias))

    assert math.isclose(auto, -math.log(63))
    assert loss(auto) < min(loss(auto - 0.01), loss(auto + 0.01), loss(-10.0), loss(0.0))
    assert start_bias(-10.0, batch) == -10
    with pytest.raises(ValueError, match="at least 2, got 1"):
        start_bias("auto", 1)


def test_a_class_is_the_mean_over_its_templates(tokenizer):
    model = build(tokenizer).eval()
    found = class_embeddings(model, tokenizer, ["mug", "dog"], ["a photo of a {}", "a drawing of a {}"])
    one = model.embed_text(tokenizer.encode(["a photo of a dog", "a drawing of a dog"], 16)).mean(0)
    assert found.shape == (2, 24)
    assert torch.allclose(found[1], one / one.norm(), atol=1e-6)
    with pytest.raises(ValueError, match=r"templates with \{\} where the name goes"):
        class_embeddings(model, tokenizer, ["mug"], ["a photo"])
