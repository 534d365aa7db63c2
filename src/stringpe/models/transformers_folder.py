"""Models of transformers from local folders that others may have written: safetensors only, and one line for damage."""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def load_transformers(kind: Any, folder: str | Path, **options: Any) -> Any:
    """kind.from_pretrained(folder): a model that lies in a local folder as config.json and model.safetensors. Nothing
    is downloaded or unpickled. ValueError that names the folder if it is damaged or lacks weights."""
    try:
        with _quiet():
            model, told = kind.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
            )
    except Exception as error:  # of transformers, safetensors and huggingface_hub, which have no common ancestor
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{folder} does not hold a model that transformers can load ({reason}): check its config.json and "
            f"model.safetensors, or download it again"
        ) from None
    missing = sorted(told["missing_keys"])
    if missing:
        raise ValueError(
            f"{folder} lacks weights that its config.json describes ({missing[0]}, {len(missing)} in all): "
            f"model.safetensors is of another model; download both again"
        )
    bad = [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    if bad:
        raise ValueError(f"model.safetensors in {folder} holds NaN or infinity in {bad[0]}: download it again")
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bar and the report of transformers: what matters of it is an error here."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)
