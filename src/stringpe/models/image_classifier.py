"""Classes of pictures by an image–text model (CLIP, SigLIP) that transformers loads from a local folder.

    classify = ImageClassifier("clip-vit-base-patch32", {KEEP: ["a photo of a room"], "optical illusion": ["…"]})
    reasons = classify([image, …])         # uint8 (3, H, W) each, to the name of a class each, "" for KEEP

Every class is a list of texts. The model gives each text a probability, a softmax over all texts. A picture belongs to
the class whose texts together have more than half, and to KEEP if no class has. The folder holds config.json,
weights, preprocessor_config.json and a tokeniser, as models are published; pictures are prepared here, with torch
alone, as preprocessor_config.json says.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.imports import LANGUAGE, import_optional
from .transformers_folder import (
    describe_weights,
    load_tokenizer,
    load_transformers,
    normalise_pixels,
    read_preparation,
    resize_pixels,
)

KEEP = "keep"
"""The class of pictures that are kept."""

SURE = 0.5
"""The probability above which a picture belongs to a class."""


class ImageClassifier:
    """Pictures to classes, each of which is described by texts. classes: texts by class; one class is called KEEP."""

    def __init__(self, folder: str | Path, classes: Mapping[str, Sequence[str]], *, device: str | torch.device = "cpu"):
        self.folder, self.device = Path(folder), torch.device(device)
        self.classes = check_classes(classes)
        for name in ("config.json", "preprocessor_config.json"):
            if not (self.folder / name).is_file():
                raise ValueError(f"{folder} has no {name}: give the folder of a CLIP or SigLIP model of transformers")
        kind = import_optional("transformers", "classification by texts", LANGUAGE, "AutoModel")
        self.model: Any = load_transformers(kind, self.folder).eval().to(self.device)
        if not hasattr(self.model, "get_text_features") or not hasattr(self.model, "logit_scale"):
            raise ValueError(f"{folder} holds a {type(self.model).__name__}: give an image–text model, CLIP or SigLIP")
        self.preparation = read_preparation(self.folder)
        self._texts = self._read_texts()

    @torch.no_grad()
    def __call__(self, images: Sequence[Tensor]) -> list[str]:
        """The class of each picture, uint8 (3, H, W); "" for those that are kept."""
        pixels = torch.cat([self._prepare(image.to(self.device)) for image in images])
        embeddings = _unit(self.model.get_image_features(pixel_values=pixels))
        shares = (self.model.logit_scale.float().exp() * embeddings @ self._texts.mT).softmax(-1)  # (b, texts)
        counts = [len(texts) for texts in self.classes.values()]
        by_class = torch.stack([part.sum(-1) for part in shares.split(counts, dim=-1)], -1).cpu()  # (b, classes)
        names = list(self.classes)
        likeliest = [names[i] if row[i] > SURE else KEEP for row, i in zip(by_class, by_class.argmax(-1), strict=True)]
        return ["" if name == KEEP else name for name in likeliest]

    def provenance(self) -> dict[str, Any]:
        """What the classes depend on: the model's name and hashes, and the texts."""
        return describe_weights(self.folder) | {"classes": {name: list(texts) for name, texts in self.classes.items()}}

    @torch.no_grad()
    def _read_texts(self) -> Tensor:
        """Unit vectors of all texts, (texts, e)."""
        context = int(self.model.config.text_config.max_position_embeddings)
        texts = [text for some in self.classes.values() for text in some]
        tokens = load_tokenizer(self.folder).encode(texts, context).to(self.device)
        return _unit(self.model.get_text_features(input_ids=tokens))

    def _prepare(self, image: Tensor) -> Tensor:
        """Normalised floats (1, 3, S, S) of the image stretched to a square, or of its middle square, as
        preprocessor_config.json says."""
        side = int(self.model.config.vision_config.image_size)
        height, width = image.shape[1:]
        size = (side, side)
        if self.preparation.get("do_center_crop", False):
            scale = side / min(height, width)
            size = (max(side, round(height * scale)), max(side, round(width * scale)))
        top, left = (size[0] - side) // 2, (size[1] - side) // 2
        x = resize_pixels(image, size)[:, :, top : top + side, left : left + side]
        return normalise_pixels(x, self.preparation)


def check_classes(classes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The classes, once they are known to be lists of texts by name, one of them called KEEP."""
    lists = isinstance(classes, Mapping) and all(not isinstance(texts, str) and texts for texts in classes.values())
    if not lists or KEEP not in classes or len(classes) < 2:
        raise ValueError(
            f'classes are lists of texts by name, one of them called {KEEP!r}: {{"{KEEP}": ["a photo of a room"], '
            f'"optical illusion": ["an optical illusion"]}}; got {classes!r}'
        )
    return {str(name): tuple(map(str, texts)) for name, texts in classes.items()}


def _unit(output: Any) -> Tensor:
    """Unit vectors from the output of a model: a tensor, or something with a `pooler_output`."""
    vectors: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return F.normalize(vectors.float(), dim=-1)
