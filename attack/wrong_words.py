"""Which words are wrong behind `stringpe`: every key and option with values that are never right, places that are not
what a command wants, words that are not commands, and random ones."""

from __future__ import annotations

import inspect
import random
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stringpe import recipes
from stringpe.cli import main as cli
from stringpe.cli.parse import _read_hint
from stringpe.recipes.overrides import keys
from stringpe.recipes.schema import Recipe


@dataclass(frozen=True)
class Case:
    """Words behind `stringpe`. wrong: they must be refused; else they may be right."""

    words: tuple[str, ...]
    wrong: bool = True


_JUNK: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = {
    int: (("x", "1.5", "", "nan", "--"), ("-1", "0", "99999999999999999999", "7")),
    float: (("x", "", "nan", "inf", "-inf"), ("-1", "0", "1e300", "0.5")),
    bool: (("maybe", "2", ""), ("true", "false")),
    str: ((), ("", "zzz", "../..", "a:b", "{", "x" * 300, "−1", "nan")),
}
"""By the type of a value: what is never right, and what may be."""


def known_cases(places: dict[str, str]) -> Iterator[Case]:
    """Every key of a recipe and every option of a command with values that are never right; files and folders that are
    not what a command wants; words that are not commands."""
    kinds = _key_types()
    for key, kind in kinds.items():
        for value in _JUNK[kind][0]:
            yield Case(("train", "relations", f"{key}={value}", "--out", "out"))
    for name, function in cli.COMMANDS.items():
        yield from (Case(words) for words in _wrong_options(name, function))
    yield from (Case(words) for words in _wrong_places(places))
    yield from (Case(words) for words in _NO_COMMANDS)


_NO_COMMANDS = (
    ("trian",), ("compare", "relatoins"), ("data",  "scense"), ("data", "-1"), ("",), ("-x",), ("train",), ("eval",),
    ("train", "relations", "optim"), ("train", "relations", "=3"), ("train", "relations", "optim.=3"), ("export",),
    ("train", "relations", "model.encoding_options=3"), ("train", "relations", "a b c"), ("predict",), ("predict", "a"),
    ("compare", "properties", "relations"),
)  # fmt: skip


def _key_types() -> dict[str, Any]:
    """The plain keys of a recipe with their types."""
    found: dict[str, Any] = {}
    for key in keys():
        node: Any = Recipe
        for part in key.split("."):
            node = typing.get_type_hints(node)[part]
        if node in _JUNK:
            found[key] = node
    return found


def _wrong_options(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, ...]]:
    """One option that is wrong, in an invocation that is otherwise right."""
    whole = _WHOLE.get(name, ("nowhere",))
    hints = typing.get_type_hints(function, include_extras=True)
    yield (*name.split(), *whole, "--no-such-option", "3")
    yield (*name.split(), *whole, "one word too many", "and another", "and a third")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "changes" or parameter.kind is parameter.POSITIONAL_ONLY:
            continue
        flag = f"--{parameter.name.replace('_', '-')}"
        kind, number = _read_hint(hints[parameter.name])
        if kind is not bool and number != "*":
            yield (*name.split(), *whole, flag)  # its value is missing
        base = _plain_type(hints[parameter.name])
        times = number if isinstance(number, int) else 1
        for value in _JUNK.get(base, ((), ()))[0] if base is not bool else ():
            yield (*name.split(), *whole, flag, *[value] * times)


def _plain_type(hint: Any) -> Any:
    while typing.get_args(hint):
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    return hint


_WHOLE: dict[str, tuple[str, ...]] = {
    "compare": ("relations", "--out", "out"),
    "compare properties": (),
    "train": ("relations", "--out", "out"),
    "eval": ("nowhere",),
    "predict": ("nowhere", "nothing.png"),
    "figure": ("nowhere",),
    "data scenes": ("--out", "out"),
    "data depth": ("nowhere", "out", "--model", "nowhere"),
    "data demos": ("KukaPick", "--out", "out"),
    "data pack": ("nowhere", "out"),
    "data hdf5": ("nowhere", "--out", "out", "--task", "x"),
    "bench": ("op", "--out", "out"),
    "inspect": ("cayley",),
    "export": ("nowhere",),
}
"""Words that a command takes; those that read something name a place that is not there."""


