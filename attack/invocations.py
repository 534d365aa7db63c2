"""Wrong invocations of every command: one line that says what is wrong, nothing made before it, and no traceback; and
Ctrl-C at any moment, which is one line as well."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import material
import torch
from forks import DRAFT, Process
from tally import Tally, time_limit
from wrong_words import Case, draw_case, known_cases

from stringpe.cli import main as cli
from stringpe.recipes.schema import Recipe

_SECONDS = 60.0


class Began(BaseException):
    """The command found nothing wrong and would have begun to work."""


def attack(count: int, seed: int) -> Tally:
    """So many invocations in this process, some more as processes of their own, and some that Ctrl-C stops."""
    processes, interrupts = -(-count // 150), -(-count // 50)
    tally, dice = Tally("wrong invocations"), random.Random(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = _places(Path(folder))
        listed = list(known_cases(places))
        dice.shuffle(listed)
        drawn = (draw_case(dice, places) for _ in itertools.count())
        with _in_folder(Path(folder) / "here"):
            for case in itertools.islice(itertools.chain(listed, drawn), count):
                with _nothing_begins():
                    _judge(tally, case, *_call(case.words))
            for case in dice.sample(listed, min(processes, len(listed))):
                _judge(tally, case, *_start(case.words))
            for _ in range(interrupts):
                _interrupt(tally, dice, Path(folder), places)
    return tally


def _judge(tally: Tally, case: Case, outcome: str, text: str, made: Sequence[str]) -> None:
    line = f"stringpe {' '.join(map(repr, case.words))}"
    lines = text.strip().splitlines()
    if outcome in ("hang", "traceback"):
        tally.fault(outcome, f"{line} → {text[:200]}")
    elif outcome in ("began", "worked"):
        if case.wrong:
            tally.fault("accepted", line)
        else:
            tally.count("taken for right")
    elif len(lines) != 1 or len(text) < 20:
        tally.fault("obscure error", f"{line} → {text[:200]!r}")
    elif made:
        tally.fault("made something before refusing", f"{line} → {', '.join(made[:3])}")
    else:
        tally.count("refused in one line")


def _call(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """What the command does here: the outcome, its words, and the files that it made."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), time_limit(_SECONDS):
            cli.main(list(words))
        outcome, text = "worked", out.getvalue()
    except Began:
        outcome, text = "began", ""
    except SystemExit as stop:
        ended = stop.code in (0, None)
        outcome = "worked" if ended else "refused"
        text = str(stop.code) if isinstance(stop.code, str) else err.getvalue()
    except TimeoutError:
        outcome, text = "hang", f"no answer for {_SECONDS:g} s"
    except BaseException as error:
        outcome, text = "traceback", f"{type(error).__name__}: {error}"
    made = _made()
    return outcome, text, made


