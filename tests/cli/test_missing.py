"""Every command without a package that it needs: one line, which names the extra that brings it."""

import re
import subprocess
import sys

import pytest

# One process that has imported torch and the command line alone is forked for every case.
SCRIPT = """
import os, sys
from stringpe.cli.main import main
out = sys.argv[1]
for case in sys.stdin.read().splitlines():
    module, *words = case.split("\\t")
    sys.stdout.flush()
    if not os.fork():
        sys.modules[module] = None
        try:
            main([word.replace("OUT", out) for word in words])
            said = "it worked"
        except SystemExit as stop:
            said = str(stop.code)
        except BaseException as error:
            said = f"Traceback: {type(error).__name__}: {error}"
        print(module, said.replace("\\n", " / "), sep="\\t", flush=True)
        os._exit(0)
    os.wait()
"""
CASES = {
    "accelerate": ("train relations --out OUT/a", "train|cli"),
    "matplotlib": ("inspect cayley --out OUT/x.png", "cli"),
    "safetensors": ("eval OUT/run", r"\w+"),
    "PIL": ("predict OUT/run OUT/x.png --text mug", r"\w+"),
    "pyarrow": ("data pack OUT/demos OUT/p", "robots"),
    "h5py": ("data hdf5 OUT/x.png --out OUT/h --task x", "robots"),
    "mujoco": ("data demos KukaPick --out OUT/d", "robots"),
    "gymnasium": ("data demos KukaPick --out OUT/d", "robots"),
    "transformers": ("data depth OUT OUT/z --model OUT/model", "language"),
}


@pytest.mark.slow
def test_a_missing_package_names_its_extra(tmp_path):
    from captioned_files import picture
    from stringpe.robots.data.writer import Writer

    (tmp_path / "x.png").write_bytes(picture())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    folder = tmp_path / "run" / "pretrained_model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    with Writer(tmp_path / "demos", fps=10) as writer:
        writer.add({"observation.state": [[0.0]], "action": [[0.0]]}, task="x")
    lines = "\n".join("\t".join([module, *words.split()]) for module, (words, _) in CASES.items())
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    said = dict(line.split("\t") for line in run.stdout.splitlines() if "\t" in line)
    assert set(said) == set(CASES), run.stderr[-2000:]
    wrong = {module: text for module, text in said.items() if not re.search(rf"stringpe\[({CASES[module][1]})\]", text)}
    assert not wrong