def _wrong_places(places: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Existing things of the wrong kind."""
    for what, where in places.items():
        if what not in ("classifier", "retrieval", "policy"):
            yield ("eval", where)
            yield ("eval", where, "--env", "KukaPick")
        if what not in ("classifier", "retrieval", "policy", "attached"):
            yield ("export", where, "--out", "out")
        if what != "owl":
            yield ("predict", where, places["picture"], "--text", "mug")
        if what != "picture":
            yield ("predict", places["owl"], where, "--text", "mug")
            yield ("predict", places["owl"], places["picture"], "--query-image", where)
        yield ("figure", where)
        yield ("data", "depth", where, "out", "--model", where)
        if what != "demos":
            yield ("data", "pack", where, "out")
        if what != "hdf5":
            yield ("data", "hdf5", where, "--out", "out", "--task", "x", "--fps", "0")
        for source in ("shards", "stream", "folder", "coco", "omni3d", "demos"):
            if (what, source) not in (("tar", "shards"), ("tar", "stream"), ("demos", "folder")):
                data = (f"data.source={source}", f"data.train={where}", f"data.val={where}")
                yield ("train", "imagenet2012", *data, "--out", "out")
                yield ("train", "flickr8k", *data, "--out", "out")
    for words in (("--threshold", "2"), ("--top", "0"), ("--nms", "-1"), ("--depth", places["picture"]), ("--text", ""),
                  ("--query-image", places["picture"], "--query-box", "0", "0", "-1", "5"), ("--html",)):  # fmt: skip
        text = () if "--query-image" in words or "--text" in words else ("--text", "mug")
        yield ("predict", places["owl"], places["picture"], *text, *words)
    yield ("eval", places["classifier"], places["retrieval"])
    yield ("eval", places["classifier"], "--zero-shot", places["empty"])
    yield ("eval", places["retrieval"], "--zero-shot", places["empty"])
    yield ("eval", places["policy"], "--env", "KukaPik")
    yield ("eval", places["policy"], "--env", "KukaPick", "lighting=neon")
    yield ("eval", places["policy"], places["policy"], "--env", "KukaPick")
    yield ("eval", places["policy"], "--env", "KukaPick")  # another robot
    yield ("eval", places["classifier"], "model.dim=12")
    yield ("eval", places["classifier"], "--html")
    yield ("eval", places["classifier"], "--rrd")
    yield ("eval", places["owl"], "--html")
    yield ("predict", places["owl"], places["picture"], "--text", "mug", "--html")
    yield ("predict", places["owl"], places["picture"], "--text", "mug", "--rrd")
    for part in ("text", "picture", "empty", "nowhere", "tar"):
        yield ("bench", "--check", places[part], "--out", "out")
    for factory in ("nowhere:factory", "stringpe.named:nothing", "stringpe.named:", ":cayley", "os:system", "a:b:c:d"):
        yield ("train", "relations", f"model.encoding={factory}", "--out", "out")
        yield ("compare", "relations", "--encodings", "rope", factory, "--out", "out")
        yield ("inspect", factory, "--out", "out/x.png")
    for change in ("model.box_centre=corner", "model.frame=moon", "model.box_centre=point"):
        yield ("train", "relations", change, "--out", "out")
    yield ("export", places["classifier"], "--size", "7", "--out", "out")


def draw_case(dice: random.Random, places: dict[str, str]) -> Case:
    """A command with a few odd words, which may be right by accident."""
    kinds = _key_types()
    if dice.random() < 0.5:
        names = dice.sample(list(kinds), dice.randint(1, 3))
        changes = [f"{name}={dice.choice((*_JUNK[kinds[name]][0], *_JUNK[kinds[name]][1]))}" for name in names]
        command = dice.choice(("train", "compare"))
        return Case((command, dice.choice(recipes.names()), *changes, "--out", "out"), wrong=False)
    name = dice.choice(list(cli.COMMANDS))
    words = [*name.split(), *_WHOLE.get(name, ("nowhere",))]
    hints = typing.get_type_hints(cli.COMMANDS[name], include_extras=True)
    options = [n for n in hints if n not in ("return", "changes", "device", "ways", "parts")]
    for option in dice.sample(options, min(len(options), dice.randint(1, 3))):
        junk = _JUNK.get(_plain_type(hints[option]), ((), (*places.values(), "", "zzz")))
        words += [
            f"--{option.replace('_', '-')}",
            *(dice.choice((*junk[0], *junk[1])) for _ in range(dice.randint(0, 3))),
        ]
    if dice.random() < 0.3:
        words.insert(
            dice.randrange(len(words) + 1), dice.choice(("", "-", "--", "x=1", "−−out", "~", "*", *places.values()))
        )
    return Case(tuple(words), wrong=False)
