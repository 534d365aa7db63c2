"""The vision transformer that a recipe describes."""

from typing import Any

from torch import nn

from ..baselines import LieRE
from ..models.vit import ViT
from ..recipes.schema import Model


def backbone(model: Model, *, image_size: int, num_classes: int = 0) -> ViT:
    """A ViT, or a ViTD where the recipe has depth.

    "none" has no coordinates to lift depth into and gets it as a channel instead, so that it sees the same data.
    "liere" builds one LieRE for every layer, as named encodings are built.
    """
    depth = "channel" if model.encoding == "none" and "lift" in model.depth else model.depth
    coord_dim = 3 if "lift" in depth else 2
    options: dict[str, Any] = {
        "dim": model.dim,
        "layers": model.layers,
        "num_heads": model.heads,
        "patch_size": model.patch_size,
        "stem": model.stem,
        "share_layers": model.share_layers,
        "coord_dim": coord_dim,
        "depth": depth,
        "pool": model.pool,
        "registers": model.registers,
        "units": model.units,
        "mlp_ratio": model.mlp_ratio,
        "dropout": model.dropout,
        "drop_path": model.drop_path,
        "attention": model.attention,
        "qk_norm": model.qk_norm or None,
        "image_size": image_size,
        "num_classes": num_classes,
    }
    if model.encoding != "liere":
        return ViT(encoding=model.encoding, encoding_options=model.encoding_options, **options)
    if model.encoding_options:
        raise ValueError(f"LieRE has no options, got {dict(model.encoding_options)}: drop model.encoding_options")
    sizes: dict[str, Any] = {"head_dim": model.dim // model.heads, "num_heads": model.heads, "coord_dim": coord_dim}
    vit = ViT(encoding=LieRE(**sizes), **options)
    if not model.share_layers:
        for block in vit.blocks:
            attention = block.attention
            assert isinstance(attention, nn.Module)
            attention.encoding = LieRE(**sizes)
    return vit
