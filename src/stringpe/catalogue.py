"""The catalogue of encodings by name: one table for STRING, baselines, absolute embeddings and those that users
register.

There are three kinds, which differ in what a factory is called with and in what it returns:

- "string": `factory(head_dim=, num_heads=, coord_dim=, …)` returns an `Encoding` with an orthogonal basis. What
  `names()` lists and all property checks run over.
- "relative": the same call, returning a `PositionEncoding` of another form (⊗-STRING, LieRE, …): the baselines.
- "absolute": `factory(dim=, sizes=, coord_dim=, …)` returns an `AbsoluteEmbedding` that is added to tokens. `sizes` is
  the grid of tokens, one number per axis of the picture or text.

Nothing is imported before it is created: the command line lists the names without loading torch.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from .io.registry import look_up, suggest

KINDS = ("string", "relative", "absolute")


class CatalogueEntry(NamedTuple):
    """What a name stands for: a factory, or the place to import it from, "package.module:factory"; and its kind."""

    source: Callable[..., Any] | str
    kind: str

    @property
    def factory(self) -> Callable[..., Any]:
        return _import_factory(self.source) if isinstance(self.source, str) else self.source


_ENTRIES = {
    "rope": CatalogueEntry("stringpe.named:rope", "string"),
    "rope_mixed": CatalogueEntry("stringpe.named:rope_mixed", "string"),
    "cayley": CatalogueEntry("stringpe.named:cayley", "string"),
    "circulant": CatalogueEntry("stringpe.named:circulant", "string"),
    "general": CatalogueEntry("stringpe.named:general", "string"),
    "simplex": CatalogueEntry("stringpe.named:simplex", "string"),
    "golden": CatalogueEntry("stringpe.named:golden", "string"),
    "liere": CatalogueEntry("stringpe.baselines:LieRE", "relative"),
    "spherical": CatalogueEntry("stringpe.baselines:Spherical", "relative"),
    "harope": CatalogueEntry("stringpe.named:harope", "relative"),
    "outer": CatalogueEntry("stringpe.outer_product:outer", "relative"),
    "absolute": CatalogueEntry("stringpe.baselines:learned_absolute", "absolute"),
    "sincos": CatalogueEntry("stringpe.baselines:sincos", "absolute"),
}


def register(name: str, factory: Callable[..., Any], *, kind: str = "string", replace: bool = False) -> None:
    """Make an encoding known by name, to `create`, models, recipes and the command line.

    factory: called with the sizes that its kind has (see the top of this module) and the user's options by keyword.
    kind: "string", "relative" or "absolute". replace: whether the name may stand for something else already.
    """
    if not isinstance(name, str) or not name or set(name) & set(" .:,=/"):
        raise ValueError(f"the name of an encoding must be a word without spaces or punctuation, got {name!r}")
    if not callable(factory):
        raise TypeError(f"the factory of {name!r} must be callable, got {type(factory).__name__}")
    _check_kind(kind)
    if name in _ENTRIES and not replace:
        raise ValueError(f"there is an encoding named {name!r} already: take another name, or pass replace=True")
    _ENTRIES[name] = CatalogueEntry(factory, kind)


def names(*, baselines: bool = False, kind: str | None = None) -> list[str]:
    """The names of encodings of STRING's form; with `baselines`, also those of others that act on queries and keys; or
    those of one kind: "string", "relative" or "absolute"."""
    if kind is not None:
        _check_kind(kind)
        return [name for name, entry in _ENTRIES.items() if entry.kind == kind]
    kinds = KINDS[:2] if baselines else KINDS[:1]
    return [name for kind in kinds for name, entry in _ENTRIES.items() if entry.kind == kind]


def kind_of(name: str) -> str:
    """The kind of the encoding with this name. A factory given as "module:factory" counts as "relative": it acts on
    queries and keys, and nothing more is known of it."""
    return find(name).kind


def create(name: str, **options: Any) -> Any:
    """The encoding of that name: `create("cayley", head_dim=64, num_heads=12, coord_dim=3)`.

    name: one of `names(baselines=True)`; one of `names(kind="absolute")`, as in `create("absolute", dim=768,
    sizes=(14, 14))`; or "package.module:factory", which imports the module. That runs code: pass on only names that the
    user typed, none from a file of unknown origin.
    """
    entry = find(name)
    factory = entry.factory
    _check_options(name, factory, options)
    encoding = factory(**options)
    _check_result(name, entry.kind, encoding)
    return encoding


def find(name: str) -> CatalogueEntry:
    """The entry of a name, or an error that lists the names."""
    if not isinstance(name, str):
        raise TypeError(f"an encoding is named by a string, got {type(name).__name__}: the names are {_all_names()}")
    return CatalogueEntry(_import_factory(name), "relative") if ":" in name else look_up("encoding", name, _ENTRIES)


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


def _all_names() -> str:
    return ", ".join(_ENTRIES)


def _import_factory(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"cannot import the encoding {name!r}: {error}. Write package.module:factory, with the module on Python's "
            f"path"
        ) from error
    if not callable(factory):
        raise ValueError(f"{name!r} is a {type(factory).__name__}, not a factory: name a function or a class")
    return factory


def option_names(factory: Callable[..., Any]) -> set[str] | None:
    """The keywords that a factory takes, those of an `Unpack[TypedDict]` included; None if it takes any."""
    accepted: set[str] = set()
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            accepted.add(name)
            continue
        shared = [arg for arg in get_args(parameter.annotation) if hasattr(arg, "__total__")]
        if not shared:
            return None
        accepted |= set(shared[0].__annotations__)
    return accepted


def _check_options(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    known = option_names(factory)
    if known is None:
        return
    for option in options:
        if option not in known:
            guess = suggest(option, known)
            raise ValueError(f"{name!r} has no option {option!r}: {guess}Its options are {', '.join(sorted(known))}")
    required = [
        n for n, p in inspect.signature(factory).parameters.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and n not in options
    ]  # fmt: skip
    if required:
        raise ValueError(f"{name!r} needs {' and '.join(required)}: pass {', '.join(f'{n}=…' for n in required)}")


def _check_result(name: str, kind: str, encoding: Any) -> None:
    from .encoding import AbsoluteEmbedding, Encoding, PositionEncoding

    wanted = AbsoluteEmbedding if kind == "absolute" else PositionEncoding
    if not isinstance(encoding, wanted):
        raise TypeError(f"the factory of {name!r} returned a {type(encoding).__name__}, not a {wanted.__name__}")
    if kind == "string" and not (isinstance(encoding, Encoding) and encoding.basis.orthogonal):
        raise TypeError(
            f"{name!r} is registered as kind='string' but returned a {type(encoding).__name__} that is not of the form "
            f"P RoPE Pᵀ with P orthogonal: register it with kind='relative'"
        )
