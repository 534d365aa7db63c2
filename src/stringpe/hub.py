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

CARD = """---
{{ card_data }}
---

# {{ name }} with {{ encoding }}

{{ name }}, a vision transformer of {{ library }}, whose self-attention carries the position encoding `{{ encoding }}`
of stringpe, put there by

{{ calls }}

It has {{ parameters }} parameters. To use it:

```python
from stringpe.hub import Attached

model = Attached.from_pretrained("{{ repository }}").model
```

{% if lifted %}It takes depth in metres beside the image: `model(image, depth=depth)`.
{% endif %}Reading this repository runs no code from it: it holds `config.json` and `model.safetensors`.

## To be filled in by whoever trained it

- Trained on …
- Evaluated on …, with these numbers over so many seeds: …
- Not meant for …
"""
"""The model card of an attached model, a template of jinja2."""


class Attached(ModelHubMixin, library_name="stringpe", tags=["position-encoding", "string"], model_card_template=CARD):
    """An attached model with the hub's `save_pretrained`, `from_pretrained` and `push_to_hub`.

    build: how the host is built, as in `stringpe.pretrained.save_pretrained`.
    """

    def __init__(self, model: nn.Module, build: Mapping[str, Any] | None = None):
        self.model, self.build = model, build

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Upload the model with its card; options as in huggingface_hub's method of that name."""
        words = {"repository": repo_id, **(options.pop("model_card_kwargs", None) or {})}
        return super().push_to_hub(repo_id, model_card_kwargs=words, **options)

    def generate_model_card(self, *args: Any, repository: str = "me/my-model", **words: Any) -> Any:
        """The card: what the model is, what was done to it, and how to load it."""
        calls: list[tuple[str, dict[str, Any]]] = getattr(self.model, "stringpe_calls", [])
        encodings = [str(options["encoding"]) for name, options in calls if name == "attach"]
        return super().generate_model_card(
            *args,
            name=type(self.model).__name__,
            library=type(self.model).__module__.partition(".")[0],
            encoding=encodings[-1] if encodings else "cayley",
            calls="\n".join(f"    stringpe.{name}(model{_write(options)})" for name, options in calls),
            parameters=f"{sum(p.numel() for p in self.model.parameters()):,}",
            lifted=any(name == "lift" for name, _ in calls),
            repository=repository,
            **words,
        )

    def _save_pretrained(self, save_directory: Path) -> None:
        save_pretrained(self.model, save_directory, build=self.build)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, model: nn.Module | None = None, **download: Any) -> Self:
        files = ["config.json", "model.safetensors"]
        local = Path(model_id).is_dir()
        folder = model_id if local else snapshot_download(model_id, allow_patterns=files, **download)
        return cls(from_pretrained(folder, model=model))


def _write(options: Mapping[str, Any]) -> str:
    """Options of a call, as in Python code."""
    return "".join(f", {name}={value!r}" for name, value in options.items())
