"""Which device is used where none is named."""

import torch


def find_device() -> torch.device:
    """The GPU, if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
