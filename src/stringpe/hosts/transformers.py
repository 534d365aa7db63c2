"""transformers: ViT, DeiT, CLIP, SigLIP, SigLIP2, DINOv2 (with registers), DINOv3, OWL-ViT and OWLv2, alone or within
larger models (CLIPModel, SiglipModel, OwlViTForObjectDetection, DepthAnythingForDepthEstimation, …); and the vision
towers with axial RoPE over packed images or windows: those of Qwen-VL, GLM-V, ERNIE-VL, Pixtral and SAM 3; and
the video encoder of V-JEPA 2."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .description import Grid, Host, Layer, Rope, Tower, axial_theta, one_prefix


def _dinov3_rope(tower: nn.Module, layers: list[nn.Module]) -> Rope:
    rope: Any = tower.rope_embeddings
    config: Any = rope.config
    grid = Grid(
        units="normalised",
        shift=config.pos_embed_shift or 0.0,
        jitter=config.pos_embed_jitter or 1.0,
        rescale=config.pos_embed_rescale or 1.0,
    )
    return Rope([axial_theta(2 * math.pi * rope.inv_freq.detach().float())] * len(layers), False, grid)


def _two_prefixes(tower: nn.Module) -> int:
    return 2


def vjepa2_map(x: Tensor, coords: Tensor) -> Tensor:
    """What V-JEPA 2 does to queries and keys (b, h, n, d) at frames, rows and columns (n, 3).

    Each axis has a third of the channels, in pairs, as in RoPE; but the two channels of a pair take cosine and sine at
    *different* frequencies. So this is not a rotation, and scores depend on more than displacements. The published
    weights were trained with it.
    """
    size = 2 * (x.shape[-1] // 3 // 2)
    parts = list(x.split([size, size, size, x.shape[-1] - 3 * size], dim=-1))
    omega = 10000.0 ** (-torch.arange(size // 2, dtype=x.dtype, device=x.device) / (size / 2))
    for axis in range(3):
        angle = coords[:, axis, None].to(x.dtype) * omega.repeat(2)  # channel c turns at frequency c mod size / 2
        even, odd = parts[axis].unflatten(-1, (-1, 2)).unbind(-1)
        across = torch.stack([-odd, even], dim=-1).flatten(-2)
        parts[axis] = parts[axis] * angle.cos() + across * angle.sin()
    return torch.cat(parts, dim=-1)


def record_maps(layer: nn.Module) -> None:
    """Let transformers' `output_attentions=True` collect what this layer returns. It finds its own layers by class."""
    try:
        from transformers.utils.output_capturing import install_output_capuring_hook
    except ImportError:  # another release, which collects them in another way
        return
    if not any(hook.__name__ == "output_capturing_hook" for hook in layer._forward_hooks.values()):
        install_output_capuring_hook(layer, "attentions", 1)


