import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from hanging_demos import Hanging, NeverOpen

from stringpe.cli import main as cli
from stringpe.robots.data import demos, video
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.demos import DemoSettings

pytestmark = pytest.mark.slow

TINY = DemoSettings("KukaPick", size=(16, 16), cameras=("front",), depth=True)


def test_a_folder_is_filled_resumed_and_read_back(tmp_path, eyes, capsys):
    heard = []
    assert demos.write(tmp_path, 2, TINY, progress=lambda *now: heard.append(now)) == (2, 0)
    assert heard == [(1, 0), (2, 0)]
    first = (tmp_path / "data/chunk-000/file-000.parquet").read_bytes()
    assert demos.write(tmp_path, 3, TINY) == (3, 0)
    assert (tmp_path / "data/chunk-000/file-000.parquet").read_bytes() == first
    data = Dataset(tmp_path)
    assert [e.seed for e in data.episodes] == [0, 1, 2]
    assert data.episodes[0].task == "pick up the green block"
    assert data.fps == 10.0
    episode = data[1]
    length = len(episode["action"])
    assert episode["action"].shape == episode["observation.state"].shape == (length, 8)
    assert episode["observation.images.front"].shape == (length, 16, 16, 3)
    assert episode["observation.depth.front"].shape == (length, 16, 16)
    env = TINY.env()
    seen, _ = env.reset(seed=1)
    np.testing.assert_array_equal(episode["observation.state"][0], seen["observation.state"])
    np.testing.assert_allclose(episode["observation.depth.front"][0], seen["observation.depth.front"], atol=6e-4)
    assert demos.replay(env, 1, episode["action"]) is not None
    env.close()
    sheet, film = video.show_episode(data)
    assert sheet.stat().st_size > 100
    assert film.stat().st_size > 100


def test_other_settings_do_not_mix(tmp_path, eyes):
    demos.write(tmp_path, 1, TINY)
    with pytest.raises(
        ValueError, match=r"another set of demonstrations \(size=\[16, 16\] there, \[24, 16\] asked for\)"
    ):
        demos.write(tmp_path, 2, DemoSettings("KukaPick", size=(24, 16), cameras=("front",), depth=True))


def test_failed_seeds_are_counted_left_out_and_replaced(tmp_path, eyes, monkeypatch):
    real = demos.demonstrate
    monkeypatch.setattr(demos, "demonstrate", lambda env, seed, noise: None if seed == 1 else real(env, seed, noise))
    assert demos.write(tmp_path, 2, TINY) == (2, 1)
    assert [e.seed for e in Dataset(tmp_path).episodes] == [0, 2]


def test_what_does_not_replay_is_not_stored(tmp_path, eyes, monkeypatch):
    real = demos.demonstrate

    def forged(env, seed, noise):
        actions = real(env, seed, noise)
        return actions if seed else np.repeat(actions[:1], len(actions), axis=0)  # the expert succeeded, these do not

    monkeypatch.setattr(demos, "demonstrate", forged)
    assert demos.write(tmp_path, 1, TINY) == (1, 1)
    assert [e.seed for e in Dataset(tmp_path).episodes] == [1]


def test_an_expert_that_never_succeeds_ends_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(demos, "demonstrate", lambda *_: None)
    with pytest.raises(ValueError, match="the expert of KukaPick failed on 21 of 21 seeds"):
        demos.write(tmp_path, 1, DemoSettings("KukaPick", size=(8, 8)))


@pytest.mark.parametrize(
    ("settings", "episodes", "words"),
    [
        (DemoSettings("KukaPik"), 1, "did you mean 'KukaPick'?"),
        (TINY, 0, "episodes must be at least 1"),
        (
            DemoSettings("KukaPick", options={"lighting": "neon"}),
            1,
            "no lighting named 'neon'.*The names are normal, dim",
        ),
    ],
)
def test_bad_requests_write_nothing(tmp_path, settings, episodes, words):
    with pytest.raises(ValueError, match=words):
        demos.write(tmp_path / "new", episodes, settings)
    assert not (tmp_path / "new").exists()


