"""The vision transformer: an image becomes patches and coordinates, goes through blocks of attention that each hold an
encoding, and out through a pooled head.

    model = stringpe.vit("vit_base_patch16", encoding="cayley", coord_dim=3, num_classes=1000)
    logits = model(image, depth)          # image (b, 3, H, W), depth (b, H, W) in metres or None
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Attention
from ..baselines import LearnedAbsolute, SinCos
from ..coords import UNITS, grid, valid_depth, with_prefix
from ..encoding import PositionEncoding, create, names
from ..linear_attention import LinearAttention
from ..projection import Prepared, is_whole, prepare
from .depth import DepthLift, check_metres, surface_normals
from .stem import stem as make_stem

SIZES = {  # dim, layers, heads
    "test": (32, 2, 2),
    "micro": (128, 6, 4),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
ABSOLUTE = ("absolute", "sincos")
DEPTHS = ("none", "channel", "lift", "normals", "lift+channel", "lift+normals")
POOLS = ("mean", "cls", "map")


class Features(NamedTuple):
    """What a ViT sees: patch tokens (b, n, dim) row by row on the `size` grid of patches, one pooled vector (b, dim),
    and the patches' coordinates (n, c) or (b, n, c)."""

    tokens: Tensor
    pooled: Tensor
    coords: Tensor
    size: tuple[int, int]


