"""Demonstrations for the policy task: packed once, decoded into memory; and the augmentation of camera pictures."""

from pathlib import Path

from torch import Tensor

from ..io.files import cache_folder
from ..recipes.schema import Augment, Data, Recipe
from ..robots.data.dataset import Dataset
from ..robots.data.pack import Demos, join, load, pack
from .cache import digest, file_marks, remember
from .sources import check_source
from .transforms import change_colours, shift_images, to_unit


def load_demos(recipe: Recipe, where: str) -> Demos:
    """The demonstrations that data.train or data.val names: folders or packs, several with commas between."""
    check_source("policy", recipe.data)
    paths = [part.strip() for part in where.split(",") if part.strip()]
    calibration = recipe.policy.frame == "world"
    depth = calibration or recipe.model.depth != "none"
    return _load(recipe.data, tuple(paths), cameras(recipe), depth, calibration, recipe.policy.stride)


def cameras(recipe: Recipe) -> tuple[str, ...]:
    """The cameras that the recipe names; empty for all."""
    return tuple(name.strip() for name in recipe.policy.cameras.split(",") if name.strip())


@remember
def _load(
    data: Data, paths: tuple[str, ...], names: tuple[str, ...], depth: bool, calibration: bool, stride: int
) -> Demos:
    parts = []
    for path in paths:
        file = Path(path)
        if file.is_dir():
            file = _pack_once(file, names, data.image_size, stride, data.cache)
        elif not file.exists():
            raise ValueError(f"there is no data set at {path}: record one with stringpe data demos")
        parts.append(load(file, cameras=names, depth=depth, calibration=calibration, size=data.image_size))
    return join(parts)


def _pack_once(folder: Path, names: tuple[str, ...], size: int, stride: int, cache: str) -> Path:
    """The pack of a folder, from the cache or made now; named after everything that it depends on."""
    files = [*folder.glob("data/*/*.parquet"), *folder.glob("videos/**/*.mp4")]
    mark = digest(str(folder.resolve()), names, size, stride, file_marks(sorted(files)))
    path = cache_folder(cache) / f"demos-{folder.name}-{mark}.safetensors"
    if not path.exists():
        pack(Dataset(folder), path, size=size, cameras=names, stride=stride)
    return path


def augment_cameras(image: Tensor, depth: Tensor | None, u: Tensor, how: Augment) -> tuple[Tensor, Tensor | None]:
    """Augmented cameras: image (b, k, 3, S, S) uint8 to floats in [−1, 1], depth (b, k, S, S); uniforms u (b, 2k + 3).

    Every camera is shifted independently, with its border repeated; all cameras of an example get the same colours."""
    b, k = image.shape[:2]
    x = image.flatten(0, 1)
    if how.shift:
        offset = _draw_shifts(u, k, how.shift).flatten(0, 1)
        x = shift_images(x, offset)
        if depth is not None:
            depth = shift_images(depth.flatten(0, 1)[:, None], offset)[:, 0].unflatten(0, (b, k))
    y = change_colours(to_unit(x), u[:, 2 * k :].repeat_interleave(k, 0), how.colour)
    return y.unflatten(0, (b, k)), depth


def augment_intrinsics(intrinsics: Tensor, u: Tensor, how: Augment) -> Tensor:
    """Intrinsics (b, k, 3, 3) of cameras that `augment_cameras` has shifted with the same uniforms: the principal point
    moves with the picture."""
    if not how.shift:
        return intrinsics
    offset = _draw_shifts(u, intrinsics.shape[1], how.shift)
    moved = intrinsics.clone()
    moved[..., :2, 2] -= offset.flip(-1)  # rows and columns to x and y; a pixel comes from `offset` further on
    return moved


def _draw_shifts(u: Tensor, cameras: int, most: int) -> Tensor:
    """Pixels (b, k, 2), rows and columns, by which each camera is shifted, from uniforms (b, …)."""
    return (u[:, : 2 * cameras].reshape(len(u), cameras, 2) * (2 * most + 1)).floor().long() - most
