"""Pictures told apart by texts, with tiny random models that transformers wrote."""

import json

import pytest
import torch

from image_text_model import TEXTS, write_image_text_model
from stringpe.models.image_classifier import KEEP, ImageClassifier

CLASSES = {KEEP: TEXTS[1:2], "illusion": (TEXTS[0], TEXTS[2]), "animal": TEXTS[3:]}


@pytest.fixture(scope="module", params=["clip", "siglip"])
def written(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, *write_image_text_model(folder, request.param)


def pictures(count=24, size=(24, 24)):
    dice = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 3, 3, generator=dice)
    return [(p * 255).to(torch.uint8) for p in torch.nn.functional.interpolate(coarse, size)]


def test_classes_follow_the_models_own_logits(written):
    folder, model, tokenizer = written
    images = pictures()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    pixels = torch.stack([(image / 255 - mean) / std for image in images])
    order = [TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[3]]
    with torch.no_grad():
        logits = model(input_ids=tokenizer.encode(order, 16), pixel_values=pixels).logits_per_image
    shares = logits.softmax(-1)
    shares = torch.stack([shares[:, 0], shares[:, 1:3].sum(1), shares[:, 3]], 1)
    names = ["", "illusion", "animal"]
    wanted = [names[int(row.argmax())] if row.max() > 0.5 else "" for row in shares]
    found = ImageClassifier(folder, CLASSES)(images)
    assert found == wanted
    assert len(set(found)) > 1


def test_pictures_of_other_shapes_are_cropped_or_stretched_as_the_model_was_trained(written):
    folder, model, _ = written
    classify = ImageClassifier(folder, CLASSES)
    (wide,) = pictures(1, (24, 40))
    prepared = classify._prepare(wide)
    assert prepared.shape == (1, 3, 24, 24)
    if "CLIP" in type(model).__name__:
        torch.testing.assert_close(prepared, classify._prepare(wide[:, :, 8:32]))  # its middle
    else:
        assert not torch.allclose(prepared, classify._prepare(wide[:, :, 8:32]))  # all of it
    assert len(classify([wide, wide[:, :, :24]])) == 2
    told = classify.provenance()
    assert told["classes"]["animal"] == ["a dog in the snow"]
    assert all(len(mark) == 64 for mark in told["weights_sha256"].values())


@pytest.mark.parametrize("classes", [{}, {KEEP: ["a"]}, {"other": ["a"], "more": ["b"]}, {KEEP: "a", "b": ["c"]}, []])
def test_what_does_not_say_classes_is_refused(written, classes):
    with pytest.raises(ValueError, match="classes are lists of texts by name, one of them called 'keep'"):
        ImageClassifier(written[0], classes)


def test_folders_that_hold_no_such_model_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json: give the folder of a CLIP or SigLIP"):
        ImageClassifier(tmp_path, CLASSES)
    import transformers

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**small)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"holds a Siglip.*: give an image–text model"):
        ImageClassifier(tmp_path, CLASSES)
