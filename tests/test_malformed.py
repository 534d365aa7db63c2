"""Malformed calls: whatever is passed where, the answer is a result or one clear sentence, never an accident inside."""

import numpy as np
import pytest
import torch
from call_targets import targets
from tally import ACCIDENT

import stringpe
from stringpe import coords, testing
from stringpe.catalogue import find, option_names

BAD = [
    None, "x", b"x", 0, -1, 2.5, float("nan"), float("inf"), True, [], [1], (2, 3), {}, np.zeros(3), np.float32(2),
    np.int64(4), torch.zeros(2), torch.tensor(4), object(),
]  # fmt: skip
TENSORS = [
    torch.randn(5), torch.randn(0), torch.randn(1, 2, 5, 8, device="meta"), torch.randn(1, 2, 5, 8).to_sparse(),
    torch.randn(1, 2, 5, 8).to(torch.complex64), torch.ones(1, 2, 5, 8, dtype=torch.int64),
]  # fmt: skip
SIZES = {"head_dim": 8, "num_heads": 2, "coord_dim": 2}


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
def test_options(name):
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
def test_inputs(name):
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
def test_functions(name):
    assert_no_accidents({f"{i}": lambda bad=bad: FUNCTIONS[name](bad) for i, bad in enumerate([*BAD, *TENSORS])})


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf")], ids=["1e400", "nan", "inf"])
@pytest.mark.parametrize("option", ["scale", "base", "zero_fraction"])
def test_numbers_that_are_not_finite_are_refused_in_words(option, value):
    with pytest.raises(ValueError, match=rf"{option} must be a finite number, got (1000|nan|inf)"):
        stringpe.cayley(**SIZES, **{option: value})
