import os

# Some virtual machines advertise AMX and trap on its first use, in any bf16 product. Set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors lose more to waiting for threads than they win, most of all with tests side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
