"""What the config.json of a model folder may say: an allow-list, since folders come from other people.

A config names a library, what to build with it and which calls of ours to repeat. Everything in it is checked here
before any of it is used: known libraries, classes of known families, known argument names, and values that are plain
numbers, words or lists of them. No value can be a path, an address, a module to import or weights to load.
`SECURITY.md` lists the promises, and tests/hosts/test_trust.py tries to break them.
"""

import importlib
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .catalogue import names
from .io.imports import explain_torchvision

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")  # no slash, no colon, no space
_ARCHITECTURE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_]+)?")
_LARGEST_NESTING = 8


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What timm's ViT, Eva and SAM models take that is a number, a word or a switch. No weights, no paths, no layers.
_TIMM = _words(
    """model_name img_size patch_size in_chans num_classes global_pool embed_dim depth num_heads head_dim mlp_ratio
    qkv_bias qk_norm qkv_fused num_kv_heads scale_attn_norm scale_mlp_norm scale_norm scale_mlp scale_attn_inner
    proj_bias init_values class_token pos_embed no_embed_class reg_tokens num_reg_tokens num_prefix_tokens pre_norm
    final_norm fc_norm pool_include_prefix dynamic_img_size dynamic_img_pad drop_rate pos_drop_rate patch_drop_rate
    proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init swiglu_mlp swiglu_align_to use_abs_pos_emb
    use_rot_pos_emb rope_type rope_grid_offset rope_grid_indexing rope_temperature rope_rotate_half rope_mixed_mode
    ref_feat_shape attn_type use_pre_transformer_norm use_post_norm use_post_transformer_norm use_fc_norm
    attn_pool_num_heads attn_pool_mlp_ratio window_size global_attn_indexes use_rel_pos use_rope neck_chans
    output_stride norm_eps gated_mlp coord_dim encoding_options"""
)
_OPEN_CLIP = _words(
    "model_name force_quick_gelu force_custom_text force_patch_dropout force_image_size force_context_length "
    "output_dict"
)
# Families of transformers, by the name of their module: transformers.models.FAMILY.modeling_FAMILY.
_FAMILIES = _words(
    """vit deit clip siglip siglip2 dinov2 dinov2_with_registers dinov3_vit owlvit owlv2 depth_anything qwen2_vl
    qwen2_5_vl qwen3_vl qwen3_5 glm4v ernie4_5_vl_moe pixtral sam3 vjepa2"""
)
_PARTS = ("", "_vision_model", "_text_model", "_backbone", "_vision", "_text", "_vit_model")
# Keys of a transformers config that name code, weights or other places. Keys that begin with "_" are dropped.
_FORBIDDEN = _words(
    """auto_map backbone use_pretrained_backbone use_timm_backbone backbone_kwargs attn_implementation
    experts_implementation quantization_config name_or_path trust_remote_code"""
)
_LABELS = ("id2label", "label2id")  # their words are for people, and may hold any character
_CALLS = ("attach", "lift", "fold", "load_rope_mixed")
LIBRARIES = ("timm", "transformers", "open_clip")


def check_config(config: Any) -> None:
    """Refuse a config that is not of an attached model, or that says something it may not say."""
    known = isinstance(config, dict) and config.get("dtype") in list(DTYPES) and "host" in config
    calls = config.get("calls") if known else None
    if not isinstance(calls, list):
        raise ValueError("it is not of an attached model, or of a later version of stringpe")
    for call in calls:
        pair = isinstance(call, (list, tuple)) and len(call) == 2
        if not pair or call[0] not in _CALLS or not isinstance(call[1], dict):
            raise ValueError(f"it is not of an attached model, or of a later version of stringpe: call {call!r}")
        _check_call(*call)
    if config["host"] is not None:
        check_host(config["host"])


def _check_call(name: str, options: dict[str, Any]) -> None:
    """`attach` passes its options on to the encoding, which refuses unknown ones; the other calls take none."""
    if name != "attach" and options:
        raise ValueError(f"{name} has no options, got {', '.join(map(str, options))}")
    for key, value in options.items():
        _check_value(f"{name} option", key)
        _check_value(f"{name} option {key}", value)
    if name == "attach" and options.get("encoding", "cayley") not in names():
        raise ValueError(f"attach names the encoding {options['encoding']!r}: known are {', '.join(names())}")


