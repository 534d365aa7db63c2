"""STRING vision transformers for timm: importing this module registers them.

    import timm, stringpe.timm
    model = timm.create_model("vit_base_patch16_224.string_cayley", num_classes=10)

The tag names the encoding: string_rope, string_rope_mixed, string_cayley, string_circulant, string_general. The models
are timm's own ViTs without an absolute embedding and with the encoding in every attention, so timm's training script,
feature extraction and optimisers take them as they are; encodings are exempt from weight decay. They have two more
options: `coord_dim=3`, for `model(image, depth=…)`, and `encoding_options`, as of `stringpe.create`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import nn

from .catalogue import names
from .encoding import PositionEncoding
from .hosts.attach import attach
from .io.imports import explain_torchvision

with explain_torchvision():
    import timm.models
    from timm.models import _registry as registry
    from timm.models.vision_transformer import VisionTransformer

TAG = "string_"
ARCHITECTURES = (
    "vit_tiny_patch16_224",
    "vit_small_patch32_224",
    "vit_small_patch16_224",
    "vit_base_patch32_224",
    "vit_base_patch16_224",
    "vit_base_patch16_384",
    "vit_large_patch16_224",
)


class StringVisionTransformer(VisionTransformer):
    """timm's VisionTransformer, with encodings exempt from weight decay."""

    def no_weight_decay(self) -> set[str]:
        encodings = [(path, m) for path, m in self.named_modules() if isinstance(m, PositionEncoding)]
        parameters = {f"{path}.{name}" for path, m in encodings for name, _ in m.named_parameters()}
        return super().no_weight_decay() | parameters


def _with_strings(entry: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """timm's function for an architecture, extended by our tags."""

    @wraps(entry)
    def build(
        pretrained: bool = False,
        *,
        coord_dim: int = 2,
        encoding_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> nn.Module:
        tag = options.get("pretrained_cfg")
        if not (isinstance(tag, str) and tag.startswith(TAG)):
            return entry(pretrained, **options)
        if pretrained:
            raise ValueError(
                f"there are no weights for {tag}: build it without pretrained=True, or use stringpe.attach on a "
                f"pretrained model"
            )
        model = entry(pos_embed="none", **options)
        attach(model, tag.removeprefix(TAG), start="replace", coord_dim=coord_dim, **dict(encoding_options or {}))
        for module in model.modules():
            if type(module) is VisionTransformer:
                module.__class__ = StringVisionTransformer
        return model

    return build


def _register() -> None:
    known: Any = registry
    like = ("num_classes", "input_size", "crop_pct", "interpolation", "mean", "std", "first_conv", "classifier")
    for architecture in ARCHITECTURES:
        known._model_entrypoints[architecture] = _with_strings(known._model_entrypoints[architecture])
        plain = timm.models.get_pretrained_cfg(architecture)
        shared: dict[str, Any] = {key: getattr(plain, key) for key in like}
        for tag in (f"{TAG}{name}" for name in names()):
            cfg = timm.models.PretrainedCfg(architecture=architecture, tag=tag, **shared)
            known._model_pretrained_cfgs[f"{architecture}.{tag}"] = cfg
            known._model_with_tags[architecture].append(f"{architecture}.{tag}")
            known._model_default_cfgs[architecture].cfgs[tag] = cfg
            known._model_default_cfgs[architecture].tags.append(tag)


_register()
