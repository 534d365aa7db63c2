"""What encodings cost: the operation, an attention block, a ViT step, how cost grows, and the loop. `stringpe bench`.

A way is ours with one of its encodings, or one of the usual alternatives (`alternatives.py`). All ways stand beside
each other, and beside the memory floor: the time of a copy of the same bytes, measured in the same run.
"""

from .results import run

__all__ = ["run"]
