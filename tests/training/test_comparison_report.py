"""What a comparison says: cells, tables, sections, conclusions and open questions."""

import re

import pytest

from stringpe import recipes
from stringpe.metrics.statistics import Estimate, Test
from stringpe.recipes.design import EQUAL, MORE, Column, Contrast, Design
from stringpe.recipes.overrides import override
from stringpe.training.comparison_report import (
    conclusions,
    explain_depth,
    find_contrasts,
    open_questions,
    verdict,
)
from stringpe.training.comparison_table import Cell, Summary, as_csv, cost_rows, score_rows, summarise
from stringpe.training.report import Section, as_markdown


def summary(test, adjusted=None):
    cell = Cell(Estimate(50.0, 49.0, 51.0, 3), {0: 50.0}, test, adjusted)
    return Summary("a", {"as trained": cell}, 1e-3, 1000, 10, (1.5, 1.25, 1.75), (1.0, 1.0, 1.0), None)


def outcome_of(mean, half, p):
    return Test(Estimate(mean, mean - half, mean + half, 3), p, None, 0.5)


def test_cells_mark_what_is_significant_after_holm():
    def row(test, adjusted):
        return score_rows([summary(test, adjusted)], "top-1")[1]

    assert row(outcome_of(1.0, 0.5, 0.01), 0.03) == ("a", "50.00 ± 1.00", "+1.00 ± 0.50 *")
    assert row(outcome_of(1.0, 0.5, 0.01), 0.06)[2] == "+1.00 ± 0.50"
    assert row(outcome_of(1.0, 0.5, 0.01), None)[2] == "+1.00 ± 0.50"
    assert row(None, None)[2] == "baseline"
    head, cost = cost_rows([summary(None)])
    assert dict(zip(head, cost, strict=True)) == {
        "encoding": "a",
        "learning rate": "0.001",
        "parameters": "1,000",
        "of encodings": "10",
        "step (ms)": "1.5 (1.2–1.8)",
        "× a": "1.00 (1.00–1.00)",
    }


def test_text_is_aligned_and_csv_is_complete():
    rows = [summary(None), summary(outcome_of(1.0, 0.5, 0.2))]
    table, points = Section("Scores", tables=(score_rows(rows, "top-1"),)), Section("Limits", points=("word " * 40,))
    lines = as_markdown("Title", [table, Section("Empty"), points]).splitlines()
    assert lines[:4] == ["# Title", "", "## Scores", ""]
    assert len({len(line) for line in lines[4:8]}) == 1
    assert "## Empty" not in lines
    assert lines[-2].startswith("- word")
    assert lines[-1].startswith("  word")
    header, *body = as_csv(rows).splitlines()
    assert all(len(line.split(",")) == len(header.split(",")) for line in body)


def test_summaries_are_paired_by_seed():
    scores = {"as trained": {"a": {0: 40.0, 1: 60.0}, "b": {0: 41.0, 1: 61.0}}}
    cost = {"encoding_parameters": 0, "step_ms": (1.0, 0.9, 1.1), "peak_bytes": None}
    found = summarise(scores, {"a": cost}, {"a": 1e-3, "b": 1e-3}, {"a": 7, "b": 7}, "a", 0.5)
    difference = found[1].main.test.difference
    assert difference.mean == pytest.approx(1.0)
    assert difference.half_width == pytest.approx(0.0, abs=1e-9)
    _, first, second = cost_rows(found)
    assert first[-3:] == ("7", "0", "1.0 (0.9–1.1)")
    assert second[-3:] == ("7", "–", "–")  # not measured


# Two contrasts in two columns: one difference that is plain, one that is nothing, one that cannot be decided.
TABLE = {
    "first": {
        "absolute": {0: 50.0, 1: 51.2, 2: 49.5, 3: 50.1},
        "rope_mixed": {0: 60.0, 1: 61.1, 2: 59.6, 3: 60.0},
        "cayley": {0: 60.05, 1: 61.1, 2: 59.6, 3: 60.1},
    },
    "second": {
        "absolute": {0: 50.0, 1: 51.0, 2: 49.0, 3: 53.0},
        "rope_mixed": {0: 60.0, 1: 63.0, 2: 58.0, 3: 60.0},
        "cayley": {0: 61.0, 1: 61.0, 2: 60.0, 3: 59.0},
    },
}
ASKED = Design(
    columns=(Column("first"), Column("second", metric="moved")),
    contrasts=(
        Contrast("rotary − absolute", ("rope_mixed", "cayley", "circulant"), ("absolute",), {"first": MORE}),
        Contrast("Cayley − Mixed", ("cayley",), ("rope_mixed",), {"first": EQUAL, "second": MORE}),
        Contrast("of rows that are not there", ("general",), ("liere",)),
    ),
)


def test_findings_say_what_was_shown_what_is_equal_and_what_is_open():
    found = find_contrasts(TABLE, ASKED)
    assert [(f.name, f.column, f.outcome, f.as_expected) for f in found] == [
        ("rotary − absolute", "first", "shown", True),
        ("Cayley − Mixed", "first", "equal", True),
        ("rotary − absolute", "second", "shown", None),  # theory is silent
        ("Cayley − Mixed", "second", "open", None),
    ]
    shown, also, equal = conclusions(found, 4)
    assert re.fullmatch(
        r"Rotary is 9\.99 ± \d\.\d\d points above absolute \(first; p < 0\.001\), as theory expects\.", shown
    )
    assert also.startswith("Rotary is ")
    assert equal.startswith("Cayley equals Mixed within 0.5 points (first; the difference is +0.04 ± ")
    (left,) = open_questions(found)
    assert left.startswith("Whether Cayley differs from Mixed (second): the difference is ")
    assert left.endswith(
        "theory expects a difference above zero; it is neither shown to differ from zero nor to lie within ± 0.5."
    )
    assert verdict(found, 4) == "Theory has 3 expectations of this comparison: 2 met, 0 contradicted, 1 undecided."


def test_what_goes_against_theory_is_said():
    turned = Design(contrasts=(Contrast("absolute − rotary", ("absolute",), ("rope_mixed",), {"first": MORE}),))
    (found,) = find_contrasts({"first": TABLE["first"]}, turned)
    assert (found.outcome, found.as_expected) == ("shown", False)
    assert found.sentence().endswith("where theory expects a difference above zero")


def test_two_seeds_are_never_enough():
    two = {column: {row: dict(list(v.items())[:2]) for row, v in rows.items()} for column, rows in TABLE.items()}
    found = find_contrasts(two, ASKED)
    assert {f.outcome for f in found} == {"open"}
    assert conclusions(found, 2) == []
    assert len(open_questions(found)) == len(found)


def test_the_report_says_how_a_row_uses_depth_only_where_it_does():
    recipe = recipes.load("scenes")  # depth is lifted
    assert [note.split()[0] for note in explain_depth(recipe, ["none", "absolute", "cayley"])] == ["none", "absolute"]
    assert explain_depth(recipe, ["none:model.depth=none", "cayley:share_heads=true"]) == []
    (note,) = explain_depth(override(recipe, ["model.depth=none"]), ["none", "absolute:model.depth=lift"])
    assert note.startswith("absolute adds a learned table")
