import json
import re
from dataclasses import fields, is_dataclass, replace

import pytest

from stringpe import recipes, tasks
from stringpe.recipes.overrides import differences, from_dict, keys, override
from stringpe.recipes.rules import check_keys, check_values
from stringpe.recipes.schema import Recipe


def _ranges():
    """Keys with a range, and their bounds."""
    for group in fields(Recipe):
        if is_dataclass(group.default):
            for field in fields(group.default):
                if field.metadata and "choices" not in field.metadata:
                    yield f"{group.name}.{field.name}", field.metadata


def test_overrides_reach_every_type():
    changes = [
        "model.encoding=circulant",
        "model.encoding_options.block_size=8",
        "model.encoding_options.share_heads=true",
        "optim.lr=3e-4",
        "loop.batch_size=128",
        "loop.compile=True",
        "seed=7",
    ]
    recipe = override(Recipe(), changes)
    assert recipe.model.encoding == "circulant"
    assert recipe.model.encoding_options == {"block_size": 8, "share_heads": True}
    assert (recipe.optim.lr, recipe.loop.batch_size, recipe.loop.compile, recipe.seed) == (3e-4, 128, True, 7)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("optim.lrr=1", "no setting 'optim.lrr': did you mean optim.lr?"),
        ("modle.encoding=rope", "did you mean model.encoding?"),
        ("batch_size=3", "did you mean loop.batch_size?"),
        ("optim.lr=fast", "optim.lr is a number, got 'fast'"),
        ("loop.batch_size=1.5", "loop.batch_size is a whole number, got '1.5'"),
        ("loop.compile=maybe", "loop.compile is true or false, got 'maybe'"),
        ("model=rope", "model is a group: set one of model.dim"),
        ("optim.lr", "an override is key=value"),
        ("seed.x=1", "no setting 'seed.x'"),
        ("model.encoding_options=3", "holds options by name"),
    ],
)
def test_mistakes_are_answered_in_words(change, text):
    with pytest.raises(ValueError) as error:
        override(Recipe(), [change])
    assert text in str(error.value)


def test_a_recipe_survives_json():
    recipe = override(Recipe(), ["model.encoding_options.block_size=8", "optim.lr=1"])
    assert from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_json_with_an_unknown_key_or_type_is_refused():
    values = Recipe().to_dict()
    with pytest.raises(ValueError, match=r"no setting 'optim\.lrr'"):
        from_dict(values | {"optim": {"lrr": 1.0}})
    with pytest.raises(ValueError, match=r"seed is of type int, got '3'"):
        from_dict(values | {"seed": "3"})


def test_a_recipe_of_an_earlier_version_loads_without_its_retired_keys():
    values = Recipe().to_dict()
    assert from_dict(values | {"data": values["data"] | {"results": "anywhere.json"}}) == Recipe()


RANGED = dict(_ranges())


@pytest.mark.parametrize("key", RANGED)
def test_every_bound_is_kept(key):
    """The bound itself is allowed or not, as the schema says, and what lies beyond it never is."""
    group, name = key.split(".")
    kind = type(getattr(getattr(Recipe(), group), name))
    for side, bound in RANGED[key].items():
        beyond = bound - 1 if side in ("least", "above") else bound + 1
        for value, good in ((bound, side in ("least", "most")), (beyond, False)):
            recipe = replace(Recipe(), **{group: replace(getattr(Recipe(), group), **{name: kind(value)})})
            if good:
                check_values(recipe)
            else:
                with pytest.raises(ValueError, match=rf"{key} must be .*, got {kind(value)}"):
                    check_values(recipe)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", ["optim.lr", "loss.head_bias", "model.mlp_ratio"])
def test_numbers_are_finite(key, value):
    with pytest.raises(ValueError, match=f"{key} must be a finite number, got {value}"):
        override(Recipe(), [f"{key}={value}"])


