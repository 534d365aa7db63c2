"""A tiny random Depth-Anything model on disk."""

import json

import torch


def write_model(folder, kind="metric"):
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    torch.manual_seed(0)
    stages = [f"stage{i}" for i in (1, 2, 3, 4)]
    backbone = Dinov2Config(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, image_size=28, patch_size=14,
        out_features=stages, reshape_hidden_states=False, apply_layernorm=True,
    )  # fmt: skip
    config = DepthAnythingConfig(
        backbone_config=backbone, patch_size=14, reassemble_hidden_size=16, neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8, head_hidden_size=8, depth_estimation_type=kind, max_depth=20 if kind == "metric" else 1,
    )  # fmt: skip
    model = DepthAnythingForDepthEstimation(config)
    with torch.no_grad():  # a random model sees too little of anything
        model.head.conv3.weight *= 20
        model.head.conv3.bias += 0.5
    model.save_pretrained(folder)
    preparation = {
        "size": {"height": 42, "width": 42}, "ensure_multiple_of": 14, "keep_aspect_ratio": True, "resample": 3,
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "do_resize": True, "do_rescale": True,
        "do_normalize": True, "rescale_factor": 1 / 255, "do_pad": False, "image_processor_type": "DPTImageProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(preparation))
    return folder
