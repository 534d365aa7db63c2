"""The kernels run where they can: on a GPU, or in Triton's interpreter. The interpreter is a choice for a whole
process, made before triton is imported, and would take over every rotation in it; so without a GPU `test_kernels.py`
starts a process of its own for the files below. To run them by hand: TRITON_INTERPRET=1 pytest tests/kernels"""

import os

import torch

runs_here = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
kernels = ["test_assignment.py", "test_fused_*.py", "test_inverse.py", "test_ops.py", "test_short_attention.py"]
collect_ignore_glob = [] if runs_here else kernels
