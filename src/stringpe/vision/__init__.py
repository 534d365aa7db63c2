"""Vision transformers over RGB and RGB-D images, with any encoding, and towers for text beside them."""

from . import box3d
from .contrastive import Contrastive
from .detector import OwlViT
from .text import TextTower
from .tokens import Tokenizer
from .vit import ViT, vit

__all__ = ["Contrastive", "OwlViT", "TextTower", "Tokenizer", "ViT", "box3d", "vit"]
