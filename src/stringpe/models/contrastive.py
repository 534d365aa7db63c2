"""Images and texts in one space: two towers whose unit embeddings are compared by their scalar product.

model = Contrastive(vit("vit_base_patch16", encoding="cayley", coord_dim=3), TextTower(vocab=32000, width=768))
image, text, scale, bias = model(images, tokens, depth)      # logits = scale · image @ text.T + bias
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coords import Calibration
from .initialise import draw_by_fan_in
from .text import TextTower
from .tokenizer import Tokenizer
from .vit import ViT

SCALE, BIAS = math.log(10), -10.0
"""The values at which SigLIP starts t and b."""


class Embeddings(NamedTuple):
    """Unit vectors image (b, width) and text (k, width), and the factor e^t (1,) and bias b (1,) of their logits."""

    image: Tensor
    text: Tensor
    scale: Tensor
    bias: Tensor


def start_bias(bias: float | str, batch: int) -> float:
    """The value at which the bias starts: a number, or "auto" for −log(B − 1), which minimises the sigmoid loss of a
    batch of B pairs while all embeddings are alike: of the B texts of an image one is a match, with odds 1 : B − 1."""
    if bias != "auto":
        try:
            return float(bias)
        except ValueError:
            raise ValueError(f"the bias must be a number or 'auto', got {bias!r}") from None
    if batch < 2:
        raise ValueError(f"the bias 'auto' is −log(B − 1) and needs a batch of at least 2, got {batch}")
    return -math.log(batch - 1)


class Contrastive(nn.Module):
    """A ViT (or ViTD) and a text tower, with a projection to the width of the text embeddings, and scale and bias of
    the logits e^t s + b, where s is the scalar product of two embeddings.

    scale: the value at which t starts. bias: the value at which b starts; see `start_bias` for small batches.
    """

    def __init__(self, image: ViT, text: TextTower, *, scale: float = SCALE, bias: float = BIAS):
        super().__init__()
        self.image, self.text = image, text
        self.projection = nn.Linear(image.dim, text.width)
        self.start = (scale, bias)
        self.scale, self.bias = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))  # sharding takes no scalars
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset projection, scale and bias; the towers reset themselves."""
        draw_by_fan_in(self.projection, gain=1.0)
        nn.init.constant_(self.scale, self.start[0])
        nn.init.constant_(self.bias, self.start[1])

    @property
    def width(self) -> int:
        return self.text.width

    def forward(
        self,
        image: Tensor,
        tokens: Tensor,
        depth: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> Embeddings:
        """image (b, 3, H, W), tokens (k, n) and depth (b, H, W) in metres or None. An image tower in the world frame
        also takes calibration, and may take several views per sample: image (b, v, 3, H, W), depth (b, v, H, W)."""
        return Embeddings(
            self.embed_image(image, depth, calibration), self.embed_text(tokens), self.scale.exp(), self.bias
        )

    def embed_image(self, image: Tensor, depth: Tensor | None = None, calibration: Calibration | None = None) -> Tensor:
        """Unit vectors (b, width), float32."""
        pooled = self.image.features(image, depth, calibration=calibration).pooled
        return F.normalize(self.projection(pooled).float(), dim=-1)

    def embed_text(self, tokens: Tensor) -> Tensor:
        """Unit vectors (k, width), float32."""
        return F.normalize(self.text(tokens).float(), dim=-1)


def class_embeddings(
    model: Contrastive, tokenizer: Tokenizer, names: Sequence[str], templates: Sequence[str] = ("a photo of a {}.",)
) -> Tensor:
    """One unit vector per name, (classes, width): the mean of its embeddings in all templates. Zero-shot, an image with
    embedding e belongs to the class with the largest entry of `class_embeddings(…) @ e`."""
    wrong = [template for template in templates if "{}" not in template]
    if wrong or not templates or not names:
        raise ValueError(
            f"zero-shot classes need names, and templates with {{}} where the name goes, got {wrong or list(names)}"
        )
    texts = [template.replace("{}", name) for name in names for template in templates]
    tokens = tokenizer.encode(texts, model.text.context).to(model.scale.device)
    embeddings = torch.cat([model.embed_text(part) for part in tokens.split(256)])
    return F.normalize(embeddings.unflatten(0, (len(names), len(templates))).mean(1), dim=-1)
