"""The list that the tests of attached models run over: small models with random weights, of the real libraries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stringpe.hosts import attached_layers

SIZE, PATCH, GRID = 32, 8, 4
LARGER = (48, 32)


@dataclass(frozen=True)
class Family:
    """A model and how to call it.

    build: options to a new model. output: what is compared. image: how the model takes an image. resize: options for
    `build` and for the call under which images of another size work, or None. drop: options for `build` that drop
    patches in training, or None. rope: whether it has RoPE. table: whether it has an absolute embedding. masks: whether
    it pads and masks tokens. windows: whether attention is in windows, with a bias that looks at queries. packed:
    whether its RoPE is a module and images come packed into one sequence. cuts: whether it cuts windows itself.
    mix: how it takes images of different sizes in one call, or None. exports: False for those that read sizes out of
    tensors in Python, which torch.export cannot follow. video: whether its tokens have frames, and a map of positions
    that is not a rotation.
    """

    name: str
    package: str
    build: Callable[..., nn.Module]
    output: Callable[[Any], Tensor] = lambda out: out
    inputs: Callable[[Tensor], dict[str, Any]] = lambda image: {"x": image}
    resize: tuple[dict[str, Any], dict[str, Any]] | None = None
    drop: dict[str, Any] | None = None
    rope: bool = False
    table: bool = True
    masks: bool = False
    windows: bool = False
    packed: bool = False
    cuts: bool = False
    mix: Callable[[list[Tensor]], dict[str, Any]] | None = None
    exports: bool = True
    video: bool = False

    def model(self, **options: Any) -> nn.Module:
        torch.manual_seed(0)
        model = self.build(**options).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.15)
                else:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model

    def call(self, model: nn.Module, image: Tensor, **options: Any) -> Tensor:
        return self.output(model(**self.inputs(image), **options))


def _timm(name: str, **fixed: Any) -> Callable[..., nn.Module]:
    def build(**options: Any) -> nn.Module:
        import timm

        sizes = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
        return timm.create_model(name, **{**sizes, **fixed, **options})

    return build


def _hf(model: str, config: str, **fixed: Any) -> Callable[..., nn.Module]:
    def build(**options: Any) -> nn.Module:
        import transformers

        sizes = {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
            "image_size": SIZE, "patch_size": PATCH,
        }  # fmt: skip
        return getattr(transformers, model)(getattr(transformers, config)(**{**sizes, **fixed, **options}))

    return build


def _two_towers(model: str, name: str, **fixed: Any) -> Callable[..., nn.Module]:
    """A model of text and images, whose text tower must stay as it is."""

    def build(**options: Any) -> nn.Module:
        import transformers

        vision = {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
            "image_size": SIZE, "patch_size": PATCH,
        }  # fmt: skip
        text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        text |= {
            "vocab_size": 50,
            "max_position_embeddings": 8,
            "eos_token_id": 1,
            "bos_token_id": 0,
            "pad_token_id": 2,
        }
        config = getattr(transformers, f"{name}Config")
        return getattr(transformers, model)(config(text_config=text, vision_config=vision, **fixed, **options))

    return build


def _tower(module: str, model: str, config: str, **fixed: Any) -> Callable[..., nn.Module]:
    """A vision tower that transformers does not export by itself."""

    def build(**options: Any) -> nn.Module:
        from importlib import import_module

        import transformers  # noqa: F401

        folder = f"transformers.models.{module}"
        made = getattr(import_module(f"{folder}.configuration_{module}"), config)(**{**fixed, **options})
        return getattr(import_module(f"{folder}.modeling_{module}"), model)(made)

    return build


def _depth_anything(**options: Any) -> nn.Module:
    import transformers

    backbone = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, image_size=SIZE, patch_size=PATCH,
        out_indices=[1, 2, 3, 4], apply_layernorm=True, reshape_hidden_states=False, **options,
    )  # fmt: skip
    config = transformers.DepthAnythingConfig(
        backbone_config=backbone, patch_size=PATCH, reassemble_hidden_size=32, neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8, head_hidden_size=8,
    )  # fmt: skip
    return transformers.DepthAnythingForDepthEstimation(config)


def _open_clip(**options: Any) -> nn.Module:
    import open_clip

    vision = {"layers": 2, "width": 32, "head_width": 16, "patch_size": PATCH, "image_size": SIZE, **options}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    return open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)


def _pixels(image: Tensor) -> dict[str, Any]:
    return {"pixel_values": image}


def _with_text(image: Tensor) -> dict[str, Any]:
    return {"pixel_values": image, "input_ids": torch.tensor([[0, 5, 7, 1]]).expand(len(image), -1)}


def _patches(image: Tensor) -> dict[str, Any]:
    """SigLIP2 takes patches, their grid and a mask; two of padding at the end."""
    b, c, h, w = image.shape
    rows, columns = h // PATCH, w // PATCH
    patches = image.reshape(b, c, rows, PATCH, columns, PATCH).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    mask = torch.ones(b, rows * columns + 2, dtype=torch.long)
    mask[:, -2:] = 0
    return {
        "pixel_values": nn.functional.pad(patches, (0, 0, 0, 2)),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[rows, columns]]).expand(b, -1),
    }


def _packed(image: Tensor) -> dict[str, Any]:
    """Qwen-VL takes the patches of all images in one sequence, in blocks of 2 × 2, and their grids; every image is a
    video of two equal frames."""
    b, c, h, w = image.shape
    rows, columns = h // PATCH, w // PATCH
    blocks = image.reshape(b, c, rows // 2, 2, PATCH, columns // 2, 2, PATCH).permute(0, 2, 5, 3, 6, 1, 4, 7)
    frames = blocks.flatten(0, 4)[:, :, None].expand(-1, -1, 2, -1, -1)  # (N, c, 2, p, p)
    return {"hidden_states": frames.flatten(1), "grid_thw": torch.tensor([[1, rows, columns]]).expand(b, -1)}


def _single(image: Tensor) -> dict[str, Any]:
    """The same with one frame per image, as ERNIE-VL takes it."""
    packed = _packed(image)
    return packed | {"hidden_states": packed["hidden_states"].unflatten(1, (3, 2, -1))[:, :, 0].flatten(1)}


def _mixed_singles(each: list[Tensor]) -> dict[str, Any]:
    parts = [_single(image) for image in each]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _mixed_patches(each: list[Tensor]) -> dict[str, Any]:
    parts = [_packed(image) for image in each]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _mixed_pixels(each: list[Tensor]) -> dict[str, Any]:
    sizes = [tuple(image.shape[-2:]) for image in each]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    padded = [nn.functional.pad(image, (0, width - image.shape[-1], 0, height - image.shape[-2])) for image in each]
    return {"pixel_values": torch.cat(padded), "image_sizes": sizes}


def _naflex(image: Tensor) -> dict[str, Any]:
    """timm's NaFlexVit takes patches (b, n, p·p·c), their coordinates and which of them are not padding."""
    b, c, h, w = image.shape
    rows, columns = h // PATCH, w // PATCH
    patches = image.reshape(b, c, rows, PATCH, columns, PATCH).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    index = torch.arange(rows * columns)
    coord = torch.stack([index // columns, index % columns], dim=-1).expand(b, -1, -1)
    valid = torch.ones(b, rows * columns + 2, dtype=torch.bool)
    valid[:, -2:] = False
    pad = nn.functional.pad
    return {"x": pad(patches, (0, 0, 0, 2)), "patch_coord": pad(coord, (0, 0, 0, 2)), "patch_valid": valid}


def _video(image: Tensor) -> dict[str, Any]:
    """Four frames, of which each is the one before moved by a pixel."""
    return {"pixel_values_videos": torch.stack([image.roll(i, 3) for i in range(4)], 1), "skip_predictor": True}


def _hidden(out: Any) -> Tensor:
    return out.last_hidden_state


_QWEN = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": PATCH, "temporal_patch_size": 2}
_QWEN_WIDE = {**_QWEN, "intermediate_size": 64, "out_hidden_size": 32}
_VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "image_size": SIZE, "patch_size": PATCH}  # fmt: skip
_DYNAMIC = ({"dynamic_img_size": True}, {})
_INTERPOLATE = ({}, {"interpolate_pos_encoding": True})
_DROP = {"patch_drop_rate": 0.5}
_ALWAYS = ({}, {})

FAMILIES = [
    Family("ViT", "timm", _timm("vit_tiny_patch16_224"), resize=_DYNAMIC, drop=_DROP),
    Family("DeiT", "timm", _timm("deit_tiny_distilled_patch16_224"), resize=_DYNAMIC, drop=_DROP),
    Family("DeiT III", "timm", _timm("deit3_small_patch16_224"), resize=_DYNAMIC, drop=_DROP),
    Family("SigLIP", "timm", _timm("vit_base_patch16_siglip_224"), resize=_DYNAMIC, drop=_DROP),
    Family("CLIP", "timm", _timm("vit_base_patch16_clip_224"), resize=_DYNAMIC, drop=_DROP),
    Family("DINOv2", "timm", _timm("vit_small_patch14_reg4_dinov2"), resize=_DYNAMIC, drop=_DROP),
    Family("EVA-02", "timm", _timm("eva02_tiny_patch14_224"), resize=_DYNAMIC, drop=_DROP, rope=True),
    Family("DINOv3", "timm", _timm("vit_small_patch16_dinov3"), resize=_DYNAMIC, drop=_DROP, rope=True, table=False),
    Family("RoPE-ViT axial", "timm", _timm("vit_small_patch16_rope_224"), resize=_DYNAMIC, drop=_DROP, rope=True,
           table=False),
    Family("RoPE-ViT mixed", "timm", _timm("vit_small_patch16_rope_mixed_ape_224"), resize=_DYNAMIC, drop=_DROP,
           rope=True),
    Family("Perception Encoder", "timm", _timm("vit_pe_core_tiny_patch16_384"), resize=_DYNAMIC, drop=_DROP, rope=True),
    Family("NaFlexVit", "timm", _timm("naflexvit_base_patch16_gap"), resize=_ALWAYS, drop=_DROP),
    Family("NaFlexVit axial, padded", "timm",
           _timm("naflexvit_base_patch16_gap", rope_type="axial", attn_type="rope", pos_embed="none"), inputs=_naflex,
           resize=_ALWAYS, rope=True, table=False, masks=True),
    Family("NaFlexVit factorised, padded", "timm", _timm("naflexvit_base_patch16_parfac_gap"), inputs=_naflex,
           resize=_ALWAYS, masks=True, exports=False),
    Family("SAM (windows)", "timm", _timm("samvit_base_patch16", window_size=3, global_attn_indexes=(1,)),
           resize=_ALWAYS, windows=True),
    Family("ViT", "transformers", _hf("ViTModel", "ViTConfig"), _hidden, _pixels, _INTERPOLATE),
    Family("DeiT", "transformers", _hf("DeiTModel", "DeiTConfig"), _hidden, _pixels, _INTERPOLATE),
    Family("CLIP", "transformers", _two_towers("CLIPModel", "CLIP", projection_dim=16),
           lambda out: out.image_embeds, _with_text, _INTERPOLATE),
    Family("SigLIP", "transformers", _hf("SiglipVisionModel", "SiglipVisionConfig"), _hidden, _pixels, _INTERPOLATE),
    Family("SigLIP2", "transformers", _hf("Siglip2VisionModel", "Siglip2VisionConfig", num_patches=GRID**2),
           lambda out: out.last_hidden_state[:, :-2], _patches, _ALWAYS, masks=True),
    Family("DINOv2", "transformers", _hf("Dinov2Model", "Dinov2Config"), _hidden, _pixels, _ALWAYS),
    Family("DINOv2 with registers", "transformers", _hf("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
           _hidden, _pixels, _ALWAYS),
    Family("DINOv3", "transformers", _hf("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=2),
           _hidden, _pixels, _ALWAYS, rope=True, table=False),
    Family("OWL-ViT", "transformers", _two_towers("OwlViTForObjectDetection", "OwlViT", projection_dim=32),
           lambda out: out.pred_boxes, _with_text, _INTERPOLATE),
    Family("OWLv2", "transformers", _two_towers("Owlv2ForObjectDetection", "Owlv2", projection_dim=32),
           lambda out: out.pred_boxes, _with_text, _INTERPOLATE),
    Family("Depth Anything", "transformers", _depth_anything, lambda out: out.predicted_depth, _pixels, _ALWAYS),
    Family("Qwen2-VL", "transformers",
           _tower("qwen2_vl", "Qwen2VisionTransformerPretrainedModel", "Qwen2VLVisionConfig", **_QWEN, embed_dim=32),
           _hidden, _packed, _ALWAYS, rope=True, table=False, packed=True, mix=_mixed_patches, exports=False),
    Family("Qwen2.5-VL (windows)", "transformers",
           _tower("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel", "Qwen2_5_VLVisionConfig", **_QWEN_WIDE,
                  window_size=16, fullatt_block_indexes=[1]),
           _hidden, _packed, _ALWAYS, rope=True, table=False, packed=True, mix=_mixed_patches, exports=False),
    Family("Qwen3-VL", "transformers",
           _tower("qwen3_vl", "Qwen3VLVisionModel", "Qwen3VLVisionConfig", **_QWEN_WIDE,
                  num_position_embeddings=16, deepstack_visual_indexes=[0]),
           _hidden, _packed, _ALWAYS, rope=True, packed=True, mix=_mixed_patches, exports=False),
    Family("Qwen3.5", "transformers",
           _tower("qwen3_5", "Qwen3_5VisionModel", "Qwen3_5VisionConfig", **_QWEN_WIDE, num_position_embeddings=16),
           _hidden, _packed, _ALWAYS, rope=True, packed=True, mix=_mixed_patches, exports=False),
    Family("GLM-4.1V", "transformers",
           _tower("glm4v", "Glm4vVisionModel", "Glm4vVisionConfig", **_QWEN_WIDE, image_size=SIZE),
           _hidden, _packed, _ALWAYS, rope=True, packed=True, mix=_mixed_patches, exports=False),
    Family("ERNIE-4.5-VL", "transformers",
           _tower("ernie4_5_vl_moe", "Ernie4_5_VLMoeVisionTransformerPretrainedModel", "Ernie4_5_VLMoeVisionConfig",
                  depth=2, hidden_size=32, intermediate_size=64, num_heads=2, patch_size=PATCH),
           _hidden, _single, _ALWAYS, rope=True, table=False, packed=True, mix=_mixed_singles, exports=False),
    Family("Pixtral", "transformers", _hf("PixtralVisionModel", "PixtralVisionConfig"), _hidden, _pixels, _ALWAYS,
           rope=True, table=False, packed=True, mix=_mixed_pixels),
    Family("SAM 3 (windows)", "transformers",
           _tower("sam3", "Sam3ViTModel", "Sam3ViTConfig", **_VIT, pretrain_image_size=SIZE, window_size=2,
                  global_attn_indexes=[1]),
           _hidden, _pixels, rope=True, packed=True, cuts=True),
    Family("V-JEPA 2", "transformers",
           _tower("vjepa2", "VJEPA2Model", "VJEPA2Config", hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                  crop_size=SIZE, patch_size=PATCH, frames_per_clip=4, tubelet_size=2, pred_hidden_size=24,
                  pred_num_hidden_layers=1, pred_num_attention_heads=2),
           _hidden, _video, video=True, table=False),
    Family("CLIP", "open_clip", _open_clip, lambda out: out[0], lambda image: {"image": image},
           drop={"patch_dropout": 0.5}),
]  # fmt: skip


def images(size: tuple[int, int] = (SIZE, SIZE), seed: int = 1) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed))


def find_family(library: str, name: str) -> Family:
    return next(f for f in FAMILIES if (f.package, f.name) == (library, name))


VIT = find_family("timm", "ViT")


def encodings(model: nn.Module) -> list[Any]:
    """The encodings that were attached to a model."""
    return [layer.encoding for _, layer in attached_layers(model)]


FEATURES: dict[str, tuple[str, Callable[[Family], bool]]] = {  # a column: the test behind it, and whom it is for
    "same start": ("test_starts_as_the_same_function", lambda f: True),
    "gradient to all": ("test_gradient_reaches_every_new_parameter_of_every_layer", lambda f: True),
    "own RoPE kept": ("test_rope_stays_exactly_and_can_be_upgraded", lambda f: f.rope),
    "invariant after replace": ("test_replace_makes_the_model_translation_invariant", lambda f: True),
    "other sizes": ("test_coordinates_are_those_of_the_size_that_comes", lambda f: f.resize is not None),
    "patch dropout": ("test_patch_dropout_keeps_coordinates_with_their_patches", lambda f: f.drop is not None),
    "depth": ("test_depth_is_lifted_and_changes_nothing_until_its_scale_does", lambda f: not f.cuts and not f.video),
    "linear": (
        "test_linear_attention_trains_or_is_refused",
        lambda f: not (f.masks or f.windows or (f.packed and not f.cuts)),
    ),
    "fold": ("test_fold_changes_nothing", lambda f: not f.windows and not f.video),
    "save, load": ("test_saved_and_loaded_models_compute_the_same", lambda f: True),
    "compile": ("test_torch_compile_takes_it_whole", lambda f: True),
    "export": ("test_torch_export_takes_it", lambda f: f.exports),
    "attention maps": (
        "test_attention_maps_are_those_of_the_host",
        lambda f: f.package == "transformers" and f.inputs not in (_packed, _single),
    ),
    "packed": ("test_packed_images_do_not_see_each_other", lambda f: f.mix is not None),
}


def feature_table(passed: Callable[[str, Family], bool]) -> str:
    """Families × features in Markdown; `passed` says whether a test passed for a family."""
    lines = ["| family | " + " | ".join(FEATURES) + " |", "|---" * (1 + len(FEATURES)) + "|"]
    for family in FAMILIES:
        cells = [("✓" if passed(test, family) else "✗") if fits(family) else "–" for test, fits in FEATURES.values()]
        lines.append(f"| {family.package} {family.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
