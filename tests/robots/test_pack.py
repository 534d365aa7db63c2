import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from stand_in import demonstration

from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.episodes import episode_path
from stringpe.robots.data.hdf5 import import_hdf5
from stringpe.robots.data.pack import load, pack
from stringpe.robots.data.writer import Writer


@pytest.fixture
def folder(tmp_path):
    with Writer(tmp_path / "reach", fps=10) as writer:
        for seed in range(4):
            writer.add(demonstration(seed, cameras=("top", "side"), depth=True), task=f"reach {seed % 2}", seed=seed)
    return tmp_path / "reach"


def test_a_pack_holds_the_data_set(folder, tmp_path):
    data = Dataset(folder)
    demos = load(pack(data, tmp_path / "p.safetensors", size=16, quality=100), depth=True)
    assert (demos.cameras, demos.tasks, demos.fps) == (("side", "top"), ("reach 0", "reach 1"), 10)
    whole = [data[i] for i in range(4)]
    for name, key in (("state", "observation.state"), ("action", "action")):
        np.testing.assert_array_equal(getattr(demos, name), np.concatenate([w[key] for w in whole]))
    image = np.concatenate([w["observation.images.side"] for w in whole])
    np.testing.assert_array_equal(demos.image[:, 0].permute(0, 2, 3, 1), image)  # nothing to change: the same bytes
    depth = np.concatenate([w["observation.depth.top"] for w in whole])
    np.testing.assert_allclose(demos.depth[:, 1].float(), depth, atol=1e-3)
    assert demos.episode.tolist() == [i for i, w in enumerate(whole) for _ in w["action"]]
    assert demos.task.tolist() == [i % 2 for i, w in enumerate(whole) for _ in w["action"]]


def test_chunks_stay_in_their_episode(folder, tmp_path):
    demos = load(pack(Dataset(folder), tmp_path / "p.safetensors", size=16, depth=False))
    first = int((demos.episode == 0).sum())
    chunk = demos.chunks(torch.tensor([0, first - 2, first]), 4)
    torch.testing.assert_close(chunk[0], demos.action[:4])
    torch.testing.assert_close(chunk[1], demos.action[[first - 2, first - 1, first - 1, first - 1]])
    torch.testing.assert_close(chunk[2], demos.action[first : first + 4])


def test_pictures_are_resized_and_thinned_out(folder, tmp_path):
    data = Dataset(folder)
    path = pack(data, tmp_path / "p.safetensors", size=8, cameras=["side"], stride=3, depth_step=4)
    demos = load(path, depth=True, size=8)
    lengths = [e.length for e in data.episodes]
    assert demos.seen[: -(-lengths[0] // 3)].tolist() == list(range(0, lengths[0], 3))
    assert demos.image.shape == (sum(-(-n // 3) for n in lengths), 1, 3, 8, 8)
    assert len(demos.action) == sum(lengths)
    wanted = np.asarray(
        Image.fromarray(data[0]["observation.images.side"][0]).resize((8, 8), Image.Resampling.BILINEAR)
    )
    assert np.abs(demos.image[0, 0].permute(1, 2, 0).numpy().astype(int) - wanted).mean() < 8  # JPEG at 8 × 8 pixels
    assert set(demos.depth.float().mul(1000).round().unique().tolist()) == {700, 1000}


@pytest.mark.slow
def test_a_pack_needs_no_arrow(folder, tmp_path):
    path = pack(Dataset(folder), tmp_path / "p.safetensors", size=16)
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['h5py'] = sys.modules['gymnasium'] = None\n"
        f"from stringpe.robots.data.pack import load; print(load({str(path)!r}, depth=True).image.shape[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr


def test_missing_cameras_and_sizes_are_named(folder, tmp_path):
    path = pack(Dataset(folder), tmp_path / "p.safetensors", size=16, depth=False)
    with pytest.raises(ValueError, match="no cameras wrist; it has side, top"):
        load(path, cameras=["wrist"])
    with pytest.raises(ValueError, match="no depth of cameras side, top; it has none"):
        load(path, depth=True)
    with pytest.raises(ValueError, match="pictures of 16 px, not 64"):
        load(path, size=64)
    with pytest.raises(ValueError, match="no cameras wrist; it has side, top"):
        pack(Dataset(folder), path, size=16, cameras=["wrist"])


def test_broken_episodes_are_counted_in_the_pack(folder, tmp_path):
    episode_path(folder, 2).write_bytes(b"PAR1")
    with pytest.warns(RuntimeWarning, match=r"1 of 4 episodes of .* are left out"):
        data = Dataset(folder)
    path = pack(data, tmp_path / "p.safetensors", size=16)
    with pytest.warns(RuntimeWarning, match="1 broken episodes were left out"):
        demos = load(path)
    assert demos.broken == 1
    assert demos.episode.max() == 2


def test_act_recordings_are_imported(tmp_path):
    for number in range(3):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            frames = demonstration(number)
            file["action"], file["observations/qpos"] = frames["action"], frames["observation.state"]
            file["observations/images/top"] = frames["observation.images.top"]
            if number == 1:
                del file["action"]
    files = sorted(tmp_path.glob("*.hdf5"))
    with pytest.warns(RuntimeWarning, match="1 of 3 files cannot be used and are left out: episode_1"):
        added, broken = import_hdf5(files, tmp_path / "out", task="reach", fps=50)
    assert (added, list(broken)) == (2, ["episode_1.hdf5"])
    data = Dataset(tmp_path / "out")
    assert [e.seed for e in data.episodes] == [0, 2]
    np.testing.assert_array_equal(data[1]["action"], demonstration(2)["action"])
    np.testing.assert_array_equal(data[1]["observation.state"], demonstration(2)["observation.state"])
    with pytest.warns(RuntimeWarning, match="1 of 3 files"):
        assert import_hdf5(files, tmp_path / "out", task="reach", fps=50)[0] == 0  # again: nothing new
