"""A tiny random CLIP or SigLIP on disk, with its tokeniser."""

import json

import torch

TEXTS = ("an optical illusion", "a photo of a room", "a mirror", "a dog in the snow")


def write_image_text_model(folder, kind="clip"):
    import transformers

    from stringpe.models.tokenizer import Tokenizer

    torch.manual_seed(0)
    tokenizer = Tokenizer.train(TEXTS, vocab=300)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    end = tokenizer.inner.token_to_id("[END]")
    tokens = {"vocab_size": len(tokenizer), "max_position_embeddings": 16, "bos_token_id": end, "eos_token_id": end}
    sizes = {"text_config": small | tokens, "vision_config": small | {"image_size": 24, "patch_size": 8}}
    if kind == "clip":
        model = transformers.CLIPModel(transformers.CLIPConfig(**sizes, projection_dim=16, logit_scale_init_value=5.0))
    else:
        model = transformers.SiglipModel(transformers.SiglipConfig(**sizes))
        model.logit_scale.data.fill_(5.0)
    with torch.no_grad():  # a random model sees too little of anything
        for parameter in model.vision_model.parameters():
            parameter *= 8 if parameter.ndim > 1 else 1
    model.eval().save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    preparation = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "do_center_crop": kind == "clip"}
    (folder / "preprocessor_config.json").write_text(json.dumps(preparation))
    return model, tokenizer
