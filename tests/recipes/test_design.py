"""Rows of a comparison as people write them, and the runs that they stand for."""

import pytest

from stringpe import recipes
from stringpe.recipes.design import expand_rows, plan_runs, row_changes


def test_a_row_is_a_name_or_a_function_with_options_and_changes():
    assert row_changes("rope") == ["model.encoding=rope"]
    assert row_changes("circulant:block_size=8,model.depth=none") == [
        *("model.encoding=circulant", "model.encoding_options.block_size=8", "model.depth=none"),
    ]
    assert row_changes("my_module:spiral") == ["model.encoding=my_module:spiral"]
    assert row_changes("my_module:spiral:turns=3,seed=1") == [
        *("model.encoding=my_module:spiral", "model.encoding_options.turns=3", "model.encoding_options.seed=1"),
    ]


def test_a_list_in_braces_is_a_row_per_value():
    assert expand_rows(["rope", "circulant:block_size={4,8, 16}"]) == [
        "rope", "circulant:block_size=4", "circulant:block_size=8", "circulant:block_size=16"
    ]  # fmt: skip
    both = expand_rows(["circulant:block_size={4,8},share_heads={true,false}", "circulant:block_size=4"])
    assert len(both) == 5
    assert "circulant:block_size=8,share_heads=true" in both
    own = "cayley:model.start=runs/{encoding}"  # which stands for the row's encoding
    assert expand_rows([own]) == [own]
    with pytest.raises(ValueError, match=r"a list in a row is \{4,8,16\}"):
        expand_rows(["circulant:block_size={4,}"])


def test_the_plan_pairs_seeds_and_changes_nothing_else(tmp_path):
    recipe = recipes.load("scenes")
    plan = plan_runs(recipe, ["rope", "cayley"], 2, tmp_path)
    assert [(p.label, p.seed) for p in plan] == [("rope", 0), ("cayley", 0), ("rope", 1), ("cayley", 1)]
    assert len({p.out for p in plan}) == 4
    assert {p.recipe.optim for p in plan} == {recipe.optim}
    with pytest.raises(ValueError, match="at least one seed"):
        plan_runs(recipe, ["rope"], 0, tmp_path)
