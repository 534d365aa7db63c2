"""Write the pages of the reference that are made from the code: `python docs/reference/generate.py`.

recipes.md: every key of a recipe, its default, what it may be, and which tasks read it; and every recipe. commands.md:
what `--help` says of every command. A test compares the pages with what this makes.
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from stringpe import recipes, tasks
from stringpe.cli import main as cli
from stringpe.cli.parse import split_docstring
from stringpe.data.sources import SERVES
from stringpe.recipes.rules import is_read
from stringpe.recipes.schema import Data, Policy, Recipe

HERE = Path(__file__).parent
HEAD = "<!-- Made by docs/reference/generate.py from the code. -->\n\n"


def pages() -> dict[str, str]:
    """The text of every page by its file name."""
    return {"recipes.md": recipe_page(), "commands.md": command_page()}


def recipe_page() -> str:
    """Keys group by group, then the recipes."""
    text = [
        "# Recipe keys",
        "A recipe is one experiment as data. `stringpe train NAME key=value …` changes its keys; these are all of "
        "them. A key that the task does not read, with its data source, is refused when it is changed. Tasks: "
        + ", ".join(f"`{name}`" for name in tasks.names())
        + ".",
    ]
    readers = {name: read_keys(name) for name in tasks.names()}
    top = [field for field in dataclasses.fields(Recipe) if not dataclasses.is_dataclass(field.default)]
    text += _keys(Recipe, top, "", readers)
    for group in dataclasses.fields(Recipe):
        if dataclasses.is_dataclass(group.default):
            kind = type(group.default)
            text += [f"## {group.name}", *_keys(kind, dataclasses.fields(kind), f"{group.name}.", readers)]
    text.append("## The recipes")
    for name in recipes.names():
        first, _, rest = recipes.describe(name).strip().partition("\n")
        text += [f"### {name}", first, f"```text\n{inspect.cleandoc(rest)}\n```" if rest.strip() else ""]
    return HEAD + "\n\n".join(part for part in text if part) + "\n"


def read_keys(task: str) -> tuple[str, ...]:
    """Patterns of all keys that a task reads, with one data source and kind of policy or another."""
    kind, policies = tasks.task_class(task), [Policy(kind=name) for name in ("diffusion", "energy")]
    recipes_of = [Recipe(task=task, data=Data(source=s), policy=policy) for s in SERVES[task] for policy in policies]
    sources = [kind.keys(recipe) for recipe in recipes_of]
    return tuple(dict.fromkeys(key for some in sources for key in some))


def command_page() -> str:
    """Every command with its words and options."""
    text = ["# Command line", "Also as `python -m stringpe`. `stringpe COMMAND --help` says the same at a terminal."]
    for name, function in cli.COMMANDS.items():
        function.__doc__ = cli.fill_in_names(function.__doc__ or "")
        said, notes = split_docstring(function)
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "changes"]
        rows = [[f"`{_flag(p)}`", _default(p), notes.get(p.name, "").replace("|", "\\|")] for p in parameters]
        text += [f"## stringpe {name}", said, table(["", "default", ""], rows)]
    return HEAD + "\n\n".join(text) + "\n"


def _flag(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return parameter.name.upper()
    return f"--{parameter.name.replace('_', '-')}"


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty or value is None or value in ("", (), False):
        return ""
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _keys(kind: type, fields: Any, prefix: str, readers: dict[str, tuple[str, ...]]) -> list[str]:
    """What the docstring of a group says first, and the table of its keys."""
    about, meanings = split_keys(inspect.getdoc(kind) or "", [field.name for field in fields])
    rows = []
    for field in fields:
        key = prefix + field.name
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        allowed, who = _allowed(field.metadata), _who(readers, key) if prefix else "all"
        meaning = meanings.get(field.name, "").replace("|", "\\|")
        rows.append([f"`{key}`", f"`{default!r}`", " ".join(filter(None, [meaning, allowed])), who])
    return [about, table(["key", "default", "what it is", "tasks that read it"], rows)]


def split_keys(doc: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """A docstring's first words, and what it says of each key, which it introduces as "key: …" or "key, key: …"."""
    name = rf"`?(?:{'|'.join(sorted(names, key=len, reverse=True))})`?"
    parts = re.split(rf"(?:(?<=[.;] )|^)({name}(?:(?:, | and |, and ){name})*): ", " ".join(doc.split()))
    meanings = {}
    for keys, text in zip(parts[1::2], parts[2::2], strict=True):
        text = text.strip().rstrip(";.")
        for key in re.findall(r"\w+", keys.replace(" and ", " ")):
            meanings[key] = f"{text[:1].upper()}{text[1:]}."
    return parts[0].strip(), meanings


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown without padding, so that one long cell does not widen all rows."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _who(readers: dict[str, tuple[str, ...]], key: str) -> str:
    by = [name for name, keys in readers.items() if is_read(key, keys)]
    others = [name for name in readers if name not in by]
    return "all" + (f" but {', '.join(others)}" if others else "") if len(others) < len(by) / 2 else ", ".join(by)


def _allowed(rule: Any) -> str:
    if "choices" in rule:
        return "One of " + ", ".join(f"`{choice}`" for choice in rule["choices"]) + "."
    words = {"least": "≥", "most": "≤", "above": ">", "below": "<"}
    bounds = ", ".join(f"{word} {rule[name]:g}" for name, word in words.items() if name in rule)
    return f"({bounds})" if bounds else ""


if __name__ == "__main__":
    for file, content in pages().items():
        (HERE / file).write_text(content, encoding="utf-8")
        print(f"wrote {HERE / file}")
