"""LeRobot's formats as files made by hand: 2.1 as stringpe wrote it, 2.1 and 3.0 as LeRobot writes them."""

import io
import json
import shutil

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from stand_in import demonstration

from stringpe.cli.main import main
from stringpe.robots.data import video
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.migrate import migrate
from stringpe.robots.data.pack import load, pack
from stringpe.robots.data.parquet import BrokenEpisode
from stringpe.robots.data.writer import Writer

STEPS = (5, 7, 6)
NAMES = ["height", "width", "channels"]


def file_of(picture, kind):
    """A picture in a file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind)
    return file.getvalue()


def pictures_of(files):
    return pa.array(
        [{"bytes": f, "path": None} for f in files], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )


def made(number):
    """State (t, 2), action (t, 3), image (t, 16, 32, 3), depth (t, 16, 32) in whole millimetres."""
    steps, rng = STEPS[number], np.random.default_rng(number)
    ys, xs = np.mgrid[0:16, 0:32]
    image = np.stack([np.stack([8 * xs, 16 * ys, 0 * xs + 40 * t], -1) for t in range(steps)]).astype(np.uint8)
    depth = np.stack([400 + 10 * xs + 5 * ys + 100 * number + t for t in range(steps)]).astype(np.uint16)
    return rng.random((steps, 2), np.float32), rng.random((steps, 3), np.float32), image, depth


def features(image, **more):
    """The features of info.json. more: of the picture columns."""
    return {
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "action": {"dtype": "float32", "shape": [3], "names": None},
        "observation.images.top": {"dtype": image, "shape": [16, 32, 3], "names": NAMES},
        **more,
        "task_index": {"dtype": "int64", "shape": [1], "names": None},
        "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    }


def columns_of(number, task):
    state, action, *_ = made(number)
    count = len(state)
    return {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.reshape(-1)), 2),
        "action": pa.FixedSizeListArray.from_arrays(pa.array(action.reshape(-1)), 3),
        "task_index": pa.array([task] * count),
        "episode_index": pa.array([number] * count),
    }


@pytest.fixture
def old(tmp_path):
    """Format 2.1 as stringpe wrote it: depth under a key of its own, its statistics in metres."""
    folder = tmp_path / "old"
    for number in range(2):
        *_, image, depth = made(number)
        columns = columns_of(number, 0)
        columns["observation.images.top"] = pictures_of([file_of(p, "PNG") for p in image])
        columns["observation.depth.top"] = pictures_of([file_of(p, "PNG") for p in depth])
        known = {"task": "pick", "seed": 10 + number, "stats": {"observation.depth.top": {"mean": [[[0.4]]]}}}
        path = folder / f"data/chunk-000/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns).replace_schema_metadata({"stringpe": json.dumps(known)}), path)
    deep = {"observation.depth.top": {"dtype": "image", "shape": [16, 32, 1], "names": NAMES}}
    write_info(folder, "v2.1", features("image", **deep))
    (folder / "demos.json").write_text('{"task": "KukaPick"}')
    (folder / ".claims").mkdir()
    (folder / ".claims/3.failed").touch()
    return folder


def write_info(folder, version, told, **more):
    (folder / "meta").mkdir(exist_ok=True)
    info = {"codebase_version": version, "fps": 10, "robot_type": "kuka", "chunks_size": 1000, "features": told}
    (folder / "meta/info.json").write_text(json.dumps(info | more))


def check(data, numbers):
    assert (data.cameras, data.depths) == (["top"], ["top"])
    for place, number in enumerate(numbers):
        state, action, image, depth = made(number)
        found = data[place]
        np.testing.assert_array_equal(found["observation.state"], state)
        np.testing.assert_array_equal(found["action"], action)
        np.testing.assert_array_equal(found["observation.images.top"], image)
        np.testing.assert_allclose(found["observation.depth.top"], depth / 1000, atol=1e-6)


def test_what_stringpe_wrote_before_is_read_and_migrated(old, tmp_path, monkeypatch, capsys):
    check(Dataset(old), range(2))
    with pytest.raises(
        ValueError, match=r"format v2\.1, and episodes are written in v3\.0: copy it with stringpe data mig"
    ):
        Writer(old, fps=10)
    new = tmp_path / "new"
    monkeypatch.setattr("sys.argv", ["stringpe", "data", "migrate", str(old), str(new)])
    main()
    assert "2 episodes under" in capsys.readouterr().out
    data = Dataset(new)
    check(data, range(2))
    assert [(e.seed, e.task) for e in data.episodes] == [(10, "pick"), (11, "pick")]
    assert data.info["codebase_version"] == "v3.0"
    before, after = Dataset(old).read_encoded(0), data.read_encoded(0)
    for key in ("observation.images.top", "observation.depth.top"):
        assert before[key] == after[key]  # byte by byte
    stats = json.loads((new / "meta/stats.json").read_text())["observation.images.top_depth"]
    depth = np.concatenate([made(0)[3], made(1)[3]])
    assert stats["max"] == [[[depth.max()]]]
    np.testing.assert_allclose(stats["mean"], depth.mean(), rtol=1e-9)
    assert (new / "demos.json").read_text() == (old / "demos.json").read_text()
    assert (new / ".claims/3.failed").exists()
    assert migrate(old, new) == (2, 0)  # again: nothing new
    with pytest.raises(ValueError, match="into itself"):
        migrate(old, old)


def test_a_copy_that_was_interrupted_goes_on(old, tmp_path, monkeypatch):
    real, calls = Writer.add, []

    def add(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Writer, "add", add)
    with pytest.raises(KeyboardInterrupt):
        migrate(old, tmp_path / "new")
    assert len(Dataset(tmp_path / "new")) == 1
    assert migrate(old, tmp_path / "new") == (2, 0)
    check(Dataset(tmp_path / "new"), range(2))
    shutil.copytree(old, tmp_path / "other")
    with pytest.raises(ValueError, match="holds another data set"):
        migrate(tmp_path / "other", tmp_path / "new")


@pytest.fixture(params=["mm", "m"])
def shared(request, tmp_path):
    """Format 3.0 as LeRobot writes it: three episodes in two files, depth as TIFF in either unit."""
    folder, unit = tmp_path / "shared", request.param
    for file, numbers in enumerate(((0, 1), (2,))):
        tables = []
        for number in numbers:
            *_, image, depth = made(number)
            columns = columns_of(number, number % 2)
            columns["observation.images.top"] = pictures_of([file_of(p, "PNG") for p in image])
            deep = depth if unit == "mm" else (depth / 1000).astype(np.float32)
            columns["observation.images.top_depth"] = pictures_of([file_of(p, "TIFF") for p in deep])
            tables.append(pa.table(columns))
        path = folder / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(tables), path)
    deep = {"dtype": "image", "shape": [16, 32, 1], "names": NAMES, "info": {"is_depth_map": True, "depth_unit": unit}}
    told = features("image", **{"observation.images.top_depth": deep})
    write_info(folder, "v3.0", told, data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet")
    write_episodes(folder, {"data/file_index": [0, 0, 1]})
    return folder


def write_episodes(folder, more):
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    rows = {"episode_index": [0, 1, 2], "tasks": [["even"], ["odd"], ["even"]], "length": list(STEPS)}
    rows |= {"data/chunk_index": [0, 0, 0], "dataset_from_index": [0, 5, 12], "dataset_to_index": [5, 12, 18]}
    pq.write_table(pa.table(rows | more), path)


def test_files_that_hold_several_episodes_are_read(shared, tmp_path):
    data = Dataset(shared)
    check(data, range(3))
    assert [(e.number, e.task, e.first) for e in data.episodes] == [(0, "even", 0), (1, "odd", 5), (2, "even", 12)]
    demos = load(pack(data, tmp_path / "p.safetensors", size=16, stride=2, quality=100), depth=True)
    assert demos.image.shape == (3 + 4 + 3, 1, 3, 16, 16)
    assert demos.tasks == ("even", "odd")
    np.testing.assert_allclose(
        demos.depth[3, 0].float(), made(1)[3][0][:, 1::2] / 1000, atol=2e-3
    )  # nearest, in float16
    (shared / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1")
    with pytest.warns(RuntimeWarning, match="2 of 3 episodes .* episode 0: file-000"):
        left = Dataset(shared)
    assert [e.number for e in left.episodes] == [2]
    assert set(left.broken) == {"episode 0 in file-000.parquet", "episode 1 in file-000.parquet"}
    shutil.rmtree(shared / "meta/episodes")
    with pytest.raises(ValueError, match="no files under meta/episodes"):
        Dataset(shared)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": [5, 0, 6]}, "length is 0"),
        ({"length": ["a", "b", "c"]}, "length is 'a', not a whole number"),
        ({"length": [5, None, 6]}, "length is 'None', not a whole number"),
        ({"episode_index": [0, -1, 2]}, "episode_index is -1"),
        ({"data/file_index": ["../../x", "0", "1"]}, "data/file_index is '../../x'"),
        ({"tasks": [1, 2, 3]}, "tasks is '1', not a list"),
        ({"tasks": None}, "has no 'tasks'"),
        ({"dataset_from_index": None}, "has no 'dataset_from_index'"),
    ],
)
def test_rows_of_episodes_that_cannot_be_are_refused_with_their_file(shared, change, words):
    path = shared / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pydict() | change
    pq.write_table(pa.table({key: values for key, values in rows.items() if values is not None}), path)
    with pytest.raises(ValueError, match=r"row \d of .*file-000\.parquet is damaged") as refused:
        Dataset(shared)
    assert words in str(refused.value)


def test_an_episode_that_is_listed_twice_is_refused(shared):
    path = shared / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pa.table(pq.read_table(path).to_pydict() | {"episode_index": [0, 1, 1]}), path)
    with pytest.raises(ValueError, match="lists episode 1 twice"):
        Dataset(shared)


OUTSIDE = ["/etc/passwd", "../{file_index}.parquet", "data/../../x", "data/{nothing}", "data/{file_index", "", "{}"]
ODD = ["data/{file_index.__class__}", "{file_index:x>999999999999}", "{file_index!r}"]


@pytest.mark.parametrize("pattern", [*OUTSIDE, *ODD])
def test_a_data_path_that_leads_out_of_the_folder_is_refused(shared, pattern):
    info = json.loads((shared / "meta/info.json").read_text())
    (shared / "meta/info.json").write_text(json.dumps(info | {"data_path": pattern}))
    with pytest.raises(ValueError, match=r"info\.json has data_path .*: it must be a path below the folder"):
        Dataset(shared)


def test_a_folder_of_ours_that_lerobot_added_to_is_read_as_it_lists_it(tmp_path):
    with Writer(tmp_path, fps=10) as writer:
        for seed in range(2):
            writer.add(demonstration(seed), task="reach", seed=seed)
    table = pq.read_table(tmp_path / "data/chunk-000/file-001.parquet").replace_schema_metadata({})
    added = [
        table.set_column(table.column_names.index("episode_index"), "episode_index", [[n] * len(table)]) for n in (2, 3)
    ]
    pq.write_table(pa.concat_tables(added), tmp_path / "data/chunk-000/file-002.parquet")
    path = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.ParquetFile(path).read().to_pylist()
    new = [rows[1] | {"episode_index": n, "data/file_index": 2, "tasks": [f"task {n}"]} for n in (2, 3)]
    pq.write_table(pa.Table.from_pylist(rows + new), path)
    data = Dataset(tmp_path)
    assert [(e.number, e.seed, e.task) for e in data.episodes][:2] == [(0, 0, "reach"), (1, 1, "reach")]
    assert [e.task for e in data.episodes][2:] == ["task 2", "task 3"]
    for number in (1, 2, 3):
        np.testing.assert_array_equal(data[number]["action"], demonstration(1)["action"])


def write_film(path, pictures, *, deep=False):
    """A video without loss, as far as its pixels allow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx265" if deep else "libx264rgb", rate=10)
        stream.width, stream.height = pictures.shape[2], pictures.shape[1]
        stream.pix_fmt = "gray12le" if deep else "rgb24"
        stream.options = {"x265-params": "lossless=1:log-level=none"} if deep else {"crf": "0"}
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="gray12le" if deep else "rgb24")))
        file.mux(stream.encode())


