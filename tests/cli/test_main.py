"""The command line as people and launchers type it: which command, what help says, what mistakes are answered with."""

import os
import signal
import time

import pytest
from PIL import Image

from browser import results_in_browser
from stringpe import names, recipes
from stringpe.cli import main as cli

DRAWN = [*((name, "2") for name in ("rope", "rope_mixed", "circulant", "general")), ("cayley", "1"), ("cayley", "3")]


@pytest.mark.parametrize(("name", "coord_dim"), DRAWN)
@pytest.mark.slow
def test_inspect_draws(capsys, tmp_path, name, coord_dim):
    out = tmp_path / "sub" / "picture.png"
    cli.main(["inspect", name, "--coord-dim", coord_dim, "--head-dim", "16", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "wavelengths" in printed
    assert f"wrote {out}" in printed
    picture = Image.open(out).convert("L")
    assert picture.width > 800
    assert len(picture.getcolors(maxcolors=256)) > 50  # not blank


@pytest.mark.slow
def test_inspect_shows_weights_that_move_and_weights_that_do_not(capsys, tmp_path):
    """The animation and the page of the README: coordinates move, absolute weights change, relative ones do not."""
    out = tmp_path / "shift.gif"
    cli.main(["inspect", "cayley", "--out", str(out), "--html", "--beside", "sincos", "rope"])
    assert f"wrote {out}" in capsys.readouterr().out
    with Image.open(out) as moving:
        assert (moving.n_frames, moving.width) == (24, 930)
    script = """
    setTimeout(() => {
      const slider = document.getElementById("variant");
      slider.value = slider.max; slider.oninput();
      report(document.getElementById("variant-name").textContent);
      const changes = [...document.querySelectorAll("canvas")].map(canvas => Number(canvas.dataset.change));
      report(changes.map(change => change > 0.1)); report(changes.map(change => change < 1e-5));
    }, 500);
    """
    told = results_in_browser(out.with_suffix(".html").read_text(), script, tmp_path)
    assert told == ["all coordinates moved by 16 rows and columns", "true,false,false", "false,true,true"]


def test_eval_of_a_policy_asks_for_pages(monkeypatch, capsys):
    told = {}
    monkeypatch.setattr(
        "stringpe.training.simulation.simulate", lambda *given, **options: told.update(options) or "done"
    )
    cli.main(["eval", "run", "--env", "KukaPick", "--html", "--trials", "4"])
    assert told["html"] is True
    assert told["count"] == 4


def test_inspect_takes_a_picture_of_ones_own(tmp_path):
    photo, out = tmp_path / "photo.png", tmp_path / "own.html"
    Image.new("RGB", (300, 200), (10, 200, 30)).save(photo)
    cli.main(["inspect", "rope", "--html", "--out", str(out), "--beside", "sincos", "--image", str(photo)])
    assert results_in_browser(out.read_text(), "report(data.size);", tmp_path) == ["168,168"]


def test_inspect_a_single_head(tmp_path):
    cli.main(["inspect", "cayley", "--num-heads", "1", "--head-dim", "8", "--out", str(tmp_path / "one.svg")])
    assert (tmp_path / "one.svg").stat().st_size > 1000


def test_properties_have_a_row_for_everything(capsys):
    cli.main(["compare", "properties", "--head-dim", "8", "--num-heads", "2", "--tokens", "16"])
    printed = capsys.readouterr().out
    for name in (
        "rope",
        "rope_mixed",
        "cayley",
        "circulant",
        "general",
        "outer",
        "liere",
        "torch 2",
        "against expm",
    ):
        assert name in printed


def test_help_names_every_command_recipe_and_encoding(capsys):
    cli.main(["--help"])
    printed = capsys.readouterr().out
    for name in (*cli.COMMANDS, *recipes.names(), *names(), "absolute", "none"):
        assert name in printed
    assert all(len(line) < 150 for line in printed.splitlines())
    cli.main([])
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([*command.split(), "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: stringpe {command}")
    if command in ("compare", "train"):
        assert all(name in printed for name in (*recipes.names(), *names()))


def test_a_group_of_commands_lists_them(capsys):
    cli.main(["data"])
    printed = capsys.readouterr().out
    assert all(f"data {name}" in printed for name in ("scenes", "depth", "demos", "pack", "hdf5"))
    assert "compare" not in printed


def test_data_scenes_writes_shards_and_resumes(capsys, tmp_path):
    out = str(tmp_path / "world")
    words = ("data", "scenes", "--out", out, "--count", "6", "--size", "32", "32", "--shard-size", "4")
    cli.main(words)
    assert "6 frames in 2 shards" in capsys.readouterr().out
    shards = {p: p.stat().st_mtime_ns for p in (tmp_path / "world").glob("*.tar")}
    assert len(shards) == 2
    cli.main(words)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "world").glob("*.tar")} == shards


WRONG = [
    ("inspect caley", "there is no encoding named 'caley': did you mean 'cayley'"),
    ("inspect liere", "'liere' has no basis and frequencies to draw: take one of rope"),
    ("trian scenes", "there is no command 'trian': did you mean 'train'?"),
    ("data scense", "not 'scense': did you mean 'scenes'?"),
    ("bench ops --out OUT", "there is no part 'ops': parts are op, block, vit, growth"),
    ("bench vit --modes foo --out OUT", "there is no mode 'foo': modes are eager and compiled"),
    ("bench op --device tpu --out OUT", "--device tpu cannot be used on this machine"),
    ("data scenes --out OUT --device cuda:99", "--device cuda:99 cannot be used on this machine"),
    ("data scenes --out OUT --count 0", "--count: must be at least 1, got 0"),
    ("data pack nowhere OUT --size 0", "--size: must be at least 1, got 0"),
    ("compare properties --tokens -1", "--tokens: must be at least 1, got -1"),
    ("compare scenes --seeds -1", "--seeds: must be at least 0, got -1"),
    ("compare scenes --encodings rope caley --out OUT", "'caley'"),
    ("compare scenes --encodings circulant:block_size=5 --out OUT", "block_size must be even"),
    ("compare scenes --encodings cayley:blocks=5 --out OUT", "blocks"),
    ("train scenez --out OUT", "there is no recipe named 'scenez': did you mean 'scenes'"),
    ("train scenes optim.lrr=1 --out OUT", "did you mean optim.lr?"),
    ("train scenes loop.batch_size=-4 --out OUT", "loop.batch_size must be at least 1, got -4"),
    ("train scenes loop.accumulate=0 --out OUT", "loop.accumulate must be at least 1, got 0"),
    ("train scenes loop.log_every=0 --out OUT", "loop.log_every must be at least 1, got 0"),
    ("train scenes loop.save_every=0 --out OUT", "loop.save_every must be at least 1, got 0"),
    ("train scenes loop.steps=-3 --out OUT", "loop.steps must be at least 0, got -3"),
    ("train scenes model.layers=0 --out OUT", "model.layers must be at least 1, got 0"),
    ("train scenes optim.warmup_steps=-5 --out OUT", "optim.warmup_steps must be at least 0, got -5"),
    ("train scenes optim.lr=nan --out OUT", "optim.lr must be a finite number, got nan"),
    ("train scenes loop.precision=fp8 --out OUT", "loop.precision is one of 'no', 'bf16', got 'fp8'"),
    ("train scenes model.encoding=caley --out OUT", "'caley'"),
    ("train scenes model.encoding_options.blocks=5 --out OUT", "blocks"),
    ("train scenes augment.mosaic=0.5 --out OUT", "augment.mosaic=0.5 would change nothing: the task objects"),
    ("train scenes text.dim=64 --out OUT", "it reads nothing of text"),
    ("train scenes data.source=coco --out OUT", "data.source=coco does not serve the task objects"),
    ("eval nowhere", "there is no checkpoint in nowhere"),
    ("eval a b", "eval takes one checkpoint, got 2"),
    ("eval nowhere --trials 3", "--trials is for policies in simulation: name the task with --env"),
    ("export nowhere --size -1", "--size: must be at least 0, got -1"),
    ("export nowhere --to tensorrt", "--to is onnx or torch-export, got 'tensorrt'"),
    ("predict nowhere nothing.png --text mug", "nothing.png"),
    ("figure nowhere", "there is no checkpoint in nowhere"),
]


@pytest.mark.parametrize(("words", "answer"), WRONG)
def test_mistakes_are_answered_in_one_line_before_anything_is_made(words, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as stop:
        cli.main(words.replace("OUT", "out").split())
    text = capsys.readouterr().err if stop.value.code == 2 else str(stop.value)
    assert answer in text
    assert text.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "answer"),
    [
        ("onnxscript", r"pip install 'stringpe\[export\]'"),
        ("PIL", r"pip install 'stringpe\[\w+\]'"),
        ("xyz", "install xyz"),
    ],
)
def test_a_missing_package_names_its_extra(module, answer, monkeypatch):
    def fail(words):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(cli, "run", fail)
    with pytest.raises(SystemExit, match=answer):
        cli.main(["export"])


def test_a_missing_module_of_ours_is_a_bug(monkeypatch):
    def fail(words):
        raise ModuleNotFoundError("No module named 'stringpe.nowhere'", name="stringpe.nowhere")

    monkeypatch.setattr(cli, "run", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["export"])


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "run", lambda words: (os.kill(os.getpid(), signal.SIGINT), time.sleep(10)))
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare"])
    assert stop.value.code == 130
    assert capsys.readouterr().err.strip().startswith("stringpe: stopped by Ctrl-C")
