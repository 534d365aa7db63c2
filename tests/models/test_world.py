"""Models that see several calibrated cameras in one frame."""

import pytest
import torch

import stringpe
from stringpe import scenes, vit
from stringpe.coords import Calibration
from stringpe.export import export
from stringpe.models.contrastive import Contrastive
from stringpe.models.initialise import Initialisation, initialise
from stringpe.models.owl import OwlViT
from stringpe.models.owl3d import Detector3D
from stringpe.models.text import TextTower

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),  # torch's exporter, on itself
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

SHIFT = torch.tensor([3.0, -2.0, 5.0])


def model(encoding="cayley", **options):
    torch.manual_seed(0)
    made = vit("vit_test_patch8", encoding=encoding, frame="world", num_classes=5, **options)
    initialise(made, Initialisation("xavier"))
    torch.nn.init.normal_(made.head.weight, std=0.1)
    return made.eval()


@pytest.fixture(scope="module")
def views():
    """Image (2, 2, 3, 32, 32), depth and calibration: two scenes, two views each."""
    frames = scenes.render(scenes.sample(seed=3, indices=4, views=2), (32, 32))
    return frames.group(2)


def shifted(calibration, shift=SHIFT):
    pose = calibration.pose.clone()
    pose[..., :3, 3] += shift
    return Calibration(calibration.intrinsics, pose)


@pytest.mark.parametrize("encoding", stringpe.names())
@pytest.mark.parametrize("depth", ["lift", "lift+normals"])
def test_a_shift_of_the_world_changes_nothing(encoding, depth, views):
    net = model(encoding, depth=depth).double()
    image, metres, calibration = views
    with torch.no_grad():
        before, after = (net(image.double(), metres, c) for c in (calibration, shifted(calibration)))
        one = Calibration(calibration.intrinsics, calibration.pose.clone())
        one.pose[:, 1, :3, 3] += 1
        other = net(image.double(), metres, one)
    assert before.shape == (2, 5)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)  # points are float32, of a few metres
    assert (other - before).abs().max() > 1e-3  # the second camera alone: the displacement between views


@pytest.mark.parametrize("depth", ["lift", "lift+channel", "lift+normals"])
def test_the_order_of_the_cameras_does_not_matter(depth, views):
    net = model(depth=depth)
    image, metres, calibration = views
    turned = Calibration(*(matrix.flip(1) for matrix in calibration))
    found = net.features(image, metres, calibration=calibration)
    again = net.features(image.flip(1), metres.flip(1), calibration=turned)
    torch.testing.assert_close(again.pooled, found.pooled, rtol=1e-4, atol=1e-5)
    swapped = again.tokens.unflatten(1, (2, 16)).flip(1).flatten(1, 2)
    torch.testing.assert_close(swapped, found.tokens, rtol=1e-4, atol=1e-5)


def test_one_view_needs_no_axis_of_views(views):
    net = model(depth="lift+normals")
    image, metres, calibration = views
    one = Calibration(*(matrix[:, 0] for matrix in calibration))
    alone = net(image[:, 0], metres[:, 0], one)
    first = net(image[:, :1], metres[:, :1], Calibration(*(matrix[:, :1] for matrix in calibration)))
    torch.testing.assert_close(alone, first)


def test_every_parameter_gets_gradient(views):
    net = model(depth="lift+normals", pool="map", registers=2)
    net(*views).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_folding_changes_nothing(views):
    net = model(depth="lift+normals")
    before = net(*views)
    torch.testing.assert_close(stringpe.fold(net)(*views), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("to", ["torch-export", "onnx"])
@pytest.mark.slow
def test_it_is_exported_with_its_cameras(to, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    found = export(model(), tmp_path / "world", to=to, size=32)
    assert found.difference < 1e-4
    if to == "torch-export":
        program = torch.export.load(found.path)
        assert len(program.graph_signature.user_inputs) == 4


def test_what_is_missing_is_named(views):
    image, metres, calibration = views
    net = model()
    with pytest.raises(ValueError, match="got no depth and no calibration: pass"):
        net(image)
    with pytest.raises(ValueError, match="got no calibration: pass"):
        net(image, metres)
    camera = vit("vit_test_patch8", coord_dim=3)
    with pytest.raises(ValueError, match=r"need one frame: build the model with frame='world'"):
        camera(image, metres)
    with pytest.raises(ValueError, match="would ignore calibration"):
        camera(image[:, 0], metres[:, 0], calibration)
    for wrong in ({"depth": "channel"}, {"encoding": "absolute"}):
        with pytest.raises(ValueError, match="frame='world' needs depth to place patches"):
            vit("vit_test_patch8", **{"frame": "world", **wrong})
    with pytest.raises(ValueError, match="packed images have no calibration"):
        net(list(image[:, 0]), list(metres[:, 0]))
    with pytest.raises(ValueError, match="frame must be one of camera, world, got 'base'"):
        vit("vit_test_patch8", frame="base")


def towers():
    return model(), TextTower(vocab=20, dim=32, layers=1, num_heads=2, width=32, context=4)


def test_retrieval_sees_two_views_in_one_frame(views):
    net = Contrastive(*towers()).eval()
    image, metres, calibration = views
    tokens = torch.ones(3, 4, dtype=torch.long)
    found = net(image, tokens, metres, calibration)
    assert found.image.shape == (2, 32)
    again = net(image, tokens, metres, shifted(calibration))
    torch.testing.assert_close(again.image, found.image, rtol=1e-3, atol=1e-4)
    alone = net(image[:, 0], tokens, metres[:, 0], Calibration(*(m[:, 0] for m in calibration)))
    assert (alone.image - found.image).abs().max() > 1e-3


def test_detection_sees_two_views_in_one_frame(views):
    net = OwlViT(*towers()).eval()
    image, metres, calibration = views
    found = net(image, torch.ones(3, 4, dtype=torch.long), depth=metres, calibration=calibration)
    assert found.logits.shape == (2, 32, 3)
    centres = found.boxes[..., :2].unflatten(1, (2, 16))  # at the start, each token's own patch
    torch.testing.assert_close(centres[:, 0], centres[:, 1])
    across = centres[0, 0, :, 0].view(4, 4)[0]
    torch.testing.assert_close(across, torch.tensor([0.125, 0.375, 0.625, 0.875]), rtol=0, atol=1e-3)


def test_boxes_in_3d_move_with_the_world(views):
    net = Detector3D(*towers()).eval()
    image, metres, calibration = views
    queries = torch.ones(3, 4, dtype=torch.long)
    found, moved = (net(image, metres, queries, c) for c in (calibration, shifted(calibration)))
    assert found.boxes.shape == (2, 32, 12)
    torch.testing.assert_close(moved.boxes[..., :3], found.boxes[..., :3] + SHIFT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.boxes[..., 3:], found.boxes[..., 3:], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(moved.logits, found.logits, rtol=1e-3, atol=1e-3)
