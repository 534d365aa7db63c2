"""Detectors by recipe and by folder: our towers, towers of another run, or an OWL-ViT or OWLv2 of transformers."""

import json
from pathlib import Path
from typing import Any

from ..io import checkpoint as checkpoints
from ..models.owl import Detector, OwlViT
from ..models.owl_checkpoints import KINDS, TransformersOwl, empty_owl, load_owl, load_owl_tokenizer
from ..models.tokenizer import Tokenizer
from ..recipes.schema import Recipe
from .backbone import start_new
from .retrieval import towers
from .start import start_folder, start_model, start_tokenizer

_OWL_CONTEXT = 16  # what transformers leaves out of a configuration
OWL = "owl.json"
"""In a checkpoint of a model that came from transformers: its configuration there."""


def is_owl(folder: Path) -> bool:
    """Whether a folder holds an OWL-ViT or OWLv2 model as transformers writes it."""
    path = folder / "config.json"
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")).get("model_type") in KINDS


def tokenizer_of(recipe: Recipe, texts: list[str]) -> Tokenizer:
    """The recipe's file, or that of where the model starts from, or a BPE trained on the texts themselves."""
    folder = start_folder(recipe)
    if recipe.text.tokenizer:
        return Tokenizer.load(recipe.text.tokenizer)
    if folder is not None and is_owl(folder):
        return load_owl_tokenizer(folder)
    path = None if folder is None else start_tokenizer(folder)
    return Tokenizer.train(texts, vocab=recipe.text.vocab) if path is None else Tokenizer.load(path)


def detector(recipe: Recipe, tokenizer: Tokenizer) -> Detector:
    """The recipe's model: with the towers of `model.start`, all of it where that is a detector itself."""
    folder = start_folder(recipe)
    if folder is None:
        return _started(recipe, tokenizer)
    if is_owl(folder):
        return load_owl(folder)
    model_folder = checkpoints.model_folder(folder)
    if (model_folder / OWL).exists():
        model: Detector = empty_owl(json.loads((model_folder / OWL).read_text(encoding="utf-8")))
        model.load_state_dict(checkpoints.read_model(folder)[1])
        return model
    model = _started(recipe, tokenizer)
    start_model(model, recipe, folder)
    return model


def files_of(model_config: dict[str, Any] | None, tokenizer: Tokenizer) -> dict[str, str]:
    """What a checkpoint of a detector holds beside its weights."""
    own = {checkpoints.TOKENIZER: tokenizer.to_json()}
    return own if model_config is None else own | {OWL: json.dumps(model_config)}


def owl_config(recipe: Recipe) -> dict[str, Any] | None:
    """The transformers configuration of the recipe's model, None for our own towers."""
    folder = start_folder(recipe)
    if folder is None:
        return None
    path = folder / "config.json" if is_owl(folder) else checkpoints.model_folder(folder) / OWL
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def context_of(recipe: Recipe) -> int:
    """The longest text of the recipe's model, in tokens."""
    config = owl_config(recipe)
    if config is None:
        return recipe.text.context
    return int(config.get("text_config", {}).get("max_position_embeddings", _OWL_CONTEXT))


def load(path: str | Path) -> tuple[Detector, Tokenizer, int]:
    """Detector, tokeniser and image side of a run of detection2d, or of an OWL-ViT or OWLv2 folder of transformers."""
    folder = Path(path)
    if is_owl(folder):
        owl: TransformersOwl = load_owl(folder)
        return owl.eval(), load_owl_tokenizer(folder), owl.image_size
    recipe, weights = checkpoints.read_model(folder)
    if recipe.task != "detection2d":
        raise ValueError(f"{path} holds a run of the task {recipe.task!r}, which finds no boxes in 2D")
    own = checkpoints.model_folder(folder)
    tokenizer = Tokenizer.load(own / checkpoints.TOKENIZER)
    config = own / OWL
    if config.exists():
        model: Detector = empty_owl(json.loads(config.read_text(encoding="utf-8")))
    else:
        model = _ours(recipe, tokenizer)
    model.load_state_dict(weights)
    return model.eval(), tokenizer, recipe.data.image_size


def _started(recipe: Recipe, tokenizer: Tokenizer) -> OwlViT:
    model = _ours(recipe, tokenizer)
    start_new(model, recipe)
    return model


def _ours(recipe: Recipe, tokenizer: Tokenizer) -> OwlViT:
    both = towers(recipe, tokenizer)
    return OwlViT(both.image, both.text, factor=recipe.loss.factor)
