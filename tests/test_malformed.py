"""Malformed calls: whatever is passed where, the answer is a result or one clear sentence, never an accident inside."""

import numpy as np
import pytest
import torch
from call_targets import targets
from tally import ACCIDENT

import stringpe
from captioned_files import picture
from stringpe import catalogue, coords, testing
from stringpe.catalogue import find, option_names
from stringpe.cli.main import main

BAD = [
    None, "x", b"x", 0, -1, 2.5, float("nan"), float("inf"), True, [], [1], (2, 3), {}, np.zeros(3), np.float32(2),
    np.int64(4), torch.zeros(2), torch.tensor(4), object(),
]  # fmt: skip
TENSORS = [
    torch.randn(5), torch.randn(0), torch.randn(1, 2, 5, 8, device="meta"), torch.randn(1, 2, 5, 8).to_sparse(),
    torch.randn(1, 2, 5, 8).to(torch.complex64), torch.ones(1, 2, 5, 8, dtype=torch.int64),
]  # fmt: skip
SIZES = {"head_dim": 8, "num_heads": 2, "coord_dim": 2}


@pytest.fixture(autouse=True)
def no_entry_is_left(monkeypatch):
    """One of the functions that are called is `register`."""
    monkeypatch.setattr(catalogue, "_ENTRIES", dict(catalogue._ENTRIES))


def accident(call) -> str:
    """What went wrong inside, if anything did."""
    try:
        call()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}" if ACCIDENT.search(str(error)) else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def assert_no_accidents(calls):
    found = {label: what for label, call in calls.items() if (what := accident(call))}
    assert not found, "\n".join(f"{label}: {what}" for label, what in found.items())


@pytest.mark.parametrize("name", stringpe.names(baselines=True))
def test_malformed_options_are_refused_in_words(name):
    assert_no_accidents(
        {
            f"{option}={bad!r}": lambda option=option, bad=bad: stringpe.create(name, **(SIZES | {option: bad}))
            for option in sorted(option_names(find(name).factory))
            for bad in BAD
        }
    )


@pytest.mark.parametrize("name", stringpe.names(kind="absolute"))
def test_options_of_absolute_embeddings(name):
    sizes = {"dim": 8, "sizes": (2, 2), "coord_dim": 2}
    assert_no_accidents(
        {
            f"{option}={bad!r}": lambda option=option, bad=bad: stringpe.create(name, **(sizes | {option: bad}))
            for option in sorted(option_names(find(name).factory))
            for bad in BAD
        }
    )


@pytest.mark.parametrize("name", stringpe.names(baselines=True))
def test_malformed_inputs_of_encodings_are_refused_in_words(name):
    enc = stringpe.create(name, **SIZES)
    x, r = torch.randn(1, 2, 5, 8), torch.randn(5, 2)
    calls = {}
    for i, bad in enumerate([*BAD, *TENSORS]):
        calls[f"x {i}"] = lambda bad=bad: enc.rotate(bad, r)
        calls[f"coords {i}"] = lambda bad=bad: enc.rotate(x, bad)
        calls[f"q {i}"] = lambda bad=bad: enc(bad, x, r)
        calls[f"k {i}"] = lambda bad=bad: enc(x, bad, r)
        calls[f"key_coords {i}"] = lambda bad=bad: enc(x, x, r, bad)
        if hasattr(enc, "matrix"):
            calls[f"matrix {i}"] = lambda bad=bad: enc.matrix(bad)
    assert_no_accidents(calls)


FUNCTIONS = {
    "create": stringpe.create,
    "names": lambda bad: stringpe.names(kind=bad),
    "grid": coords.grid,
    "grid, prefix": lambda bad: coords.grid(2, 2, prefix=bad),
    "grid, units": lambda bad: coords.grid(2, 2, units=bad),
    "grid, dtype": lambda bad: coords.grid(2, 2, dtype=bad),
    "with_prefix": lambda bad: coords.with_prefix(bad, 1),
    "valid_depth": coords.valid_depth,
    "pool_depth": lambda bad: coords.pool_depth(bad, 2),
    "pool_depth, patch_size": lambda bad: coords.pool_depth(torch.ones(1, 4, 4), bad),
    "lift_depth, scale": lambda bad: coords.lift_depth(torch.ones(1, 4, 4), 2, scale=bad),
    "lift_depth, offset": lambda bad: coords.lift_depth(torch.ones(1, 4, 4), 2, offset=bad),
    "backproject": lambda bad: coords.backproject(bad, torch.eye(3)),
    "backproject, intrinsics": lambda bad: coords.backproject(torch.ones(1, 2, 2), bad),
    "backproject, pose": lambda bad: coords.backproject(torch.ones(1, 2, 2), torch.eye(3), bad),
    "patch_points, intrinsics": lambda bad: coords.patch_points(torch.ones(1, 4, 4), bad, 2),
    "augment": coords.augment,
    "augment, batch": lambda bad: coords.augment(torch.zeros(4, 2), batch=bad),
    "augment, shift": lambda bad: coords.augment(torch.zeros(1, 4, 2), shift=bad),
    "polar": coords.polar,
    "log_polar": coords.log_polar,
    "spherical": coords.spherical,
    "cylindrical": coords.cylindrical,
    "from_generators": stringpe.from_generators,
    "generators": stringpe.generators,
    "Encoding": lambda bad: stringpe.Encoding(bad, bad),
    "check": testing.check,
    "shift_error": testing.shift_error,
    "param_groups": lambda bad: stringpe.param_groups(bad, lr=1.0),
    "param_groups, lr": lambda bad: stringpe.param_groups(torch.nn.Linear(2, 2), lr=bad),
}