class Block(nn.Module):
    """x + attention(norm x), then x + MLP(norm x); each branch is dropped per sample with probability drop_path."""

    def __init__(
        self, dim: int, attention: Attention | LinearAttention, mlp_dim: int, dropout: float, drop_path: float
    ):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_dim, dim))
        self.dropout, self.drop_path = nn.Dropout(dropout), drop_path

    def forward(
        self, x: Tensor, coords: Tensor | None, prepared: Prepared | None = None, mask: Tensor | None = None
    ) -> Tensor:
        given = {"prepared": prepared, "mask": mask}  # linear attention takes nothing prepared
        options = {name: value for name, value in given.items() if value is not None}
        x = x + self._branch(self.attention(self.norm1(x), coords, **options))
        return x + self._branch(self.mlp(self.norm2(x)))

    def _branch(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        if not self.training or self.drop_path == 0:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.drop_path
        return x * (keep / (1 - self.drop_path)).to(x.dtype)


def stack(
    dim: int,
    attention: Iterable[Attention | LinearAttention],
    layers: int,
    mlp_dim: int,
    dropout: float,
    drop_path: float,
) -> nn.ModuleList:
    """Blocks around these layers of attention; drop_path grows with depth from 0."""
    rates = (drop_path * i / max(layers - 1, 1) for i in range(layers))
    return nn.ModuleList(Block(dim, a, mlp_dim, dropout, rate) for a, rate in zip(attention, rates, strict=True))


def start_linear(model: nn.Module) -> None:
    """Xavier's weights and no biases in every linear layer."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class MapPool(nn.Module):
    """Attention pooling: one learned query looks at all tokens, then a residual MLP (SigLIP's head)."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int):
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, 1, dim))
        self.attention = Attention(dim, num_heads)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))
        nn.init.trunc_normal_(self.query, std=0.02)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, n, dim) to (b, dim); mask: boolean, False where a token is not to be looked at, as in `Attention`."""
        x = self.attention(self.query.expand(tokens.shape[0], -1, -1).to(tokens.dtype), context=tokens, mask=mask)
        return (x + self.mlp(self.norm(x)))[:, 0]


class ViT(nn.Module):
    """A vision transformer over RGB or RGB-D images of any size that the patches divide.

    encoding: a name of `stringpe.names()`, built for every layer on its own; an encoding object, shared by all layers;
        "absolute" (a learned table, interpolated at other sizes) or "sincos", added to the tokens; or "none".
    encoding_options: handed to the named encoding, for example {"block_size": 32, "share_heads": True}.
    share_layers: one encoding for all layers in place of one each.
    coord_dim: 2, or 3 for (row, column, depth).
    depth: what to do with depth: "none"; "channel", as a fourth image channel; "lift", as third coordinate; "normals",
        surface normals as a second set of tokens through the same embedding; "lift+channel" or "lift+normals". A lift
        alone tells differences of depth, a channel depth itself. By default "lift" with coord_dim=3, "none" with 2.
        A model that takes depth runs without it too.
    pool: "mean" over patches, "cls" (a class token at the origin) or "map" (attention pooling).
    registers: learned tokens at the origin that see everything and are thrown away.
    units: of the patch grid: "index" extrapolates to larger images, "normalised" interpolates, "centred".
    image_size: for which the "absolute" table is made; nothing else depends on it.
    attention: "softmax" or "linear" (Performer, softmax features). qk_norm: as in `stringpe.Attention`.
    stem: "patch", linear, or "conv", convolutions, which need less data: `stringpe.models.stem`.
    num_classes: 0 returns pooled features from `forward`.
    """

    def __init__(
        self,
        *,
        dim: int,
        layers: int,
        num_heads: int,
        patch_size: int,
        encoding: str | PositionEncoding = "cayley",
        encoding_options: Mapping[str, Any] | None = None,
        share_layers: bool = False,
        coord_dim: int = 2,
        depth: str | None = None,
        num_classes: int = 0,
        pool: str = "mean",
        registers: int = 0,
        units: str = "index",
        image_size: int | tuple[int, int] = 224,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        attention: str = "softmax",
        qk_norm: str | None = None,
        stem: str = "patch",
    ):
        super().__init__()
        depth = depth or ("lift" if coord_dim == 3 else "none")
        _check(encoding, coord_dim, depth, pool, units, attention)
        self.dim, self.patch_size, self.coord_dim = dim, patch_size, coord_dim
        self.depth, self.pool, self.units = depth, pool, units
        self.front = (pool == "cls") + registers  # tokens before the patches, at the origin
        self.patch = make_stem(stem, 4 if "channel" in depth else 3, dim, patch_size)
        self.lift = DepthLift(patch_size, units) if "lift" in depth else None
        self.fuse = nn.Linear(2 * dim, dim) if "normals" in depth else None
        self.kind = nn.Parameter(torch.empty(2, 1, dim)) if "normals" in depth else None
        self.prefix = nn.Parameter(torch.empty(1, self.front, dim)) if self.front else None
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        self.table_size = (size[0] // patch_size, size[1] // patch_size)
        self.absolute = _absolute(encoding, dim, coord_dim, self.table_size)
        sizes = {"head_dim": dim // num_heads, "num_heads": num_heads, "coord_dim": coord_dim}
        each = encodings(encoding, dict(encoding_options or {}), layers, sizes, shared=share_layers)
        mlp_dim = int(dim * mlp_ratio)
        make = Attention if attention == "softmax" else LinearAttention
        heads = (make(dim, num_heads, encoding=e, qk_norm=qk_norm) for e in each)
        self.blocks = stack(dim, heads, layers, mlp_dim, dropout, drop_path)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.map_pool = MapPool(dim, num_heads, mlp_dim) if pool == "map" else None
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        self._initialise()

    def _initialise(self) -> None:
        start_linear(self)
        for tokens in (self.prefix, self.kind):
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=0.02)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)

    def forward(self, image: Tensor, depth: Tensor | None = None) -> Tensor:
        """Logits (b, num_classes), or pooled features (b, dim) without classes."""
        return self.head(self.features(image, depth).pooled)

    def features(self, image: Tensor, depth: Tensor | None = None, *, coords: Tensor | None = None) -> Features:
        """Tokens, pooled vector and coordinates. coords: (n, c) or (b, n, c), in place of the patches' own."""
        self._check_input(image, depth)
        size = (image.shape[2] // self.patch_size, image.shape[3] // self.patch_size)
        tokens = self._embed(image, depth)
        own = self.coordinates(size, depth, image.device)
        coords = own if coords is None else coords
        if self.absolute is not None:
            tokens = tokens + self._absolute_embedding(coords, size).to(tokens.dtype)
        count = tokens.shape[1]
        places = coords
        if self.fuse is not None and depth is not None:
            tokens, places = self._with_normals(tokens, places, depth)
        if self.prefix is not None:
            prefix = self.prefix.expand(tokens.shape[0], -1, -1).to(tokens.dtype)
            tokens, places = torch.cat([prefix, tokens], dim=1), with_prefix(places, prefix.shape[1])
        front, x = self.norm(through(self.blocks, tokens, places)).tensor_split([self.front], dim=1)
        if self.fuse is not None:
            normals = x[:, count:] if depth is not None else torch.zeros_like(x)
            x = self.fuse(torch.cat([x[:, :count], normals], dim=-1))
        return Features(x, self._pooled(front, x), coords, size)

    def coordinates(self, size: tuple[int, int], depth: Tensor | None, device: torch.device) -> Tensor:
        """The patches' own coordinates: (n, c), or (b, n, 3) where depth lifts them."""
        if self.lift is not None and depth is not None:
            return self.lift(depth)
        plane = grid(*size, units=self.units, device=device)
        return plane if self.lift is None else self.lift.flat(plane)

    def _embed(self, image: Tensor, depth: Tensor | None) -> Tensor:
        if "channel" in self.depth:
            channel = torch.zeros_like(image[:, :1]) if depth is None else _filled(depth)[:, None].to(image.dtype)
            image = torch.cat([image, channel], dim=1)
        return self.patch(image).flatten(2).mT

    def _with_normals(self, tokens: Tensor, coords: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """The paper's section 4.4: normals through the same embedding, concatenated; both sets at the same places."""
        assert self.kind is not None
        normals = self.patch(surface_normals(depth.float()).to(tokens.dtype)).flatten(2).mT
        return torch.cat([tokens + self.kind[0], normals + self.kind[1]], dim=1), torch.cat([coords, coords], dim=-2)

    def _absolute_embedding(self, coords: Tensor, size: tuple[int, int]) -> Tensor:
        assert self.absolute is not None
        if isinstance(self.absolute, LearnedAbsolute):  # the table spans the image, whatever its size
            plane = grid(*size, units="normalised", device=coords.device)
            table = torch.tensor(self.table_size, device=coords.device)
            flat = self.absolute((plane + 1) / 2 * table - 0.5)
            return flat if self.coord_dim == 2 else flat + SinCos(self.dim, coord_dim=1)(coords[..., 2:])
        return self.absolute(coords)

    def _pooled(self, front: Tensor, tokens: Tensor) -> Tensor:
        if self.map_pool is not None:
            return self.map_pool(tokens)
        return front[:, 0] if self.pool == "cls" else tokens.mean(1)

    def _check_input(self, image: Tensor, depth: Tensor | None) -> None:
        p = self.patch_size
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % p or image.shape[3] % p:
            raise ValueError(f"image must be (b, 3, H, W) with H and W multiples of {p}, got {tuple(image.shape)}")
        if depth is None:
            return
        if self.depth == "none":
            raise ValueError("this model takes no depth: build it with coord_dim=3, or depth='channel' or 'normals'")
        if depth.shape != (image.shape[0], *image.shape[2:]):
            wanted = (image.shape[0], *image.shape[2:])
            raise ValueError(f"depth must be {wanted}, one value a pixel in metres, got {tuple(depth.shape)}")
        check_metres(depth)


def encodings(
    encoding: str | PositionEncoding, options: Mapping[str, Any], layers: int, sizes: Mapping[str, int], *, shared: bool
) -> list[PositionEncoding | None]:
    """One encoding a layer: named ones of their own (or one, if shared), an object for all, None for other names."""
    if isinstance(encoding, PositionEncoding):
        return [encoding] * layers
    if encoding not in names():
        return [None] * layers
    if shared:
        return [create(encoding, **sizes, **options)] * layers
    return [create(encoding, **sizes, **options) for _ in range(layers)]


def through(blocks: nn.ModuleList, x: Tensor, coords: Tensor, mask: Tensor | None = None) -> Tensor:
    """Tokens (b, n, dim) at coords through all blocks; bases of all layers are made at once where that can be done."""
    chain = [block for block in blocks if isinstance(block, Block)]
    layers = [block.attention for block in chain]
    together = all(isinstance(a, Attention) and a.encoding is not None and is_whole(a) for a in layers)
    prepared = prepare(layers) if together else [None] * len(chain)
    for block, own in zip(chain, prepared, strict=True):
        x = block(x, None if block.attention.encoding is None else coords, own, mask)
    return x


def vit(name: str, **options: Any) -> ViT:
    """A ViT by name, `vit_{size}_patch{p}`: sizes test, micro, tiny, small, base and large; options as in `ViT`."""
    match = re.fullmatch(r"vit_([a-z]+)_patch(\d+)", name)
    if match is None or match[1] not in SIZES or int(match[2]) < 1:
        raise ValueError(f"there is no model {name!r}: names are vit_SIZE_patchP, SIZE one of {', '.join(SIZES)}")
    dim, layers, heads = SIZES[match[1]]
    return ViT(**({"dim": dim, "layers": layers, "num_heads": heads, "patch_size": int(match[2])} | options))


def _filled(depth: Tensor) -> Tensor:
    """Depth with its holes at zero."""
    return torch.where(valid_depth(depth), depth, 0)


def _absolute(encoding: str | PositionEncoding, dim: int, coord_dim: int, size: tuple[int, int]) -> nn.Module | None:
    if encoding == "absolute":
        return LearnedAbsolute(dim, size)
    return SinCos(dim, coord_dim=coord_dim) if encoding == "sincos" else None


def _check(encoding: str | PositionEncoding, coord_dim: int, depth: str, pool: str, units: str, attention: str) -> None:
    choices = {"depth": (depth, DEPTHS), "pool": (pool, POOLS), "units": (units, UNITS)}
    choices["attention"] = (attention, ("softmax", "linear"))
    if isinstance(encoding, str):
        choices["encoding"] = (encoding, (*names(), *ABSOLUTE, "none"))
    for what, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    if coord_dim not in (2, 3) or ("lift" in depth) != (coord_dim == 3):
        raise ValueError(
            f"coord_dim=3 goes with depth='lift' (or 'lift+…'), 2 with the others; got {coord_dim}, {depth!r}"
        )
    if "normals" in depth and pool == "cls":
        raise ValueError("depth='normals' fuses patch tokens, which pool='cls' does not look at: use 'mean' or 'map'")
    if coord_dim == 3 and encoding == "none":
        raise ValueError("encoding='none' has no coordinates to lift depth into: use depth='channel' with coord_dim=2")
