from dataclasses import replace

import pytest
import torch

from stringpe.recipes.schema import Data, Loop, Model, Recipe
from stringpe.tasks import create
from stringpe.tasks.base import Parts
from stringpe.tasks.build import backbone, frozen_backbone
from stringpe.tasks.shapes import Shapes
from stringpe.tasks.warm_start import load_weights
from stringpe.training import evaluate, train

ENCODINGS = ["absolute", "sincos", "none", "rope", "rope_mixed", "cayley", "circulant", "liere"]
TOY = Recipe(
    name="sizes",
    model=Model(dim=16, layers=2, heads=2, patch_size=4),
    data=Data(image_size=16, num_classes=4, train_size=16, val_size=10),
    loop=Loop(batch_size=8, steps=2),
)


def with_model(recipe, **changes):
    return replace(recipe, model=replace(recipe.model, **changes))


def test_rows_of_a_comparison_start_from_the_same_common_parameters():
    """Whatever the encodings draw, and whatever state the global generator is in."""
    models = {}
    for i, encoding in enumerate(ENCODINGS):
        torch.manual_seed(i)
        models[encoding] = dict(create(with_model(TOY, encoding=encoding)).model().named_parameters())
    common = models.pop("none")
    assert len(common) > 20
    for encoding, parameters in models.items():
        for name, parameter in common.items():
            assert torch.equal(parameters[name], parameter), (encoding, name)
    other = dict(create(with_model(replace(TOY, seed=1), encoding="none")).model().named_parameters())
    assert not torch.equal(other["patch.weight"], common["patch.weight"])


def test_a_recipe_says_how_weights_start():
    def spread(name, **changes):
        return float(create(with_model(TOY, dim=64, **changes)).model().get_parameter(name).detach().std())

    qkv, out = "blocks.0.attention.qkv.weight", "blocks.0.attention.out.weight"
    assert spread(qkv) == pytest.approx(0.08, rel=0.05)  # of 64 inputs: `weight_std`
    assert spread(qkv, init="xavier") == pytest.approx((2 / (64 + 192)) ** 0.5, rel=0.05)
    assert spread(out, init="depth_scaled") == pytest.approx(0.08 / 2, rel=0.05)  # two layers have four branches
    assert spread("patch.weight", patch_gain=1.0) == pytest.approx(48**-0.5, rel=0.05)
    assert spread(qkv, init="width_scaled") == pytest.approx(0.02 * 2, rel=0.05)  # 64 inputs in place of 256
    with pytest.raises(ValueError, match=r"must start as one of truncated_normal, .*, got 'he'"):
        create(with_model(TOY, init="he")).model()


def test_the_bias_of_a_classifier_starts_where_the_recipe_says():
    recipe = replace(TOY, loss=replace(TOY.loss, head_bias=-6.9))
    model = create(recipe).model()
    assert model.head.bias.tolist() == pytest.approx([-6.9] * 4)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.slow
def test_a_run_is_evaluated_on_images_of_another_size(encoding, tmp_path):
    train(with_model(TOY, encoding=encoding), tmp_path, quiet=True)
    for size in (8, 16, 24):
        found = evaluate(tmp_path, [f"data.image_size={size}"])
        assert found["count"] == 10
        assert 0 <= found["top1"] <= 1


def test_a_table_for_another_size_is_what_the_model_reads_between_its_own_patches():
    torch.manual_seed(0)
    trained = backbone(with_model(TOY, encoding="absolute").model, image_size=16)
    torch.nn.init.normal_(trained.absolute.weight)
    larger = backbone(with_model(TOY, encoding="absolute").model, image_size=24)
    load_weights(larger, trained.state_dict(), "a run")
    image = torch.randn(2, 3, 24, 24)
    torch.testing.assert_close(larger.features(image).tokens, trained.features(image).tokens)


def test_weights_of_another_model_are_still_refused():
    narrow, wide = (backbone(with_model(TOY, encoding="absolute", dim=dim).model, image_size=16) for dim in (16, 32))
    with pytest.raises(ValueError, match="are not those of its recipe"):
        load_weights(wide, narrow.state_dict(), "a run")


def test_options_of_one_encoding_reach_it_in_frozen_models_and_in_point_clouds_too():
    """ "rope.base" is for rope alone: a comparison has one encoding per row."""
    options = {"rope.base": 50.0, "rope.learnable": True, "circulant.block_size": 8}
    asked = replace(TOY.model, dim=32, encoding="rope", encoding_options=options)
    frozen = frozen_backbone(replace(asked, freeze="backbone", depth="lift"), image_size=16)
    cloud = Shapes.build(replace(TOY, model=asked), Parts())
    for model in (frozen, cloud):
        theta = model.blocks[0].attention.encoding.frequencies
        assert any(p.requires_grad and p.numel() > 6 for p in theta.parameters())
