"""The coordinates of a host's tokens in the current forward pass: hooks on the host's modules write them, attention
reads them."""

from copy import deepcopy
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coords import grid, with_prefix
from ..models.depth import DepthLift, warn_of_millimetres
from .description import Grid


class TokenCoords:
    """The coordinates of one tower's patches in the current forward pass.

    Hooks on the host's modules write them: the patch convolution gives the grid, patch dropout the patches that it
    keeps, and the model the depth that it was called with. Attention reads them with `of_tokens` or `of_windows`, where
    tokens in front of the patches (class, registers) are at the origin. They stay until the next forward pass, since
    gradient checkpointing reads them again.
    """

    def __init__(self, grid: Grid, patch_size: tuple[int, int] | None):
        self.grid, self.patch_size = grid, patch_size
        self.lift: DepthLift | None = None
        self.depth: Tensor | None = None
        self.image_size: tuple[int, int] | None = None  # of the image that the depth belongs to
        self.coords: Tensor | None = None
        self.size: tuple[int, int] | None = None
        self.handed_on = False  # whether the host passes coordinates to attention, in place of its cosines and sines

    def of_tokens(self, count: int) -> Tensor:
        """Coordinates of all `count` tokens, (n, c) or (b, n, c)."""
        return with_prefix(self._known, count - self.count)

    @property
    def _known(self) -> Tensor:
        if self.coords is None:
            raise ValueError("attention was called before any image was embedded: call the model, not one of its parts")
        return self.coords

    def of_windows(self, height: int, width: int) -> Tensor:
        """Coordinates for attention over the whole grid, or over each window of height × width that the padded grid is
        cut into, row by row: (n, c) or (b·windows, n, 3). Only differences count, so every window starts at the origin,
        and the coordinates of padding continue those of the patches."""
        assert self.size is not None
        if (height, width) == self.size:
            return self.of_tokens(height * width)
        plane = self.grid.measure(grid(height, width, device=self._known.device), *self.size)
        if self.lift is None:
            return plane
        if self._known.ndim == 2:
            return self.lift.flat(plane)
        z = self._known[..., 2].unflatten(1, self.size)  # (b, rows, columns)
        z = F.pad(z, (0, -self.size[1] % width, 0, -self.size[0] % height))
        z = z.unflatten(2, (-1, width)).unflatten(1, (-1, height)).transpose(2, 3).flatten(3).flatten(0, 2)
        return torch.cat([plane.expand(z.shape[0], -1, -1), z[..., None]], dim=-1)

    @property
    def count(self) -> int:
        """How many patches there are."""
        return self._known.shape[-2]

    def read_grid(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Forward hook of the patch convolution: output (b, dim, rows, columns), or with frames before the rows."""
        if output.ndim == 5:
            if self.grid.units != "index":
                raise ValueError(f"a video is measured in indices, of frames too: drop units={self.grid.units!r}")
            self.coords = grid(*output.shape[2:], device=output.device)
            return
        height, width = self.size = (output.shape[-2], output.shape[-1])
        plane = self.grid.measure(grid(height, width, device=output.device), height, width, training=module.training)
        self.image_size = self.image_size or tuple(args[0].shape[-2:])
        self.coords = self._with_depth(plane, output.shape[0], (height, width))

    def read_sizes(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        """Forward hook of an embedding that is called with patches (b, n, …) and spatial_shapes (b, 2). Padding comes
        after the patches, whose coordinates it continues; masks keep it out of attention."""
        sizes = kwargs["spatial_shapes"] if "spatial_shapes" in kwargs else args[1]
        height, width = sizes.to(output.device)[..., None].unbind(1)  # (b, 1) each
        index = torch.arange(output.shape[1], device=output.device)
        plane = torch.stack([index // width, index % width], dim=-1).float()  # (b, n, 2)
        measured = self.grid.measure(plane, height, width, training=module.training)
        self.coords = self._with_depth(measured, output.shape[0], None)

    def read_patch_coords(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forward hook of an embedding that is called with images, whose grid it returns beside the tokens, or with
        patches and their patch_coord (b, n, 2), rows first. Padding is at the origin; masks keep it out of
        attention."""
        tokens, size = output
        given = kwargs.get("patch_coord")
        if given is None:
            height, width = self.size = tuple(size)
            self.image_size = self.image_size or tuple(args[0].shape[-2:])
            plane = grid(height, width, device=tokens.device)
            measured = self.grid.measure(plane, height, width, training=module.training)
        else:
            plane = given.to(tokens.device).float()
            rows, columns = (plane.amax(1) + 1)[..., None].unbind(1)  # (b, 1) each
            measured = self.grid.measure(plane, rows, columns, training=module.training)
        self.coords = self._with_depth(measured, tokens.shape[0], size)

    def place(self, ids: Tensor, *, windows: bool) -> Tensor:
        """Coordinates of packed tokens from their position ids (N, c), with the third one of a lifted model."""
        ids = ids.flatten(0, -2)
        if self.lift is None:
            return ids
        if windows:
            raise ValueError("this model cuts windows itself, and depth cannot be cut with them: call it without depth")
        if self.depth is not None and self.depth.ndim == 1:
            self.depth = self.depth[None]
        return self._with_depth(ids, 1, None).reshape(ids.shape[0], -1)

    def keep_patches(self, index: Tensor) -> None:
        """Keep the coordinates of these patches (b, k) alone, as patch dropout does with the patches."""
        coords = self._known.expand(index.shape[0], -1, -1)
        self.coords = coords.gather(1, index[..., None].expand(-1, -1, coords.shape[-1]))

    def read_kept(self, module: nn.Module, args: Any, output: tuple[Tensor, Tensor | None]) -> None:
        """Forward hook of a patch dropout that returns the indices of the patches that it keeps."""
        if output[1] is not None:
            self.keep_patches(output[1])

    def take_depth(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Forward pre-hook of a lifted model: takes `depth` out of the call, for the next image that is embedded."""
        kwargs = dict(kwargs)
        self.depth = kwargs.pop("depth", None)
        images = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim == 4]
        self.image_size = (images[0].shape[-2], images[0].shape[-1]) if images else None
        return args, kwargs

    def _with_depth(self, plane: Tensor, batch: int, size: tuple[int, int] | None) -> Tensor:
        """(…, n, 2) with the third coordinate of a lifted model: (…, n, 3)."""
        if self.lift is None:
            return plane
        (depth, self.depth), (image_size, self.image_size) = (self.depth, None), (self.image_size, None)
        if depth is None:
            return self.lift.flat(plane)
        height = self._heights(depth, batch, plane.shape[-2], size, image_size)
        warn_of_millimetres(self.lift, depth)
        return torch.cat([plane.expand(batch, -1, -1), height[..., None]], dim=-1)

    def _heights(
        self, depth: Tensor, batch: int, count: int, size: tuple[int, int] | None, image_size: tuple[int, int] | None
    ) -> Tensor:
        """z (b, n) of the patches, from one depth per patch or one per pixel."""
        assert self.lift is not None
        if depth.shape == (batch, count):
            return self.lift.affine(depth)
        by_pixel = None if size is None or image_size is None or self.patch_size is None else (batch, *image_size)
        if by_pixel is None or depth.shape != by_pixel:
            pixels = "" if by_pixel is None else f" or one per pixel, {by_pixel}"
            raise ValueError(
                f"depth must have one value per patch, {(batch, count)}{pixels}, in metres; got {tuple(depth.shape)}"
            )
        assert size is not None
        assert self.patch_size is not None
        return self.lift.heights(_fit(depth, size, self.patch_size))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = type(self)(self.grid, self.patch_size)
        copy.handed_on = self.handed_on
        memo[id(self)] = copy
        copy.lift = deepcopy(self.lift, memo)
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"coords": None, "depth": None, "size": None, "image_size": None}


class CoordsForAngles(nn.Module):
    """Replaces a host's rotary module, which turns position ids into cosines and sines for every attention layer, and
    returns coordinates instead. Whatever the host then does to cosines and sines (packing, windows, permutations of
    tokens) it does to coordinates, so that attention receives those of its tokens.

    Called with x and position_ids (…, N, c), it returns the coordinates (N, c) twice, where the host expects cosines
    and sines. With depth, one value per patch, they have one column more."""

    def __init__(self, token_coords: TokenCoords):
        super().__init__()
        self.token_coords = (token_coords,)  # of the tower, and not one of our own modules

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        coords = self.token_coords[0].place(position_ids.to(x.device).float(), windows=x.ndim == 4)
        return coords, coords


class DropPatches(nn.Module):
    """The host's patch dropout, which also reports the patches that it keeps to `TokenCoords`."""

    def __init__(self, prob: float, ordered: bool, coords: TokenCoords):
        super().__init__()
        self.prob, self.ordered = prob, ordered
        self.coords = (coords,)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.prob == 0:
            return x
        n = self.coords[0].count
        front, patches = x.tensor_split([x.shape[1] - n], dim=1)
        b, _, dim = patches.shape
        index = torch.randn(b, n, device=x.device).argsort(dim=-1)[:, : max(1, int(n * (1 - self.prob)))]
        index = index.sort(dim=-1).values if self.ordered else index
        self.coords[0].keep_patches(index)
        return torch.cat([front, patches.gather(1, index[..., None].expand(-1, -1, dim))], dim=1)


def _fit(depth: Tensor, size: tuple[int, int], patch_size: tuple[int, int]) -> Tensor:
    """Depth (b, H, W) on exactly the pixels that the patches cover: cropped where the convolution leaves pixels out,
    padded with holes where the host pads."""
    height, width = size[0] * patch_size[0], size[1] * patch_size[1]
    return F.pad(depth, (0, width - depth.shape[-1], 0, height - depth.shape[-2]))
