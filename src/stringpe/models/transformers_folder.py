"""Models of transformers from local folders that others may have written: safetensors only, errors that name the
folder, the hashes of the weights, tokenisers, and images prepared with torch alone."""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..io.files import digest_file, find_mismatch, find_not_finite, read_record
from ..io.imports import LANGUAGE, import_optional
from .tokenizer import Tokenizer


def load_transformers(kind: Any, folder: str | Path, **options: Any) -> Any:
    """kind.from_pretrained(folder), for a local folder with config.json and model.safetensors. Nothing is downloaded or
    unpickled. ValueError that names the folder if it is damaged or lacks weights."""
    try:
        with _quiet():
            model, report = kind.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
            )
    except Exception as error:  # of transformers, safetensors and huggingface_hub, which have no common ancestor
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{folder} does not hold a model that transformers can load ({reason}): check its config.json and "
            f"model.safetensors, or download it again"
        ) from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(
            f"{folder} lacks weights that its config.json describes ({missing[0]}, {len(missing)} in all): "
            f"model.safetensors is of another model; download both again"
        )
    if bad := find_not_finite(dict(model.named_parameters())):
        raise ValueError(f"model.safetensors in {folder} holds NaN or infinity in {bad[0]}: download it again")
    return model


def describe_weights(folder: Path) -> dict[str, Any]:
    """The name of a folder and the hashes of the weights in it."""
    weights = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    return {
        "model": folder.resolve().name,
        "weights_sha256": {path.name: digest_file(path) for path in weights},
    }


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokeniser in a model's folder."""
    path = Path(folder) / "tokenizer.json"
    if path.exists():
        return Tokenizer.load(path)
    kind = import_optional("transformers", f"the tokeniser of {folder}", LANGUAGE, "AutoTokenizer")
    try:
        loaded = kind.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} has no tokeniser: it needs tokenizer.json, or vocab.json and merges.txt") from error
    return Tokenizer.from_json(loaded.backend_tokenizer.to_str(), where=str(folder))


def read_preparation(
    folder: Path, shape: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """How images are prepared, as preprocessor_config.json says: image_mean and image_std of three channels, and what
    `shape` asks for besides (see `find_mismatch`). defaults: for what the file does not say; a folder may then do
    without it."""
    path = folder / "preprocessor_config.json"
    preparation = {**(defaults or {}), **(read_record(path, dict) if path.exists() or defaults is None else {})}
    wrong = find_mismatch(preparation, {"image_mean": [float], "image_std": [float], **(shape or {})})
    if not wrong and not len(preparation["image_mean"]) == len(preparation["image_std"]) == 3:
        wrong = "images have three channels"
    if not wrong and min(preparation["image_std"]) <= 0:
        wrong = "spreads are above 0"
    if wrong:
        raise ValueError(f"{path} does not say how images are prepared ({wrong}): download it again")
    return preparation


def resize_pixels(image: Tensor, size: tuple[int, int]) -> Tensor:
    """An image uint8 (3, H, W) as floats from 0 to 255 (1, 3, h, w), by bicubic interpolation as in transformers."""
    x = image[None].float()
    if x.shape[2:] != size:
        x = F.interpolate(x, size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 255)
    return x


def normalise_pixels(x: Tensor, preparation: Mapping[str, Any]) -> Tensor:
    """Floats from 0 to 255 (b, 3, h, w) less the mean and divided by the spread that preprocessor_config.json says."""
    mean, std = (x.new_tensor(preparation[name]).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
    return (x / 255 - mean) / std


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bar and the report of transformers, of which the important part is an error here."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)