VIDEO = "observation.images.top"


def test_videos_of_format_3_hold_several_episodes(tmp_path):
    folder = tmp_path / "films"
    path = folder / "data/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.concat_tables([pa.table(columns_of(n, 0)) for n in range(3)]), path)
    clip = {f"videos/{VIDEO}/chunk_index": [0] * 3, f"videos/{VIDEO}/file_index": [0] * 3}
    write_episodes(folder, {"data/file_index": [0, 0, 0], f"videos/{VIDEO}/from_timestamp": [0.0, 0.5, 1.2]} | clip)
    paths = {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    write_info(folder, "v3.0", features("video"), **paths)
    film = folder / f"videos/{VIDEO}/chunk-000/file-000.mp4"
    write_film(film, np.concatenate([made(n)[2] for n in range(3)]))
    data = Dataset(folder)
    for number in range(3):
        np.testing.assert_array_equal(data[number][VIDEO], made(number)[2])
    found = data.read_encoded(1, stride=3)[VIDEO]
    assert len(found) == 3
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(found[1]))), made(1)[2][3])
    write_film(film, made(0)[2])
    with pytest.raises(BrokenEpisode, match=r"file-000.mp4 has no picture 0\.500 s after its start"):
        data[1]
    film.write_bytes(b"no film")
    with pytest.raises(BrokenEpisode, match="cannot be read as a video"):
        data[0]