TARGETS = {f"{name}, {key}": (name, key) for name, (_, good) in targets().items() for key in good}


@pytest.mark.parametrize("name", TARGETS)
def test_every_argument_of_the_calls_that_are_attacked(name):
    target, key = TARGETS[name]
    call, good = targets()[target]
    with torch.no_grad():
        assert_no_accidents(
            {f"{i}": lambda bad=bad: call(**(good | {key: bad})) for i, bad in enumerate([*BAD, *TENSORS])}
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_malformed_arguments_of_functions_are_refused_in_words(name):
    assert_no_accidents({f"{i}": lambda bad=bad: FUNCTIONS[name](bad) for i, bad in enumerate([*BAD, *TENSORS])})


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf")], ids=["1e400", "nan", "inf"])
@pytest.mark.parametrize("option", ["scale", "base", "zero_fraction"])
def test_numbers_that_are_not_finite_are_refused_in_words(option, value):
    with pytest.raises(ValueError, match=rf"{option} must be a finite number, got (1000|nan|inf)"):
        stringpe.cayley(**SIZES, **{option: value})


# What the first attack found and listed by name: N14 and W3 of docs/reliability.md.

ENCODING = stringpe.cayley(**SIZES)
LAYER = stringpe.Attention(16, 2, encoding=stringpe.cayley(**SIZES))
Q, R, X = torch.randn(1, 2, 3, 8), torch.randn(3, 2), torch.randn(1, 3, 16)
CALLS = {
    "arrays": (lambda: ENCODING(Q.numpy(), Q, R), "q must be a torch tensor, got ndarray"),
    "an encoding by name": (lambda: stringpe.Attention(32, 2, "cayley"), "build it with stringpe.create"),
    "no heads": (lambda: stringpe.Attention(32, 0), "num_heads must be at least 1, got 0"),
    "no key heads": (lambda: stringpe.Attention(16, 2, num_kv_heads=0), "num_kv_heads must be at least 1, got 0"),
    "shape of a mask": (lambda: LAYER(X, R, mask=torch.ones(7, 5).bool()), r"mask must be \(b, m\) = \(1, 3\)"),
    "shape of a context": (lambda: LAYER(X, R, X.repeat(2, 1, 1), R), "context has a batch of 2 and x of 1"),
    "float64 tokens": (lambda: LAYER(X.double(), R), r"x is torch\.float64 and the weights are torch\.float32"),
    "no name": (lambda: stringpe.create(None), "an encoding is named by a string, got NoneType"),
    "nested tokens": (lambda: LAYER(torch.nested.nested_tensor([X[0]]), R), "x is a nested tensor"),
    "whole numbers": (lambda: ENCODING(Q.long(), Q, R), r"must be floating point, got torch\.int64"),
    "two devices": (lambda: ENCODING(Q.to("meta"), Q, R), "x is on meta but coords are on cpu"),
    "a mask of numbers": (lambda: LAYER(X, R, mask=torch.ones(1, 3)), r"mask must be boolean.*got torch\.float32"),
    "no positions": (lambda: stringpe.vit("vit_test_patch16", encoding=None), "encoding='none'"),
    "coordinates that would be ignored": (
        lambda: stringpe.vit("vit_test_patch16", encoding="absolute").features(torch.zeros(1, 3, 32, 32), coords=R),
        "would ignore coords",
    ),
    "everything dropped": (lambda: stringpe.vit("vit_test_patch16", drop_path=1.0), "drop_path is a rate"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("call", CALLS)
def test_calls_that_the_first_attack_found(call):
    with pytest.raises((ValueError, TypeError), match=CALLS[call][1]):
        CALLS[call][0]()


def test_nothing_to_transform_is_not_an_accident():
    encoding = stringpe.circulant(**SIZES, method="fft")
    assert encoding.rotate(torch.randn(1, 2, 0, 8), torch.randn(0, 2)).shape == (1, 2, 0, 8)


INVOCATIONS = {
    "train relations loop.batch_size=-4": "batch_size must be at least 1, got -4",
    "train relations loop.accumulate=0": "accumulate must be at least 1, got 0",
    "train relations loop.log_every=0": "log_every must be at least 1, got 0",
    "train relations loop.save_every=0": "save_every must be at least 1, got 0",
    "train relations loop.steps=-3": "steps must be at least 0, got -3",
    "train relations model.layers=0": "layers must be at least 1, got 0",
    "train relations optim.warmup_steps=-5": "warmup_steps must be at least 0, got -5",
    "train relations model.encoding_options.nothing=3": "'cayley' has no option 'nothing'",
    "train scenes model.encoding=cayleyy": "did you mean 'cayley'",
    "train imagenet2012 data.source=shards data.train=p.png data.val=p.png": "p.png",
    "compare properties --tokens -1": "--tokens: must be at least 1, got -1",
    "bench op --modes foo": "there is no mode 'foo'",
    "bench op --device cuda:99": "cuda:99",
    "data pack x y --size 0": "--size: must be at least 1, got 0",
    "export x --size -1": "--size: must be at least 0, got -1",
}


@pytest.mark.parametrize("words", INVOCATIONS)
def test_invocations_that_the_first_attack_found(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.png").write_bytes(picture())
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    said = str(stopped.value) if isinstance(stopped.value.code, str) else capsys.readouterr().err
    assert INVOCATIONS[words] in said
    assert len(said.strip().splitlines()) == 1
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"p.png", ".lock"}
