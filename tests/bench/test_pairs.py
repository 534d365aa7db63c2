"""Ours beside what it replaces: both sides compute the same, and every pair is measured and shown."""

import types

import pytest
import torch

from stringpe import bench, vit
from stringpe.bench import pairs
from stringpe.bench.regressions import read_ratios
from stringpe.compat import PointROPE, RoPE2D

CPU = torch.device("cpu")


@pytest.mark.parametrize("layer", [RoPE2D(), PointROPE()])
def test_drop_in_layers_are_compared_with_the_same_function(layer):
    tokens, positions = torch.randn(2, 3, 5, 12 * layer.axes), torch.randint(0, 9, (2, 5, layer.axes))
    torch.testing.assert_close(layer(tokens, positions), pairs.rotate_by_definition(tokens, positions))


def test_packed_images_are_compared_with_the_same_images_padded():
    torch.manual_seed(0)
    model = vit("vit_test_patch16", encoding="cayley", coord_dim=2).eval()
    images = [torch.randn(3, 16 * rows, 16 * columns) for rows, columns in ((1, 3), (2, 2), (3, 1))]
    padded, mask = pairs.pad(images, 16)
    assert mask.sum(1).tolist() == [3, 4, 3]
    torch.testing.assert_close(pairs.padded_features(model, padded, mask), model(images), rtol=1e-4, atol=1e-5)


def test_every_pair_is_measured_and_shown(tmp_path, monkeypatch):
    quick = types.SimpleNamespace(rows=lambda device: pairs.rows(device, seconds=0.0))
    monkeypatch.setattr(bench.results, "pairs", quick)
    results = bench.run(["pairs"], out=tmp_path, device="cpu")
    assert "left_out" not in results
    assert len(results["pairs"]) == 2 * len(pairs.STRING) + 2 + 2
    page = " ".join((tmp_path / "bench.md").read_text().split())
    assert "cayley, vit_test_patch16, 4 cameras, eager, q/k norms" in page
    assert "RoPE2D (1, 2, 16, 16) | its definition" in page
    ratios = read_ratios(results)
    assert len(ratios) == len(results["pairs"])
    assert all(ratio > 0 for ratio in ratios.values())
