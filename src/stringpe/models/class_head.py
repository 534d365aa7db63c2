"""The open-vocabulary class head of OWL-ViT: every image token is compared with every query embedding."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PRIOR = 0.01
"""Probability that a token shows a query, before anything is learned: most tokens show none."""

_EPS = 1e-6


class Named(NamedTuple):
    """What a class head says: logits (b, n, q), and the tokens' own unit embeddings (b, n, e), to be queries again."""

    logits: Tensor
    embeddings: Tensor


def unit(x: Tensor) -> Tensor:
    """Vectors (…, e) of length one; the zero vector stays zero."""
    return x / (x.norm(dim=-1, keepdim=True) + _EPS)


class ClassHead(nn.Module):
    """logit = (cos(e, q) + shift(x)) · (elu(scale(x)) + 1), e = W x, for tokens x (b, n, dim) and query embeddings q.

    shift and scale are linear in x and start the same for every token: at a factor of `factor`, and so that a cosine of
    0 has the probability `PRIOR`. OWL-ViT starts at a factor of 1, where the logit is the cosine + logit(PRIOR); towers
    that are new learn classes sooner from a larger one, as SigLIP's 10.
    """

    def __init__(self, dim: int, query_dim: int, *, factor: float = 1.0):
        super().__init__()
        if factor < 1:
            raise ValueError(f"the factor of the logits starts at 1 or above, got {factor}")
        self.query_dim, self.factor = query_dim, factor
        self.project = nn.Linear(dim, query_dim)
        self.shift, self.scale = nn.Linear(dim, 1), nn.Linear(dim, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.project.reset_parameters()
        for layer in (self.shift, self.scale):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.scale.bias, self.factor - 1)  # elu(x) + 1 = x + 1 from 0 on
        nn.init.constant_(self.shift.bias, math.log(PRIOR / (1 - PRIOR)) / self.factor)

    def forward(
        self, tokens: Tensor, queries: Tensor, mask: Tensor | None = None, *, normalised: bool = False
    ) -> Named:
        """queries: (q, e), the same for every image, or (b, q, e). mask: (q,) or (b, q), true where there is a query;
        the others get the lowest logit there is. normalised: queries are taken as they are, unit vectors or means of
        unit vectors: the logit of a mean is the mean of the logits, which is how prompt templates are averaged."""
        self._check(tokens, queries, mask)
        with torch.autocast(tokens.device.type, enabled=False):  # bf16 has too few digits to rank hundreds of boxes
            tokens, queries = (x.to(self.project.weight.dtype) for x in (tokens, queries))
            embeddings = unit(self.project(tokens))
            cosine = embeddings @ (queries if normalised else unit(queries)).mT  # (b, n, q)
            logits = (cosine + self.shift(tokens)) * (F.elu(self.scale(tokens)) + 1)
        if mask is not None:
            logits = logits.masked_fill(~mask[..., None, :], torch.finfo(logits.dtype).min)
        return Named(logits, embeddings)

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
