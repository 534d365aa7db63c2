"""Attached models on the Hugging Face hub.

    Attached(model).push_to_hub("me/my-model")
    model = Attached.from_pretrained("me/my-model").model

Needs huggingface_hub.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin, snapshot_download
from torch import nn

from .pretrained import from_pretrained, save_pretrained


class Attached(ModelHubMixin, library_name="stringpe", tags=["position-encoding", "string"]):
    """An attached model with the hub's `save_pretrained`, `from_pretrained` and `push_to_hub`.

    build: how the host is built, as in `stringpe.pretrained.save_pretrained`.
    """

    def __init__(self, model: nn.Module, build: Mapping[str, Any] | None = None):
        self.model, self.build = model, build

    def _save_pretrained(self, save_directory: Path) -> None:
        save_pretrained(self.model, save_directory, build=self.build)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, model: nn.Module | None = None, **download: Any) -> Self:
        wanted = ["config.json", "model.safetensors"]
        local = Path(model_id).is_dir()
        folder = model_id if local else snapshot_download(model_id, allow_patterns=wanted, **download)
        return cls(from_pretrained(folder, model=model))
