"""A clear error where torchvision, which other packages import, does not match torch."""

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager


class MismatchedTorchvision(ImportError):
    """torchvision was built for another torch."""


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
