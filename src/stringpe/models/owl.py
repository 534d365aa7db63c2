"""OWL-ViT: open-vocabulary detection. Every image token predicts one box and is compared with every query.

    detector = OwlViT(vit("vit_base_patch16", encoding="cayley"), TextTower(vocab=32000, width=768))
    detections = detector(images, tokens)    # images (b, 3, S, S) padded squares in [−1, 1], tokens (q, n) of texts

Boxes are (cx, cy, w, h) in [0, 1] on the padded square; `square.from_square` brings them back to the image.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coords import Calibration
from ..geometry.boxes import giou, iou, to_corners
from .initialise import draw_by_fan_in, initialise, set_to_zero
from .text import TextTower
from .vit import ViT

PRIOR = 0.01
"""The probability that a token shows a query before anything is learned: most tokens show none."""

ANCHORS = {"centre": 0.5, "corner": 1.0}
"""The point of its patch at which a token's box starts. OWL-ViT was trained with "corner" (right, bottom), which at the
last row and column saturates the sigmoid, so new models start from the centre."""

_UNIT_EPS = 1e-6
_LOGIT_EPS = 1e-4
_NEARLY_BEST = 0.8  # of the best overlap: from these boxes the query is chosen


class Detections(NamedTuple):
    """What a detector predicts: logits (b, n, q) for every token and query; boxes (b, n, 4), cxcywh in [0, 1] on the
    padded square; unit embeddings (b, n, e) of the tokens; objectness logits (b, n), of OWLv2 only; and the embeddings
    of all queries, before any index."""

    logits: Tensor
    boxes: Tensor
    embeddings: Tensor
    objectness: Tensor | None = None
    queries: Tensor | None = None


class ClassScores(NamedTuple):
    """What a class head returns: logits (b, n, q), and the tokens' unit embeddings (b, n, e), which can be queries."""

    logits: Tensor
    embeddings: Tensor


def unit(x: Tensor) -> Tensor:
    """Vectors (…, e) of length one; the zero vector stays zero."""
    return x / (x.norm(dim=-1, keepdim=True) + _UNIT_EPS)


class ClassHead(nn.Module):
    """logit = (e·q + shift(x)) · (elu(scale(x)) + 1), e = W x / ‖W x‖, for tokens x (b, n, dim) and queries q, unit
    vectors.

    shift and scale are linear in x and start the same for every token: the scale so that the factor behind it is
    `factor`, the shift so that a cosine of 0 has the probability `PRIOR`. OWL-ViT starts at a factor of 1, where the
    logit is the cosine + logit(PRIOR); towers that are new learn classes sooner from a larger one, such as SigLIP's 10.
    """

    def __init__(self, dim: int, query_dim: int, *, factor: float = 1.0):
        super().__init__()
        if factor < 1:
            raise ValueError(f"the factor of the logits must start at 1 or above, got {factor}")
        self.query_dim, self.factor = query_dim, factor
        self.project = nn.Linear(dim, query_dim)
        self.shift, self.scale = nn.Linear(dim, 1), nn.Linear(dim, 1)
        initialise(self)

    def reset_parameters(self) -> None:
        """Shift and scale start the same for every token."""
        draw_by_fan_in(self.project)
        for layer in (self.shift, self.scale):
            set_to_zero(layer)
        nn.init.constant_(self.scale.bias, self.factor - 1)  # elu(x) + 1 = x + 1 from 0 on
        nn.init.constant_(self.shift.bias, math.log(PRIOR / (1 - PRIOR)) / self.factor)

    def forward(self, tokens: Tensor, queries: Tensor, mask: Tensor | None = None) -> ClassScores:
        """queries: (q, e), the same for every image, or (b, q, e): unit vectors, or means of unit vectors. The logit of
        a mean is the mean of the logits, which is how prompt templates are averaged. mask: (q,) or (b, q), true where
        there is a query; the others get the lowest logit of the dtype."""
        self._check(tokens, queries, mask)
        with torch.autocast(tokens.device.type, enabled=False):  # bf16 has too few digits to rank hundreds of boxes
            tokens, queries = (x.to(self.project.weight.dtype) for x in (tokens, queries))
            embeddings = unit(self.project(tokens))
            cosine = embeddings @ queries.mT  # (b, n, q)
            logits = (cosine + self.shift(tokens)) * (F.elu(self.scale(tokens)) + 1)
        if mask is not None:
            logits = logits.masked_fill(~mask[..., None, :], torch.finfo(logits.dtype).min)
        return ClassScores(logits, embeddings)

    def _check(self, tokens: Tensor, queries: Tensor, mask: Tensor | None) -> None:
        good = queries.ndim in (2, 3) and queries.shape[-1] == self.query_dim and queries.shape[-2] > 0
        if not good or (queries.ndim == 3 and len(queries) != len(tokens)):
            raise ValueError(
                f"queries must be (q, {self.query_dim}) or ({len(tokens)}, q, {self.query_dim}) with at least one "
                f"query, got {tuple(queries.shape)}"
            )
        if mask is None:
            return
        shapes = [(queries.shape[-2],), (len(tokens), queries.shape[-2])]
        if mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
            raise ValueError(f"mask must be bool {shapes[0]} or {shapes[1]}, got {mask.dtype} {tuple(mask.shape)}")


