"""Vision transformers over RGB and RGB-D images, with any encoding."""

from .vit import ViT, vit

__all__ = ["ViT", "vit"]
