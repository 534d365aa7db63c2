"""Names that users type: looking one up, and saying what was probably meant when there is none."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")


def find_near(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, whatever its case; empty if none is near."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.4)
    return by_lower[near[0]] if near else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """ "did you mean 'cayley'? " for a near miss, or nothing."""
    near = find_near(name, known)
    return f"did you mean {near!r}? " if near else ""


def unknown(what: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not known: what it should name, a guess, and the names that exist."""
    names = list(known)
    return ValueError(f"there is no {what} named {name!r}: {suggest(str(name), names)}The names are {', '.join(names)}")


def look_up(what: str, name: str, table: Mapping[str, Value]) -> Value:
    """table[name], or an error that lists the names."""
    if name not in table:
        raise unknown(what, name, table)
    return table[name]
