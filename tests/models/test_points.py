import pytest
import torch

from stringpe.models.points import PointTransformer, group_points

SIZES = {"dim": 48, "layers": 2, "num_heads": 4, "num_classes": 5}


def cloud(seed=0, b=2, n=60):
    return torch.rand(b, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def grouped(points, groups=8, size=6):
    chosen, members = group_points(points, groups, size)
    rows = torch.arange(len(points))[:, None]
    return points[rows[:, :, None], members], points[rows, chosen]


def woken(model):
    """Away from its start, where S of a Cayley basis is zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


@pytest.mark.parametrize("encoding", ["rope", "rope_mixed", "cayley", "circulant"])
def test_moving_the_cloud_changes_nothing(encoding):
    model = woken(PointTransformer(encoding=encoding, **SIZES))
    points, centres = grouped(cloud())
    move = torch.tensor([30.0, -7.0, 11.0], dtype=torch.float64)
    there, here = model(points + move, centres + move), model(points, centres)
    torch.testing.assert_close(there, here, atol=1e-9, rtol=0)
    assert here.std() > 1e-3


def test_absolute_embeddings_see_the_move():
    model = woken(PointTransformer(encoding="sincos", **SIZES))
    points, centres = grouped(cloud())
    assert (model(points + 3, centres + 3) - model(points, centres)).abs().max() > 1e-2


def test_the_order_of_groups_and_points_does_not_matter():
    model = woken(PointTransformer(encoding="cayley", **SIZES))
    points, centres = grouped(cloud())
    order = torch.randperm(8)
    torch.testing.assert_close(model(points[:, order].flip(2), centres[:, order]), model(points, centres))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_every_parameter_learns(attention):
    model = woken(PointTransformer(encoding="cayley", attention=attention, **SIZES))
    model(*grouped(cloud())).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_centres_are_far_apart_and_groups_are_near():
    points = cloud(b=3)
    chosen, members = group_points(points, 8, 6)
    for b in range(3):
        assert len(set(chosen[b].tolist())) == 8
        spread = torch.pdist(points[b, chosen[b]]).min()
        assert spread > 0.4
        distance = torch.cdist(points[b, chosen[b]], points[b])
        furthest = distance.gather(1, members[b]).max(1).values
        inside = (distance <= furthest[:, None]).sum(1)
        assert (inside == 6).all()
        assert all(chosen[b, g] in members[b, g] for g in range(8))


def test_groups_follow_a_turned_cloud():
    points = cloud()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))).Q
    assert torch.equal(group_points(points, 8, 6)[0], group_points(points @ turn.T + 5, 8, 6)[0])


def test_bad_calls_are_refused_in_words():
    with pytest.raises(ValueError, match="points have no grid for a learned table"):
        PointTransformer(encoding="absolute", **SIZES)
    with pytest.raises(ValueError, match=r"points must be \(b, g, k, 3\)"):
        PointTransformer(**SIZES)(torch.zeros(2, 8, 3), torch.zeros(2, 8, 3))
    with pytest.raises(ValueError, match="61 groups of 6 need as many points"):
        group_points(cloud(), 61, 6)