def test_videos_of_format_2_hold_one_episode_each(tmp_path):
    folder = tmp_path / "films"
    for number in range(2):
        path = folder / f"data/chunk-000/episode_{number:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns_of(number, number)), path)
        write_film(folder / f"videos/chunk-000/{VIDEO}/episode_{number:06d}.mp4", made(number)[2])
    where = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    write_info(folder, "v2.1", features("video"), video_path=where)
    (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "a"}\n{"task_index": 1, "task": "b"}\n')
    data = Dataset(folder)
    assert [e.task for e in data.episodes] == ["a", "b"]
    for number in range(2):
        np.testing.assert_array_equal(data[number][VIDEO], made(number)[2])
    for pattern in (*OUTSIDE, "videos/{video_key}/../../../{episode_index}"):
        write_info(folder, "v2.1", features("video"), video_path=pattern)
        with pytest.raises(ValueError, match=r"info\.json has video_path .*: it must be a path below the folder"):
            Dataset(folder)
    away = {"../../../x": {"dtype": "video", "shape": [16, 32, 3], "names": NAMES}}
    write_info(folder, "v2.1", features("video", **away), video_path=where)
    with pytest.raises(ValueError, match="must be a path below the folder"):
        Dataset(folder)
    write_info(folder, "v2.1", features("video"), video_path=where, chunks_size=0)
    with pytest.raises(ValueError, match=r"info\.json is damaged \(its chunks_size is 0\)"):
        Dataset(folder)


