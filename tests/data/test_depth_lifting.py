import json
import subprocess
import sys
import tarfile

import pytest
import torch

from captioned_files import depth, picture, shard, words
from depth_model import write_model
from image_text_model import TEXTS, write_image_text_model
from stringpe.data import depth_lifting as depth_data
from stringpe.data.captioned_images import ShardCaptions
from stringpe.data.depth_filters import ILLUSIONS
from stringpe.data.depth_lifting import LiftSettings, lift_shards
from stringpe.data.order import Launch, read_launch
from stringpe.io import files
from stringpe.io.files import _HOST
from stringpe.io.pictures import encode_png
from stringpe.models.depth_estimator import DepthEstimator
from stringpe.models.image_classifier import ImageClassifier, check_classes

ALL = LiftSettings(filters=(), shard_size=2, batch=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "tiny-metric")


@pytest.fixture(scope="module")
def estimate(model):
    return DepthEstimator(model)


@pytest.fixture
def source(tmp_path):
    for number in range(3):
        samples = {
            f"{10 * number + i:04d}": {
                "png": picture(20 * i, (20 + 40 * (i % 2), 16)),
                "json": words(f"text {i}"),
                "cls": b"7",
            }
            for i in range(3)
        }
        shard(tmp_path / f"in-{number}.tar", samples)
    return f"{tmp_path}/in-{{0..2}}.tar"


def names(path):
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_shards_come_back_with_depth_and_everything_else(source, estimate, tmp_path):
    out = tmp_path / "out"
    found = lift_shards(source, out, estimate, ALL)
    assert found.pop("rate") > 0
    assert json.loads((out / "summary.json").read_text()) == found
    assert found == {"shards": 3, "kept": 9, "dropped": {}, "corrupt": 0, "problems": []}
    assert names(out / "in-1.tar")[:4] == ["0010.png", "0010.json", "0010.cls", "0010.depth.png"]
    lifted, before = ShardCaptions(str(out / "in-0.tar")), ShardCaptions(str(tmp_path / "in-0.tar"))
    for i in range(3):
        files = dict(lifted.files(i))
        stored = files.pop("depth.png")
        assert files == before.files(i)
        assert stored
        (truth,) = estimate([depth_data.to_tensor(before.picture(i))])
        assert lifted.depth(i).shape == truth.shape
        assert torch.allclose(lifted.depth(i), truth, atol=0.00051)
    told = json.loads((out / "provenance.json").read_text())
    assert told["model"] == "tiny-metric"
    assert len(told["config_sha256"]) == 64
    assert told["unit"] == "millimetres"
    assert {"torch", "transformers", "stringpe", "filters", "weights_sha256"} <= set(told)


def test_finished_shards_are_never_made_again_and_ranks_share_the_rest(source, estimate, tmp_path, monkeypatch):
    out = tmp_path / "out"
    found = lift_shards(source, out, estimate, ALL, Launch(1, 2))
    assert sorted(p.name for p in out.glob("*.tar")) == ["in-1.tar"]
    assert found["shards"] == 1
    assert not (out / "summary.json").exists()
    before = (out / "in-1.tar").stat().st_mtime_ns
    draft = out / f".in-0.tar.{_HOST}.4194303.x"  # of a process that was killed
    draft.write_bytes(b"half")
    found = lift_shards(source, out, estimate, ALL, Launch(0, 2))
    assert found["shards"] == 3
    assert (out / "summary.json").exists()
    assert not list(out.glob(".in-*"))

    def refuse(*_):
        raise AssertionError("made again")

    monkeypatch.setattr(depth_data, "_lift_shard", refuse)
    assert lift_shards(source, out, estimate, ALL)["shards"] == 3
    assert (out / "in-1.tar").stat().st_mtime_ns == before


