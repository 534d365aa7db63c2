"""The command line: `stringpe --help`, and the same as `python -m stringpe` for launchers."""

import importlib.metadata
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from .. import recipes
from ..catalogue import names as rotary_names
from ..io.imports import MismatchedTorchvision, explain_torchvision
from ..io.problems import printable
from ..io.registry import suggest
from . import commands, data, eval_command
from .parse import call, split_docstring

COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": commands.compare,
    "compare properties": commands.compare_properties,
    "recipes": commands.list_recipes,
    "train": commands.train,
    "eval": eval_command.evaluate,
    "predict": commands.predict,
    "figure": commands.figure,
    "data scenes": data.scenes,
    "data shards": data.shards,
    "data index": data.index,
    "data depth": data.depth,
    "data demos": data.demos,
    "data pack": data.pack,
    "data hdf5": data.hdf5,
    "data migrate": data.migrate,
    "bench": commands.bench,
    "inspect": commands.inspect,
    "export": commands.export,
}
"""By what is typed after `stringpe`; the longest name that fits is taken."""

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "rerun": "rerun-sdk",
}  # of modules whose package has another name
_INTERRUPTED, _CLOSED = 130, 141  # the exit statuses with which shells report Ctrl-C and a closed pipe


def main(words: Sequence[str] | None = None) -> None:
    """Entry point. Errors that a user can fix are printed in one line; others are bugs and keep their traceback."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        with explain_torchvision():
            run(words)
    except BrokenPipeError:  # the reader of our output has what it wanted: stringpe recipes NAME | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be written at the end
        sys.exit(_CLOSED)
    except KeyboardInterrupt:
        print("\nstringpe: stopped by Ctrl-C; what was finished is kept, the same command goes on", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "stringpe").partition(".")[0] == "stringpe":
            raise
        sys.exit(f"stringpe: {_say_what_to_install(str(error.name))}")
    except (ValueError, OSError, MismatchedTorchvision) as error:
        lines = map(printable, str(error).splitlines())
        sys.exit("stringpe: " + "\n".join(lines))


def run(words: Sequence[str]) -> None:
    """Find the command that the words begin with, and call it with the rest of them."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(list_commands())
        return
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS and len(words) >= length:
            function = COMMANDS[name]
            function.__doc__ = fill_in_names(function.__doc__ or "")
            call(function, words[length:], f"stringpe {name}")
            return
    subcommands = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if subcommands and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(list_commands(subcommands))
    elif subcommands:
        known = [name.partition(" ")[2] for name in subcommands]
        guess = suggest(words[1], known)
        raise ValueError(f"{words[0]} is followed by {', '.join(known)}, not {words[1]!r}: {guess}".rstrip(": "))
    else:
        known = list(dict.fromkeys(name.partition(" ")[0] for name in COMMANDS))
        guess = suggest(words[0], known)
        raise ValueError(f"there is no command {words[0]!r}: {guess}Commands are {', '.join(known)}")


def list_commands(only: Sequence[str] = ()) -> str:
    """What `stringpe --help` prints: one line per command, the recipes and the encodings."""
    listed = {name: split_docstring(COMMANDS[name])[0].splitlines()[0] for name in only or COMMANDS}
    width = max(map(len, listed))
    lines = [f"  {name.ljust(width)}  {text}" for name, text in listed.items()]
    if only:
        return "\n".join([*lines, "", f"stringpe {only[0]} --help says more."])
    return "\n".join(
        [
            "STRING position encodings: train, compare, inspect and use them.",
            "",
            *lines,
            "",
            "stringpe COMMAND --help says more. Start with: stringpe compare. What recipes are for: stringpe recipes",
            *_wrap("Recipes", recipes.names()),
            *_wrap("Encodings", encoding_names()),
        ]
    )


def encoding_names() -> list[str]:
    """What `model.encoding` can be: everything in the catalogue, and none."""
    return [*rotary_names(baselines=True), *rotary_names(kind="absolute"), "none"]


def fill_in_names(text: str) -> str:
    """A docstring with lists of names in place of the words RECIPES, ENCODINGS and ROTARY."""
    lists = {"RECIPES": recipes.names(), "ENCODINGS": encoding_names(), "ROTARY": rotary_names()}
    for word, known in lists.items():
        text = re.sub(rf"\b{word}\b", ", ".join(known), text)
    return text


def _wrap(title: str, names: Sequence[str]) -> list[str]:
    return textwrap.wrap(f"{title}: {', '.join(names)}.", 110, subsequent_indent="  ")


def _say_what_to_install(module: str) -> str:
    """What to install for a module that is missing: the extra of ours that brings it, or else the package itself."""
    package = _DISTRIBUTIONS.get(module.partition(".")[0], module.partition(".")[0])
    plain = package.replace("_", "-").lower()
    try:
        needs = importlib.metadata.requires("stringpe") or []
    except importlib.metadata.PackageNotFoundError:
        needs = []
    extras = [m[1] for need in needs if need.lower().startswith(plain) and (m := re.search(r"extra == .(\w+)", need))]
    target = f"'stringpe[{extras[0]}]'" if extras else plain
    return f"this needs the package {package}, which is not installed: pip install {target}"


if __name__ == "__main__":
    main()
