import pytest
import torch

import stringpe
from stringpe import testing


def test_the_identity_of_the_paper():
    torch.manual_seed(0)
    enc = stringpe.outer(head_dim=8, num_heads=2, coord_dim=3, features=5).double()
    q, k = torch.randn(2, 2, 6, 8).double(), torch.randn(2, 2, 7, 8).double()
    r, s = torch.randn(2, 6, 3).double(), torch.randn(2, 7, 3).double()
    encoded_q, encoded_k = enc(q, k, r, s)
    assert encoded_q.shape == (2, 2, 6, 80)
    omega = enc.frequencies()  # (h, c, m)
    gap = r[:, :, None] - s[:, None]  # (b, n, m, c)
    kernel = torch.einsum("bijc,hcm->bhijm", gap, omega).cos().mean(-1)
    torch.testing.assert_close(encoded_q @ encoded_k.mT, (q @ k.mT) * kernel, atol=1e-12, rtol=0)


def test_order_of_the_flattened_product():
    enc = stringpe.outer(head_dim=3, num_heads=1, coord_dim=1, features=2)
    z, r = torch.randn(1, 1, 1, 3), torch.randn(1, 1)
    f = enc.features(r[None])[0, 0, 0]
    expected = torch.stack([f[a] * z[0, 0, 0, b] for a in range(4) for b in range(3)])
    torch.testing.assert_close(enc.rotate(z, r)[0, 0, 0], expected)


def test_scores_are_invariant_and_every_frequency_learns():
    torch.manual_seed(0)
    enc = stringpe.outer(head_dim=8, num_heads=2, coord_dim=2)
    assert testing.shift_error(enc) < 1e-6
    q, k, coords = testing.sample(enc)
    testing.scores(enc, q, k, coords).square().sum().backward()
    assert (enc.frequencies.weight.grad != 0).all()


def test_scores_of_attention_are_multiplied_by_the_kernel():
    torch.manual_seed(0)
    enc = stringpe.outer(head_dim=8, num_heads=2, coord_dim=2)
    attn = stringpe.Attention(16, 2, encoding=enc)
    x, coords = torch.randn(3, 10, 16), torch.rand(10, 2) * 8
    out = attn(x, coords)
    torch.testing.assert_close(attn(x, coords + 64), out, atol=1e-5, rtol=0)
    q, k, v = attn.project(x, None)
    scores = (q @ k.mT) * (enc.features(coords[None]) @ enc.features(coords[None]).mT) / 8**0.5
    torch.testing.assert_close(out, attn.merge(scores.softmax(-1) @ v), atol=1e-5, rtol=0)


def test_grouped_queries_use_the_features_of_their_key_head():
    enc = stringpe.outer(head_dim=4, num_heads=2, coord_dim=2)
    q, k, coords = torch.randn(1, 6, 5, 4), torch.randn(1, 2, 5, 4), torch.randn(5, 2)
    grouped = enc(q, k, coords)[0]
    torch.testing.assert_close(grouped[:, 1::3], enc.rotate(q[:, 1::3], coords))


@pytest.mark.parametrize("sizes", [{"features": 0}, {"head_dim": 0}, {"coord_dim": 0}])
def test_refuses_sizes(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        stringpe.outer(**({"head_dim": 4, "num_heads": 1} | sizes))


@pytest.mark.parametrize("attention", ["softmax", "linear", "relu"])
@pytest.mark.parametrize("shared", [False, True])
def test_inside_a_vit_by_its_name(attention, shared):
    """One per layer, or one for all; in 2D, and with depth as third coordinate."""
    torch.manual_seed(0)
    model = stringpe.vit(
        "vit_test_patch16",
        encoding="outer",
        encoding_options={"features": 2},
        share_layers=shared,
        coord_dim=3,
        attention=attention,
    )
    held = {id(block.attention.encoding) for block in model.blocks}
    assert len(held) == (1 if shared else len(model.blocks))
    image, depth = torch.randn(2, 3, 32, 48), torch.rand(2, 32, 48) + 1
    out = model(image, depth)
    out.square().sum().backward()
    assert all(block.attention.encoding.frequencies.weight.grad.abs().sum() > 0 for block in model.blocks)
    if attention == "softmax":  # the others are invariant in expectation
        coords = model.coordinates((2, 3), depth, image.device)
        moved = model.features(image, depth, coords=coords + 100).pooled
        torch.testing.assert_close(moved, model.features(image, depth).pooled, atol=2e-5, rtol=0)


def test_in_recipes_and_as_a_row_of_a_comparison(tmp_path):
    from training_toy import TOY

    from stringpe.recipes.overrides import override
    from stringpe.training import compare

    found = compare(override(TOY, ["loop.steps=1"]), ["rope", "outer:features=2"], 1, tmp_path, jobs=1, quiet=True)
    assert [s.label for s in found.summaries] == ["rope", "outer:features=2"]
    assert found.summaries[1].encoding_parameters > found.summaries[0].encoding_parameters == 0
