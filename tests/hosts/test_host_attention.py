"""What stands in a host's attention beside the encoding: norms, masks, grouped heads, adapters, hooks."""

import copy

import pytest
import torch
from host_families import VIT, encodings, find_family, images
from torch import nn

import stringpe
from cases import perturbed
from stringpe.hosts import attached_layers


def test_norms_between_projection_and_encoding():
    """LayerNorm and gains do not commute with P: it goes to the tokens, and fold says which module is in the way."""
    model = VIT.model(qk_norm=True)
    before = VIT.call(model, images())
    stringpe.attach(model, "cayley")
    assert (VIT.call(model, images()) - before).abs().max() <= 1e-5
    perturbed(nn.ModuleList(encodings(model)), 0.3)
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"cannot fold blocks\.0\.attn.*q_norm, a LayerNorm"):
        stringpe.fold(model)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_norm_without_gain_commutes_and_folds():
    model = VIT.model()
    stringpe.attach(model, "cayley")
    perturbed(nn.ModuleList(encodings(model)), 0.3)
    for _, layer in attached_layers(model):
        layer.q_norm = layer.k_norm = nn.RMSNorm(16, elementwise_affine=False)
    before = VIT.call(model, images())
    torch.testing.assert_close(VIT.call(stringpe.fold(model), images()), before, atol=1e-5, rtol=1e-4)


def test_grouped_heads_share_the_basis_of_their_key_head():
    eva = find_family("timm", "DINOv3")
    options = {"attn_type": "rope", "qkv_fused": False, "num_heads": 4, "num_kv_heads": 2}
    model = eva.model(**options)
    before = eva.call(model, images())
    stringpe.attach(model, "cayley")
    assert [e.num_heads for e in encodings(model)] == [2, 2]
    assert (eva.call(model, images()) - before).abs().max() <= 1e-5
    perturbed(nn.ModuleList(encodings(model)), 0.3)
    moved = eva.call(model, images())
    assert (moved - before).abs().max() > 1e-3
    torch.testing.assert_close(eva.call(stringpe.fold(model), images()), moved, atol=1e-5, rtol=1e-4)


def test_masks_of_the_host_are_obeyed():
    model = VIT.model()
    mask = torch.rand(17, 17) > 0.3
    mask.fill_diagonal_(True)
    before = model.forward_features(images(), attn_mask=mask)
    assert (before - model.forward_features(images())).abs().max() > 1e-3
    stringpe.attach(model, "cayley")
    assert (model.forward_features(images(), attn_mask=mask) - before).abs().max() <= 1e-5


def test_projections_that_are_more_than_a_matrix():
    """A low-rank adapter around a projection is called, not read: P then multiplies tokens."""

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.weight, self.bias, self.base = base.weight, base.bias, base
            self.down, self.up = nn.Linear(32, 2, bias=False), nn.Linear(2, 96, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    model = stringpe.attach(VIT.model(), "cayley")
    plain = VIT.call(model, images())
    for _, layer in attached_layers(model):
        layer.qkv = Adapted(layer.qkv)
        nn.init.zeros_(layer.qkv.up.weight)
    torch.testing.assert_close(VIT.call(model, images()), plain, atol=1e-5, rtol=0)
    for _, layer in attached_layers(model):
        nn.init.normal_(layer.qkv.up.weight)
    assert (VIT.call(model, images()) - plain).abs().max() > 1e-3
    with pytest.raises(ValueError, match=r"qkv, a Adapted, .* merge it into an nn\.Linear first"):
        stringpe.fold(model)


@pytest.mark.parametrize("which", ["timm ViT", "timm SAM (windows)", "transformers ViT"])
def test_hooks_on_projections_and_attention_are_called(which):
    """As the host called them before attaching."""
    one = find_family(*which.split(" ", 1))
    model = one.model()
    for name, module in model.named_modules():
        if name.endswith(("qkv", "q_proj", "v_proj")):
            module.register_forward_hook(lambda module, args, out: 1.5 * out)
        if name.endswith(("attn", "attention")):
            module.register_forward_pre_hook(lambda module, args: (0.9 * args[0], *args[1:]) if args else None)
    before = one.call(model, images())
    assert (before - one.call(one.model(), images())).abs().max() > 1e-3
    stringpe.attach(model, "cayley")
    assert (one.call(model, images()) - before).abs().max() <= 1e-5
    with pytest.raises(ValueError, match=r"with forward hooks|relative position bias"):
        stringpe.fold(model)


def test_values_go_through_their_module():
    """An adapter on the values alone is not passed by."""
    which = find_family("transformers", "ViT")
    model = stringpe.attach(which.model(), "cayley")
    before = which.call(model, images())
    for _, layer in attached_layers(model):
        layer.v_proj = nn.Sequential(layer.v_proj, nn.Linear(32, 32))
    assert (which.call(model, images()) - before).abs().max() > 1e-3
    stringpe.fold(model)