class BoxHead(nn.Module):
    """An MLP of three layers with GELU; the last starts at zero, so that a box starts as its token's patch."""

    def __init__(self, dim: int, out: int = 4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, out)])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The first two layers keep the size of what goes through them; the last starts at zero."""
        first, second, last = self.layers
        draw_by_fan_in(first, gain=1.0)  # type: ignore[arg-type]
        draw_by_fan_in(second, gain=1.0)  # type: ignore[arg-type]
        set_to_zero(last)  # type: ignore[arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.gelu(self.layers[0](tokens))
        return self.layers[2](F.gelu(self.layers[1](x)))


def patch_bias(size: tuple[int, int], anchor: str = "centre", device: torch.device | None = None) -> Tensor:
    """The logits (n, 4) of the position and size (cx, cy, w, h) of every patch on a grid of `size` (rows, columns)."""
    rows, columns = size
    inside = ANCHORS[anchor]
    y = (torch.arange(rows, device=device) + inside) / rows
    x = (torch.arange(columns, device=device) + inside) / columns
    centre = torch.stack([x.repeat(rows), y.repeat_interleave(columns)], -1)
    extent = torch.stack(
        [torch.full_like(x, 1 / columns).repeat(rows), torch.full_like(y, 1 / rows).repeat(columns)], -1
    )
    box = torch.cat([centre, extent], -1)
    return torch.log(box + _LOGIT_EPS) - torch.log1p(_LOGIT_EPS - box)


class Detector(nn.Module, ABC):
    """Image tokens and texts through the two heads of OWL-ViT. Abstract: subclasses bring the towers."""

    anchor = "centre"

    def __init__(self, dim: int, query_dim: int, *, factor: float = 1.0):
        super().__init__()
        self.class_head, self.box_head = ClassHead(dim, query_dim, factor=factor), BoxHead(dim)
        self.objectness_head: BoxHead | None = None

    @property
    @abstractmethod
    def context(self) -> int:
        """The longest text, in tokens."""

    @property
    @abstractmethod
    def patch_size(self) -> int:
        """Side of a patch, of which image sides are multiples."""

    @abstractmethod
    def encode_image(
        self, image: Tensor, depth: Tensor | None = None, calibration: Calibration | None = None
    ) -> tuple[Tensor, tuple[int, int]]:
        """Tokens (b, n, dim) of images in [−1, 1], row by row and view after view, and the size of their grid."""

    @abstractmethod
    def encode_text(self, text: Tensor) -> Tensor:
        """Query embeddings (q, e) of token numbers (q, n)."""

    def forward(
        self,
        image: Tensor,
        text: Tensor | None = None,
        *,
        queries: Tensor | None = None,
        index: Tensor | None = None,
        mask: Tensor | None = None,
        depth: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> Detections:
        """Detect in images (b, 3, H, W) in [−1, 1], with depth (b, H, W) in metres or None, what text or queries name.

        calibration: for an image tower in the world frame, perhaps with several views per sample: image (b, v, 3, H, W)
        and depth (b, v, H, W). The tokens' boxes are then those of the first view, of the second, and so on.

        text: token numbers (k, n). index: (b, q), which of the k texts are an image's queries; by default all are.
        queries: embeddings in place of text, (q, e) or (b, q, e), used as they are: unit vectors, or means of them.
        mask: (q,) or (b, q), true where there is a query."""
        if (text is None) == (queries is None):
            raise ValueError("a detector takes either text (token numbers) or queries (embeddings): pass one of them")
        if queries is None:
            assert text is not None
            queries = self.queries(text)
        tokens, size = self.encode_image(image, depth, calibration)
        scores = self.class_head(tokens, queries if index is None else queries[index], mask)
        boxes, objectness = self._boxes(tokens, size), self._objectness(tokens)
        return Detections(scores.logits, boxes, scores.embeddings, objectness, queries)

    def queries(self, text: Tensor) -> Tensor:
        """Unit query embeddings (q, e) of token numbers (q, n)."""
        return unit(self.encode_text(text).float())

    def image_queries(self, image: Tensor, box: Tensor | None = None, depth: Tensor | None = None) -> Tensor:
        """Unit query embeddings (b, e) of what query images (b, 3, H, W) show, for detection by example.

        box: corners (b, 4) in [0, 1] on the padded square. By default it is the whole square; OWLv2, which predicts
        objectness, takes the token with the highest. Among the tokens whose boxes overlap the box almost as well as the
        best one, the one whose embedding is least like the image's mean is chosen, as in OWL-ViT: the mean is
        background."""
        tokens, size = self.encode_image(image, depth)
        with torch.autocast(tokens.device.type, enabled=False):
            embeddings = self.class_head.project(tokens.float())
        objectness = self._objectness(tokens)
        if box is None and objectness is not None:
            best = objectness.argmax(1)
        else:
            whole = tokens.new_tensor([0.0, 0.0, 1.0, 1.0]).expand(len(tokens), 4)
            best = _choose_token(to_corners(self._boxes(tokens, size)), embeddings, whole if box is None else box)
        return unit(embeddings[torch.arange(len(best), device=best.device), best])

    def _boxes(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):  # bf16 would shift a box by half a percent
            offsets = self.box_head(tokens.to(self.class_head.project.weight.dtype))
            bias = patch_bias(size, self.anchor, tokens.device)
            return (offsets + bias.repeat(tokens.shape[1] // len(bias), 1)).sigmoid()  # the same in every view

    def _objectness(self, tokens: Tensor) -> Tensor | None:
        if self.objectness_head is None:
            return None
        with torch.autocast(tokens.device.type, enabled=False):
            return self.objectness_head(tokens.detach().to(self.class_head.project.weight.dtype))[..., 0]


class OwlViT(Detector):
    """Our ViT (or ViTD) and text tower with the heads of OWL-ViT. Query embeddings have the text tower's width.

    image: its `trunk` is used, so that the model itself keeps its classifier and its pooling. If it pools by a class
        token, patches are multiplied by that token and normalised, as OWL-ViT does with CLIP's.
    factor: the value at which the factor of the class logits starts, as in `ClassHead`.
    """

    def __init__(self, image: ViT, text: TextTower, *, factor: float = 1.0):
        super().__init__(image.dim, text.width, factor=factor)
        self.image, self.text = image.trunk(), text
        self.merge = nn.LayerNorm(image.dim, eps=1e-6) if image.pool == "cls" else None

    @property
    def context(self) -> int:
        return self.text.context

    @property
    def patch_size(self) -> int:
        return self.image.patch_size

    def encode_image(
        self, image: Tensor, depth: Tensor | None = None, calibration: Calibration | None = None
    ) -> tuple[Tensor, tuple[int, int]]:
        features = self.image.features(image, depth, calibration=calibration)
        if self.merge is None:
            return features.tokens, features.size
        return self.merge(features.tokens * features.pooled[:, None]), features.size

    def encode_text(self, text: Tensor) -> Tensor:
        return self.text(text)


def _choose_token(boxes: Tensor, embeddings: Tensor, box: Tensor) -> Tensor:
    """The token (b,) that stands for a box (b, 4), from boxes (b, n, 4) as corners and embeddings (b, n, e)."""
    overlap = iou(boxes, box[:, None])
    disjoint = (overlap == 0).all(1, keepdim=True)
    overlap = torch.where(disjoint, giou(boxes, box[:, None]), overlap)
    good = overlap >= overlap.amax(1, keepdim=True) * _NEARLY_BEST
    alike = (embeddings * embeddings.mean(1, keepdim=True)).sum(-1)
    return torch.where(good, alike, torch.inf).argmin(1)
