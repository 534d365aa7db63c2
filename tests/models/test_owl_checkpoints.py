"""Tiny random OWL-ViT and OWLv2 models, written to disk by transformers and read back by us."""

import json

import pytest
import torch
import transformers

from stringpe.geometry.boxes import to_corners
from stringpe.models.owl_checkpoints import load_owl

TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def owl(kind, seed=0):
    config_type, model_type = {
        "owlvit": (transformers.OwlViTConfig, transformers.OwlViTForObjectDetection),
        "owlv2": (transformers.Owlv2Config, transformers.Owlv2ForObjectDetection),
    }[kind]
    config = config_type(
        text_config=TINY | {"vocab_size": 60, "max_position_embeddings": 8},
        vision_config=TINY | {"image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    torch.manual_seed(seed)
    model = model_type(config).eval()
    for name, parameter in model.named_parameters():
        if "head" in name or "layer_norm" in name or "position" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module", params=["owlvit", "owlv2"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = owl(request.param)
    model.save_pretrained(folder)
    return model, load_owl(folder).eval()


def pixels(ours, image):
    """What transformers takes, for images in [−1, 1]."""
    return ((image + 1) / 2 - ours.mean) / ours.std


TEXT = torch.tensor([[49, 5, 7, 59, 0, 0, 0, 0], [49, 11, 59, 0, 0, 0, 0, 0], [49, 2, 3, 4, 5, 6, 7, 59]])


@pytest.mark.parametrize("side", [32, 48])
def test_outputs_are_those_of_transformers(pair, side):
    theirs, ours = pair
    image = torch.rand(2, 3, side, side) * 2 - 1
    with torch.no_grad():
        wanted = theirs(
            input_ids=TEXT.repeat(2, 1),
            pixel_values=pixels(ours, image),
            attention_mask=(TEXT.repeat(2, 1) > 0).long(),
            interpolate_pos_encoding=side != 32,
        )
        found = ours(image, TEXT)
    assert wanted.logits.std() > 0.1
    assert wanted.pred_boxes.std() > 0.05
    assert torch.allclose(found.logits, wanted.logits, atol=1e-4)
    assert torch.allclose(found.boxes, wanted.pred_boxes, atol=1e-4)
    if found.objectness is not None:
        assert torch.allclose(found.objectness, wanted.objectness_logits, atol=1e-4)


def test_image_queries_are_those_of_transformers(pair):
    theirs, ours = pair
    image, example = torch.rand(2, 3, 32, 32) * 2 - 1, torch.rand(2, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        wanted = theirs.image_guided_detection(
            pixel_values=pixels(ours, image), query_pixel_values=pixels(ours, example)
        )
        found = ours(image, queries=ours.image_queries(example)[:, None])
    assert torch.allclose(found.logits, wanted.logits, atol=1e-4)
    assert torch.allclose(found.boxes, wanted.target_pred_boxes, atol=1e-4)
    box = to_corners(found.boxes[:, 3])
    assert ours.image_queries(image, box).shape == (2, 32)


def test_every_parameter_learns(pair):
    _, ours = pair
    found = ours(torch.rand(1, 3, 32, 32), TEXT)
    total = found.logits.sum() + found.boxes.sum()
    (total if found.objectness is None else total + found.objectness.sum()).backward()
    assert [n for n, p in ours.named_parameters() if p.grad is None] == []
    ours.zero_grad()


def test_weights_travel_through_a_state_dict(pair, tmp_path):
    theirs, ours = pair
    other = owl(theirs.config.model_type, seed=1)
    other.save_pretrained(tmp_path)
    copy = load_owl(tmp_path).eval()
    image = torch.rand(1, 3, 32, 32)
    assert not torch.allclose(copy(image, TEXT).logits, ours(image, TEXT).logits)
    copy.load_state_dict(ours.state_dict())
    assert torch.equal(copy(image, TEXT).logits, ours(image, TEXT).logits)


def test_other_folders_are_refused(tmp_path, pair):
    _, ours = pair
    with pytest.raises(ValueError, match=r"there is no config.json"):
        load_owl(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(ValueError, match=r"a model of type 'clip': detection takes owlvit or owlv2"):
        load_owl(tmp_path)
    with pytest.raises(ValueError, match=r"multiples of 8, got \(1, 3, 30, 32\)"):
        ours(torch.rand(1, 3, 30, 32), TEXT)
    with pytest.raises(ValueError, match="take no depth"):
        ours(torch.rand(1, 3, 32, 32), TEXT, depth=torch.ones(1, 32, 32))
