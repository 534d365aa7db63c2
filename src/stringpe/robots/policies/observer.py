"""An observation as tokens: patches of every camera, the robot's own state, and the words of the task.

Every camera goes through one image encoder, where its patches carry coordinates and any encoding acts. What happens in
the policy's own encoder, over all cameras, depends on the frame.

"camera": there is no rotary encoding. A patch token gets sines and cosines of its position in its image and a learned
vector of its camera added, whatever the encoding under comparison. Coordinates of different cameras have no common
frame, and a translation-invariant image encoder does not say where in the image an object is.

"world": cameras are calibrated, and every patch has a point in the robot's frame, from its depth. The encoding acts on
these points across all views, so that attention between cameras is a function of metric displacement; the robot's state
and the words of the task stand at the origin, the robot's base, so that attention between them and a patch is a
function of where the patch is. What is added to a token are sines and cosines of its point, and the camera's vector.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention import Attention
from ...baselines import SinCos
from ...coords import Calibration, grid
from ...models.blocks import NONE, Block, Layers, build_encodings, is_absolute, run_blocks
from ...models.depth import WorldLift, world_points
from ...models.initialise import draw_by_fan_in, initialise
from ...models.vit import ViT

WORDS = 16  # of a task text; further ones are ignored
BUCKETS = 1024
_PLACE_SCALE = 8.0  # normalised positions −1 … 1 become ± 8, whose sines differ from patch to patch
_POINT_SCALE = 32.0  # per metre: sines of the shortest wavelength, 20 cm, differ from centimetre to centimetre


class ImageEncoder(nn.Module):
    """Patch tokens (b, n, dim) of images (b, 3, S, S) in [−1, 1], with depth (b, S, S) in metres or None, and
    calibration where the model sees the world frame.

    model: a stringpe `ViT`; or, with its width `dim` and its `patch_size`, any module that returns patch tokens as a
    tensor or in `last_hidden_state`, such as a SigLIP of transformers with `stringpe.attach`; one that was lifted
    (`stringpe.lift`) sees depth. Tokens before the patches (a class token) are dropped: patches are the last
    rows × columns. freeze: do not train it.
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
        self.wants_depth = model.depth != "none" if isinstance(model, ViT) else hasattr(model, "depth_lift")
        if freeze:
            model.requires_grad_(False)

    def forward(self, image: Tensor, depth: Tensor | None, calibration: Calibration | None = None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            if isinstance(self.model, ViT):
                known = calibration if self.model.frame == "world" else None
                return self.model.features(image, depth if self.wants_depth else None, calibration=known).tokens
            output = self.model(image, depth=depth) if self.wants_depth else self.model(image)
        tokens: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
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

    blind: share of the training examples whose state token is replaced by 0. frame, encoding, encoding_options: as in
    `PolicyNet`."""

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
        frame: str = "camera",
        encoding: str = "none",
        encoding_options: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.encoder, self.blind, self.frame = encoder, blind, frame
        self.enter = nn.Linear(encoder.dim, dim)
        self.place = SinCos(dim, coord_dim=3 if frame == "world" else 2)
        self.camera = nn.Parameter(torch.empty(cameras, 1, dim))
        self.state = nn.Sequential(nn.Linear(state_dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.word = nn.Embedding(BUCKETS, dim, padding_idx=0)
        self.order = SinCos(dim, coord_dim=1)
        hidden = int(mlp_ratio * dim)
        sizes = {"head_dim": dim // num_heads, "num_heads": num_heads, "coord_dim": 3}
        name = encoding if frame == "world" and not is_absolute(encoding) else "none"
        options = {} if name == NONE else encoding_options or {}  # they are the image encoder's, too
        encodings = build_encodings(name, options, layers, sizes, shared=False)
        self.blocks = Layers(Block(dim, Attention(dim, num_heads, e), hidden, 0.0, 0.0) for e in encodings)
        self.lift = None if name == "none" or not layers else WorldLift(encoder.patch_size)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        initialise(self, skip=[encoder])  # which may be trained

    def reset_parameters(self) -> None:
        """Image tokens and the robot's state enter about as large as the sines of positions beside them."""
        draw_by_fan_in(self.enter)
        draw_by_fan_in(self.state[0])  # type: ignore[arg-type]
        draw_by_fan_in(self.state[2])  # type: ignore[arg-type]

    @property
    def wants_depth(self) -> bool:
        """Whether depth is needed, by the encoder or to place patches in the world."""
        return self.encoder.wants_depth or self.frame == "world"

    def forward(
        self,
        image: Tensor,
        depth: Tensor | None,
        state: Tensor,
        words: Tensor,
        calibration: Calibration | None = None,
    ) -> Tensor:
        """image (b, k, 3, S, S) in [−1, 1], depth (b, k, S, S) or None, state (b, s) normalised, words (b, w), and in
        the world frame calibration (b, k, …)."""
        patches, points = self._patch_tokens(image, depth, calibration)
        numbers = torch.arange(words.shape[1], device=words.device, dtype=torch.float32)[:, None]
        word_tokens = self.word(words) + self.order(numbers) * (words > 0)[..., None]
        state_token = self.state(state)
        if self.training and self.blind:
            visible = torch.rand(len(state_token), 1, device=state_token.device) >= self.blind
            state_token = state_token * visible
        x = torch.cat([patches, state_token[:, None], word_tokens.to(patches.dtype)], dim=1)
        if self.lift is not None:
            assert points is not None
            coords = F.pad(
                self.lift.measure(points), (0, 0, 0, x.shape[1] - points.shape[1])
            )  # the others at the origin
            return self.norm(run_blocks(self.blocks, x, coords))
        return self.norm(self.blocks(x, [{"coords": None}] * len(self.blocks)))

    def _patch_tokens(
        self, image: Tensor, depth: Tensor | None, calibration: Calibration | None
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (b, k n, dim) of all cameras with what is added to them, and in the world frame their points."""
        count = image.shape[1]
        merged = None if calibration is None else Calibration(*(matrix.flatten(0, 1) for matrix in calibration))
        tokens = self.encoder(image.flatten(0, 1), None if depth is None else depth.flatten(0, 1), merged)
        tokens = self.enter(tokens).unflatten(0, (-1, count)) + self.camera
        if self.frame == "camera":
            plane = grid(*self.encoder.size(image), units="normalised", device=image.device)
            return (tokens + self.place(_PLACE_SCALE * plane).to(tokens.dtype)).flatten(1, 2), None
        if depth is None or calibration is None:
            raise ValueError("a policy in the world frame needs depth and calibration of every camera")
        points = world_points(depth, calibration, self.encoder.patch_size)
        return tokens.flatten(1, 2) + self.place(_POINT_SCALE * points).to(tokens.dtype), points


def hash_words(texts: Sequence[str]) -> Tensor:
    """Task texts as numbers (b, WORDS): a hash per word, 0 after the last. There is no vocabulary: any text is fine."""
    rows = torch.zeros(len(texts), WORDS, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        for i, word in enumerate(re.findall(r"\w+", text.lower())[:WORDS]):
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            row[i] = 1 + int.from_bytes(digest, "big") % (BUCKETS - 1)
    return rows
