"""Shards: what is written can be read back, and stopping does no harm."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest
import torch

from stringpe import scenes
from stringpe.io.files import hold_lock
from stringpe.io.pictures import read_depth_step
from stringpe.scenes import shards

Image = pytest.importorskip("PIL.Image")
np = pytest.importorskip("numpy")


def read(path):
    """Samples by key, as WebDataset groups them: everything after the first dot names the part."""
    samples = {}
    with tarfile.open(path) as tar:
        for entry in tar:
            key, part = entry.name.split(".", 1)
            samples.setdefault(key, {})[part] = tar.extractfile(entry).read()
    return samples


def pixels(data):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data))).astype(np.int64))


def test_shards_hold_what_was_rendered(tmp_path):
    paths = scenes.write(tmp_path, 5, seed=3, size=(48, 64), shard_size=3, batch=2)
    assert [p.name for p in paths] == ["scenes-000000.tar", "scenes-000001.tar"]
    samples = read(paths[0]) | read(paths[1])
    assert sorted(samples) == [f"{i:09d}" for i in range(5)]
    frames = scenes.render(scenes.sample(3, 5), (48, 64))
    for i in range(5):
        sample = samples[f"{i:09d}"]
        text = json.loads(sample["json"])
        assert (pixels(sample["rgb.png"]).permute(2, 0, 1) / 255 - frames.rgb[i]).abs().max() < 0.01
        assert (pixels(sample["depth.png"]) * text["depth_step"] - frames.depth[i]).abs().max() < 3e-4
        assert read_depth_step(sample["depth.png"]) == text["depth_step"] == shards.DEPTH_STEP
        assert torch.equal(pixels(sample["instance.png"]), frames.instance[i])
        assert torch.allclose(torch.tensor(text["intrinsics"]), frames.intrinsics[i])
        assert {o["slot"] for o in text["objects"]} == set(frames.visible[i].nonzero()[:, 0].tolist())
        for o in text["objects"]:
            assert torch.allclose(torch.tensor(o["centre"]), frames.centre[i, o["slot"]], atol=1e-5)
        assert text["captions"] == scenes.captions(frames)[i]
    assert pixels((tmp_path / "contact_sheet.png").read_bytes()).shape == (8 * 48, 4 * 4 * 64, 3)
    assert {p.name for p in tmp_path.iterdir()} == {*(p.name for p in paths), "dataset.json", "contact_sheet.png"}


def test_two_views_of_a_scene_are_written_with_poses_in_one_frame(tmp_path):
    (path,) = scenes.write(tmp_path, 4, seed=3, size=(32, 32), shard_size=4, batch=3, views=2)
    texts = [json.loads(sample["json"]) for _, sample in sorted(read(path).items())]
    assert [(t["scene"], t["view"]) for t in texts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    frames = scenes.render(scenes.sample(3, 4, views=2), (32, 32))
    for b, text in enumerate(texts):
        torch.testing.assert_close(torch.tensor(text["pose"]), frames.pose[b])
    with pytest.raises(ValueError, match="multiples of it, received 5 and 1000"):
        scenes.write(tmp_path / "odd", 5, views=2)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its files to the garbage collector
def test_webdataset_reads_the_shards(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    paths = scenes.write(tmp_path, 3, size=(16, 24), shard_size=2)
    pipeline = webdataset.WebDataset([str(p) for p in paths], shardshuffle=False).decode("torchrgb")
    samples = list(pipeline)
    assert [s["__key__"] for s in samples] == ["000000000", "000000001", "000000002"]
    assert samples[0]["rgb.png"].shape == (3, 16, 24)
    assert samples[2]["json"]["index"] == 2
    del pipeline
    gc.collect()


def test_stopping_and_going_on(tmp_path, monkeypatch, capsys):
    """Killed in the second shard: the first is whole and stays untouched, the second is written anew."""
    whole = tmp_path / "whole"
    scenes.write(whole, 6, size=(16, 16), shard_size=2, batch=2)
    stopped = tmp_path / "stopped"
    real, calls = shards.render, []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(shards, "render", failing)
    with pytest.raises(KeyboardInterrupt):
        scenes.write(stopped, 6, size=(16, 16), shard_size=2, batch=2)
    assert [p.name for p in sorted(stopped.glob("*.tar"))] == ["scenes-000000.tar"]
    before = (stopped / "scenes-000000.tar").stat().st_mtime_ns
    scenes.write(stopped, 6, size=(16, 16), shard_size=2, batch=2)
    assert (stopped / "scenes-000000.tar").stat().st_mtime_ns == before
    for path in whole.glob("*.tar"):
        assert path.read_bytes() == (stopped / path.name).read_bytes()
    assert "6 / 6" in capsys.readouterr().err
    made = len(calls)
    scenes.write(stopped, 6, size=(16, 16), shard_size=2, batch=2)
    assert len(calls) == made


def test_two_datasets_do_not_mix(tmp_path):
    scenes.write(tmp_path, 1, size=(16, 16))
    with pytest.raises(ValueError, match=r"holds another data set .*seed=0 there, 1 asked for"):
        scenes.write(tmp_path, 1, seed=1, size=(16, 16))


def test_settings_are_checked_before_the_folder_is_claimed(tmp_path):
    for settings in ({"families": ["kitchen"]}, {"size": (0, 16)}, {"shard_size": 0}):
        with pytest.raises(ValueError, match="pass"):
            scenes.write(tmp_path / "new", 1, **settings)
    assert not (tmp_path / "new").exists()


def test_a_shard_that_another_process_never_finishes_is_reported_with_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shards, "_PATIENCE", 0.3)
    monkeypatch.setattr(shards, "_POLL", 0.05)
    with hold_lock(tmp_path / ".scenes-000000.tar.lock", "a shard"):
        with pytest.raises(ValueError, match=rf"in use by process {os.getpid()} on .*nothing in .* for 0.3 s"):
            scenes.write(tmp_path, 4, size=(16, 16), shard_size=2)
        assert [p.name for p in tmp_path.glob("*.tar")] == ["scenes-000001.tar"]  # the other shard did not wait
        assert f"written by another process: {tmp_path}" in capsys.readouterr().err
    scenes.write(tmp_path, 4, size=(16, 16), shard_size=2)
    assert len(list(tmp_path.glob("*.tar"))) == 2


COMMAND = "import sys; from stringpe import scenes; scenes.write(sys.argv[1], 12, size=(48, 48), shard_size=3, batch=1)"


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.slow
def test_two_processes_share_a_folder_and_one_may_be_killed(tmp_path, kill):
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    scenes.write(whole, 12, size=(48, 48), shard_size=3, batch=1)
    both = [subprocess.Popen([sys.executable, "-c", COMMAND, str(shared)], stderr=subprocess.PIPE) for _ in range(2)]
    killed = 0
    while kill and not killed:
        assert any(process.poll() is None for process in both)
        for draft in shared.glob(".scenes-*.tar.*.*.*"):
            killed = int(draft.name.split(".")[-2])  # the process that writes it
            os.kill(killed, signal.SIGKILL)
            break
        time.sleep(0.005)
    told = [process.communicate(timeout=120)[1].decode() for process in both]
    codes = {process.pid: process.returncode for process in both}
    assert codes == {process.pid: -signal.SIGKILL if process.pid == killed else 0 for process in both}, told
    left = {path.name for path in shared.iterdir()}
    assert left == {path.name for path in whole.iterdir()}  # no drafts, no locks
    for path in whole.glob("*.tar"):
        assert path.read_bytes() == (shared / path.name).read_bytes()


def test_contact_sheet_draws_boxes(tmp_path):
    frames = scenes.render(scenes.sample(0, 4), (64, 64))
    scenes.contact_sheet(frames, tmp_path / "a.png", columns=2)
    scenes.contact_sheet(frames, tmp_path / "b.png", columns=2, boxes=False)
    with_boxes, without = (pixels((tmp_path / name).read_bytes()) for name in ("a.png", "b.png"))
    assert with_boxes.shape == without.shape == (512, 512, 3)  # enlarged four times
    assert 0.005 < (with_boxes != without).any(-1).float().mean() < 0.6