def test_keys_that_nothing_reads_are_refused_when_they_are_changed():
    reads = ("optim.*", "data.source")
    recipe = override(Recipe(), ["optim.lr=0.5", "data.queries=3", "text.dim=9", "model.encoding_options.x=1"])
    with pytest.raises(ValueError, match=r"data.queries=3 would change nothing: nobody does not read it"):
        check_keys(replace(recipe, text=Recipe().text, model=Recipe().model), reads, "nobody")
    with pytest.raises(ValueError, match=r"text.dim=9 .* it reads nothing of text"):
        check_keys(recipe, reads, "nobody", given=["text.dim"])
    with pytest.raises(ValueError, match=r"model.encoding_options"):
        check_keys(recipe, reads, "nobody", given=["model.encoding_options.x"])
    check_keys(recipe, reads, "nobody", given=["optim.lr"])
    check_keys(Recipe(), (), "nobody")  # defaults change nothing


def test_differences_name_the_keys():
    other = override(Recipe(), ["optim.lr=0.5", "model.encoding_options.block_size=8"])
    assert differences(Recipe(), other) == ["model.encoding_options.block_size: 'nothing', 8", "optim.lr: 0.001, 0.5"]


def test_keys_are_complete_and_flat():
    found = keys()
    assert "model.encoding" in found
    assert "seed" in found
    assert len(found) == len(set(found))


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_and_says_how_to_run_it(name):
    recipe = recipes.load(name)
    text = recipes.describe(name)
    assert recipe.name == name
    assert re.search(rf"(compare|train) {name}\b", text)
    assert "Expected" in text or "expected" in text
    assert "TODO" not in text


def test_the_papers_numbers():
    imagenet, places = recipes.load("imagenet2012"), recipes.load("places365")
    model, optim, loop, augment = imagenet.model, imagenet.optim, imagenet.loop, imagenet.augment
    assert (model.layers, model.dim, model.heads, model.patch_size, model.mlp_ratio) == (12, 768, 12, 16, 4.0)
    assert (loop.batch_size, loop.epochs, optim.lr, optim.warmup_steps) == (4096, 300, 1e-3, 10_000)
    assert (optim.beta1, optim.beta2, optim.weight_decay, optim.clip) == (0.9, 0.999, 0.1, 1.0)
    assert (model.dropout, model.drop_path, augment.randaugment, augment.magnitude) == (0.1, 0.1, 2, 15)
    assert (augment.mixup, imagenet.loss.kind, imagenet.loss.head_bias) == (0.5, "sigmoid", -6.9)
    assert (imagenet.data.image_size, imagenet.data.num_classes, places.data.num_classes) == (224, 1000, 365)
    assert places.optim == optim
    assert imagenet.total_steps(1_281_167) == 300 * 1_281_167 // 4096


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'tiny_imagenet100'"):
        recipes.load("tiny_imagenet")


def test_options_with_an_encodings_name_are_for_it_alone():
    changes = ["model.encoding_options.circulant.block_size=32", "model.encoding_options.rope.learnable=true"]
    recipe = override(Recipe(), changes)
    assert recipe.model.encoding_options == {"circulant.block_size": 32, "rope.learnable": True}
    assert recipe.model.options == {}
    assert override(recipe, ["model.encoding=circulant"]).model.options == {"block_size": 32}
    assert override(recipe, ["model.encoding=rope"]).model.options == {"learnable": True}
    given = override(recipe, ["model.encoding=circulant", "model.encoding_options.block_size=8"])
    assert given.model.options == {"block_size": 8}  # what a row says wins
    with pytest.raises(ValueError, match="holds options by name"):
        override(recipe, ["model.encoding_options.circulant.block.size=8"])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("model.encoding_options.circulnat.block_size", "did you mean 'circulant'"),
        ("model.encoding_options.rope.block_size", r"rope has no option 'block_size'; it has .*learnable"),
        ("text.encoding_options.cayley.blocks", r"text.encoding_options.cayley.blocks: cayley has no option 'blocks'"),
    ],
)
def test_options_that_no_encoding_has_are_refused_for_other_rows_too(key, text):
    recipe = override(recipes.load("scenes_retrieval"), [f"{key}=8"])
    with pytest.raises(ValueError, match=text):
        tasks.check(recipe)


def test_a_number_too_large_for_a_float_is_refused_in_words():
    with pytest.raises(ValueError, match=r"optim\.lr must be a finite number, got one of 401 digits"):
        from_dict({"optim": {"lr": 10**400}})
