"""Model folders of transformers that are damaged: one line that names the folder, and no pickle is read."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from depth_model import write_model
from image_text_model import TEXTS, write_image_text_model
from stringpe.models.depth_estimator import DepthEstimator
from stringpe.models.image_classifier import ImageClassifier
from stringpe.models.tokenizer import Tokenizer
from stringpe.models.transformers_folder import load_tokenizer, load_transformers

TINY = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**TINY, image_size=16, patch_size=8)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def load(folder):
    return load_transformers(transformers.ViTModel, folder)


def test_a_whole_folder_is_loaded_without_a_word(folder, capfd):
    assert load(folder).config.hidden_size == 8
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff\x00{]" * 64, None])
def test_a_damaged_file_is_one_line_with_the_folder(folder, name, damage):
    path = folder / name
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    with pytest.raises(ValueError, match=r"model does not hold a model that transformers can load") as failure:
        load(folder)
    assert "\n" not in str(failure.value)


def test_weights_that_are_missing_or_not_finite_are_refused(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    save_file({k: v for k, v in weights.items() if k != name}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights that its config\.json describes"):
        load(folder)
    save_file(weights | {name: torch.full_like(weights[name], float("nan"))}, path, {"format": "pt"})
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        load(folder)


def test_a_pickle_is_not_read(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="does not hold a model"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"size": 3},
        {"size": {"height": 0, "width": 42}},
        {"ensure_multiple_of": None},
        {"image_std": [0, 1, 1]},
        {"image_mean": []},
    ],
)
def test_a_preparation_that_cannot_be_is_named(tmp_path, change):
    (tmp_path / "depth").mkdir()
    path = write_model(tmp_path / "depth") / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"preprocessor_config\.json does not say how images are prepared"):
        DepthEstimator(tmp_path / "depth")


@pytest.mark.parametrize("content", ["[]", '{"image_mean": [0.5, 0.5, 0.5]}', '{"image_mean": 1, "image_std": 1}', "{"])
def test_a_preparation_of_a_classifier_that_cannot_be_is_named(tmp_path, content):
    write_image_text_model(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"preprocessor_config\.json (is|does not say how images are prepared)"):
        ImageClassifier(tmp_path, {"keep": TEXTS[:1], "other": TEXTS[1:2]})


def test_the_tokeniser_lies_beside_the_model(tmp_path):
    tokenizer = Tokenizer.train(["a mug on a table", "a lamp"], vocab=300)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert torch.equal(load_tokenizer(tmp_path).encode(["a mug"], 8), tokenizer.encode(["a mug"], 8))


def test_a_tokeniser_of_vocabulary_and_merges(tmp_path):
    vocabulary = ["<|startoftext|>", "<|endoftext|>", "m", "u", "g</w>", "mu", "mug</w>", "a</w>", "!"]
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(vocabulary)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nm u\nmu g</w>\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "owlvit"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer", "pad_token": "!"}))
    assert load_tokenizer(tmp_path).encode(["a mug"], 6)[0, :4].tolist() == [0, 7, 6, 1]
    with pytest.raises(ValueError, match="has no tokeniser"):
        load_tokenizer(tmp_path / "nothing")
