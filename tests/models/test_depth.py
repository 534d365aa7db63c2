import pytest
import torch

from stringpe.models.depth import DepthChannel, DepthLift, looks_like_millimetres, surface_normals
from stringpe.models.vit import ViT
from stringpe.tasks.warm_start import load_weights


def plane(normal, distance, height=24, width=32):
    """The depth of a plane n·p = −distance·|n| seen by the default camera, whose focal length is the width."""
    v = torch.arange(height).double()[:, None] + 0.5
    u = torch.arange(width).double() + 0.5
    rays = torch.stack(
        torch.broadcast_tensors((u - width / 2) / width, (v - height / 2) / width, torch.ones(1)), dim=-1
    )
    return (-distance / (rays @ torch.as_tensor(normal).double()))[None]


def test_normals_of_planes():
    for direction in ([0.0, 0.0, -1.0], [0.3, 0.2, -1.0], [0.0, -0.8, -0.6], [-0.5, 0.1, -0.9]):
        normal = torch.tensor(direction).double()
        normal = normal / normal.norm()
        found = surface_normals(plane(normal, 2.0))
        expected = normal[:, None, None].expand(3, 24, 32)
        torch.testing.assert_close(found[0], expected, atol=1e-9, rtol=0)


def test_normals_are_unit_or_zero_and_face_the_camera():
    torch.manual_seed(0)
    depth = torch.rand(2, 16, 16) + 1
    depth[0, 3, 4] = 0
    normals = surface_normals(depth)
    length = normals.norm(dim=1)
    assert ((length - 1).abs() < 1e-5)[length > 0].all()
    assert (length[0, 2:5, 4] == 0).all()  # the hole and its neighbours
    assert (length[0, 3, 3:6] == 0).all()
    assert length[0, 5, 4] > 0
    flat = surface_normals(torch.full((1, 8, 8), 2.0))
    assert (flat[:, 2] < 0).all()


def test_normals_follow_the_intrinsics():
    depth = plane([0.3, 0.2, -1.0], 2.0)
    k = torch.tensor([[32.0, 0, 16], [0, 32.0, 12], [0, 0, 1]]).double()
    torch.testing.assert_close(surface_normals(depth, k), surface_normals(depth))
    k[0, 0] = 64
    assert (surface_normals(depth, k) - surface_normals(depth)).abs().max() > 1e-2


def test_lift_stays_in_float32():
    lift = DepthLift(4, "index").bfloat16()
    assert lift(torch.rand(1, 8, 8).bfloat16() + 1).dtype == torch.float32
    assert "patch_size=4" in repr(lift)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_integer_depth_is_refused_wherever_it_enters(dtype):
    lift, depth = DepthLift(4, "index"), torch.full((1, 8, 8), 2).to(dtype)
    for call in (lift, lift.heights, lift.affine, surface_normals):
        with pytest.raises(ValueError, match=r"depth is in metres, as floats, got .*: for millimetres pass"):
            call(depth)


def test_only_depth_that_is_mostly_beyond_a_hundred_metres_looks_like_millimetres():
    room = torch.rand(1, 8, 8) * 5 + 0.5
    assert not looks_like_millimetres(room)
    assert looks_like_millimetres(1000 * room)
    assert not looks_like_millimetres(torch.cat([room, torch.full_like(room, torch.inf), torch.zeros_like(room)], 1))
    assert not looks_like_millimetres(torch.zeros(1, 8, 8))  # nothing but holes


def test_without_depth_the_lift_has_a_gradient_of_zero():
    lift = DepthLift(4, "index")
    places = lift.flat(torch.rand(6, 2))
    assert places.shape == (6, 3)
    assert not places[:, 2].any()
    places.sum().backward()
    assert lift.scale.grad.item() == lift.offset.grad.item() == 0


def test_the_depth_channel_is_centred_and_scaled_and_holes_count_as_zero_metres():
    depth = torch.tensor(
        [
            [[4.0, 2.5], [1.0, 0.0]],
            [
                [
                    float("nan"),
                    float("inf"),
                ],
                [-1.0, 2.5],
            ],
        ]
    )
    expected = torch.tensor([[[1.0, 0.0], [-1.0, -5 / 3]], [[-5 / 3, -5 / 3], [-5 / 3, 0.0]]])
    torch.testing.assert_close(DepthChannel()(depth), expected[:, None])
    assert DepthChannel().half()(depth).dtype == depth.dtype


def test_weights_of_a_depth_channel_in_plain_metres_are_refused():
    model = ViT(dim=32, layers=1, num_heads=2, patch_size=8, depth="lift+channel")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "depth_channel" not in name}
    with pytest.raises(ValueError, match=r"they lack depth_channel\.scale: another version may have written them"):
        load_weights(model, weights, "runs/old")
