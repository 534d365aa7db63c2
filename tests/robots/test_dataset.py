import contextlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from multiprocessing import get_context
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from stand_in import demonstration

from stringpe.robots.data import parquet
from stringpe.robots.data.columns import DEPTH
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.episode_statistics import QUANTILES, pool_statistics, summarise
from stringpe.robots.data.episodes import episode_path
from stringpe.robots.data.parquet import BrokenEpisode
from stringpe.robots.data.writer import Writer, write_meta

pytestmark = pytest.mark.slow


def made(seed=0, steps=7, cameras=("top", "wrist"), depth=True):
    rng = np.random.default_rng(seed)
    frames = {
        "observation.state": rng.normal(size=(steps, 14)).astype(np.float32),
        "action": rng.normal(size=(steps, 14)).astype(np.float32),
        "next.reward": rng.random(steps).astype(np.float32),
    }
    for camera in cameras:
        frames[f"observation.images.{camera}"] = rng.integers(0, 255, (steps, 16, 24, 3), np.uint8)
        if depth:
            frames[f"observation.depth.{camera}"] = rng.uniform(0.3, 2, (steps, 16, 24)).astype(np.float32)
    return frames


def test_what_is_written_is_read_back(tmp_path):
    first, second = made(0), made(1, steps=5)
    first["observation.depth.top"][0, 0, :3] = 0, np.nan, np.inf
    with Writer(tmp_path, fps=50, robot="aloha", quality=0) as writer:
        assert writer.add(first, task="pick", seed=3) == 0
        assert writer.add(second, task="place", seed=5) == 1
    data = Dataset(tmp_path)
    assert len(data) == 2
    assert data.cameras == data.depths == ["top", "wrist"]
    assert [(e.task, e.seed, e.length, e.first) for e in data.episodes] == [("pick", 3, 7, 0), ("place", 5, 5, 7)]
    for number, frames in enumerate((first, second)):
        found = data[number]
        assert found.keys() == frames.keys()
        for key in ("observation.state", "action", "next.reward", "observation.images.top", "observation.images.wrist"):
            np.testing.assert_array_equal(found[key], frames[key])
        depth = np.where(np.isfinite(frames["observation.depth.top"]), frames["observation.depth.top"], 0)
        np.testing.assert_allclose(found["observation.depth.top"], depth, atol=0.5001e-3)  # whole millimetres


