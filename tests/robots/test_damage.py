"""Damaged robot data: files are named in one line, damaged episodes counted, wrong numbers not believed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from stand_in import demonstration

from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.hdf5 import import_hdf5
from stringpe.robots.data.pack import FORMAT, load, pack
from stringpe.robots.data.parquet import BrokenEpisode
from stringpe.robots.data.video import write_video
from stringpe.robots.data.writer import Writer
from stringpe.robots.policies.base import read_spec
from stringpe.training.simulation import read_trials


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data")
    with Writer(out, fps=10, quality=0) as writer:
        for seed in range(2):
            writer.add(demonstration(seed, depth=True), task="reach", seed=seed)
    return out


@pytest.mark.parametrize(
    "change",
    [
        {"fps": 0}, {"fps": "x"}, {"fps": None}, {"features": []}, {"features": {}}, {"codebase_version": 3},
        {"data_path": 1},
        {"features": {"action": 1}},
        {"features": {"action": {"dtype": "float32", "shape": []}, "observation.state": {"dtype": "x", "shape": [1]}}},
    ],
)  # fmt: skip
def test_a_damaged_info_is_named(folder, tmp_path, change):
    info = json.loads((folder / "meta" / "info.json").read_text())
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info | change))
    with pytest.raises(ValueError, match=r"info\.json|format 3"):
        Dataset(tmp_path)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"task_index": "0", "task": "x"}', '{"task": "x"}'])
def test_a_damaged_list_of_tasks_is_named(folder, tmp_path, line):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_bytes((folder / "meta" / "info.json").read_bytes())
    (tmp_path / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "a"}\n' + line + "\n")
    info = json.loads((tmp_path / "meta" / "info.json").read_text())
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    with pytest.raises(ValueError, match=r"line 2 of .*tasks\.jsonl is damaged"):
        Dataset(tmp_path)


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b"\xff" * 50, lambda b: b[:-100]])
def test_a_damaged_pack_is_named(folder, tmp_path, damage):
    path = pack(Dataset(folder), tmp_path / "p.safetensors", size=16)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"p\.safetensors is damaged"):
        load(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state", lambda t: t[:-1]),
        ("action", lambda t: torch.full_like(t, float("nan"))),
        ("seen", lambda t: t + 1000),
        ("task", lambda t: t + 1),
        ("observation.images.top", lambda t: t.flip(0)),
        ("observation.images.top.ends", lambda t: t[:-1]),
    ],
)
def test_parts_of_a_pack_that_do_not_fit_are_refused(folder, tmp_path, name, change):
    from safetensors import safe_open

    path = pack(Dataset(folder), tmp_path / "p.safetensors", size=16)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    save_file(tensors | {name: change(tensors[name]).contiguous()}, path, about)
    with pytest.raises(ValueError, match=r"p\.safetensors is damaged"):
        load(path)


def test_a_pack_that_says_nothing_of_itself_is_refused(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "p.safetensors", {"format": FORMAT, "about": '{"size": "x"}'})
    with pytest.raises(ValueError, match=r"p\.safetensors is damaged"):
        load(tmp_path / "p.safetensors")


def test_an_import_refuses_what_cannot_be_and_a_second_importer(tmp_path):
    pytest.importorskip("h5py")
    from stringpe.io.files import hold_lock

    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.hdf5"):
        import_hdf5([tmp_path / "nowhere.hdf5"], tmp_path / "out", task="x")
    (tmp_path / "bad.hdf5").write_bytes(b"x")
    with pytest.raises(ValueError, match="fps, the steps per second, must be above 0"):
        import_hdf5([tmp_path / "bad.hdf5"], tmp_path / "out", task="x", fps=0)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=r"nothing was imported: 1 of 1 files cannot be used .*bad\.hdf5"):
        import_hdf5([tmp_path / "bad.hdf5"], tmp_path / "out", task="x")
    busy = pytest.raises(ValueError, match="is in use by process")
    with hold_lock(tmp_path / "out" / ".import.lock", "x"), busy:
        import_hdf5([tmp_path / "bad.hdf5"], tmp_path / "out", task="x")


GOOD = {"seed": 1, "success": True, "sum_reward": 1.0, "max_reward": 1.0, "steps": 3, "seconds": 0.1}


@pytest.mark.parametrize(
    "change", [{"success": "x"}, {"success": 1}, {"seed": True}, {"sum_reward": None}, {"steps": 1.5}, {"crashed": 3}]
)
def test_a_trial_of_the_wrong_types_is_not_believed(tmp_path, change):
    lines = [json.dumps({"weights": "w", **GOOD, "seed": 2}), json.dumps({"weights": "w", **GOOD, **change})]
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    assert [trial.seed for trial in read_trials(tmp_path, "w")] == [2]


@pytest.mark.parametrize("about", [b"{", b"[]", b'{"cameras": ["a"]}', b"\xff"])
def test_weights_that_do_not_say_what_they_are_for_are_refused(about):
    with pytest.raises(ValueError, match="do not say what the policy was made for"):
        read_spec({"about": torch.tensor(list(about), dtype=torch.uint8)})


def test_a_film_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    import numpy as np
    from PIL import Image

    from stringpe.robots.data import video

    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    frames = [np.zeros((8, 8, 3), np.uint8)] * 3
    assert write_video(tmp_path / "a.mp4", frames).name == "a.gif"

    def cut(self, path, *args, **options):
        path.write_bytes(b"GIF")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", cut)
    with pytest.raises(KeyboardInterrupt):
        write_video(tmp_path / "b.mp4", frames)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


@pytest.mark.parametrize("way", ["external link", "soft link", "external storage", "virtual", "large"])
def test_a_recording_cannot_read_other_files_or_fill_the_memory(way, tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    import numpy as np

    from stringpe.robots.data import hdf5

    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["action"] = np.ones((3, 7), np.float32)
    (tmp_path / "secret.txt").write_bytes(b"secret" * 20)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations/qpos"] = np.zeros((3, 7), np.float32)
        file["observations/images/top"] = np.zeros((3, 4, 4, 3), np.uint8)
        if way == "external link":
            file["action"] = h5py.ExternalLink("secret.hdf5", "/action")
        elif way == "soft link":
            file["there"], file["action"] = h5py.ExternalLink("secret.hdf5", "/"), h5py.SoftLink("/there/action")
        elif way == "external storage":
            file.create_dataset("action", (3, 7), np.float32, external=[(str(tmp_path / "secret.txt"), 0, 84)])
        elif way == "virtual":
            layout = h5py.VirtualLayout((3, 7), np.float32)
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret.hdf5"), "action", (3, 7))
            file.create_virtual_dataset("action", layout)
        else:
            file["action"] = np.ones((3, 7), np.float32)
            monkeypatch.setattr(hdf5, "_MOST_BYTES", 83)
    with pytest.raises(BrokenEpisode, match=r"a\.hdf5 cannot .*(is a link|in another file|84 bytes, more than)"):
        hdf5.read_hdf5(tmp_path / "a.hdf5")


@pytest.mark.parametrize(("limit", "value"), [("_MOST_VALUES", 3), ("_MOST_BYTES", 20)])
def test_tables_that_claim_too_much_are_refused_before_they_are_unpacked(limit, value, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from stringpe.robots.data import parquet

    parquet.write_rows(tmp_path / "a.parquet", {"x": [0] * 4})
    assert parquet.read_rows(tmp_path / "a.parquet") == {"x": [0] * 4}
    monkeypatch.setattr(parquet, limit, value)
    with pytest.raises(BrokenEpisode, match=r"a\.parquet .* more than the"):
        parquet.read_footer(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet .* more than the"):
        parquet.read_rows(tmp_path / "a.parquet")


def test_a_video_cannot_be_a_list_of_other_files(tmp_path):
    pytest.importorskip("av")
    import numpy as np

    from stringpe.robots.data.video import read_frames

    real = write_video(tmp_path / "real.mp4", [np.full((16, 16, 3), 99, np.uint8)] * 3)
    assert len(list(read_frames(real, 0, 3, 10))) == 3
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile real.mp4\n")
    with pytest.raises(BrokenEpisode, match=r"list\.mp4 cannot be read as a video"):
        list(read_frames(tmp_path / "list.mp4", 0, 3, 10))


def test_a_table_whose_texts_are_not_texts_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    from stringpe.robots.data import parquet

    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xf3x")])
    pa.parquet.write_table(pa.table({"task": bad}), tmp_path / "tasks.parquet")
    with pytest.raises(ValueError, match=r"tasks\.parquet is not a whole Parquet file .*: restore it"):
        parquet.read_rows(tmp_path / "tasks.parquet")


def test_a_data_set_that_goes_on_removes_what_killed_writers_left(tmp_path):
    pytest.importorskip("pyarrow")
    from stringpe.io.files import _HOST

    with Writer(tmp_path, fps=10) as writer:
        writer.add(demonstration(0), task="reach", seed=0)
    (chunk,) = (tmp_path / "data").iterdir()
    left = chunk / f".file-000.parquet.{_HOST}.{2**22 + 1}.0123abcd"  # of a process number that Linux does not give
    left.touch()
    Writer(tmp_path, fps=10)
    assert not left.exists()