def test_options_are_read_as_typed():
    words = ("lighting=dim", "distractors=3", "table_height=-0.05", "depth_noise=true", "target=red can")
    assert demos.parse_options(words) == {
        "lighting": "dim", "distractors": 3, "table_height": -0.05, "depth_noise": True, "target": "red can",
    }  # fmt: skip
    with pytest.raises(ValueError, match="key=value, got 'dim'"):
        demos.parse_options(["dim"])


def start(folder, episodes, jobs=1):
    """Another process that fills a folder, in a group of its own so that it can be killed with its children."""
    code = (
        "from stringpe.robots.data import demos; from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    tiny = demos.DemoSettings('KukaPick', size=(16, 16), cameras=('front',), depth=True)\n"
        f"    demos.write(Path({str(folder / 'data set')!r}), {episodes}, tiny, jobs={jobs})"
    )
    script = folder / "work.py"
    script.write_text(code)
    return subprocess.Popen([sys.executable, str(script)], start_new_session=True, stderr=subprocess.DEVNULL)


def wait_for_episodes(folder, count, work):
    until = time.monotonic() + 300
    while len(list(folder.glob("data set/data/chunk-000/file-*.parquet"))) < count:
        assert work.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)


def kill(work):
    assert os.getpgid(work.pid) == work.pid  # a group of its own, so that only it is killed
    os.killpg(work.pid, signal.SIGKILL)
    assert work.wait() == -signal.SIGKILL


def test_two_processes_in_one_folder_share_the_seeds(tmp_path, eyes):
    """Fault L1: each made every seed, so that held-out episodes were training episodes."""
    both = [start(tmp_path, 9), start(tmp_path, 9)]
    assert [work.wait(timeout=300) for work in both] == [0, 0]
    data = Dataset(tmp_path / "data set")
    assert sorted(e.seed for e in data.episodes) == list(range(9))
    assert not data.broken
    assert not list(tmp_path.glob("data set/.claims/*.claim"))


def test_what_a_killed_process_had_claimed_is_made_by_the_other(tmp_path, eyes):
    """One of two processes is killed at work, again and again; nothing is lost, nothing is there twice."""
    steady = start(tmp_path, 12)
    for episodes in (2, 5):
        other = start(tmp_path, 12)
        wait_for_episodes(tmp_path, episodes, steady)
        if other.poll() is None:
            kill(other)
    assert steady.wait(timeout=300) == 0
    data = Dataset(tmp_path / "data set")
    assert sorted(e.seed for e in data.episodes) == list(range(12))
    assert not data.broken
    assert not list(tmp_path.glob("data set/data/*/.*"))  # no drafts


def test_nothing_is_lost_when_the_processes_are_killed(tmp_path, eyes):
    """Two processes of one command, killed at work; the next run finds whole episodes and goes on."""
    work = start(tmp_path, 500, jobs=2)
    wait_for_episodes(tmp_path, 3, work)
    kill(work)
    folder = tmp_path / "data set"
    there = len(list(folder.glob("data/chunk-000/file-*.parquet")))
    assert there >= 3
    assert demos.write(folder, there + 2, TINY, jobs=2) == (there + 2, 0)
    data = Dataset(folder)
    assert not data.broken
    assert sorted(e.seed for e in data.episodes) == list(range(there + 2))
    assert all(np.isfinite(data[i]["action"]).all() for i in range(len(data)))


def test_the_children_end_with_a_killed_parent(tmp_path, eyes):
    work = start(tmp_path, 500, jobs=2)
    wait_for_episodes(tmp_path, 1, work)
    os.kill(work.pid, signal.SIGKILL)  # the parent alone
    work.wait()
    until = time.monotonic() + 60
    while True:
        try:
            os.killpg(work.pid, 0)
        except ProcessLookupError:
            break
        assert time.monotonic() < until, "children of a killed process are still at work"
        time.sleep(0.1)


def test_the_name_of_the_robot_is_the_robots(tmp_path, eyes):
    for task, robot in (("KukaPick", "kuka"), ("MugOnPlate", "aloha")):
        demos.write(tmp_path / task, 1, DemoSettings(task, size=(8, 8)))
        assert json.loads((tmp_path / task / "meta/info.json").read_text())["robot_type"] == robot


