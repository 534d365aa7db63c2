"""The vision transformer: an image becomes patches and coordinates, goes through blocks of attention that each hold an
encoding, and out through a pooled head.

    model = stringpe.vit("vit_base_patch16", encoding="cayley", coord_dim=3, num_classes=1000)
    logits = model(image, depth)          # image (b, 3, H, W), depth (b, H, W) in metres or None
"""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..baselines import LearnedAbsolute, SinCos
from ..checks import check_choice, check_count
from ..coords import UNITS, Calibration, grid, with_prefix
from ..encoding import PositionEncoding
from ..rotate import product_dtype
from .blocks import (
    ATTENTIONS,
    MapPool,
    as_blocks,
    build_absolute,
    build_encodings,
    check_encoding,
    check_tower,
    run_blocks,
    stack_blocks,
)
from .depth import (
    FRAMES,
    DepthChannel,
    DepthLift,
    WorldLift,
    check_depth,
    check_frame,
    merge_views,
    surface_normals,
    warn_of_millimetres,
    world_normals,
)
from .initialise import draw_by_fan_in, draw_classifier, initialise
from .packed import BlockInputs, Features, PackedFeatures, pack_features
from .stem import build_stem

SIZES = {  # dim, layers, heads
    "test": (32, 2, 2),
    "micro": (128, 6, 4),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}

DEPTHS = ("none", "channel", "lift", "normals", "lift+channel", "lift+normals")
POOLS = ("mean", "cls", "map")


