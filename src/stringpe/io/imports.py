"""Packages that not every installation has: what needs them and how to get them, and a clear error where torchvision,
which several of them import, does not match torch."""

import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LANGUAGE, ROBOTS = "'stringpe[language]'", "'stringpe[robots]'"
"""What pip installs for texts and models of transformers, and for robots."""


class MismatchedTorchvision(ImportError):
    """torchvision was built for another torch."""


def import_optional(package: str, what: str, install: str, name: str = "") -> Any:
    """A package, or what it has under `name`. ValueError that says what needs it, "depth estimation", and what pip
    installs for it, if it is missing."""
    try:
        with explain_torchvision():
            module = importlib.import_module(package)
            return getattr(module, name) if name else module
    except MismatchedTorchvision:
        raise
    except ImportError as missing:
        raise ValueError(f"{what} needs the package {package}: pip install {install} ({missing})") from None


@contextmanager
def explain_torchvision() -> Iterator[None]:
    """Say what is wrong where an import of timm, transformers or open_clip ends in "operator torchvision::nms does not
    exist": torchvision's compiled operators belong to another build of torch."""
    try:
        yield
    except (RuntimeError, ImportError) as error:
        if isinstance(error, MismatchedTorchvision) or not _is_about_torchvision(error):
            raise
        release, _, build = _version("torch").partition("+")
        index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
        raise MismatchedTorchvision(
            f"torchvision {_version('torchvision')} was built for another torch than {_version('torch')}, and timm, "
            f"transformers and open_clip cannot be imported with it: install both from the same index, pip install "
            f"--force-reinstall torch=={release} torchvision{index}"
        ) from error


def _is_about_torchvision(error: BaseException | None) -> bool:
    while error is not None:
        if "torchvision::" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