def test_counters_and_meta_are_those_of_lerobot(tmp_path):
    with Writer(tmp_path, fps=50, robot="aloha") as writer:
        for seed, task in enumerate(["a", "b", "a"]):
            writer.add(made(seed, steps=4), task=task)
    table = pq.read_table(episode_path(tmp_path, 2)).to_pydict()
    assert table["index"] == [8, 9, 10, 11]
    assert table["frame_index"] == [0, 1, 2, 3]
    assert table["episode_index"] == [2] * 4
    assert table["task_index"] == [0] * 4
    assert table["timestamp"] == pytest.approx([0, 0.02, 0.04, 0.06])
    info = json.loads((tmp_path / "meta/info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"], info["total_tasks"]) == (
        "v3.0",
        3,
        12,
        2,
    )
    assert info["splits"] == {"train": "0:3"}
    assert info["features"]["observation.images.top"]["shape"] == [16, 24, 3]
    assert info["features"]["observation.images.top_depth"] == {
        "dtype": "image",
        "shape": [16, 24, 1],
        "names": ["height", "width", "channels"],
        "info": {"is_depth_map": True, "depth_unit": "mm"},
    }
    tasks = pq.read_table(tmp_path / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0, 1], "task": ["a", "b"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    episodes = pq.ParquetFile(tmp_path / "meta/episodes/chunk-000/file-000.parquet").read().to_pydict()
    assert episodes["episode_index"] == [0, 1, 2]
    assert episodes["tasks"] == [["a"], ["b"], ["a"]]
    assert episodes["length"] == [4, 4, 4]
    assert episodes["data/chunk_index"] == [0, 0, 0]
    assert episodes["data/file_index"] == [0, 1, 2]
    assert episodes["dataset_from_index"] == [0, 4, 8]
    assert episodes["dataset_to_index"] == [4, 8, 12]


def test_statistics_are_in_the_stored_unit(tmp_path):
    """They were in metres beside depth in millimetres, which LeRobot takes for a mean of a thousandth."""
    frames = made(0, steps=5, cameras=("top",))
    frames["observation.depth.top"][:] = 0.8
    frames["observation.depth.top"][:, :8] = 0.4
    with Writer(tmp_path, fps=50, quality=0) as writer:
        writer.add(frames, task="pick")
    stats = json.loads((tmp_path / "meta/stats.json").read_text())
    deep = stats["observation.images.top_depth"]
    assert (deep["min"], deep["max"], deep["mean"]) == ([[[400]]], [[[800]]], [[[600]]])
    assert (deep["q01"], deep["q99"], deep["std"]) == ([[[400]]], [[[800]]], [[[200]]])
    image = frames["observation.images.top"].reshape(-1, 3) / 255
    np.testing.assert_allclose(np.ravel(stats["observation.images.top"]["mean"]), image.mean(0), rtol=1e-9)
    np.testing.assert_allclose(np.ravel(stats["observation.images.top"]["q90"]), np.quantile(image, 0.9, 0), rtol=1e-9)
    np.testing.assert_allclose(stats["action"]["q10"], np.quantile(frames["action"].astype(float), 0.1, 0), rtol=1e-9)
    assert stats["action"].keys() == {"min", "max", "mean", "std", "count", *QUANTILES}
    assert stats.keys() == json.loads((tmp_path / "meta/info.json").read_text())["features"].keys()


def test_pooled_statistics_are_those_of_all_frames():
    parts = [made(seed, steps=3 + seed, cameras=()) for seed in range(3)]
    whole = {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}
    wanted, found = summarise(whole, {}), pool_statistics([summarise(p, {}) for p in parts])
    for key in whole:
        for name in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(found[key][name], wanted[key][name], rtol=1e-6, err_msg=f"{key} {name}")


def test_a_writer_goes_on_where_another_stopped(tmp_path):
    Writer(tmp_path, fps=50).add(made(0), task="pick", seed=10)
    again = Writer(tmp_path, fps=50)
    assert (len(again), again.seeds) == (1, {10})
    assert again.add(made(1), task="pick", seed=11) == 1
    assert [e.seed for e in Dataset(tmp_path).episodes] == [10, 11]  # without meta/episodes.jsonl


def test_a_folder_of_another_program_is_not_written_to(tmp_path):
    with Writer(tmp_path, fps=50) as writer:
        writer.add(made(0), task="pick")
    path = episode_path(tmp_path, 0)
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    with pytest.raises(ValueError, match="another program"):
        Writer(tmp_path, fps=50)


def test_what_is_known_of_a_camera_and_other_arrays_are_kept(tmp_path):
    intrinsics = [[20.5, 0.0, 12.0], [0.0, 20.5, 8.0], [0.0, 0.0, 1.0]]
    pose = np.random.default_rng(0).random((7, 4, 4), np.float32)
    frames = made(0, cameras=("top",)) | {"observation.camera.top.pose": pose}
    with Writer(tmp_path, fps=50, cameras={"top": {"intrinsics": intrinsics}}) as writer:
        writer.add(frames, task="pick")
    data = Dataset(tmp_path)
    assert data.camera_info("top") == {"intrinsics": intrinsics}
    assert data.info["features"]["observation.images.top_depth"]["info"]["intrinsics"] == intrinsics
    np.testing.assert_array_equal(data[0]["observation.camera.top.pose"], pose)
    with pytest.raises(ValueError, match=r"intrinsics.* there"):
        Writer(tmp_path, fps=50).add(frames, task="pick")


def write_some(folder, seeds):
    writer = Writer(folder, fps=10)
    for seed in seeds:
        writer.add(demonstration(seed), task="reach", seed=seed)


def test_processes_write_side_by_side(tmp_path):
    with get_context("spawn").Pool(2) as pool:
        pool.starmap(write_some, [(tmp_path, range(20)), (tmp_path, range(20, 40))])
    write_meta(tmp_path)
    data = Dataset(tmp_path)
    assert [e.number for e in data.episodes] == list(range(40))
    assert {e.seed for e in data.episodes} == set(range(40))
    index = np.concatenate([data.read(i, ["index"])["index"] for i in range(40)])
    np.testing.assert_array_equal(index, np.arange(len(index)))


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from stand_in import demonstration
from stringpe.robots.data.writer import Writer
writer = Writer(sys.argv[1], fps=10)
seed = max(writer.seeds, default=-1)
while True:
    seed += 1
    writer.add(demonstration(seed), task="reach", seed=seed)
    print(seed, flush=True)
"""


def test_a_killed_process_loses_no_finished_episode(tmp_path):
    reported = -1
    for delay in (0.05, 0.12):
        here = os.path.dirname(__file__)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), here], stdout=subprocess.PIPE, text=True
        )
        reported = int(process.stdout.readline())
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
        reported = int(rest[-1]) if rest else reported
        data = Dataset(tmp_path)  # warnings are errors: nothing is broken
        seeds = [e.seed for e in data.episodes]
        assert seeds[: reported + 1] == list(range(reported + 1))
        assert len(seeds) <= reported + 2  # at most one was finished and not reported
        for i in range(len(data)):
            assert data[i]["observation.images.top"].shape[1:] == (16, 16, 3)


def test_broken_episodes_are_counted_and_left_out(tmp_path):
    with Writer(tmp_path, fps=50) as writer:
        for seed in range(4):
            writer.add(made(seed), task="pick", seed=seed)
    whole = episode_path(tmp_path, 1).read_bytes()
    episode_path(tmp_path, 1).write_bytes(whole[: len(whole) // 2])
    pq.write_table(
        pq.read_table(episode_path(tmp_path, 2)).drop_columns(["observation.images.wrist"]), episode_path(tmp_path, 2)
    )
    with pytest.warns(RuntimeWarning, match=r"2 of 4 episodes of .* are left out: file-001.*not a whole Parquet"):
        data = Dataset(tmp_path)
    assert [e.number for e in data.episodes] == [0, 3]
    assert "no column observation.images.wrist" in data.broken["file-002.parquet"]
    assert Writer(tmp_path, fps=50).add(made(9), task="pick", seed=9) == 4  # a broken one keeps its number


def test_broken_pictures_and_numbers_are_counted_when_read(tmp_path):
    with Writer(tmp_path, fps=50) as writer:
        for seed in range(3):
            writer.add(made(seed), task="pick", seed=seed)
    for number, key, value in (
        (0, "observation.images.top", {"bytes": b"no picture", "path": None}),
        (1, "action", [np.nan] * 14),
    ):
        table = pq.read_table(episode_path(tmp_path, number))
        column = table[key].to_pylist()
        column[2] = value
        place = table.column_names.index(key)
        table = table.set_column(place, key, pa.array(column, table.schema.field(key).type))
        pq.write_table(table, episode_path(tmp_path, number))
    data = Dataset(tmp_path)
    with pytest.raises(BrokenEpisode, match=r"observation\.images\.top cannot be decoded"):
        data[0]
    with pytest.warns(RuntimeWarning, match=r"2 of 3 episodes of .* cannot be used"):
        good = [episode.number for episode, _ in data.read_all(data.read)]
    assert good == [2]


def test_missing_cameras_are_named(tmp_path):
    Writer(tmp_path, fps=50).add(made(0, cameras=("top",)), task="pick")
    data = Dataset(tmp_path)
    data.check_cameras(["top"], ["top"])
    with pytest.raises(ValueError, match="no cameras left_wrist; it has top"):
        data.check_cameras(["top", "left_wrist"], [])
    with pytest.raises(ValueError, match="no depth of cameras left_wrist; it has top"):
        data.check_cameras(["top"], ["left_wrist"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"action": np.full((7, 14), np.nan, np.float32)}, "action must be .*98 values not finite"),
        ({"action": np.zeros((6, 14), np.float32)}, "same number of steps"),
        ({"observation.images.top": np.zeros((7, 16, 24, 3), np.float32)}, "observation.images.top must be .*uint8"),
        ({"observation.depth.top": np.zeros((7, 16, 24), np.uint16)}, "floats in metres"),
    ],
)
def test_what_is_not_an_episode_is_refused(tmp_path, change, text):
    with pytest.raises(ValueError, match=text):
        Writer(tmp_path, fps=50).add(made(0) | change, task="pick")
    assert not episode_path(tmp_path, 0).exists()


def test_episodes_of_another_shape_are_refused(tmp_path):
    writer = Writer(tmp_path, fps=50)
    writer.add(made(0), task="pick")
    with pytest.raises(ValueError, match=r"observation\.images\.wrist: image .* there, None now"):
        writer.add(made(1, cameras=("top",)), task="pick")


def test_other_formats_are_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match="is not a robot data set"):
        Dataset(tmp_path)
    Writer(tmp_path, fps=50).add(made(0), task="pick")
    path = tmp_path / "meta/info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"codebase_version": "v1.6"}))
    with pytest.raises(ValueError, match=r"format v1\.6; v2\.0, v2.1 and v3\.0 can be read"):
        Dataset(tmp_path)
    features = {key: value for key, value in info["features"].items() if key != "observation.state"}
    path.write_text(json.dumps(info | {"features": features}))
    with pytest.raises(ValueError, match=r"has no observation\.state, which policies need"):
        Dataset(tmp_path)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_pictures_raise_one_exception(name, data):
    """Fault S3: ValueError and SyntaxError of the decoders got through."""
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, name)
    raw = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for key in ("observation.images.top", "observation.depth.top"):
        with contextlib.suppress(BrokenEpisode):
            parquet.decode(key, raw)


@pytest.mark.parametrize("error", [ValueError, SyntaxError, OSError, MemoryError, KeyError, struct.error])
def test_whatever_a_decoder_raises_is_a_broken_episode(error, monkeypatch):
    monkeypatch.setattr(Image, "open", mock.Mock(side_effect=error("broken")))
    with pytest.raises(BrokenEpisode, match=r"observation.images.top cannot be decoded .*broken"):
        parquet.decode("observation.images.top", b"")


def test_a_decompression_bomb_is_refused():
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    with pytest.raises(BrokenEpisode, match="9000 × 9000 pixels are more than"):
        parquet.decode("observation.images.top", file.getvalue())


def test_depth_without_a_measurement_or_too_far_for_its_file_is_a_hole():
    far = np.array([[100.0, np.inf, np.nan, -1.0, 0.0, 1.5]], np.float32)
    found = parquet.decode(DEPTH + "top", parquet.encode(DEPTH + "top", far))
    np.testing.assert_allclose(found, [[0, 0, 0, 0, 0, 1.5]])
