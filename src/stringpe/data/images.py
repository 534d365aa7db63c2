"""Images: Pillow to tensors and back, at their working size or stretched; sets of different sizes; files by name."""

import os
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.files import MAX_BYTES, read_bytes
from ..io.pictures import BadSample, decode_picture, to_pixels
from ..io.problems import Problems
from .addresses import find_shards
from .tars import Member, read_members

if TYPE_CHECKING:
    from PIL.Image import Image

MARGIN = 256 / 224
"""The short side of an image that is kept for crops, as a multiple of a crop's side; larger images are reduced to
it."""


class Ragged(NamedTuple):
    """n images of different sizes as one tensor. pixels: (all pixels, 3) uint8, row by row and image by image; first:
    (n,), where an image begins; size: (n, 2), its height and width."""

    pixels: Tensor
    first: Tensor
    size: Tensor

    def select(self, index: Tensor) -> "Ragged":
        """The images at `index`; their pixels are not copied."""
        return Ragged(self.pixels, self.first[index], self.size[index])

    def to(self, device: torch.device) -> "Ragged":
        """The images on a device."""
        return Ragged(*(t.to(device, non_blocking=True) for t in self))


def stack_ragged(images: Sequence[Tensor]) -> Ragged:
    """Images (h, w, 3) uint8, of any sizes, in one tensor."""
    size = torch.tensor([image.shape[:2] for image in images])
    area = size.prod(1)
    return Ragged(torch.cat([image.reshape(-1, 3) for image in images]), area.cumsum(0) - area, size)


def to_tensor(image: "Image") -> Tensor:
    """uint8 (3, H, W) of an RGB image."""
    return to_pixels(image).permute(2, 0, 1).contiguous()


def to_image(pixels: Tensor) -> "Image":
    """The RGB image of uint8 (3, H, W)."""
    from PIL import Image

    height, width = pixels.shape[1:]
    return Image.frombytes("RGB", (width, height), pixels.permute(1, 2, 0).contiguous().numpy().tobytes())


def reduce_image(image: "Image", size: int) -> "Image":
    """The whole image at its working size: a short side between `size` and MARGIN · `size`, so that a crop of `size`
    pixels always fits. An image in between stays as it is."""
    from PIL import Image

    short = min(image.size)
    target = min(max(short, size), round(size * MARGIN))
    if short == target:
        return image
    wide, high = (max(target, round(side * target / short)) for side in image.size)
    return image.resize((wide, high), Image.Resampling.BICUBIC, reducing_gap=3)  # large photographs in two steps


def stretch_image(picture: "Image", size: int) -> Tensor:
    """uint8 (3, size, size): the whole image, whatever its aspect, as SigLIP does it."""
    from PIL import Image

    return to_tensor(picture.resize((size, size), Image.Resampling.BICUBIC))


def stretch_depth(depth: Tensor, size: int) -> Tensor:
    """Depth (H, W) as float16 (size, size), each value that of the nearest pixel: a mean over an edge is the distance
    of nothing."""
    return F.interpolate(depth[None, None], (size, size), mode="nearest-exact")[0, 0].half()


class PictureFiles:
    """Pictures by file name. where: a folder, a .zip, or tars (commas, * and {000..127}). A name that is not there as
    it stands is looked for by its last part, so "train2017/7.jpg" is found in a folder that holds only that split.
    Names are data of an annotation file: one that leads out of the folder is looked for by its last part, too."""

    def __init__(self, where: str):
        if not where:
            raise ValueError("detection needs data.train=… and data.val=…, a folder, tars or a zip of pictures")
        self.where = where
        self.folder = Path(where) if Path(where).is_dir() else None
        self.zip = where if where.endswith(".zip") else None
        self.members: dict[str, Member] = {}
        names: Iterable[str] = ()
        if self.zip is not None:
            names = _zip_names(self.zip)
        elif self.folder is None:
            problems = Problems("files", where)
            for path in find_shards(where):
                self.members |= {name.removeprefix("./"): member for name, member in read_members(path, problems)}
            problems.warn()
            names = self.members
        names = list(names)
        self.names = {PurePosixPath(name).name: name for name in names} | {name: name for name in names}

    def decode(self, name: str) -> "Image":
        """The picture as RGB; BadSample if it is missing or cannot be decoded."""
        return decode_picture(self.read(name), f"{self.where}/{name}")

    def read(self, name: str) -> bytes:
        """The file's bytes; BadSample if there are none."""
        try:
            return self._read(name)
        except (KeyError, FileNotFoundError) as error:
            raise BadSample(f"{self.where}/{name}: file not found") from error
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
            raise BadSample(f"{self.where}/{name}: {error}") from error

    def _read(self, name: str) -> bytes:
        if self.folder is not None:
            whole, last = self.folder / name, self.folder / PurePosixPath(name).name
            inside = Path(os.path.normpath(whole)).is_relative_to(os.path.normpath(self.folder))
            return read_bytes(whole if inside and whole.exists() else last)
        found = self.names.get(name) or self.names[PurePosixPath(name).name]
        if self.zip is not None:
            with zipfile.ZipFile(self.zip) as file:  # opened anew, so that threads and processes do not share it
                if file.getinfo(found).file_size > MAX_BYTES:
                    raise OSError(f"it claims more than {MAX_BYTES} bytes")
                return file.read(found)
        return self.members[found].read()


def _zip_names(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return [name for name in file.namelist() if not name.endswith("/")]
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(
            f"{path} is not a zip file that can be read ({error}): check data.train and data.val"
        ) from error