@pytest.mark.parametrize("use_log", [True, False])
def test_depth_in_a_video_is_read_to_its_step(tmp_path, use_log):
    info = {"video.depth_min": 0.2, "video.depth_max": 4.0, "video.shift": 1.5, "video.use_log": use_log}
    metres = made(0)[3] / 1000
    f = (lambda z: np.log(z + 1.5)) if use_log else (lambda z: z)
    codes = np.rint(4095 * (f(metres) - f(0.2)) / (f(4.0) - f(0.2))).astype(np.uint16)
    write_film(tmp_path / "deep.mp4", codes, deep=True)
    read = np.stack(list(video.read_frames(tmp_path / "deep.mp4", 0.0, len(codes), 10.0, deep=True)))
    np.testing.assert_array_equal(read, codes)
    np.testing.assert_allclose(video.dequantise(read, info), metres, atol=0.7e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth_min": "0.2"}, {"depth_max": float("nan")}, {"depth_max": None}, {"depth_min": 4.0, "depth_max": 4.0},
        {"depth_min": -1.0}, {"depth_max": 1e30}, {"shift": -3.5}, {"shift": [1]}, {"use_log": "false"},
    ],
)  # fmt: skip
def test_a_range_of_depth_that_cannot_be_is_refused(tmp_path, wrong):
    info = {f"video.{name}": value for name, value in wrong.items()} | {"is_depth_map": True}
    with pytest.raises(ValueError, match="has no valid range of depth"):
        video.dequantise(np.zeros((2, 2), np.uint16), info)
    deep = {"observation.images.top_depth": {"dtype": "video", "shape": [16, 32, 1], "names": NAMES, "info": info}}
    folder = tmp_path / "films"
    folder.mkdir()
    write_info(folder, "v2.1", features("video", **deep), video_path="{video_key}/{episode_index}.mp4")
    with pytest.raises(ValueError, match=r"info\.json.*(observation\.images\.top_depth has no valid range|NaN)"):
        Dataset(folder)


def test_without_pyav_videos_are_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ValueError, match=r"a video needs the package av: pip install 'stringpe\[robots\]'"):
        next(video.read_frames(tmp_path / "a.mp4", 0.0, 1, 10.0))


def test_a_film_is_written_and_read_back(tmp_path):
    pictures = demonstration(0)["observation.images.top"]
    path = video.write_video(tmp_path / "a", list(pictures), 10.0)
    found = np.stack(list(video.read_frames(path, 0.0, len(pictures), 10.0)))
    assert path.suffix == ".mp4"
    assert found.shape == pictures.shape
    assert np.abs(found.astype(int) - pictures).mean() < 12  # colours at half resolution
