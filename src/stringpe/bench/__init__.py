"""What encodings cost: the operation, an attention block, a ViT step, how cost grows, and the loop. `stringpe bench`.

Ours stand beside the usual ways to do the same job (`alternatives.py`), and beside the memory floor: the time of a copy
of the same bytes, measured in the same run.
"""

from .results import run

__all__ = ["run"]
