import pytest
import torch

import stringpe
from stringpe.models.depth import DepthLift, surface_normals


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


def test_intrinsics_matter():
    depth = plane([0.3, 0.2, -1.0], 2.0)
    k = torch.tensor([[32.0, 0, 16], [0, 32.0, 12], [0, 0, 1]]).double()
    torch.testing.assert_close(surface_normals(depth, k), surface_normals(depth))
    k[0, 0] = 64
    assert (surface_normals(depth, k) - surface_normals(depth)).abs().max() > 1e-2


def test_lift_stays_in_float32():
    lift = DepthLift(4, "index").bfloat16()
    assert lift(torch.rand(1, 8, 8).bfloat16() + 1).dtype == torch.float32
    assert "patch_size=4" in repr(lift)


@pytest.mark.parametrize("depth", ["lift", "channel", "normals"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_whole_numbers_are_not_metres(depth, dtype):
    """Depth in millimetres, as cameras and files give it, would be a thousand times too far."""
    coord_dim = 3 if depth == "lift" else 2
    model = stringpe.vit("vit_test_patch8", coord_dim=coord_dim, depth=depth)
    with pytest.raises(ValueError, match=r"got torch\.\w+: for millimetres pass depth\.float\(\) / 1000"):
        model(torch.zeros(1, 3, 16, 16), torch.ones(1, 16, 16).to(dtype))


def test_a_flat_plane_ties_the_lift_to_every_step():
    lift = DepthLift(4, "index")
    plane = torch.rand(6, 2)
    flat = lift.flat(plane)
    assert torch.equal(flat, torch.cat([plane, torch.zeros(6, 1)], dim=1))
    flat.sum().backward()
    assert lift.scale.grad == lift.offset.grad == 0
