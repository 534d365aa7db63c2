"""Rays against solids: analytic values where there are any, brute-force marching everywhere."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stringpe.scenes import solids
from stringpe.scenes.solids import Solids, entry, support

SHAPES = {
    "box": solids.BOX,
    "cylinder": solids.CYLINDER,
    "ball": solids.BALL,
    "dome": solids.DOME,
    "bowl": solids.BOWL,
    "pillow": solids.PILLOW,
    "taper": solids.taper(0.6, 1.0),
    "barrel": solids.barrel(0.7),
}
CAVITIES = {"solid": (0.0, 0.0, 0.0, 0.0), "hollow": (1.15, 1.15, 1.0, 0.15), "tube": (1.2, 1.2, 0.98, 0.0)}


def inside_convex(p, quadric):
    """Membership by the definition. p (..., 3)."""
    q_r, q_z, linear, constant = quadric
    x, y, z = p.unbind(-1)
    return (p.abs() <= 1).all(-1) & (q_r * (x * x + y * y) + q_z * z * z + linear * z + constant <= 0)


def inside(p, quadric, cavity):
    solid = inside_convex(p, quadric)
    if cavity[0] == 0:
        return solid
    scale = torch.tensor(cavity[:3], dtype=p.dtype)
    return solid & ~inside_convex((p - torch.tensor([0, 0, cavity[3]], dtype=p.dtype)) * scale, quadric)


def posed(rotation_seed, distance, quadric, cavity, scale=(1.0, 1.0, 1.0)):
    """One solid, turned at random, at the given depth: the table and the matrix own-from-camera with its offset."""
    generator = torch.Generator().manual_seed(rotation_seed)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    inverse = q / torch.tensor(scale, dtype=torch.float64)[:, None]
    centre = torch.tensor([0.1, -0.2, distance], dtype=torch.float64)
    origin = -(inverse @ centre)
    table = Solids.pack(
        inverse[None].float(), origin[None].float(), centre[2:].float(), torch.tensor([quadric]), torch.tensor([cavity])
    )
    return table, inverse, origin


@pytest.mark.parametrize("cavity", CAVITIES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_entry_agrees_with_marching(shape, cavity):
    quadric, hole = SHAPES[shape], CAVITIES[cavity]
    for seed in range(4):
        table, inverse, origin = posed(seed, 6.0, quadric, hole, (1.0, 0.7, 1.3))
        generator = torch.Generator().manual_seed(seed)
        x, y = ((torch.rand(2, 200, generator=generator) - 0.5) * 0.6).unbind(0)
        found = entry(table, x[None], y[None])[0]
        t = torch.linspace(3.5, 8.5, 5001, dtype=torch.float64)
        rays = torch.stack([x, y, torch.ones_like(x)], -1).double()
        own = t[:, None, None] * (rays @ inverse.T) + origin  # (steps, rays, 3)
        hit = inside(own, quadric, hole)
        first = torch.where(hit.any(0), t[hit.byte().argmax(0)], math.inf)
        both = first.isfinite() & found.isfinite()
        # Grazing rays may fall between the steps of the march; nothing else may differ.
        assert (first.isfinite() != found.isfinite()).sum() <= 4
        off = first[both] - found[both].double()
        assert (off > -1e-3).float().mean() > 0.98
        assert (off.abs() < 3e-3).float().mean() > 0.95
        assert both.sum() > 20


@given(distance=st.floats(1.0, 12.0), radius=st.floats(0.01, 0.5), x=st.floats(-0.9, 0.9), y=st.floats(-0.9, 0.9))
@settings(max_examples=60, deadline=None)
def test_ball_depth_is_the_quadratic_formula(distance, radius, x, y):
    """A ball straight ahead, rays within its outline: also when it is small and far, where naive roots cancel."""
    scale = radius / distance * 0.65
    inverse = torch.eye(3)[None] / radius
    table = Solids.pack(
        inverse,
        torch.tensor([[0.0, 0.0, -distance / radius]]),
        torch.tensor([distance]),
        torch.tensor([solids.BALL]),
        torch.zeros(1, 4),
    )
    u, v = x * scale, y * scale
    found = float(entry(table, torch.tensor([[u]]), torch.tensor([[v]])))
    n = u * u + v * v + 1
    assert found == pytest.approx(
        (distance - math.sqrt(distance**2 - n * (distance**2 - radius**2))) / n, abs=2e-5 * distance
    )


def test_solid_behind_the_pinhole_is_not_met():
    table, *_ = posed(0, -4.0, solids.BALL, CAVITIES["solid"])
    assert entry(table, torch.zeros(1, 5), torch.zeros(1, 5)).isinf().all()


@pytest.mark.parametrize("shape", SHAPES)
def test_support_is_the_largest_reach(shape):
    quadric = SHAPES[shape]
    generator = torch.Generator().manual_seed(1)
    p = torch.rand(400_000, 3, generator=generator, dtype=torch.float64) * 2 - 1
    p = p[inside_convex(p, quadric)]
    directions = torch.nn.functional.normalize(torch.randn(20, 3, generator=generator, dtype=torch.float64), dim=-1)
    sampled = (p @ directions.T).amax(0)
    exact = support(quadric, directions)
    assert (exact >= sampled - 1e-6).all()
    assert (exact - sampled < 0.06).all()
    assert torch.allclose(support(quadric, torch.eye(3)[:2]), torch.ones(2, dtype=torch.float64))