def check_host(host: Any) -> None:
    """Refuse a host whose library, class or arguments are not on the list."""
    library = host.get("library") if isinstance(host, dict) else None
    if library not in LIBRARIES:
        raise ValueError(f"it names the library {library!r}: known are {', '.join(LIBRARIES)}")
    if library == "transformers":
        for key in ("class", "config_class"):
            if not (isinstance(host.get(key), str) and host[key].isidentifier() and not host[key].startswith("_")):
                raise ValueError(f"it names the {key} {host.get(key)!r}, which is not the name of a class")
        _check_transformers(host.get("config"))
        return
    arguments = host.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(arguments.get("model_name"), str):
        raise ValueError("its host has no arguments with a model_name")
    _check_names(f"{library} arguments", arguments, _TIMM if library == "timm" else _OPEN_CLIP)
    if not _ARCHITECTURE.fullmatch(arguments["model_name"]):
        raise ValueError(f"it names the model {arguments['model_name']!r}, which is not the name of an architecture")
    for key, value in arguments.items():
        _check_value(f"argument {key}", value)


def build_host(host: Mapping[str, Any]) -> nn.Module:
    """The host that a checked config describes, with random weights."""
    check_host(host)
    with explain_torchvision():
        library = importlib.import_module(host["library"])
    if host["library"] != "transformers":
        built: nn.Module = library.create_model(**host["arguments"])
        return built
    config_class = _known_class(library, host["config_class"], "configuration")
    model_class = _known_class(library, host["class"], "modeling")
    model: nn.Module = model_class(config_class.from_dict(clean_config(host["config"])))
    return model


def clean_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of transformers without the keys that begin with "_", which say how and from where it was loaded."""
    return {
        key: clean_config(value) if isinstance(value, dict) and key not in _LABELS else value
        for key, value in config.items()
        if not str(key).startswith("_")
    }


def _known_class(library: Any, name: str, kind: str) -> Any:
    """A class of transformers, if it is defined in the module of a known family. Not all of them are exported."""
    modules = {f"transformers.models.{family}.{kind}_{family}" for family in _FAMILIES}
    cls = getattr(library, name, None)
    for module in sorted(modules) if cls is None else ():
        cls = cls or getattr(importlib.import_module(module), name, None)
    if not isinstance(cls, type) or cls.__module__ not in modules:
        raise ValueError(f"it names {name}, which is not a {kind} class of {', '.join(sorted(_FAMILIES))}")
    return cls


def _check_transformers(config: Any) -> None:
    if not isinstance(config, dict):
        raise ValueError("its host has no config")
    for key, value in clean_config(config).items():
        if key in _FORBIDDEN and value not in (None, False, {}):
            raise ValueError(f"its config sets {key}, which can name code or weights elsewhere")
        if key in _LABELS:
            if not isinstance(value, dict) or any(isinstance(v, (list, dict)) for v in value.values()):
                raise ValueError(f"its config has {key} that is not a table of words and numbers")
            continue
        if key == "model_type" and value and not _is_family(str(value)):
            raise ValueError(f"its config is of model_type {value!r}, which is not one of the known families")
        if isinstance(value, dict):
            _check_transformers(value)
        else:
            _check_value(f"config {key}", value)


def _is_family(model_type: str) -> bool:
    """Whether a model type is of a known family, or of one of its two towers."""
    plain = model_type.replace("-", "_")
    return any(plain == f + part for f in _FAMILIES for part in _PARTS)


def _check_names(what: str, given: Mapping[str, Any], allowed: frozenset[str]) -> None:
    if unknown := sorted(str(name) for name in set(given) - allowed):
        raise ValueError(
            f"{what} may not name {', '.join(unknown)}: a model folder says sizes and switches, and nothing that loads "
            f"weights or code. Leave them out, or build the host yourself and pass model="
        )


def _check_value(what: str, value: Any, depth: int = 0) -> None:
    """Refuse anything but None, switches, finite numbers, single words, and lists and dicts of them."""
    if value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {value}, which is not a finite number")
        return
    if isinstance(value, str):
        if value and not _WORD.fullmatch(value):
            raise ValueError(f"{what} is {value!r}: a plain word is expected, not a path or an address")
        return
    if isinstance(value, (list, tuple)) and depth < _LARGEST_NESTING:
        for item in value:
            _check_value(what, item, depth + 1)
        return
    if isinstance(value, dict) and depth < _LARGEST_NESTING:
        for key, item in value.items():
            _check_value(what, str(key), depth + 1)
            _check_value(what, item, depth + 1)
        return
    raise ValueError(f"{what} is {value!r}: numbers, words and lists of them are expected")
