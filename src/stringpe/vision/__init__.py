"""Vision transformers over RGB and RGB-D images, with any encoding."""

from . import box3d
from .vit import ViT, vit

__all__ = ["ViT", "box3d", "vit"]
