"""Seeds and generators of random numbers for one purpose each."""

import hashlib

import torch


def derive(*parts: int | str) -> int:
    """One seed from several numbers and words; close inputs give unrelated seeds."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # fits an int64


def generator(*parts: int | str) -> torch.Generator:
    """A random generator on the CPU for one purpose, for example (seed, "flip", step)."""
    return torch.Generator().manual_seed(derive(*parts))
