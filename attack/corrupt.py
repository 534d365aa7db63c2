"""Corrupt files of every kind that is read: refused in one line that names the file, left out and counted, or used
where the damage does no harm; never a traceback, a hang or a wrong number."""

from __future__ import annotations

import random
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from file_targets import targets
from mutate import Target
from tally import Tally, time_limit

from stringpe.data.cache import forget_all
from stringpe.io.pictures import BadSample

_SECONDS = 30.0
_HARMLESS = re.compile(r"cannot be used and are left out|is made again|goes on from the checkpoint before|damaged")


def attack(count: int, seed: int, *, only: tuple[str, ...] = ()) -> Tally:
    """So many damaged files, the targets in turns."""
    tally, dice = Tally("corrupt files"), random.Random(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = {name: t for name, t in targets(Path(folder)).items() if not only or any(o in name for o in only)}
        sound = {name: target.file.read_bytes() for name, target in known.items()}
        for name, target in known.items():  # what is whole is read
            if not target.sound(target.read()):
                raise RuntimeError(f"{name} cannot be read even when it is whole")
            forget_all()
        for case in range(count):
            name = list(known)[case % len(known)]
            target, content = known[name], target_content(known[name], sound[name], dice, case)
            target.file.unlink() if content is None else target.file.write_bytes(content)
            with _restored(target.file, sound[name]):
                _case(tally, f"{name}, case {case} of seed {seed}", target)
    return tally


def target_content(target: Target, whole: bytes, dice: random.Random, case: int) -> bytes | None:
    """The damaged file; None for one that is missing."""
    return None if dice.random() < 0.02 else target.how(whole, dice)


@contextmanager
def _restored(file: Path, content: bytes) -> Iterator[None]:
    try:
        yield
    finally:
        file.write_bytes(content)
        forget_all()


def _case(tally: Tally, line: str, target: Target) -> None:
    try:
        with warnings.catch_warnings(record=True) as heard, time_limit(_SECONDS):
            warnings.simplefilter("always")
            found = target.read()
    except TimeoutError as error:
        tally.fault("hang", f"{line} → {error}")
    except (ValueError, OSError, BadSample) as error:
        text = str(error)
        names = (target.file.name, *target.called)
        if isinstance(error, UnicodeError) or "\n" in text.strip() or len(text) < 20:
            tally.fault("obscure error", f"{line} → {type(error).__name__}: {text[:200]!r}")
        elif not any(name in text for name in names):
            tally.fault("refused without its name", f"{line} → {type(error).__name__}: {text[:200]}")
        else:
            tally.count("refused, file named")
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        tally.fault("traceback", f"{line} → {type(error).__name__}: {first}")
    else:
        if not target.sound(found):
            tally.fault("wrong and believed", line)
        elif any(_HARMLESS.search(str(w.message)) for w in heard):
            tally.count("left out, counted and named")
        else:
            tally.count("used, nothing wrong with what was read")
