"""An observation as tokens: patches of every camera, the robot's own state, and the words of the task.

Every camera goes through one image encoder, where its patches carry coordinates and any encoding acts. In the policy's
own encoder over all cameras there is no rotary encoding: a patch token gets sines and cosines of its position in its
image and a learned vector of its camera added, whatever the encoding under comparison. Coordinates of different cameras
have no common frame, and a translation-invariant image encoder does not say where in the image an object is.
"""

import hashlib
import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...attention import Attention
from ...baselines import SinCos
from ...coords import grid
from ...models.blocks import Block
from ...models.initialise import fan_in_, initialise
from ...models.vit import ViT

WORDS = 16  # of a task text; further ones are ignored
BUCKETS = 1024
_PLACE_SCALE = 8.0  # normalised positions −1 … 1 become ± 8, whose sines differ from patch to patch


class ImageEncoder(nn.Module):
    """Patch tokens (b, n, dim) of images (b, 3, S, S) in [−1, 1], with depth (b, S, S) in metres or None.

    model: a stringpe `ViT`; or, with its width `dim` and its `patch_size`, any module that returns patch tokens as a
    tensor or in `last_hidden_state`, such as a SigLIP of transformers with `stringpe.attach`. Tokens before the patches
    (a class token) are dropped: patches are the last rows × columns. freeze: do not train it.
    """

    def __init__(self, model: nn.Module, *, dim: int = 0, patch_size: int = 0, freeze: bool = False):
        super().__init__()
        if isinstance(model, ViT):
            dim, patch_size = model.dim, model.patch_size
        if not dim or not patch_size:
            raise ValueError(
                f"the width and the patch size of a {type(model).__name__} are not known: pass dim and patch_size"
            )
        self.model, self.dim, self.patch_size, self.freeze = model, dim, patch_size, freeze
        self.wants_depth = isinstance(model, ViT) and model.depth != "none"
        if freeze:
            model.requires_grad_(False)

    def forward(self, image: Tensor, depth: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            if isinstance(self.model, ViT):
                return self.model.features(image, depth if self.wants_depth else None).tokens
            found = self.model(image)
        tokens: Tensor = found if isinstance(found, Tensor) else found.last_hidden_state
        rows, columns = self.size(image)
        if tokens.ndim != 3 or tokens.shape[1] < rows * columns or tokens.shape[2] != self.dim:
            wanted = f"({len(image)}, {rows * columns} or more, {self.dim})"
            raise ValueError(
                f"the image encoder gave {tuple(tokens.shape)}, not tokens {wanted}: check dim and patch_size"
            )
        return tokens[:, -rows * columns :]

    def size(self, image: Tensor) -> tuple[int, int]:
        """Rows and columns of patches."""
        return image.shape[-2] // self.patch_size, image.shape[-1] // self.patch_size


class Observer(nn.Module):
    """Cameras, state and words to tokens (b, n, dim), through `layers` of attention over all of them.

    blind: share of the training examples whose state token is replaced by 0."""

    def __init__(
        self,
        encoder: ImageEncoder,
        *,
        cameras: int,
        state_dim: int,
        dim: int,
        layers: int,
        num_heads: int,
        mlp_ratio: float,
        blind: float = 0.0,
    ):
        super().__init__()
        self.encoder, self.blind = encoder, blind
        self.enter = nn.Linear(encoder.dim, dim)
        self.place = SinCos(dim)
        self.camera = nn.Parameter(torch.empty(cameras, 1, dim))
        self.state = nn.Sequential(nn.Linear(state_dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.word = nn.Embedding(BUCKETS, dim, padding_idx=0)
        self.order = SinCos(dim, coord_dim=1)
        hidden = int(mlp_ratio * dim)
        self.blocks = nn.ModuleList(Block(dim, Attention(dim, num_heads), hidden, 0.0, 0.0) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        initialise(self, skip=[encoder])  # which may be trained

    def reset_parameters(self) -> None:
        """Image tokens and the robot's state enter about as large as the sines of positions beside them."""
        fan_in_(self.enter)
        fan_in_(self.state[0])  # type: ignore[arg-type]
        fan_in_(self.state[2])  # type: ignore[arg-type]

    def forward(self, image: Tensor, depth: Tensor | None, state: Tensor, words: Tensor) -> Tensor:
        """image (b, k, 3, S, S) in [−1, 1], depth (b, k, S, S) or None, state (b, s) normalised, words (b, w)."""
        count = image.shape[1]
        tokens = self.enter(self.encoder(image.flatten(0, 1), None if depth is None else depth.flatten(0, 1)))
        plane = grid(*self.encoder.size(image), units="normalised", device=image.device)
        tokens = tokens.unflatten(0, (-1, count)) + self.place(_PLACE_SCALE * plane).to(tokens.dtype) + self.camera
        numbers = torch.arange(words.shape[1], device=words.device, dtype=torch.float32)[:, None]
        said = self.word(words) + self.order(numbers) * (words > 0)[..., None]
        own = self.state(state)
        if self.training and self.blind:
            own = own * (torch.rand(len(own), 1, device=own.device) >= self.blind)
        x = torch.cat([tokens.flatten(1, 2), own[:, None], said.to(tokens.dtype)], dim=1)
        for block in self.blocks:
            x = block(x, None)
        return self.norm(x)


def hash_words(texts: Sequence[str]) -> Tensor:
    """Task texts as numbers (b, WORDS): a hash per word, 0 after the last. There is no vocabulary: any text is fine."""
    rows = torch.zeros(len(texts), WORDS, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        for i, word in enumerate(re.findall(r"\w+", text.lower())[:WORDS]):
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            row[i] = 1 + int.from_bytes(digest, "big") % (BUCKETS - 1)
    return rows