class ViT(nn.Module):
    """A vision transformer over RGB or RGB-D images of any size that is a multiple of the patch size.

    encoding: a name of `stringpe.names(baselines=True)`, built anew for every layer; an encoding object, shared by
        all layers; "absolute" (a learned table, interpolated for images of another size) or "sincos", added to the
        tokens; or "none", a model without positions.
    encoding_options: passed to the named encoding, for example {"block_size": 32, "share_heads": True}.
    share_layers: one encoding for all layers in place of one per layer.
    depth: how the model uses depth: "none"; "channel", as a fourth image channel; "lift", as third coordinate of the
        patches; "normals", surface normals as a second set of tokens through the same embedding; "lift+channel" or
        "lift+normals". A lift alone shows differences of depth, a channel shows depth itself. A model that takes depth
        also runs without it.
    frame: of lifted coordinates: "camera", (row, column, depth), or "world", metric points in one frame for all
        cameras (`stringpe.models.depth`). A model in the world frame takes calibration with its depth, and images of
        one view (b, 3, H, W) or of several (b, v, 3, H, W), whose patches all attend to each other.
    coord_dim: 2, or 3 for (row, column, depth). It follows from `depth`, and depth="lift" follows from coord_dim=3:
        give either.
    pool: "mean" over patches, "cls" (a class token at the origin) or "map" (attention pooling).
    registers: learned tokens at the origin that take part in attention and are then dropped.
    units: of the patch grid: "index" extrapolates to larger images, "normalised" interpolates, "centred".
    image_size: the size for which the "absolute" table is made; nothing else depends on it.
    attention: "softmax"; "linear", linear attention by the Performer's features, which estimate the softmax; or "relu",
        by ReLU features, in front of which a learned basis adds capacity. qk_norm: as in `stringpe.Attention`.
    stem: "patch", linear, or "conv", convolutions, which need less data: see `stringpe.models.stem`.
    num_classes: 0 makes `forward` return pooled features. head_bias: where the bias of the classifier starts.

    Parameters start as `stringpe.models.initialise` says; another start is a call of its functions on the new model.
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
        coord_dim: int | None = None,
        depth: str | None = None,
        frame: str = "camera",
        num_classes: int = 0,
        head_bias: float = 0.0,
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
        check_choices(encoding, pool, units, attention, frame)
        coord_dim, depth = resolve_coordinates(encoding, coord_dim, depth, frame)
        if "normals" in depth and pool == "cls":
            raise ValueError("depth='normals' fuses patch tokens, which pool='cls' ignores: use pool='mean' or 'map'")
        check_tower(dim, layers, num_heads, mlp_ratio, dropout, drop_path)
        for what, number, least in (("patch_size", patch_size, 1), ("registers", registers, 0)):
            check_count(what, number, least)
        check_count("num_classes", num_classes, 0)
        self.dim, self.patch_size, self.coord_dim = dim, patch_size, coord_dim
        self.depth, self.frame, self.pool, self.units, self.head_bias = depth, frame, pool, units, head_bias
        self.front = (pool == "cls") + registers  # tokens before the patches, at the origin
        self.patch, self.depth_patch = build_stem(stem, dim, patch_size, depth="channel" in depth)
        self.depth_channel = DepthChannel() if "channel" in depth else None
        lift = WorldLift(patch_size) if frame == "world" else DepthLift(patch_size, units)
        self.lift = lift if "lift" in depth else None
        self.fuse = nn.Linear(2 * dim, dim) if "normals" in depth else None
        self.kind = nn.Parameter(torch.empty(2, 1, dim)) if "normals" in depth else None
        self.prefix = nn.Parameter(torch.empty(1, self.front, dim)) if self.front else None
        size = _check_image_size(image_size)
        self.table_size = (size[0] // patch_size, size[1] // patch_size)
        self.absolute = build_absolute(encoding, dim, self.table_size, coord_dim)
        sizes = {"head_dim": dim // num_heads, "num_heads": num_heads, "coord_dim": coord_dim}
        encodings = build_encodings(encoding, dict(encoding_options or {}), layers, sizes, shared=share_layers)
        mlp_dim = int(dim * mlp_ratio)
        heads = (ATTENTIONS[attention](dim, num_heads, encoding=e, qk_norm=qk_norm) for e in encodings)
        self.blocks = stack_blocks(dim, heads, layers, mlp_dim, dropout, drop_path)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.map_pool = MapPool(dim, num_heads, mlp_dim) if pool == "map" else None
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()
        initialise(self)

    def reset_parameters(self) -> None:
        """The exceptions to how `stringpe.models.initialise` starts parameters in general."""
        if isinstance(self.head, nn.Linear):
            draw_classifier(self.head, self.head_bias)
        if self.fuse is not None:
            draw_by_fan_in(self.fuse, gain=1.0)
        if self.depth_patch is not None:
            draw_by_fan_in(self.depth_patch)

    def forward(
        self,
        image: Tensor | Sequence[Tensor],
        depth: Tensor | Sequence[Tensor] | None = None,
        calibration: Calibration | None = None,
        *,
        patch_mask: Tensor | Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Logits (b, num_classes), or pooled features (b, dim) without classes. calibration: in the world frame only.

        Images of different sizes go in as a sequence of (3, H, W), with a sequence of depths (H, W): their patches are
        packed into one sequence (NaViT), and the result for each image is that of the image alone. patch_mask: boolean
        (b, H/p, W/p), or one per image, True for the patches to use; the others are left out.
        """
        if isinstance(image, (list, tuple)) or patch_mask is not None:
            if calibration is not None:
                raise ValueError("packed images take no calibration: pass images of one size, without patch_mask")
            return self.head(self.packed_features(image, depth, patch_mask=patch_mask).pooled)
        if isinstance(image, Tensor) and image.is_nested:
            raise ValueError("image is a nested tensor: pass a list of images, list(image.unbind())")
        return self.head(self.features(image, depth, calibration=calibration).pooled)  # type: ignore[arg-type]

    def features(
        self,
        image: Tensor,
        depth: Tensor | None = None,
        *,
        coords: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> Features:
        """Tokens, pooled vector and coordinates. coords: (n, c) or (b, n, c), in place of the patches' own.
        calibration: of the cameras, in the world frame only."""
        inputs = self.tokenise(image, depth, coords=coords, calibration=calibration)
        x = self.norm(run_blocks(self.blocks, inputs.tokens, inputs.places))
        return self.read_out(x, inputs)

    def packed_features(
        self,
        images: Sequence[Tensor] | Tensor,
        depths: Sequence[Tensor] | Tensor | None = None,
        *,
        patch_mask: Sequence[Tensor] | Tensor | None = None,
    ) -> PackedFeatures:
        """Tokens, pooled vectors and coordinates of images of different sizes, as in `forward`."""
        if self.frame == "world":
            raise ValueError("packed images have no calibration: pass images of one size, or use frame='camera'")
        return pack_features(self, images, depths, patch_mask)

    def tokenise(
        self,
        image: Tensor,
        depth: Tensor | None = None,
        *,
        coords: Tensor | None = None,
        calibration: Calibration | None = None,
    ) -> BlockInputs:
        """What goes into the blocks: patches, prefix and normals at their coordinates."""
        check_frame(self.frame, image, depth, calibration)
        images, depths = merge_views(image, 3), None if depth is None else merge_views(depth, 2)
        self._check_input(images, depths)
        self._check_coords(coords)
        size = (image.shape[-2] // self.patch_size, image.shape[-1] // self.patch_size)
        tokens = self._embed(images, depths)
        views = image.shape[1] if image.ndim == 5 else 1
        tokens = tokens.reshape(image.shape[0], views * tokens.shape[1], self.dim)  # not −1: a batch may be empty
        coords = self.coordinates(size, depth, image.device, calibration) if coords is None else coords
        if self.absolute is not None:
            tokens = tokens + self._absolute_embedding(coords, size).to(tokens.dtype)
        places = coords
        if self.fuse is not None and depth is not None:
            tokens, places = self._with_normals(tokens, places, depth, calibration)
        if self.prefix is not None:
            prefix = self.prefix.expand(tokens.shape[0], -1, -1).to(tokens.dtype)
            tokens, places = torch.cat([prefix, tokens], dim=1), with_prefix(places, prefix.shape[1])
        return BlockInputs(tokens, places, coords, size)

    def read_out(self, x: Tensor, inputs: BlockInputs) -> Features:
        """Patch tokens and pooled vector, from the output of the blocks and the last norm."""
        front, x = x.tensor_split([self.front], dim=1)
        if self.fuse is not None:
            patches = inputs.coords.shape[-2]
            normals = x[:, patches:] if x.shape[1] > patches else torch.zeros_like(x)
            x = self.fuse(torch.cat([x[:, :patches], normals], dim=-1))
        return Features(x, self._pool(front, x), inputs.coords, inputs.size)

    def coordinates(
        self,
        size: tuple[int, int],
        depth: Tensor | None,
        device: torch.device,
        calibration: Calibration | None = None,
    ) -> Tensor:
        """The patches' own coordinates for a grid of `size`: (n, c), or (b, n, 3) where depth lifts them."""
        if isinstance(self.lift, WorldLift):
            return self.lift(depth, calibration)
        if self.lift is not None and depth is not None:
            return self.lift(depth)
        plane = grid(*size, units=self.units, device=device)
        return plane if self.lift is None else self.lift.flat(plane)

    def trunk(self) -> "ViT":
        """This model up to its tokens: the same modules and parameters, without classifier and attention pooling, for
        models that read tokens alone. This model is not changed."""
        trunk = copy.copy(self)
        trunk._modules = dict(self._modules) | {"head": nn.Identity(), "map_pool": None}
        trunk.pool = "cls" if self.pool == "cls" else "mean"
        return trunk

    def _embed(self, image: Tensor, depth: Tensor | None) -> Tensor:
        if self.depth_channel is None:
            return self.patch(image).flatten(2).mT
        metres = torch.zeros_like(image[:, 0]) if depth is None else depth
        channel = self.depth_channel(metres).to(image.dtype)
        if self.depth_patch is None:
            return self.patch(torch.cat([image, channel], dim=1)).flatten(2).mT
        return (self.patch(image) + self.depth_patch(channel)).flatten(2).mT

    def _with_normals(
        self, tokens: Tensor, coords: Tensor, depth: Tensor, calibration: Calibration | None
    ) -> tuple[Tensor, Tensor]:
        """The paper's section 4.4: normals through the same embedding, concatenated; both sets at the same coords."""
        assert self.kind is not None
        pixels = surface_normals(depth.float()) if calibration is None else world_normals(depth, calibration)
        normals = self.patch(pixels.to(tokens.dtype)).flatten(2).mT.reshape(tokens.shape)
        return torch.cat([tokens + self.kind[0], normals + self.kind[1]], dim=1), torch.cat([coords, coords], dim=-2)

    def _absolute_embedding(self, coords: Tensor, size: tuple[int, int]) -> Tensor:
        assert self.absolute is not None
        if isinstance(self.absolute, LearnedAbsolute):  # the table spans the image, whatever its size
            share = (grid(*size, units="normalised", device=coords.device) + 1) / 2
            plane = torch.stack([share[:, i] * self.table_size[i] - 0.5 for i in range(2)], dim=-1)
            coords = torch.cat([plane.expand(*coords.shape[:-1], 2), coords[..., 2:]], dim=-1)
        return self.absolute(coords[..., : self.absolute.coord_dim])  # a frozen 2D model does not see depth here

    def _pool(self, front: Tensor, tokens: Tensor) -> Tensor:
        if self.map_pool is not None:
            return self.map_pool(tokens)
        return front[:, 0] if self.pool == "cls" else tokens.mean(1)

    def _check_input(self, image: Tensor, depth: Tensor | None) -> None:
        p = self.patch_size
        if not isinstance(image, Tensor) or not image.is_floating_point():
            kind = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(f"image must be a tensor of floats in [−1, 1], got {kind}: of bytes, pass x / 127.5 − 1")
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % p or image.shape[3] % p:
            raise ValueError(f"image must be (b, 3, H, W) with H and W multiples of {p}, got {tuple(image.shape)}")
        weights = next(self.patch.parameters())
        if weights.is_floating_point() and product_dtype(image) != product_dtype(weights):
            raise ValueError(
                f"image is {image.dtype} and the weights are {weights.dtype}: use image.to({weights.dtype}), or cast "
                f"the model"
            )
        if depth is None:
            return
        if self.depth == "none":
            raise ValueError("this model takes no depth: build it with coord_dim=3, or depth='channel' or 'normals'")
        check_depth(depth, (image.shape[0], image.shape[2], image.shape[3]))
        warn_of_millimetres(self, depth)

    def _check_coords(self, coords: Tensor | None) -> None:
        """Refuse coordinates that would be ignored."""
        if coords is None or isinstance(self.absolute, SinCos):
            return
        if all(block.attention.encoding is None for block in as_blocks(self.blocks)):
            kind = "no positions" if self.absolute is None else "a learned table of absolute embeddings"
            raise ValueError(f"this model has {kind} and would ignore coords: leave them out, or use an encoding")


def vit(name: str, **options: Any) -> ViT:
    """A ViT by name, `vit_{size}_patch{p}`: sizes test, micro, tiny, small, base and large; options as in `ViT`."""
    match = re.fullmatch(r"vit_([a-z]+)_patch(\d+)", name)
    if match is None or match[1] not in SIZES or int(match[2]) < 1:
        raise ValueError(f"there is no model {name!r}: names are vit_SIZE_patchP, SIZE one of {', '.join(SIZES)}")
    dim, layers, heads = SIZES[match[1]]
    return ViT(**({"dim": dim, "layers": layers, "num_heads": heads, "patch_size": int(match[2])} | options))


def resolve_coordinates(
    encoding: str | PositionEncoding, coord_dim: int | None, depth: str | None, frame: str
) -> tuple[int, str]:
    """coord_dim and depth, each from the other (or from the encoding object) where it is not given."""
    if depth is not None:
        check_choice("depth", depth, DEPTHS)
    if coord_dim is not None:
        check_count("coord_dim", coord_dim)
    if coord_dim is None and depth is None and isinstance(encoding, PositionEncoding):
        coord_dim = encoding.coord_dim
    if depth is None:
        depth = "lift" if coord_dim == 3 or frame == "world" else "none"
    if coord_dim is None:
        coord_dim = 3 if "lift" in depth else 2
    if coord_dim not in (2, 3) or ("lift" in depth) != (coord_dim == 3):
        raise ValueError(
            f"coord_dim={coord_dim} contradicts depth={depth!r}: 3 coordinates go with 'lift' (or 'lift+…') and 2 with "
            f"the others; give one of the two and leave the other out"
        )
    if isinstance(encoding, PositionEncoding) and encoding.coord_dim != coord_dim:
        raise ValueError(
            f"the encoding was built with coord_dim={encoding.coord_dim}, depth={depth!r} gives patches {coord_dim} "
            f"coordinates: build the encoding with coord_dim={coord_dim}"
        )
    if frame == "world" and ("lift" not in depth or encoding == "absolute"):
        raise ValueError(
            f"frame='world' needs depth to place patches and an encoding of coordinates, got depth={depth!r} and "
            f"encoding={encoding!r}: use depth='lift' and any encoding but 'absolute', a table over one picture"
        )
    if coord_dim == 3 and encoding == "none":
        raise ValueError("encoding='none' has no coordinates to lift depth into: use depth='channel'")
    return coord_dim, depth


def check_choices(encoding: str | PositionEncoding, pool: str, units: str, attention: str, frame: str) -> None:
    """Refuse words that are not among the choices."""
    check_encoding(encoding)
    choices = {"pool": (pool, POOLS), "units": (units, UNITS), "attention": (attention, tuple(ATTENTIONS))}
    choices["frame"] = (frame, FRAMES)
    for what, (value, allowed) in choices.items():
        check_choice(what, value, allowed)


def _check_image_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image size, which may be a number for both."""
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2:
        raise ValueError(f"image_size must be a number or (height, width), got {size!r}")
    for number in pair:
        check_count("image_size", number)
    return pair