class ImageAsPatches(nn.Module):
    """SigLIP 2, which is called with patches, their grid and a mask, as a function of images (b, 3, height, width) of
    one size. Its position embedding is resized to that grid here, once: transformers resizes it image by image, to
    sizes that it reads out of a tensor, which no export can follow.

    model: a Siglip2VisionModel. It is changed: make a copy first.
    """

    def __init__(self, model: nn.Module, height: int, width: int):
        super().__init__()
        embeddings: Any = model.embeddings
        side: int = embeddings.patch_size
        self.model, self.side, self.grid = model, side, (height // side, width // side)
        table = embeddings.position_embedding.weight.detach().unflatten(0, (embeddings.position_embedding_size, -1))
        sizes = torch.tensor([self.grid], device=table.device)
        count = self.grid[0] * self.grid[1]
        fixed = embeddings.resize_positional_embeddings(table, sizes, max_length=count)  # (1, count, dim)
        self.register_buffer("table", fixed, persistent=False)
        embeddings.resize_positional_embeddings = lambda *_, **__: self.table

    def forward(self, image: Tensor, **options: Any) -> Any:
        (rows, columns), side = self.grid, self.side
        cut = image.unflatten(3, (columns, side)).unflatten(2, (rows, side))  # (b, 3, rows, side, columns, side)
        patches = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        sizes = torch.tensor([self.grid], device=image.device).expand(image.shape[0], -1)
        mask = torch.ones(patches.shape[:2], dtype=torch.long, device=image.device)
        return self.model(pixel_values=patches, pixel_attention_mask=mask, spatial_shapes=sizes, **options)


def takes_patches(model: nn.Module) -> bool:
    """Whether a model is called with patches in place of an image: SigLIP 2's vision tower."""
    return type(model).__module__.startswith("transformers.") and type(model).__name__ == "Siglip2VisionModel"


_VIT = Tower("embeddings.patch_embeddings.projection", "embeddings.position_embeddings", one_prefix)
_DEIT = Tower("embeddings.patch_embeddings.projection", "embeddings.position_embeddings", _two_prefixes)
_CLIP = Tower("embeddings.patch_embedding", "embeddings.position_embedding", one_prefix)
_SIGLIP = Tower("embeddings.patch_embedding", "embeddings.position_embedding", blocks="encoder")
_SIGLIP2 = Tower("embeddings", "embeddings.position_embedding", blocks="encoder")  # images of any shape, as patches
_DINOV3 = Tower("embeddings.patch_embeddings", rope=_dinov3_rope)
_QWEN = Tower("patch_embed.proj", blocks="blocks", rotary="rotary_pos_emb")
_QWEN3 = Tower("patch_embed.proj", "pos_embed", blocks="blocks", rotary="rotary_pos_emb")
_GLM = Tower("patch_embed.proj", "embeddings.position_embedding", blocks="blocks", rotary="rotary_pos_emb")
_PIXTRAL = Tower("patch_conv", blocks="transformer", rotary="patch_positional_embedding")
_SAM3 = Tower("embeddings.patch_embeddings.projection", "embeddings.position_embeddings", blocks="layers",
              rotary="rotary_emb")  # fmt: skip
_PACKED = Layer(dropout="attention_dropout")
_O = Layer(heads="num_attention_heads", out="o_proj", dropout="attention_dropout", pair=True)
_OUT = Layer(out="out_proj", dropout="dropout", pair=True)

HOST = Host(
    package="transformers",
    towers={
        "ViTModel": _VIT,
        "DeiTModel": _DEIT,
        "Dinov2Model": _VIT,
        "Dinov2Backbone": _VIT,
        "Dinov2WithRegistersModel": _VIT,
        "Dinov2WithRegistersBackbone": _VIT,
        "DINOv3ViTModel": _DINOV3,
        "DINOv3ViTBackbone": _DINOV3,
        "CLIPVisionModel": _CLIP,
        "SiglipVisionModel": _SIGLIP,
        "Siglip2VisionModel": _SIGLIP2,
        "OwlViTVisionTransformer": _CLIP,
        "Owlv2VisionTransformer": _CLIP,
        "Qwen2VisionTransformerPretrainedModel": _QWEN,
        "Qwen2_5_VisionTransformerPretrainedModel": _QWEN,
        "Qwen3VLVisionModel": _QWEN3,
        "Qwen3_5VisionModel": _QWEN3,
        "Glm4vVisionModel": _GLM,
        "Ernie4_5_VLMoeVisionTransformerPretrainedModel": _QWEN,
        "PixtralVisionModel": _PIXTRAL,
        "Sam3ViTModel": _SAM3,
        "VJEPA2Encoder": Tower("embeddings.patch_embeddings.proj", blocks="layer", axes=3),
    },
    layers={
        "ViTAttention": _O,
        "DeiTAttention": _O,
        "Dinov2Attention": _O,
        "Dinov2WithRegistersAttention": _O,
        "DINOv3ViTAttention": Layer(out="o_proj", dropout="dropout", pair=True),
        "CLIPAttention": _OUT,
        "SiglipAttention": _OUT,
        "Siglip2Attention": _OUT,
        "OwlViTAttention": _OUT,
        "Owlv2Attention": _OUT,
        "VisionAttention": _PACKED,
        "Qwen2_5_VLVisionAttention": _PACKED,
        "Qwen3VLVisionAttention": _PACKED,
        "Qwen3_5VisionAttention": _PACKED,
        "Glm4vVisionAttention": _PACKED,
        "Ernie4_5_VLMoeVisionAttention": _PACKED,
        "PixtralAttention": Layer(out="o_proj", dropout="dropout", pair=True),
        "Sam3ViTRoPEAttention": _O,
        "VJEPA2RopeAttention": Layer(
            heads="num_attention_heads",
            dropout="dropout_prob",
            pair=True,
            head_dim="attention_head_size",
            apart=("query", "key", "value"),
            keep=vjepa2_map,
        ),
    },
)
