"""Packages that are missing, and torchvision beside a torch of another build, in words."""

import subprocess
import sys

import pytest

from stringpe.io.imports import ROBOTS, MismatchedTorchvision, explain_torchvision, import_optional

SAID = r"torchvision .* was built for another torch than .*: install both .*--force-reinstall torch==[\d.]+ torchvision"


def fail_deep_inside():
    try:
        raise RuntimeError("operator torchvision::nms does not exist")
    except RuntimeError as error:
        raise ModuleNotFoundError("Could not import module 'ViTModel'") from error


def test_the_cause_is_named_however_deep_it_lies():
    with pytest.raises(MismatchedTorchvision, match=SAID), explain_torchvision():
        fail_deep_inside()
    with pytest.raises(MismatchedTorchvision, match=SAID), explain_torchvision(), explain_torchvision():
        raise RuntimeError("operator torchvision::nms does not exist")


@pytest.mark.parametrize(
    ("torch_version", "fix"),
    [
        ("2.13.0+cpu", "torch==2.13.0 torchvision --index-url https://download.pytorch.org/whl/cpu"),
        ("2.13.0", "torch==2.13.0 torchvision"),
    ],
)
def test_the_fix_takes_torchvision_from_the_index_of_the_installed_torch(monkeypatch, torch_version, fix):
    monkeypatch.setattr("importlib.metadata.version", lambda _: torch_version)
    with pytest.raises(MismatchedTorchvision) as caught, explain_torchvision():
        fail_deep_inside()
    assert str(caught.value).endswith(f"pip install --force-reinstall {fix}")


def test_other_errors_stay_as_they_are():
    for error in (
        RuntimeError("out of memory"),
        ModuleNotFoundError("No module named 'timm'"),
        ValueError("torchvision::"),
    ):
        with pytest.raises(type(error)) as caught, explain_torchvision():
            raise error
        assert caught.value is error


LIFT = "from stringpe.cli.main import main; main(['data', 'depth', 'x', 'y', '--model', sys.path[0]])"


@pytest.mark.parametrize("what", ["import stringpe.timm", LIFT])
def test_an_import_that_fails_for_it_says_so(what, tmp_path):
    """With packages that fail as real ones do, in a process of its own."""
    for package in ("timm", "transformers"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(
            "raise RuntimeError('operator torchvision::nms does not exist')"
        )
    (tmp_path / "config.json").write_text("{}")
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {what}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode
    assert "was built for another torch than" in run.stderr.splitlines()[-1]
    assert ("Traceback" in run.stderr) == (what != LIFT)


def test_a_package_that_is_missing_is_named_with_what_needs_it_and_how_to_get_it(monkeypatch):
    assert import_optional("json", "nothing", "json", "loads")("1") == 1
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"^an HDF5 file needs the package h5py: pip install 'stringpe\[robots\]'"):
        import_optional("h5py", "an HDF5 file", ROBOTS)
