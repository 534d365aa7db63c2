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
    it pads and masks tokens. windows: whether attention is in windows, with a bias that looks at queries.
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


def _hidden(out: Any) -> Tensor:
    return out.last_hidden_state


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
    "other sizes": ("test_resolution_change", lambda f: f.resize is not None),
    "patch dropout": ("test_patch_dropout_keeps_coordinates_with_their_patches", lambda f: f.drop is not None),
    "depth": ("test_lift", lambda f: True),
    "linear": ("test_linear_attention", lambda f: not f.masks and not f.windows),
    "fold": ("test_fold_changes_nothing", lambda f: not f.windows),
    "save, load": ("test_saved_and_loaded_models_compute_the_same", lambda f: True),
    "compile": ("test_torch_compile_takes_it_whole", lambda f: True),
}


def feature_table(passed: Callable[[str, Family], bool]) -> str:
    """Families × features in Markdown; `passed` says whether a test passed for a family."""
    lines = ["| family | " + " | ".join(FEATURES) + " |", "|---" * (1 + len(FEATURES)) + "|"]
    for family in FAMILIES:
        cells = [("✓" if passed(test, family) else "✗") if fits(family) else "–" for test, fits in FEATURES.values()]
        lines.append(f"| {family.package} {family.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
