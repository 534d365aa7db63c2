"""OWL-ViT: open-vocabulary detection with one box and one comparison with every query for every image token.

    detector = OwlViT(vit("vit_base_patch16", encoding="cayley"), TextTower(vocab=32000, width=768))
    found = detector(images, tokens)         # images (b, 3, S, S) padded squares in [−1, 1], tokens (q, n) of texts

Boxes are (cx, cy, w, h) in [0, 1] on the padded square; `square.from_square` brings them back to the image.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..geometry.boxes import giou, iou, to_corners
from .class_head import ClassHead, unit
from .text import TextTower
from .vit import ViT

ANCHORS = {"centre": 0.5, "corner": 1.0}
"""Where in its patch a token's box starts. "corner" (right, bottom) is how OWL-ViT was trained; at the last row and
column it saturates the sigmoid, so new models start from the centre."""

_EPS = 1e-4
_NEAR = 0.8  # of the best overlap: boxes this good compete for being the query


class Detections(NamedTuple):
    """logits (b, n, q) for every token and query; boxes (b, n, 4), cxcywh in [0, 1] on the padded square; unit
    embeddings (b, n, e); objectness logits (b, n), of OWLv2 alone; and the query embeddings that were given or read,
    before any index."""

    logits: Tensor
    boxes: Tensor
    embeddings: Tensor
    objectness: Tensor | None = None
    queries: Tensor | None = None


class BoxHead(nn.Module):
    """An MLP of three layers with GELU; the last starts at zero, so that a box starts as its token's patch."""

    def __init__(self, dim: int, out: int = 4):
        super().__init__()
        last = nn.Linear(dim, out)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.ModuleList([nn.Linear(dim, dim), nn.Linear(dim, dim), last])

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.gelu(self.layers[0](tokens))
        return self.layers[2](F.gelu(self.layers[1](x)))


def patch_bias(size: tuple[int, int], anchor: str = "centre", device: torch.device | None = None) -> Tensor:
    """The logits (n, 4) of every patch's place and size (cx, cy, w, h) on a grid of `size` rows and columns."""
    rows, columns = size
    inside = ANCHORS[anchor]
    y = (torch.arange(rows, device=device) + inside) / rows
    x = (torch.arange(columns, device=device) + inside) / columns
    centre = torch.stack([x.repeat(rows), y.repeat_interleave(columns)], -1)
    box = torch.cat([centre, centre.new_tensor([1 / columns, 1 / rows]).expand_as(centre)], -1)
    return torch.log(box + _EPS) - torch.log1p(_EPS - box)


class Detector(nn.Module, ABC):
    """Image tokens and texts through the two heads of OWL-ViT. What the towers are is a subclass's matter."""

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
        """Image sides are multiples of it."""

    @abstractmethod
    def see(self, image: Tensor, depth: Tensor | None = None) -> tuple[Tensor, tuple[int, int]]:
        """Tokens (b, n, dim) of images in [−1, 1], row by row, and the size of their grid."""

    @abstractmethod
    def read(self, text: Tensor) -> Tensor:
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
    ) -> Detections:
        """Of images (b, 3, H, W) in [−1, 1], depth (b, H, W) in metres or None, and either text or queries.

        text: token numbers (k, n). index: (b, q), which of the k texts are an image's own queries; without, all are.
        queries: embeddings in place of text, (q, e) or (b, q, e), used as they are: unit vectors, or means of them.
        mask: (q,) or (b, q), true where there is a query."""
        if (text is None) == (queries is None):
            raise ValueError("a detector takes either text (token numbers) or queries (embeddings): pass one of them")
        if queries is None:
            assert text is not None
            queries = self.queries(text)
        tokens, size = self.see(image, depth)
        named = self.class_head(tokens, queries if index is None else queries[index], mask, normalised=True)
        boxes, objectness = self._boxes(tokens, size), self._objectness(tokens)
        return Detections(named.logits, boxes, named.embeddings, objectness, queries)

    def queries(self, text: Tensor) -> Tensor:
        """Unit query embeddings (q, e) of token numbers (q, n)."""
        return unit(self.read(text).float())

    def image_queries(self, image: Tensor, box: Tensor | None = None, depth: Tensor | None = None) -> Tensor:
        """Unit query embeddings (b, e) of what query images (b, 3, H, W) show, for detection by example.

        box: corners (b, 4) in [0, 1] on the padded square; without, the token that looks most like an object where the
        model knows (OWLv2), else the whole square. Of the tokens whose boxes overlap it almost as well as the best one,
        the one whose embedding is least like the image's mean is taken, as in OWL-ViT: the mean is background."""
        tokens, size = self.see(image, depth)
        with torch.autocast(tokens.device.type, enabled=False):
            embeddings = self.class_head.project(tokens.float())
        objectness = self._objectness(tokens)
        if box is None and objectness is not None:
            best = objectness.argmax(1)
        else:
            whole = tokens.new_tensor([0.0, 0.0, 1.0, 1.0]).expand(len(tokens), 4)
            best = _chosen(to_corners(self._boxes(tokens, size)), embeddings, whole if box is None else box)
        return unit(embeddings[torch.arange(len(best), device=best.device), best])

    def _boxes(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):  # bf16 would round a box by half a percent
            moved = self.box_head(tokens.to(self.class_head.project.weight.dtype))
            return (moved + patch_bias(size, self.anchor, tokens.device)).sigmoid()

    def _objectness(self, tokens: Tensor) -> Tensor | None:
        if self.objectness_head is None:
            return None
        with torch.autocast(tokens.device.type, enabled=False):
            return self.objectness_head(tokens.detach().to(self.class_head.project.weight.dtype))[..., 0]


class OwlViT(Detector):
    """Our ViT (or ViTD) and text tower with the heads of OWL-ViT. Query embeddings have the text tower's width. factor:
    where that of the class logits starts, as in `ClassHead`."""

    def __init__(self, image: ViT, text: TextTower, *, factor: float = 1.0):
        super().__init__(image.dim, text.width, factor=factor)
        self.image, self.text = image, text
        image.map_pool, image.head = None, nn.Identity()  # tokens are all that is looked at: no parameters without use

    @property
    def context(self) -> int:
        return self.text.context

    @property
    def patch_size(self) -> int:
        return self.image.patch_size

    def see(self, image: Tensor, depth: Tensor | None = None) -> tuple[Tensor, tuple[int, int]]:
        features = self.image.features(image, depth)
        return features.tokens, features.size

    def read(self, text: Tensor) -> Tensor:
        return self.text(text)


def _chosen(found: Tensor, embeddings: Tensor, box: Tensor) -> Tensor:
    """The token (b,) that stands for a box (b, 4), from boxes (b, n, 4) as corners and embeddings (b, n, e)."""
    overlap = iou(found, box[:, None])
    none = (overlap == 0).all(1, keepdim=True)
    overlap = torch.where(none, giou(found, box[:, None]), overlap)
    good = overlap >= overlap.amax(1, keepdim=True) * _NEAR
    alike = (embeddings * embeddings.mean(1, keepdim=True)).sum(-1)
    return torch.where(good, alike, torch.inf).argmin(1)
