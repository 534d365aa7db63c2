import json

import pytest
import torch

from depth_model import write_model
from stringpe.models.depth_estimator import DepthEstimator


@pytest.fixture(scope="session")
def depth_model(tmp_path_factory):
    """Writes a tiny random Depth-Anything model to disk: depth_model("metric") is its folder."""
    return lambda kind="metric": write_model(tmp_path_factory.mktemp("model") / f"tiny-{kind}", kind)


def image(height, width):
    torch.manual_seed(height)
    smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 4, 4), (height, width), mode="bilinear")
    return (smooth[0] * 255).to(torch.uint8)


def test_depth_has_the_size_of_the_image_and_is_that_of_transformers(depth_model):
    from PIL import Image
    from transformers import DPTImageProcessor

    folder = depth_model()
    estimate = DepthEstimator(folder)
    assert estimate.metric
    assert estimate.max_depth == 20
    for size in ((40, 60), (90, 50), (42, 42)):
        given = image(*size)
        (found,) = estimate([given])
        assert found.shape == size
        processor = DPTImageProcessor.from_pretrained(folder)
        inputs = processor(Image.fromarray(given.permute(1, 2, 0).numpy()), return_tensors="pt")
        assert tuple(inputs["pixel_values"].shape[2:]) == estimate.input_size(*size)
        with torch.no_grad():
            theirs = estimate.model(**inputs).predicted_depth
        theirs = torch.nn.functional.interpolate(theirs[:, None], size, mode="bilinear", align_corners=False)[0, 0]
        assert torch.allclose(found, theirs, rtol=2e-2)  # resized by torch here, by Pillow or torchvision there


def test_images_of_a_batch_do_not_see_each_other(depth_model):
    estimate = DepthEstimator(depth_model())
    a, b = image(40, 60), image(41, 60)
    together = estimate([a, b])
    assert torch.allclose(together[0], estimate([a])[0], atol=1e-5)
    assert together[1].shape == (41, 60)
    with pytest.raises(ValueError, match="must have one size in the model"):
        estimate([image(40, 60), image(60, 40)])


def test_a_relative_model_has_no_unit(depth_model):
    folder = depth_model("relative")
    with pytest.raises(ValueError, match="is a relative model: it gives disparity without a unit, not metres"):
        DepthEstimator(folder)
    estimate = DepthEstimator(folder, made_up=(0.5, 10.0))
    (found,) = estimate([image(40, 60)])
    assert float(found.min()) == pytest.approx(0.5, rel=1e-3)
    assert float(found.max()) == pytest.approx(10, rel=1e-3)
    with torch.no_grad():
        raw = estimate.model(pixel_values=estimate._prepare(image(42, 42), (42, 42))).predicted_depth[0]
    (same,) = estimate([image(42, 42)])
    assert same.flatten()[raw.flatten().argmax()] == same.min()  # most disparity is nearest
    assert "made up" in estimate.provenance()["estimate"]
    with pytest.raises(ValueError, match="for relative models only"):
        DepthEstimator(depth_model(), made_up=(0.5, 10.0))


def test_folders_without_a_model_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json"):
        DepthEstimator(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": {"height": 10**400, "width": 42}}, r"preprocessor_config\.json does not say how images are prepared"),
        ({"ensure_multiple_of": 1 << 20}, r"preprocessor_config\.json does not say how images are prepared"),
        ({"image_mean": [1e250, 0.5, 0.5]}, "gives depth that is not finite|does not run"),
        ({"image_std": [1e-250, 0.5, 0.5]}, "gives depth that is not finite|does not run"),
    ],
)
def test_preparations_that_give_no_depth_are_refused(depth_model, change, words):
    folder = depth_model()
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | change))
    with pytest.raises(ValueError, match=words):
        DepthEstimator(folder)([image(42, 42)])
