"""open_clip: its own VisionTransformer. Its towers from timm are timm's."""

from .description import Host, Layer, Tower, one_prefix

HOST = Host(
    package="open_clip",
    towers={
        "VisionTransformer": Tower(
            "conv1", "positional_embedding", one_prefix, "transformer.resblocks", "patch_dropout"
        ),
    },
    layers={"MultiheadAttention": Layer(out="out_proj", dropout="dropout", pair=True)},
)
