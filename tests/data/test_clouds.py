from dataclasses import replace

import numpy as np
import pytest
import torch

from cloud_files import write_clouds
from stringpe.data.cache import forget_all
from stringpe.data.clouds import class_names, draw_rotations, load_clouds, principal_axes, stretch, turn
from stringpe.recipes.schema import Data


def _scribble(content):
    """Bytes inside the first array overwritten: the checksum no longer fits."""
    return content[:300] + bytes(50) + content[350:]


@pytest.fixture
def data(tmp_path):
    forget_all()
    path, cache = str(write_clouds(tmp_path / "shapes.npz")), str(tmp_path / "cache")
    return Data(source="clouds", train=path, cache=cache, num_classes=3, groups=8, group_size=6)


def test_clouds_are_centred_and_of_one_size_and_cut_into_groups(data):
    clouds = load_clouds(data, "train")
    assert clouds["points"].shape == (48, 8, 6, 3)
    assert clouds["centres"].shape == (48, 8, 3)
    assert clouds["points"].norm(dim=-1).amax() <= 1 + 1e-5
    assert clouds["centres"].norm(dim=-1).amax(1).allclose(torch.ones(48), atol=1e-5)  # the farthest is the first
    spread = (clouds["points"] - clouds["centres"][:, :, None]).norm(dim=-1)
    assert spread.amin(-1).abs().max() < 1e-6  # a centre belongs to its own group
    assert len(load_clouds(replace(data, val_size=4), "val")["label"]) == 4


def test_groups_are_found_once(data, monkeypatch):
    first = load_clouds(data, "train")
    forget_all()
    monkeypatch.setattr("stringpe.data.clouds.group_points", None)
    assert torch.equal(load_clouds(data, "train")["points"], first["points"])


def test_a_cloud_has_the_same_principal_frame_in_every_pose(data):
    clouds = torch.randn(20, 200, 3).exp() * torch.tensor([3.0, 2.0, 1.0])  # skewed, with different spreads
    clouds = clouds - clouds.mean(1, keepdim=True)
    rotation = draw_rotations(20, "any", torch.Generator().manual_seed(0))
    axes = principal_axes(clouds)
    torch.testing.assert_close(torch.linalg.det(axes), torch.ones(20))
    own, turned = clouds @ axes, clouds @ rotation.mT
    torch.testing.assert_close(turned @ principal_axes(turned), own, atol=1e-4, rtol=1e-4)
    spread = own.square().sum(1)
    assert (spread[:, 0] >= spread[:, 1]).all()
    assert (spread[:, 1] >= spread[:, 2]).all()

    stored, principal = load_clouds(data, "train"), load_clouds(replace(data, pose="principal"), "train")
    torch.testing.assert_close(principal["centres"].norm(dim=-1), stored["centres"].norm(dim=-1))
    rods = principal["points"][principal["label"] == 1].abs().amax((1, 2))
    assert (rods[:, 0] > 2 * rods[:, 1]).all()  # they lie along the first axis


def test_half_turns_and_stretches_act_on_the_axes():
    made = draw_rotations(200, "half", torch.Generator().manual_seed(0))
    assert {tuple(r.diagonal().tolist()) for r in made} == {(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)}
    assert made.abs().sum() == 600  # nothing beside the diagonal
    points, centres, factor = torch.randn(2, 3, 4, 3), torch.randn(2, 3, 3), torch.tensor([[1.0, 2, 3], [0.5, 1, 1]])
    p, c = stretch(points, centres, factor)
    assert torch.equal(p[1, 2, 3], factor[1] * points[1, 2, 3])
    assert torch.equal(c[1, 2], factor[1] * centres[1, 2])


@pytest.mark.parametrize("kind", ["upright", "any"])
def test_rotations_are_rotations(kind):
    made = draw_rotations(2000, kind, torch.Generator().manual_seed(0)).double()
    assert (made @ made.mT - torch.eye(3)).abs().max() < 1e-5
    assert torch.linalg.det(made).allclose(torch.ones(2000).double())
    up = made[:, :, 2]
    assert (up[:, 2] == 1).all() == (kind == "upright")
    assert up.mean(0).abs().max() < 0.1 or kind == "upright"


def test_turning_keeps_offsets_and_centres_together():
    points, centres = torch.randn(2, 3, 4, 3), torch.randn(2, 3, 3)
    rotation = draw_rotations(2, "any", torch.Generator().manual_seed(0))
    p, c = turn(points, centres, rotation)
    torch.testing.assert_close(p[1, 2, 3], rotation[1] @ points[1, 2, 3])
    torch.testing.assert_close(c[1, 2], rotation[1] @ centres[1, 2])


