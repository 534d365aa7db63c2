"""timm: VisionTransformer (ViT, DeiT, SigLIP, CLIP, DINOv2), Eva (EVA-02, DINOv3, Perception Encoder, RoPE-ViT),
NaFlexVit, which takes images of different sizes as padded patches, and VisionTransformerSAM, whose attention is in
windows."""

from typing import Any

import torch
from torch import nn

from .description import Grid, Host, Layer, Rope, Tower, axial_theta, inverse_periods, mixed_theta


def _eva_rope(tower: nn.Module, layers: list[nn.Module]) -> Rope | None:
    rope: Any = tower.rope
    if rope is None:
        return None
    kind = type(rope).__name__
    halves = {bool(getattr(layer, "rotate_half", False)) for layer in layers}
    columns_first = rope.grid_indexing == "xy"
    if kind == "RotaryEmbeddingMixed" and halves == {False}:
        heads: Any = layers[0].num_heads
        return Rope(mixed_theta(rope.freqs, heads, columns_first=columns_first), True, Grid())
    if kind == "RotaryEmbeddingCat" and halves == {rope.rotate_half}:
        reference = None if rope.ref_feat_shape is None else tuple(rope.ref_feat_shape)
        theta = axial_theta(_bands(rope), columns_first=columns_first)
        return Rope([theta] * len(layers), not rope.rotate_half, Grid(offset=rope.grid_offset, reference=reference))
    if kind == "RotaryEmbeddingDinoV3" and halves == {rope.rotate_half}:
        grid = Grid(
            units="normalised",
            offset=rope.grid_offset,
            over=rope.normalize_coords,
            shift=rope.shift_coords or 0.0,
            jitter=rope.jitter_coords or 1.0,
            rescale=rope.rescale_coords or 1.0,
        )
        return Rope([axial_theta(inverse_periods(rope.periods))] * len(layers), not rope.rotate_half, grid)
    raise ValueError(
        f"this timm model's RoPE is {kind} with rotate_half={halves}: attach can carry over RotaryEmbeddingCat, "
        f"RotaryEmbeddingMixed and RotaryEmbeddingDinoV3; use start='replace' for a new encoding in its place"
    )


def _bands(rope: Any) -> torch.Tensor:
    """The frequencies of timm's axial RoPE, radians per patch; with a fixed grid timm keeps their sines only."""
    if rope.in_pixels:
        raise ValueError("this timm model's RoPE is in pixels, which no ViT of timm uses: use start='replace'")
    bands: torch.Tensor = rope._compute_bands()
    return bands.float()


def _sam_rope(tower: nn.Module, layers: list[nn.Module]) -> Rope | None:
    if getattr(tower, "rope_global", None) is not None:
        raise ValueError("attach cannot carry over the RoPE of VisionTransformerSAM: use start='replace'")
    return None


def _relative_bias(layer: nn.Module, q: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    from timm.models.vision_transformer_sam import get_decomposed_rel_pos_bias

    known: Any = layer
    bias = get_decomposed_rel_pos_bias(q.flatten(0, 1), known.rel_pos_h, known.rel_pos_w, size, size)
    return bias.unflatten(0, q.shape[:2])


def _prefix_rows(tower: nn.Module) -> int:
    known: Any = tower
    return 0 if known.no_embed_class else known.num_prefix_tokens


HOST = Host(
    package="timm",
    towers={
        "VisionTransformer": Tower("patch_embed.proj", "pos_embed", _prefix_rows, "blocks", "patch_drop"),
        "Eva": Tower("patch_embed.proj", "pos_embed", _prefix_rows, "blocks", "patch_drop", _eva_rope, "rope"),
        "NaFlexVit": Tower(
            "embeds",
            "embeds.pos_embed embeds.pos_embed_y embeds.pos_embed_x",
            blocks="blocks",
            dropout="patch_drop",
            rope=_eva_rope,
            rope_path="rope",
            reader="read_patch_coords",
        ),
        "VisionTransformerSAM": Tower("patch_embed.proj", "pos_embed", blocks="blocks", rope=_sam_rope),
    },
    layers={"Attention": Layer(bias=_relative_bias), "AttentionRope": Layer(), "EvaAttention": Layer()},
)