def _start(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """The same in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "stringpe", *words], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "hang", f"no answer for {_SECONDS:g} s", []
    if "Traceback" in done.stderr:
        return "traceback", done.stderr.strip().splitlines()[-1], []
    made = _made()
    return ("refused" if done.returncode else "worked"), done.stderr, made


def _made() -> list[str]:
    """What a command left in the current folder, besides a lock; it is removed."""
    others = re.compile(r"out(/\.lock)?|cache(/Microsoft.*)?")  # a lock, and what onnxruntime notes for itself
    found = [str(path) for path in Path().rglob("*") if not others.fullmatch(str(path))]
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """In an empty folder, with a cache of its own."""
    folder.mkdir()
    before, cache = Path.cwd(), os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("XDG_CACHE_HOME")
        if cache is not None:
            os.environ["XDG_CACHE_HOME"] = cache


@contextlib.contextmanager
def _nothing_begins() -> Iterator[None]:
    """Commands stop where their work would begin."""

    def begin(*args: Any, **kwargs: Any) -> Any:
        raise Began

    def read_data(recipe: Recipe, *args: Any) -> Any:
        """Training begins once its data is read; what a recipe makes itself is right, and takes time."""
        if recipe.data.source not in ("scenes", "synthetic", "points"):
            launch.create(recipe).examples  # noqa: B018
        raise Began

    launch = importlib.import_module("stringpe.training.launch")
    places = [
        ("stringpe.training.comparison", "_train_rows"),
        ("stringpe.bench.results", "_rows"), ("stringpe.cli.properties", "_milliseconds"),
        ("stringpe.scenes.shards", "claim_folder"), ("stringpe.robots.data.demos", "claim_folder"),
        ("stringpe.cli.drawing", "draw"), ("stringpe.training.comparison", "claim_folder"),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, launch, "_train", launch._train)
        launch._train = read_data  # type: ignore[attr-defined]
        for name, attribute in places:
            module = importlib.import_module(name)
            stack.callback(setattr, module, attribute, getattr(module, attribute))
            setattr(module, attribute, begin)
        yield


# What is typed.


def _places(folder: Path) -> dict[str, str]:
    """Things that are not what a command wants, and some that are."""
    runs = material.runs(folder / "runs")
    models = material.models(folder / "models")
    robots = material.demonstrations(folder / "robots")
    (folder / "empty").mkdir()
    (folder / "text.txt").write_text("nothing of interest\n")
    return {
        "classifier": str(runs["a classifier"]),
        "retrieval": str(runs["retrieval"]),
        "policy": str(runs["a policy"]),
        "owl": str(models["owl"]),
        "attached": str(models["attached"]),
        "demos": str(robots["data set"]),
        "hdf5": str(robots["hdf5"]),
        "pack": str(robots["pack"]),
        "tar": str(folder / "runs" / "samples" / "labels.tar"),
        "picture": str(_write(folder / "picture.png")),
        "classes": str(_write(folder / "classes" / "mug" / "0.png").parents[1]),
        "empty": str(folder / "empty"),
        "text": str(folder / "text.txt"),
        "nowhere": str(folder / "nowhere"),
    }


def _write(path: Path) -> Path:
    from captioned_files import picture

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture())
    return path


def _long_commands(out: Path, places: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Commands that work for a while, and write to `out`."""
    few = ("--count", "64", "--size", "32", "32", "--shard-size", "2")
    small = ("data.train_size=64", "data.val_size=16", "loop.steps=400", "loop.eval_every=5", "model.layers=1")
    shipped = Path(__file__).parents[1] / "models" / "detection3d-demo"
    room, classes = shipped / "room-8.png", ("--text", "chair", "table")
    return {
        "train": ("train", "relations", *small, "--out", str(out)),
        "compare": ("compare", "relations", *small, "--jobs", "1", "--seeds", "1", "--no-costs", "--out", str(out)),
        "compare properties": ("compare", "properties"),
        "data scenes": ("data", "scenes", *few, "--out", str(out)),
        "data pack": ("data", "pack", places["demos"], str(out / "x.safetensors")),
        "data hdf5": ("data", "hdf5", places["hdf5"], "--out", str(out), "--task", "reach"),
        "data index": ("data", "index", places["tar"]),
        "eval": ("eval", places["classifier"], "--out", str(out)),
        "eval, zero-shot": ("eval", places["retrieval"], "--zero-shot", places["classes"]),
        "predict": ("predict", str(shipped), str(room), *classes, "--out", str(out / "x"),
                    "--depth", str(room.with_suffix(".depth.png")), "--html"),
        "export": ("export", places["classifier"], "--to", "torch-export", "--out", str(out / "x.pt2")),
        "inspect": ("inspect", "cayley", "--out", str(out / "x.png")),
        "bench": ("bench", "op", "--out", str(out)),
    }  # fmt: skip


def _interrupt(tally: Tally, dice: random.Random, folder: Path, places: dict[str, str]) -> None:
    """Ctrl-C in a command at work: one line, exit status 130, and nothing half done."""
    out = folder / "interrupted"
    commands = _long_commands(out, places)
    name = dice.choice(list(commands))
    process = Process(partial(_run_command, commands[name]), folder / "interrupted.log")
    time.sleep(dice.choice((dice.uniform(0.02, 0.3), dice.uniform(0.3, 2.0))))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGINT)
    status = process.wait()
    said = process.log.read_text(errors="replace")
    drafts = [path.name for path in out.rglob(".*") if DRAFT.match(path.name)]
    if status is None:
        tally.fault("hang", f"{name} after Ctrl-C")
    elif "Traceback" in said or (status and "stopped by Ctrl-C" not in said):
        tally.fault("traceback", f"{name} after Ctrl-C → {process.said()[:200]}")
    elif drafts:
        tally.fault("draft left behind", f"{name} after Ctrl-C → {drafts[0]}")
    else:
        tally.count("stopped by Ctrl-C in one line" if status else "ended before Ctrl-C")
    shutil.rmtree(out, ignore_errors=True)


def _run_command(words: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = False
    try:
        cli.main(list(words))
        ended = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        if not ended:  # else it came too late
            raise
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        sys.stderr.flush()
        os._exit(stop.code if isinstance(stop.code, int) else 1)
