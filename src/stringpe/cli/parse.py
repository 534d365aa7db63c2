"""Parsing: a command is a function, and its command line is generated from its signature and docstring.

    def train(recipe: str, /, out: Path = Path("runs/train"), changes: Changes = ()) -> None:

Parameters before the slash are words, the others options: `stringpe train scenes optim.lr=3e-4 --out runs/a`. Words of
the form key=value may stand anywhere and go to the parameter `changes`, if the function has one. Nothing but the
standard library is needed, so that launchers on a bare machine and people at a terminal have the same command line.
"""

import argparse
import inspect
import math
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NoReturn

from ..io.registry import suggest


@dataclass(frozen=True)
class Least:
    """A number of the command line must be at least this."""

    bound: float


Changes = tuple[str, ...]
Count = Annotated[int, Least(1)]
Natural = Annotated[int, Least(0)]
_WIDTH = 110
_SQUARE = "--size"  # height and width: two numbers, or one
_CHANGE = re.compile(r"[A-Za-z_][\w.]*=")


def call(function: Callable[..., Any], words: Sequence[str], prog: str) -> None:
    """Parse the words of a command and call its function."""
    positional, named = read_words(function, words, prog)
    function(*positional, **named)


def read_words(function: Callable[..., Any], words: Sequence[str], prog: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that the words of a command stand for, by position and by name."""
    options = {p.name: p for p in inspect.signature(function).parameters.values()}
    words, changes = _take_changes(function, words) if "changes" in options else (list(words), [])
    parsed = vars(make_parser(function, prog).parse_intermixed_args(words))
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in parsed.items()}
    if "changes" in options:
        values["changes"] = tuple(changes)
    return [values.pop(p.name) for p in options.values() if p.kind is p.POSITIONAL_ONLY], values


def make_parser(function: Callable[..., Any], prog: str) -> argparse.ArgumentParser:
    """The parser of a function's command line."""
    text, notes = split_docstring(function)
    # A line of the docstring that does not end a sentence is joined with the next.
    lines = re.sub(r"(?<=[^\n.:])\n(?=\S)", " ", text).splitlines()
    wrapped = "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in lines)
    built = _OneLineParser(prog=prog, description=wrapped, formatter_class=_Help, allow_abbrev=False)
    hints = typing.get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name != "changes":
            _add(built, parameter, hints[parameter.name], notes.get(parameter.name, ""))
    return built


def split_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A docstring's text, and what its section "Args:" says of each parameter."""
    text, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    notes: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(section).splitlines():
        if head := re.match(r"(\w+): (.*)", line):
            name = head[1]
            notes[name] = head[2]
        elif name:
            notes[name] += " " + line.strip()
    return text.strip(), notes


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with lines of our width."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=_WIDTH)


class _OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with a guess where an option is misspelt."""

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            message = f"there is no option {unknown[1]}: {suggest(unknown[1], known)}".rstrip(": ")
        sys.stderr.write(f"{self.prog}: {message}; {self.prog} --help lists what there is\n")
        sys.exit(2)


class _Square(argparse.Action):
    """Height and width, from two numbers or from one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if len(values) > 2:
            parser.error(f"argument {option_string}: takes one or two numbers, got {' '.join(map(str, values))}")
        setattr(namespace, self.dest, tuple(values) if len(values) == 2 else (values[0], values[0]))


def _add(to: argparse.ArgumentParser, parameter: inspect.Parameter, hint: Any, note: str) -> None:
    """Add a parameter to a parser, as a word or as an option."""
    kind, number = _read_hint(hint)
    default = None if parameter.default is parameter.empty else parameter.default
    needed = parameter.default is parameter.empty
    if parameter.kind is parameter.POSITIONAL_ONLY:
        nargs: Any = ("+" if needed else "*") if number == "*" else (None if needed else "?")
        to.add_argument(parameter.name, nargs=nargs, type=kind, default=default, help=note.replace("%", "%%"))
        return
    if default not in (None, "", (), False):
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        note = f"{note} (default: {shown})"
    flag, note = f"--{parameter.name.replace('_', '-')}", note.replace("%", "%%")
    if number == 2 and flag == _SQUARE:
        note = f"{note}; one number is a square"
        to.add_argument(flag, nargs="+", type=kind, default=default, action=_Square, help=note, metavar="PIXELS")
    elif kind is bool:
        to.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=note)
    else:
        to.add_argument(flag, nargs=number, type=kind, default=default, required=needed, help=note)


def _read_hint(hint: Any) -> tuple[Any, Any]:
    """How a word is read, and how many words a parameter takes: None for one, a number, or "*"."""
    if typing.get_origin(hint) is Annotated:
        base, rule = typing.get_args(hint)
        kind, number = _read_hint(base)
        return _make_reader(kind, rule.bound), number
    inner = [h for h in typing.get_args(hint) if h is not NoneType]
    if typing.get_origin(hint) is tuple:
        kind = _read_hint(inner[0])[0]
        return kind, "*" if inner[1:] == [Ellipsis] else len(inner)
    if inner:  # something or None
        return _read_hint(inner[0])
    return (_read_finite if hint is float else hint), None


def _read_finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {word!r}")
    return value


def _make_reader(kind: Callable[[str], Any], bound: float) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what}, got {word!r}") from None
        if value < bound:
            raise argparse.ArgumentTypeError(f"must be at least {bound:g}, got {word}")
        return value

    return read


def _take_changes(function: Callable[..., Any], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that are not key=value, and those that are. The value of an option that takes one word, or a fixed
    number of words, is never taken for a change, nor is the name of a file."""
    hints = typing.get_type_hints(function, include_extras=True)
    takes = {f"--{name.replace('_', '-')}": _read_hint(hint) for name, hint in hints.items() if name != "return"}
    rest, changes, skip = [], [], 0
    for word in words:
        if skip:
            skip -= 1
            rest.append(word)
        elif word.startswith("--"):
            kind, number = takes.get(word, (bool, None))
            skip = 0 if kind is bool or number == "*" or word == _SQUARE else number or 1
            rest.append(word)
        elif _CHANGE.match(word) and not Path(word).exists():
            changes.append(word)
        else:
            rest.append(word)
    return rest, changes
