"""A random SigLIP or PaliGemma on disk, as transformers writes them: 16 px in patches of 4."""

import torch

SIGLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SIGLIP |= {"image_size": 16, "patch_size": 4}


def write_tower(folder, kind):
    """A random SigLIP or PaliGemma on disk, and its vision tower."""
    import transformers

    torch.manual_seed(0)
    if kind == "siglip":
        tower = model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SIGLIP))
    else:
        small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        text = small | {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40}
        vision = SIGLIP | {"model_type": "siglip_vision_model", "projection_dim": 16, "vision_use_head": False}
        config = transformers.PaliGemmaConfig(
            vision_config=vision, text_config=text, image_token_index=39, projection_dim=16, hidden_size=16
        )
        model = transformers.PaliGemmaForConditionalGeneration(config)
        tower = model.model.vision_tower
    model.save_pretrained(folder)
    return tower.eval()