def test_files_that_hold_something_else_are_refused(data, tmp_path):
    np.savez(tmp_path / "other.npz", points=np.zeros((2, 4, 3)))
    with pytest.raises(ValueError, match="but not train_points and train_label"):
        load_clouds(replace(data, train=str(tmp_path / "other.npz")), "train")
    write_clouds(tmp_path / "bad.npz", train_points=np.full((48, 40, 3), np.nan, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        load_clouds(replace(data, train=str(tmp_path / "bad.npz")), "train")
    write_clouds(tmp_path / "flat.npz", train_points=np.zeros((48, 40, 2), np.float32))
    with pytest.raises(ValueError, match=r"must be \(n, p, 3\)"):
        load_clouds(replace(data, train=str(tmp_path / "flat.npz")), "train")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"no clouds", _scribble])
def test_damaged_files_are_named(data, tmp_path, damage):
    path = tmp_path / "damaged.npz"
    path.write_bytes(damage((tmp_path / "shapes.npz").read_bytes()))
    with pytest.raises(ValueError, match=r"damaged\.npz is not a file of point clouds"):
        load_clouds(replace(data, train=str(path)), "train")
    if damage is not _scribble:  # which leaves the list of arrays whole
        with pytest.raises(ValueError, match=r"damaged\.npz is not a file of point clouds"):
            class_names(replace(data, train=str(path)))


def test_names_of_classes_are_those_of_the_file_or_numbers(data, tmp_path):
    assert class_names(data) == ["class 0", "class 1", "class 2"]
    named = replace(data, train=str(write_clouds(tmp_path / "named.npz", classes=np.array(["ball", "rod", "disc"]))))
    assert class_names(named) == ["ball", "rod", "disc"]
    with pytest.raises(ValueError, match=r"named\.npz names 3 classes: set data\.num_classes, now 4"):
        class_names(replace(named, num_classes=4))
    pickled = replace(data, train=str(write_clouds(tmp_path / "odd.npz", classes=np.array([{}], object))))
    with pytest.raises(ValueError, match=r"odd\.npz is not a file of point clouds"):
        class_names(pickled)
    with pytest.raises(ValueError, match="there is no file"):
        class_names(replace(data, train=str(tmp_path / "nowhere.npz")))


POINTS = np.random.default_rng(1).normal(size=(48, 40, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "place",
    [
        lambda x: x.astype(np.float64) + 1e9,
        lambda x: (x * 1e6).astype(np.int64) + 10**12,
        lambda x: x.astype(np.float64) * 1e300,
        lambda x: x * np.float32(1e-30),
    ],
)
def test_clouds_keep_their_shape_wherever_they_lie_and_in_any_unit(data, tmp_path, place):
    wanted = load_clouds(replace(data, train=str(write_clouds(tmp_path / "plain.npz", train_points=POINTS))), "train")
    moved = str(write_clouds(tmp_path / "moved.npz", train_points=place(POINTS)))
    found = load_clouds(replace(data, train=moved), "train")
    torch.testing.assert_close(found["points"], wanted["points"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"train_label": np.linspace(0, 2, 48)}, "train_label integers; .* has float32 and float64"),
        ({"train_label": np.array(["0"] * 48)}, "train_label integers; .* has float32 and <U1"),
        ({"train_points": POINTS + 1j}, "floats or integers .* has complex"),
        ({"train_points": POINTS.astype(str)}, "floats or integers .* has <U32"),
        ({"train_points": POINTS * [[[0]]]}, r"cloud 0 of train_points of .*odd.npz has all its points at one place"),
        ({"classes": np.array("abc")}, r"odd.npz .* classes must be a list of names"),
    ],
)
def test_numbers_that_are_no_clouds_are_refused(data, tmp_path, more, words):
    asked = replace(data, train=str(write_clouds(tmp_path / "odd.npz", **more)))
    with pytest.raises(ValueError, match=words):
        load_clouds(asked, "train"), class_names(asked)


def test_one_array_or_one_that_unpacks_to_too_much_is_refused(data, tmp_path, monkeypatch):
    np.save(tmp_path / "one.npy", POINTS)
    with pytest.raises(ValueError, match=r"one.npy is not a file of point clouds: it holds one array"):
        load_clouds(replace(data, train=str(tmp_path / "one.npy")), "train")
    monkeypatch.setattr("stringpe.data.clouds._MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"shapes.npz .* unpacks to \d+ bytes, more than the 1000 that are read"):
        load_clouds(data, "train")
