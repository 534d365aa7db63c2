import contextlib
import importlib.util
import os
from pathlib import Path

# Some virtual machines advertise AMX and trap on its first use, in any bf16 product. Set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from torch import library


def _name_missing_operators() -> None:
    """torchvision beside a torch of another build lacks its compiled operators and fails at import, and with it timm,
    open_clip and the image processors of transformers. None of them calls these two here; their names are enough."""
    found = importlib.util.find_spec("torchvision")
    for path in Path(found.origin).parent.glob("_C*.so") if found and found.origin else ():
        with contextlib.suppress(OSError):
            torch.ops.load_library(path)  # where the builds agree, its own operators
    if not hasattr(torch.ops.torchvision, "nms"):
        names = library.Library("torchvision", "DEF")
        names.define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        names.define("qnms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_torchvision"] = names  # the names live as long as this object


_name_missing_operators()


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors lose more to waiting for threads than they win, most of all with tests side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Kernels are also tested on machines without a simulator.
pytest_plugins = ["data_fixtures", *(["reach_fixtures"] if importlib.util.find_spec("gymnasium") else [])]
