"""The public checks find what is wrong."""

import pytest
import torch

import stringpe
from cases import build
from stringpe import testing
from stringpe.basis import GivenBasis, Identity
from stringpe.frequencies import Frequencies, Mixed


class Drifting(Frequencies):
    """Frequencies that differ from call to call: queries and keys are turned apart."""

    def __init__(self):
        super().__init__(8, 1, 2)
        self.create_weight()

    def initial(self, sets):
        return torch.randn(sets, 2, 4)

    def expand(self, weight):
        return weight + torch.rand(())


def test_a_basis_that_is_not_orthogonal_is_found():
    basis = GivenBasis(torch.eye(8)[None] * 1.01)
    with pytest.raises(AssertionError, match=r"PᵀP = I fails: relative error 2\.0e-02, more than 1\.0e-05"):
        testing.check(stringpe.Encoding(basis, Mixed(8, 1, 2)))


def test_frequencies_that_do_not_stay_are_found():
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=r"R\(a\) R\(b\) = R\(a \+ b\) fails"):
        testing.check(stringpe.Encoding(Identity(8, 1), Drifting()))


def test_baselines_have_a_shift_error_and_no_more():
    enc = build("liere")
    assert testing.shift_error(enc) > 0.1
    with pytest.raises(TypeError, match="check takes an Encoding, with a basis and frequencies, got LieRE"):
        testing.check(enc)


def test_there_is_no_tolerance_for_whole_numbers():
    with pytest.raises(ValueError, match=r"no tolerance for torch\.int64: use one of torch\.float64"):
        testing.tolerance(torch.int64)
