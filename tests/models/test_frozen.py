import pytest
import torch

from stringpe import ViT
from stringpe.models.frozen import LowRank, lift_frozen, load_frozen

ENCODINGS = ["rope", "rope_mixed", "circulant", "cayley", "general"]


def plain(seed=0):
    torch.manual_seed(seed)
    return ViT(dim=64, layers=2, num_heads=2, patch_size=8, encoding="absolute", image_size=32, depth="none")


def picture(b=2):
    torch.manual_seed(3)
    return torch.rand(b, 3, 32, 32) * 2 - 1, 1 + torch.rand(b, 32, 32)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_it_starts_as_the_model_that_was_frozen_and_only_what_is_new_learns(encoding, rank):
    image, depth = picture()
    old = plain()
    new = lift_frozen(plain(seed=1), encoding, rank=rank)
    load_frozen(new, old.state_dict(), "here")
    with torch.no_grad():
        torch.testing.assert_close(new.features(image, depth).tokens, old.features(image).tokens, atol=1e-5, rtol=1e-5)
    new.features(image, depth).tokens.square().sum().backward()
    learned = {name for name, p in new.named_parameters() if p.requires_grad}
    assert learned
    assert all(".encoding." in n or n.startswith("lift.") or ".parametrizations.weight.0" in n for n in learned)
    gates = [p for n, p in new.named_parameters() if n.endswith("encoding.frequencies.weight")]
    assert len(gates) == 2
    assert all(gate.grad.abs().max() > 0 for gate in gates)


def test_a_random_basis_is_orthogonal_and_fixed():
    new = lift_frozen(plain(), "cayley", random_basis=True)
    first, second = (block.attention.encoding.basis() for block in new.blocks)
    torch.testing.assert_close(first @ first.mT, torch.eye(32).expand(2, -1, -1), atol=1e-5, rtol=0)
    assert not torch.allclose(first, second, atol=0.1)
    assert not any(".basis." in name for name, _ in new.named_parameters())


def test_low_rank_updates_touch_queries_and_keys_alone_and_are_as_many_as_the_skew_entries():
    update = LowRank(64, 4)
    weight = torch.randn(192, 64)
    assert torch.equal(update(weight), weight)
    torch.nn.init.normal_(update.up)
    changed = (update(weight) - weight).abs().amax(1)
    assert (changed[:128] > 0).all()
    assert (changed[128:] == 0).all()
    turned = lift_frozen(plain(), "cayley").blocks[0].attention.encoding.basis.weight
    assert sum(p.numel() for p in update.parameters()) == pytest.approx(turned.numel(), rel=0.1)


def test_without_an_encoding_the_model_stays_on_rgb():
    new = lift_frozen(plain(), "none", depth=False)
    assert not any(p.requires_grad for p in new.parameters())
    assert new.features(picture()[0]).tokens.shape == (2, 16, 64)


def test_mistakes_are_answered_in_words():
    with pytest.raises(ValueError, match="no coordinates to lift depth into"):
        lift_frozen(plain(), "none")
    with pytest.raises(ValueError, match="a frozen ViT is one on RGB with absolute embeddings"):
        lift_frozen(ViT(dim=64, layers=1, num_heads=2, patch_size=8, encoding="rope"), "cayley")
    with pytest.raises(ValueError, match="from 1 to the model's width, 64, got 65"):
        lift_frozen(plain(), "rope_mixed", rank=65)
    with pytest.raises(ValueError, match="takes encodings that have a basis and frequencies; 'liere' has none"):
        lift_frozen(plain(), "liere")
    other = ViT(dim=64, layers=1, num_heads=2, patch_size=8, encoding="absolute", image_size=32).state_dict()
    with pytest.raises(ValueError, match=r"here holds another ViT than this recipe describes: blocks\.1"):
        load_frozen(lift_frozen(plain(), "cayley"), other, "here")
