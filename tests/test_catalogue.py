"""One catalogue for every encoding: STRING, baselines, absolute embeddings and those of users."""

import sys
import types

import pytest
import torch
from torch import nn

import stringpe
from cases import BASELINES, CASES
from stringpe import catalogue
from stringpe.basis import Identity
from stringpe.encoding import AbsoluteEmbedding, PositionEncoding
from stringpe.frequencies import Mixed

SIZES = {"head_dim": 16, "num_heads": 2, "coord_dim": 2}


@pytest.fixture
def entries(monkeypatch):
    """A catalogue to write to that is forgotten afterwards."""
    monkeypatch.setattr(catalogue, "_ENTRIES", dict(catalogue._ENTRIES))


def mine(*, head_dim, num_heads, coord_dim=2, base=10.0):
    return stringpe.Encoding(
        Identity(head_dim, num_heads), Mixed(head_dim, num_heads, coord_dim, base=base), name="mine"
    )


def test_names_by_kind():
    string, every = stringpe.names(), stringpe.names(baselines=True)
    assert every[: len(string)] == string
    assert sorted(every[len(string) :]) == ["harope", "liere", "outer", "spherical"]
    assert stringpe.names(kind="absolute") == ["absolute", "sincos"]
    assert [catalogue.kind_of(n) for n in ("cayley", "liere", "sincos")] == ["string", "relative", "absolute"]
    with pytest.raises(ValueError, match="kind must be one of string, relative, absolute, got 'rope'"):
        stringpe.names(kind="rope")


def test_the_test_lists_have_every_name():
    assert {case.partition("-")[0] for case in CASES} == {*stringpe.names(), "from_generators"}
    assert {case.partition("-")[0] for case in BASELINES} == set(stringpe.names(kind="relative"))


@pytest.mark.parametrize("name", stringpe.names(baselines=True))
def test_attention_takes_every_name(name):
    encoding = stringpe.create(name, **SIZES)
    assert isinstance(encoding, PositionEncoding)
    attention = stringpe.Attention(32, 2, encoding=encoding)
    assert attention(torch.randn(2, 5, 32), torch.randn(5, 2)).isfinite().all()


@pytest.mark.parametrize("name", stringpe.names(kind="absolute"))
@pytest.mark.parametrize(("sizes", "coord_dim"), [((7,), 1), ((3, 4), 2), ((3, 4), 3)])
def test_absolute_embeddings_are_built_alike(name, sizes, coord_dim):
    embedding = stringpe.create(name, dim=24, sizes=sizes, coord_dim=coord_dim)
    assert isinstance(embedding, AbsoluteEmbedding)
    assert embedding.coord_dim == coord_dim
    coords = torch.rand(5, coord_dim) * 2
    out = embedding(coords)
    assert out.shape == (5, 24)
    moved = coords + torch.eye(coord_dim)[-1]  # the last coordinate counts: depth, with three
    assert (embedding(moved) - out).abs().max() > 1e-3


class TestRegister:
    def test_one_of_ones_own(self, entries):
        stringpe.register("mine", mine)
        assert stringpe.names()[-1] == "mine"
        encoding = stringpe.create("mine", **SIZES, base=7.0)
        assert encoding.frequencies.base == (7.0, 7.0)
        stringpe.testing.check(encoding)
        model = stringpe.vit("vit_test_patch16", encoding="mine")
        assert model(torch.randn(1, 3, 32, 32)).shape == (1, 32)

    def test_refuses_names_that_are_taken_or_none(self, entries):
        with pytest.raises(ValueError, match="there is an encoding named 'rope' already"):
            stringpe.register("rope", mine)
        stringpe.register("rope", mine, replace=True)
        assert stringpe.create("rope", **SIZES).name == "mine"
        for bad in ("", "a:b", "a b", "a.b", None, 3):
            with pytest.raises(ValueError, match="must be a word without spaces or punctuation"):
                stringpe.register(bad, mine)
        with pytest.raises(ValueError, match="kind must be one of"):
            stringpe.register("other", mine, kind="rotary")
        with pytest.raises(TypeError, match="the factory of 'other' must be callable, got Encoding"):
            stringpe.register("other", type("Encoding", (), {})())

    def test_refuses_results_of_another_kind(self, entries):
        stringpe.register("table", lambda **sizes: nn.Linear(2, 2))
        with pytest.raises(TypeError, match="the factory of 'table' returned a Linear, not a PositionEncoding"):
            stringpe.create("table", **SIZES)
        stringpe.register("skewed", stringpe.harope)
        with pytest.raises(TypeError, match="register it with kind='relative'"):
            stringpe.create("skewed", **SIZES)

    def test_a_factory_by_its_module(self, monkeypatch):
        module = types.ModuleType("some_module")
        module.mine, module.number = mine, 3
        monkeypatch.setitem(sys.modules, "some_module", module)
        assert stringpe.create("some_module:mine", **SIZES).name == "mine"
        assert catalogue.kind_of("some_module:mine") == "relative"
        for name, match in {
            "some_module:other": "has no attribute 'other'",
            "no_such_module:mine": "No module named 'no_such_module'",
            ":mine": "Empty module name",
            "some_module:number": "is a int, not a factory",
        }.items():
            with pytest.raises(ValueError, match=match):
                stringpe.create(name, **SIZES)


class TestErrors:
    @pytest.mark.parametrize("name", [None, 3, ["rope"], torch.zeros(2)])
    def test_a_name_that_is_not_a_string(self, name):
        with pytest.raises(TypeError, match=r"an encoding is named by a string, got .*: the names are .*rope"):
            stringpe.create(name)

    def test_an_unknown_option(self):
        with pytest.raises(ValueError, match="'circulant' has no option 'blocksize': did you mean 'block_size'"):
            stringpe.create("circulant", **SIZES, blocksize=8)
        with pytest.raises(ValueError, match=r"'cayley' has no option 'share_base': .*share_basis"):
            stringpe.create("cayley", **SIZES, share_base=True)
        with pytest.raises(TypeError, match="unexpected options share_base"):
            stringpe.cayley(**SIZES, share_base=True)

    def test_sizes_that_are_missing(self):
        with pytest.raises(ValueError, match=r"'rope' needs head_dim and num_heads: pass head_dim=…, num_heads=…"):
            stringpe.create("rope")

    def test_an_unknown_set_of_frequencies(self):
        with pytest.raises(ValueError, match="no set of frequencies named 'axiel': did you mean 'axial'"):
            stringpe.cayley(**SIZES, frequencies="axiel")