def test_a_shard_appears_whole_or_not_at_all(source, estimate, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def fail(tensor):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", lambda *_: fail(None))
        with pytest.raises(OSError, match="disk is full"):
            lift_shards(source, out, estimate, ALL)
    assert not list(out.glob("*.tar"))
    assert lift_shards(source, out, estimate, ALL)["kept"] == 9


def test_folders_become_shards_with_their_captions(estimate, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.png").write_bytes(picture())
    (folder / "b.txt").write_text("beside it")
    (folder / "captions.json").write_text(json.dumps({"a.png": "of the list"}))
    found = lift_shards(str(folder), tmp_path / "out", estimate, ALL)
    assert found["shards"] == 2
    lifted = ShardCaptions(f"{tmp_path}/out/*.tar")
    assert lifted.captions(0) == ["of the list"]
    assert lifted.captions(1) == ["beside it"]
    assert names(tmp_path / "out" / "000001.tar") == ["000000002.png", "000000002.depth.png"]


def test_what_is_dropped_is_counted_by_reason_and_what_is_corrupt_is_named(estimate, tmp_path):
    samples = {str(i): {"png": picture(20 * i), "json": words("a")} for i in range(3)}  # of one colour: framed
    samples["bad"] = {"png": b"nothing", "json": words("a")}
    path = shard(tmp_path / "in.tar", samples)
    found = lift_shards(str(path), tmp_path / "out", estimate, LiftSettings(batch=2))
    assert found["kept"] == 0
    assert found["dropped"] == {"overlay: a frame of one colour": 3}
    assert found["corrupt"] == 1
    assert found["problems"][0].startswith("in.tar/bad: ")


def test_illusions_are_dropped_by_the_model_that_the_user_names(estimate, tmp_path, model, capsys):
    write_image_text_model(tmp_path / "clip")
    coarse = torch.rand(12, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    patterns = (torch.nn.functional.interpolate(coarse, (24, 24)) * 255).to(torch.uint8).permute(0, 2, 3, 1)
    samples = {f"{i:02d}": {"png": encode_png(pattern), "json": words("a")} for i, pattern in enumerate(patterns)}
    path = shard(tmp_path / "in.tar", samples)
    classes = {"keep": [TEXTS[1]], "optical illusion": [TEXTS[0]], "picture of a picture": [TEXTS[2]]}
    classify = ImageClassifier(tmp_path / "clip", classes)
    before = ShardCaptions(str(path))
    wanted = classify([depth_data.to_tensor(before.picture(i)) for i in range(12)])
    assert 0 < wanted.count("") < 12
    settings = LiftSettings(filters=("illusion",), batch=2)
    found = lift_shards(str(path), tmp_path / "out", estimate, settings, classify=classify)
    assert found["kept"] == wanted.count("")
    assert found["dropped"] == {f"illusion: {name}": wanted.count(name) for name in sorted(set(wanted)) if name}
    told = json.loads((tmp_path / "out/provenance.json").read_text())
    assert told["classifier"]["classes"] == classes
    for filters, given in (((), classify), (("illusion",), None)):
        with pytest.raises(ValueError, match="the filter illusion and an image–text model go together"):
            lift_shards(str(path), tmp_path / "other", estimate, LiftSettings(filters=filters), classify=given)
    from stringpe.cli.main import main

    (tmp_path / "classes.json").write_text(json.dumps(classes))
    asked = ["data", "depth", str(path), str(tmp_path / "by-command"), "--model", str(model), "--device", "cpu"]
    asked += ["--filters", "illusion", "--classes", str(tmp_path / "classes.json")]
    with pytest.raises(SystemExit, match=r"--classes .* needs the model that chooses among them"):
        main(asked)
    main([*asked, "--classifier", str(tmp_path / "clip")])
    assert f"{found['kept']} images with depth" in capsys.readouterr().out


def test_the_texts_of_illusions_are_classes():
    assert check_classes(ILLUSIONS)
    assert all(text == text.lower() for texts in ILLUSIONS.values() for text in texts)


def test_depth_that_is_there_is_replaced_with_its_unit(estimate, tmp_path):
    old = {"png": picture(), "json": b'{"captions": ["a"], "depth_step": 0.0002}', "depth.png": depth(9)}
    path = shard(tmp_path / "in.tar", {"0": old})
    lift_shards(str(path), tmp_path / "out", estimate, ALL)
    lifted = ShardCaptions(str(tmp_path / "out" / "in.tar"))
    (truth,) = estimate([depth_data.to_tensor(lifted.picture(0))])
    assert torch.allclose(lifted.depth(0), truth, atol=0.00051)


def test_two_ways_do_not_mix_in_one_folder(source, estimate, tmp_path):
    lift_shards(source, tmp_path / "out", estimate, ALL)
    with pytest.raises(
        ValueError, match=r"holds another set of lifted images \(filters=\[\] there, \['outdoor'\] asked for\)"
    ):
        lift_shards(source, tmp_path / "out", estimate, LiftSettings(filters=("outdoor",), shard_size=2))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "in-0.tar").write_bytes((tmp_path / "in-0.tar").read_bytes())
    with pytest.raises(ValueError, match=r"several shards are called in-0.tar"):
        lift_shards(f"{tmp_path}/in-0.tar,{tmp_path}/more/in-0.tar", tmp_path / "other", estimate, ALL)
    with pytest.raises(ValueError, match="filters are overlay, no_ground, outdoor, illusion, got sky"):
        LiftSettings(filters=("sky",))


def test_the_command_line_takes_its_share_from_the_environment(source, model, tmp_path, monkeypatch, capsys):
    from stringpe.cli import main as cli

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    out = tmp_path / "out"
    words = ["stringpe", "data", "depth", source, str(out), "--model", str(model), "--device", "cpu", "--filters"]
    monkeypatch.setattr(sys, "argv", words)
    cli.main()
    assert sorted(p.name for p in out.glob("*.tar")) == ["in-2.tar"]
    printed = capsys.readouterr().out
    assert "3 images with depth in 1 shards" in printed
    assert "images per second and process: 10 million take" in printed
    monkeypatch.setenv("RANK", "0")
    cli.main(["data", "depth", source, str(out), "--model", str(model), "--device", "cpu", "--filters"])
    assert sorted(p.name for p in out.glob("*.tar")) == ["in-0.tar", "in-2.tar"]
    with pytest.raises(SystemExit, match=r"stringpe: .*has no config.json"):
        cli.main(["data", "depth", source, str(out), "--model", str(tmp_path)])


def test_launchers_say_which_share_is_ours(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert read_launch() == Launch(0, 1, 0)
    array = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "3"}
    for name, value in array.items():
        monkeypatch.setenv(name, value)
    assert read_launch() == Launch(2, 3, 0)
    for name, value in {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}.items():
        monkeypatch.setenv(name, value)
    assert read_launch() == Launch(9, 12, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert read_launch() == Launch(1, 2, 0)


def test_threads_and_windows_change_nothing(source, estimate, tmp_path, monkeypatch):
    lift_shards(source, tmp_path / "a", estimate, LiftSettings(filters=(), shard_size=2, batch=1, threads=1))
    monkeypatch.setattr(depth_data, "_WINDOW", 1)
    lift_shards(source, tmp_path / "b", estimate, LiftSettings(filters=(), shard_size=2, batch=1, threads=3))
    for path in (tmp_path / "a").glob("*.tar"):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_drafts_of_killed_processes_go_even_if_their_shard_is_there(estimate, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.png").write_bytes(picture())
    lift_shards(str(tmp_path / "in"), tmp_path / "out", estimate, LiftSettings(()))
    names = ("000000.tar", "000000.tar.summary.json", "summary.json")
    left = [tmp_path / "out" / f".{name}.{_HOST}.{ended.pid}.0123abcd" for name in names]
    for draft in left:
        draft.write_bytes(b"half")
    lift_shards(str(tmp_path / "in"), tmp_path / "out", estimate, LiftSettings(()))
    assert not [draft.name for draft in left if draft.exists()]
