"""A transformer over point clouds: groups of points are the tokens, their centres in space the coordinates.

    model = PointTransformer(dim=128, layers=4, num_heads=4, encoding="cayley", num_classes=10)
    logits = model(points, centres)       # points (b, g, k, 3), centres (b, g, 3), in metres or any other unit

A token is computed from the offsets of its points from their centre alone. With an encoding of the form of STRING and
softmax attention, outputs do not depend on where the cloud lies as a whole: moving it changes nothing.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_choice, check_count, check_floats, check_number
from ..encoding import PositionEncoding
from ..rotate import product_dtype
from .blocks import ATTENTIONS, build_absolute, build_encodings, check_encoding, check_tower, run_blocks, stack_blocks
from .initialise import draw_classifier, initialise

POOLS = ("mean", "mean+max")
"""How the tokens of a cloud become one vector."""


class PointTransformer(nn.Module):
    """Groups of points to class logits.

    scale: coordinates are this times the centres, so that the distances that matter are of the order of the
        wavelengths; 8 suits clouds within [−1, 1].
    pool: "mean" of the tokens, or "mean+max", the mean beside the largest value of every channel.
    encoding, encoding_options, share_layers, attention, mlp_ratio, dropout, drop_path: as in `stringpe.ViT`. Absolute
        embeddings are "sincos": a learned table has no grid to stand on here.
    """

    def __init__(
        self,
        *,
        dim: int,
        layers: int,
        num_heads: int,
        num_classes: int,
        encoding: str | PositionEncoding = "cayley",
        encoding_options: Mapping[str, Any] | None = None,
        share_layers: bool = False,
        scale: float = 8.0,
        pool: str = "mean",
        attention: str = "softmax",
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        check_encoding(encoding)
        if encoding == "absolute":
            raise ValueError("points have no grid for a learned table: use encoding='sincos' for absolute embeddings")
        check_choice("attention", attention, tuple(ATTENTIONS))
        check_choice("pool of a point transformer", pool, POOLS)
        check_tower(dim, layers, num_heads, mlp_ratio, dropout, drop_path)
        check_count("num_classes", num_classes)
        if check_number("scale", scale) <= 0:
            raise ValueError(f"scale must be above 0, got {scale}: it multiplies coordinates")
        self.scale, self.pool = scale, pool
        self.inner = nn.Sequential(nn.Linear(3, dim), nn.GELU(), nn.Linear(dim, dim))
        self.outer = nn.Sequential(nn.GELU(), nn.Linear(dim, dim))
        self.absolute = build_absolute(encoding, dim, (), 3)
        sizes = {"head_dim": dim // num_heads, "num_heads": num_heads, "coord_dim": 3}
        each = build_encodings(encoding, dict(encoding_options or {}), layers, sizes, shared=share_layers)
        heads = (ATTENTIONS[attention](dim, num_heads, encoding=e) for e in each)
        self.blocks = stack_blocks(dim, heads, layers, int(dim * mlp_ratio), dropout, drop_path)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim * len(pool.split("+")), num_classes)
        initialise(self)

    def reset_parameters(self) -> None:
        """Start the layers on offsets as torch does, which suits three inputs."""
        draw_classifier(self.head)
        for layer in (*self.inner, *self.outer):
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def forward(self, points: Tensor, centres: Tensor) -> Tensor:
        """Logits (b, classes) of points (b, g, k, 3) in groups around centres (b, g, 3)."""
        check_floats("points", points, ("b", None), ("g", None), ("k", None), ("3", 3))
        check_floats("centres", centres, ("b", None), ("g", None), ("3", 3))
        if centres.shape[:2] != points.shape[:2]:
            shapes = f"{tuple(points.shape)} and {tuple(centres.shape)}"
            raise ValueError(f"points must be (b, g, k, 3) and centres (b, g, 3), got {shapes}")
        offsets, weight = (points - centres[:, :, None]) * self.scale, self.head.weight
        if product_dtype(offsets) != product_dtype(weight):
            raise ValueError(
                f"points and centres are {offsets.dtype}, the model is {weight.dtype}: convert one of them"
            )
        coords = centres.to(torch.promote_types(centres.dtype, torch.float32)) * self.scale
        x = self.outer(self.inner(offsets).amax(2))  # (b, g, dim)
        if self.absolute is not None:
            x = x + self.absolute(coords).to(x.dtype)
        x = self.norm(run_blocks(self.blocks, x, coords))
        return self.head(x.mean(1) if self.pool == "mean" else torch.cat([x.mean(1), x.amax(1)], -1))


@torch.no_grad()
def group_points(points: Tensor, groups: int, size: int) -> tuple[Tensor, Tensor]:
    """Indices (b, groups) of centres and (b, groups, size) of their nearest points, in clouds (b, n, 3).

    Centres are chosen by farthest-point sampling: first the point farthest from the cloud's mean, then each time the
    point farthest from all those chosen so far. The same points are chosen when the cloud is moved or turned.
    """
    check_floats("points", points, ("b", None), ("n", None), ("3", 3))
    check_count("groups", groups)
    check_count("size", size)
    b, n, _ = points.shape
    if not 0 < groups <= n or not 0 < size <= n:
        raise ValueError(f"{groups} groups of {size} need as many points, and at least one; the clouds have {n}")
    x = points.double()
    rows = torch.arange(b, device=points.device)
    chosen = torch.empty(b, groups, dtype=torch.long, device=points.device)
    chosen[:, 0] = (x - x.mean(1, keepdim=True)).square().sum(-1).argmax(1)
    nearest = torch.full((b, n), torch.inf, dtype=x.dtype, device=points.device)
    for i in range(1, groups):
        nearest = torch.minimum(nearest, (x - x[rows, chosen[:, i - 1]][:, None]).square().sum(-1))
        chosen[:, i] = nearest.argmax(1)
    distance = torch.cdist(x[rows[:, None], chosen], x)  # (b, groups, n)
    return chosen, distance.topk(size, dim=-1, largest=False).indices
