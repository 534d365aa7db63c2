"""OWL-ViT and OWLv2 checkpoints of transformers, from a local folder, as detectors to run and to train.

    detector = load_owl("owlv2-base-patch16-ensemble")        # a folder with config.json and model.safetensors

Outputs equal those of transformers. Its image processors are not used: OWL-ViT's stretches images to a square, while
the model was trained on padded ones. Here images go through `square.to_square`, for both models.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..coords import Calibration
from ..io.files import read_record
from ..io.imports import LANGUAGE, import_optional
from .owl import BoxHead, Detector
from .transformers_folder import load_transformers

_CONFIGS = {"owlvit": "OwlViTConfig", "owlv2": "Owlv2Config"}
_MODELS = {"owlvit": "OwlViTForObjectDetection", "owlv2": "Owlv2ForObjectDetection"}
OWL_TYPES = tuple(_MODELS)
"""The `model_type` of the checkpoints that can be loaded."""

_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's, of all checkpoints


class TransformersOwl(Detector):
    """A detector with the towers of an OwlViTForObjectDetection or Owlv2ForObjectDetection of transformers, which are
    not copied, and copies of its heads."""

    anchor = "corner"
    mean: Tensor
    std: Tensor

    def __init__(self, model: Any):
        config = model.config
        super().__init__(config.vision_config.hidden_size, config.text_config.hidden_size)
        self.config = config
        inner = getattr(model, config.model_type)
        self.vision, self.text, self.text_projection = inner.vision_model, inner.text_model, inner.text_projection
        self.layer_norm = model.layer_norm
        _copy(model.class_head.dense0, self.class_head.project)
        _copy(model.class_head.logit_shift, self.class_head.shift)
        _copy(model.class_head.logit_scale, self.class_head.scale)
        _copy_mlp(model.box_head, self.box_head)
        if config.model_type == "owlv2":
            self.objectness_head = BoxHead(config.vision_config.hidden_size, 1)
            _copy_mlp(model.objectness_head, self.objectness_head)
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(3, 1, 1), persistent=False)

    @property
    def context(self) -> int:
        return int(self.config.text_config.max_position_embeddings)

    @property
    def patch_size(self) -> int:
        return int(self.config.vision_config.patch_size)

    @property
    def image_size(self) -> int:
        """The side of the squares that the checkpoint was trained on; other sizes work too."""
        return int(self.config.vision_config.image_size)

    def encode_image(
        self, image: Tensor, depth: Tensor | None = None, calibration: Calibration | None = None
    ) -> tuple[Tensor, tuple[int, int]]:
        if depth is not None or calibration is not None:
            raise ValueError("OWL-ViT checkpoints of transformers take no depth or calibration: pass the image alone")
        patch = self.patch_size
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % patch or image.shape[3] % patch:
            raise ValueError(f"image must be (b, 3, H, W) with H and W multiples of {patch}, got {tuple(image.shape)}")
        size = (image.shape[2] // patch, image.shape[3] // patch)
        pixels = ((image + 1) / 2 - self.mean) / self.std
        other = image.shape[2:] != (self.image_size, self.image_size)
        tokens = self.vision(pixel_values=pixels, interpolate_pos_encoding=other).last_hidden_state
        tokens = self.vision.post_layernorm(tokens)
        return self.layer_norm(tokens[:, 1:] * tokens[:, :1]), size  # patches times the class token, as in training

    def encode_text(self, text: Tensor) -> Tensor:
        return self.text_projection(self.text(input_ids=text).pooler_output)


def load_owl(folder: str | Path) -> TransformersOwl:
    """The detector of a folder that transformers wrote."""
    return TransformersOwl(load_transformers(_import(_MODELS[owl_kind(folder)]), folder))


def empty_owl(config: Mapping[str, Any]) -> TransformersOwl:
    """The detector of a transformers configuration (its config.json), with random weights."""
    kind = config["model_type"]
    built = _import(_CONFIGS[kind]).from_dict(dict(config))
    return TransformersOwl(_import(_MODELS[kind])(built))


def owl_kind(folder: str | Path) -> str:
    """ "owlvit" or "owlv2", from the folder's config.json."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"there is no config.json in {folder}: give the folder of an OWL-ViT or OWLv2 model")
    kind = str(read_record(path, dict).get("model_type"))
    if kind not in OWL_TYPES:
        raise ValueError(f"{folder} holds a model of type {kind!r}: detection takes {' or '.join(OWL_TYPES)}")
    return kind


def _copy(source: nn.Linear, target: nn.Linear) -> None:
    target.load_state_dict(source.state_dict())


def _copy_mlp(source: Any, target: BoxHead) -> None:
    for i, layer in enumerate(target.layers):
        assert isinstance(layer, nn.Linear)
        _copy(getattr(source, f"dense{i}"), layer)


def _import(name: str) -> Any:
    return import_optional("transformers", "an OWL-ViT checkpoint", LANGUAGE, name)
