"""Where the tokens of the running forward are: the patch convolution of a host says which grid it made, attention
asks."""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..coords import grid, with_prefix
from ..models.depth import DepthLift
from .parts import Grid


class Places:
    """The coordinates of one tower's patches in the forward that is running, and how they are found.

    Modules of the host report here, through hooks: the patch convolution its grid, patch dropout what it kept, the
    model itself the depth it was called with. Attention asks with `of(n)`: tokens beyond the patches are prefixes and
    sit at the origin. The last answer is kept until the next forward, since gradient checkpointing asks again.
    """

    def __init__(self, grid: Grid, patch_size: tuple[int, int] | None):
        self.grid, self.patch_size = grid, patch_size
        self.lift: DepthLift | None = None
        self.depth: Tensor | None = None
        self.coords: Tensor | None = None
        self.size: tuple[int, int] | None = None

    def of(self, count: int) -> Tensor:
        """Coordinates of all `count` tokens, (n, c) or (b, n, c)."""
        return with_prefix(self._known, count - self.count)

    @property
    def _known(self) -> Tensor:
        if self.coords is None:
            raise ValueError("attention was called before any image was embedded: call the model, not one of its parts")
        return self.coords

    def window(self, height: int, width: int) -> Tensor:
        """Coordinates for attention over the whole grid, or over each window of height × width that the padded grid is
        cut into, row by row: (n, c) or (b·windows, n, 3). Only differences count, so every window starts at the origin,
        and padding goes on counting."""
        assert self.size is not None
        if (height, width) == self.size:
            return self.of(height * width)
        plane = self.grid.measure(grid(height, width, device=self._known.device), *self.size)
        if self.lift is None:
            return plane
        if self._known.ndim == 2:
            return F.pad(plane, (0, 1))
        z = self._known[..., 2].unflatten(1, self.size)  # (b, rows, columns)
        z = F.pad(z, (0, -self.size[1] % width, 0, -self.size[0] % height))
        z = z.unflatten(2, (-1, width)).unflatten(1, (-1, height)).transpose(2, 3).flatten(3).flatten(0, 2)
        return torch.cat([plane.expand(z.shape[0], -1, -1), z[..., None]], dim=-1)

    @property
    def count(self) -> int:
        """How many patches there are."""
        return self._known.shape[-2]

    def see_image(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Forward hook of the patch convolution: output (b, dim, rows, columns)."""
        height, width = self.size = (output.shape[-2], output.shape[-1])
        plane = self.grid.measure(grid(height, width, device=output.device), height, width, training=module.training)
        self.coords = self._lifted(plane, (height, width))

    def see_sizes(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        """Forward hook of an embedding that is called with patches (b, n, …) and spatial_shapes (b, 2). Padding comes
        after the patches and goes on counting; masks keep it out of attention."""
        sizes = kwargs["spatial_shapes"] if "spatial_shapes" in kwargs else args[1]
        height, width = sizes.to(output.device)[..., None].unbind(1)  # (b, 1) each
        index = torch.arange(output.shape[1], device=output.device)
        plane = torch.stack([index // width, index % width], dim=-1).float()  # (b, n, 2)
        self.coords = self._lifted(self.grid.measure(plane, height, width, training=module.training), None)

    def keep(self, index: Tensor) -> None:
        """Patch dropout kept these patches: (b, k)."""
        coords = self._known.expand(index.shape[0], -1, -1)
        self.coords = coords.gather(1, index[..., None].expand(-1, -1, coords.shape[-1]))

    def see_kept(self, module: nn.Module, args: Any, output: tuple[Tensor, Tensor | None]) -> None:
        """Forward hook of a patch dropout that returns what it kept."""
        if output[1] is not None:
            self.keep(output[1])

    def take_depth(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Forward pre-hook of a lifted model: `depth` is for us, and for the next image that is embedded."""
        kwargs = dict(kwargs)
        self.depth = kwargs.pop("depth", None)
        return args, kwargs

    def _lifted(self, plane: Tensor, size: tuple[int, int] | None) -> Tensor:
        if self.lift is None:
            return plane
        depth, self.depth = self.depth, None
        if depth is None:
            return F.pad(plane, (0, 1))
        if depth.ndim == 2:
            height = self.lift.affine(depth)
        else:
            if size is None or self.patch_size is None:
                raise ValueError("this model takes patches, not images: pass depth as one value a patch, (b, n)")
            height = self.lift.heights(_fitted(depth, size, self.patch_size))
        if height.shape[1] != plane.shape[-2]:
            raise ValueError(
                f"depth gives {height.shape[1]} patches and the image {plane.shape[-2]}: pass one value a pixel, "
                f"(b, H, W), or one a patch, (b, n); got {tuple(depth.shape)}"
            )
        return torch.cat([plane.expand(height.shape[0], -1, -1), height[..., None]], dim=-1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        from copy import deepcopy

        copy = type(self)(self.grid, self.patch_size)
        memo[id(self)] = copy
        copy.lift = deepcopy(self.lift, memo)
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"coords": None, "depth": None, "size": None}


class DropPatches(nn.Module):
    """Patch dropout that tells which patches are left; otherwise the one that it takes the place of."""

    def __init__(self, prob: float, ordered: bool, places: Places):
        super().__init__()
        self.prob, self.ordered = prob, ordered
        self.places = (places,)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.prob == 0:
            return x
        n = self.places[0].count
        front, patches = x.tensor_split([x.shape[1] - n], dim=1)
        b, _, dim = patches.shape
        index = torch.randn(b, n, device=x.device).argsort(dim=-1)[:, : max(1, int(n * (1 - self.prob)))]
        index = index.sort(dim=-1).values if self.ordered else index
        self.places[0].keep(index)
        return torch.cat([front, patches.gather(1, index[..., None].expand(-1, -1, dim))], dim=1)


def _fitted(depth: Tensor, size: tuple[int, int], patch_size: tuple[int, int]) -> Tensor:
    """Depth on exactly the pixels that the patches cover: cut where the convolution cut, padded with holes where the
    host padded."""
    height, width = size[0] * patch_size[0], size[1] * patch_size[1]
    return F.pad(depth, (0, width - depth.shape[-1], 0, height - depth.shape[-2]))
