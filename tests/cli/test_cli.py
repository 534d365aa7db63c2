import sys

import pytest
from PIL import Image

import stringpe
from stringpe.cli import main as cli


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["stringpe", *words])
    cli.main()


@pytest.mark.parametrize("name", ["rope", "rope_mixed", "cayley", "circulant", "general"])
@pytest.mark.parametrize("coord_dim", ["1", "2", "3"])
def test_inspect_draws(monkeypatch, capsys, tmp_path, name, coord_dim):
    out = tmp_path / "sub" / "picture.png"
    run(monkeypatch, "inspect", name, "--coord-dim", coord_dim, "--head-dim", "16", "--out", str(out))
    printed = capsys.readouterr().out
    assert "wavelengths" in printed
    assert f"wrote {out}" in printed
    picture = Image.open(out).convert("L")
    assert picture.width > 800
    assert len(picture.getcolors(maxcolors=256)) > 50  # not blank


def test_inspect_a_single_head(monkeypatch, tmp_path):
    run(monkeypatch, "inspect", "cayley", "--num-heads", "1", "--head-dim", "8", "--out", str(tmp_path / "one.svg"))
    assert (tmp_path / "one.svg").stat().st_size > 1000


def test_compare_prints_a_row_for_everything(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    run(monkeypatch, "compare", "properties", "--head-dim", "8", "--num-heads", "2", "--tokens", "16")
    printed = capsys.readouterr().out
    for name in (*stringpe.names(baselines=True), "torch 2"):
        assert name in printed


def test_inspect_refuses_what_has_no_basis(monkeypatch):
    with pytest.raises(SystemExit, match="a LieRE has no basis and frequencies to draw"):
        run(monkeypatch, "inspect", "liere")


def test_a_typing_error_is_answered_in_one_line(monkeypatch):
    with pytest.raises(SystemExit, match="stringpe: there is no encoding named 'caley': did you mean 'cayley'"):
        run(monkeypatch, "inspect", "caley")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit, match=r"pip install 'stringpe\[cli\]'"):
        run(monkeypatch, "compare")


def test_help_names_every_command(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--help")
    printed = capsys.readouterr().out
    assert all(command in printed for command in cli.COMMANDS)


def test_data_scenes_writes_shards_and_resumes(monkeypatch, capsys, tmp_path):
    out = str(tmp_path / "world")
    words = ("data", "scenes", "--out", out, "--count", "6", "--size", "32", "32", "--shard-size", "4")
    run(monkeypatch, *words)
    assert "6 frames in 2 shards" in capsys.readouterr().out
    shards = {p: p.stat().st_mtime_ns for p in (tmp_path / "world").glob("*.tar")}
    assert len(shards) == 2
    run(monkeypatch, *words)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "world").glob("*.tar")} == shards


def test_data_says_what_it_makes(monkeypatch):
    with pytest.raises(SystemExit, match=r"data makes scenes.*, not 'scense'"):
        run(monkeypatch, "data", "scense")


def test_bench_refuses_an_unknown_part(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="there is no part 'ops': parts are op, block, vit, growth"):
        run(monkeypatch, "bench", "ops", "--out", str(tmp_path))
