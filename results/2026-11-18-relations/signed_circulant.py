"""Circulant-STRING with a fixed random sign per channel, as docs/choosing.md gives it: a row for `stringpe compare`."""

import torch

import stringpe
from stringpe.basis import GivenBasis
from stringpe.circulant_frequencies import Circulant


def signed(*, head_dim, num_heads, coord_dim=2, block_size=16, **spectrum):
    plain = stringpe.circulant(head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim, block_size=block_size)
    signs = 1 - 2 * torch.randint(0, 2, (head_dim, 1), generator=torch.Generator().manual_seed(7))
    theta = Circulant(head_dim, num_heads, coord_dim, block_size=block_size, **spectrum)
    return stringpe.Encoding(GivenBasis(signs * plain.basis()), theta, name="signed_circulant")