def test_a_worker_that_dies_is_told_in_words(tmp_path, monkeypatch):
    class Pool:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def submit(self, *_):
            raise BrokenProcessPool

    monkeypatch.setattr(demos, "WorkerPool", Pool)
    with pytest.raises(
        OSError, match=r"a process was killed or .*: its episode is lost, the others are kept, run it again"
    ):
        demos.write(tmp_path, 1, TINY, jobs=2)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_seed_that_hangs_has_failed_and_the_others_are_made(tmp_path, monkeypatch, capsys, jobs):
    """One hangs in Python, one in C with the interpreter's lock; what each was doing is written down."""
    monkeypatch.setattr(demos, "_check_expert", lambda settings: 10.0)
    assert demos.write(tmp_path, 4, Hanging("Reach", quality=0), jobs=jobs, patience=2.0) == (4, 2)
    assert sorted(e.seed for e in Dataset(tmp_path).episodes) == [0, 3, 4, 5]
    said = capsys.readouterr().err
    for seed in (1, 2):
        assert f"seed {seed} gave no episode in 2 s and is left out: see {tmp_path}/.claims/{seed}.hung\n" in said
        assert "in _demonstrate" in (tmp_path / f".claims/{seed}.hung").read_text()
    assert sorted(path.name for path in tmp_path.glob(".claims/*.hung")) == ["1.hung", "2.hung"]
    assert demos.write(tmp_path, 4, Hanging("Reach", quality=0), jobs=jobs, patience=2.0) == (4, 2)  # not tried again


def test_an_environment_that_is_never_ready_ends_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(demos, "_check_expert", lambda settings: 10.0)
    with pytest.raises(OSError, match="a process was killed or could not open its environment in 1 s"):
        demos.write(tmp_path, 1, NeverOpen("Reach"), jobs=1, patience=1.0)


def test_the_command_writes_videos_and_says_how_many_episodes(tmp_path, eyes, monkeypatch, capsys):
    line = (
        f"stringpe data demos KukaPick lighting=dim --out {tmp_path} --episodes 1 --size 16 16 --cameras front --jobs 1"
    )
    monkeypatch.setattr(sys, "argv", line.split())
    cli.main()
    assert "1 episodes under" in capsys.readouterr().out
    assert json.loads((tmp_path / "demos.json").read_text())["options"] == {"lighting": "dim"}
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".json", ".png", ".mp4"}


def test_the_command_names_what_is_wrong(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stringpe", "data", "demos", "HandOverPan", "--jobs", "1"])
    with pytest.raises(
        SystemExit, match=r"stringpe: there is no task named 'HandOverPan': did you mean 'HandOverPen'\?"
    ):
        cli.main()


def test_without_pyav_a_video_is_a_gif(tmp_path, monkeypatch):
    real = video.importlib.util.find_spec
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None if name == "av" else real(name))
    pictures = [np.full((9, 11, 3), shade, np.uint8) for shade in (0, 120, 250)]
    path = video.write_video(tmp_path / "a.mp4", pictures)
    from PIL import Image

    with Image.open(path) as film:
        assert (path.suffix, film.size, film.n_frames) == (".gif", (11, 9), 3)
    with pytest.raises(ValueError, match="at least one picture"):
        video.write_video(tmp_path / "b.mp4", [])


def test_a_contact_sheet_shows_the_first_and_the_last_moment(tmp_path):
    frames = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones((20, 30, 40, 3), np.uint8)
    episode = {"observation.images.b": frames, "observation.images.a": frames + 100}
    from PIL import Image

    with Image.open(video.write_contact_sheet(episode, tmp_path / "sheet.png", columns=4)) as sheet:
        pixels = np.asarray(sheet)[..., 0]
    moments = {value: (pixels == value).sum() for value in (0, 6, 13, 19, 100, 106, 113, 119)}
    assert all(count >= 30 * 40 for count in moments.values())  # text has a few pixels of any grey
    left, right = (np.argwhere(pixels == value)[:, 1].max() for value in (106, 113))
    assert left < right
