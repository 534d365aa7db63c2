import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict

import pytest

from stringpe.metrics.statistics import Estimate
from stringpe.training import compare
from stringpe.training.figures import line_looks, mean_curve, read_curve
from stringpe.training.runs import planned, row_changes
from stringpe.training.table import Summary, as_csv, as_text, cells, summarise
from stringpe.training.tuning import Tuning, best

ROWS = ("none", "absolute", "circulant:block_size=4")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    from training_toy import TOY

    out = tmp_path_factory.mktemp("compare")
    return out, compare(TOY, ROWS, seeds=2, out=out, jobs=2, quiet=True)


def test_rows_may_carry_options_and_changes():
    assert row_changes("rope") == ["model.encoding=rope"]
    assert row_changes("circulant:block_size=8,model.depth=none") == [
        "model.encoding=circulant", "model.encoding_options.block_size=8", "model.depth=none"
    ]  # fmt: skip


def test_the_plan_pairs_seeds_and_changes_nothing_else(toy, tmp_path):
    plan = planned(toy, ["rope", "cayley"], 2, tmp_path)
    assert [(p.label, p.seed) for p in plan] == [("rope", 0), ("cayley", 0), ("rope", 1), ("cayley", 1)]
    assert len({p.out for p in plan}) == 4
    assert {p.recipe.optim for p in plan} == {toy.optim}
    with pytest.raises(ValueError, match="at least one seed"):
        planned(toy, ["rope"], 0, tmp_path)


def test_the_table_has_scores_differences_and_costs(done):
    out, found = done
    assert [s.label for s in found.summaries] == list(ROWS)
    none, absolute, circulant = found.summaries
    assert absolute.difference is None
    assert none.difference.count == 2
    scores = {s: v / 100 for s, v in circulant.seeds.items()}
    written = json.loads((out / "results.json").read_text())["results"]["circulant:block_size=4"]
    assert {int(s): r["metrics"]["top1"] for s, r in written.items()} == pytest.approx(scores)
    assert circulant.encoding_parameters > none.encoding_parameters == 0
    assert absolute.parameters > none.parameters
    assert all(s.step_ms > 0 and s.peak_bytes > 1e7 for s in found.summaries)
    assert (out / "table.md").read_text() == found.text
    assert "paired by seed" in found.text


def test_the_curves_of_all_runs_are_in_one_file(done):
    out, found = done
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {(row["row"], row["seed"]) for row in rows} == {(label, seed) for label in ROWS for seed in (0, 1)}
    last = {(row["row"], row["seed"]): row["val/top1"] for row in rows if "val/top1" in row}
    for summary in found.summaries:
        for seed, score in summary.seeds.items():
            assert last[summary.label, seed] == pytest.approx(score / 100, rel=1e-5)


def test_finished_runs_are_not_run_again(done):
    from training_toy import TOY

    out, first = done
    stamps = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/*")}
    again = compare(TOY, ROWS, seeds=2, out=out, jobs=1, quiet=True)
    assert {p: p.stat().st_mtime_ns for p in out.glob("runs/*/*/*")} == stamps
    assert again.summaries == first.summaries


def test_a_failing_row_does_not_stop_the_others(toy, tmp_path):
    with pytest.raises(ValueError, match=r"(?s)2 of 4 runs failed.*circulant:optim.lr=1e30 seed 0: the loss is"):
        compare(toy, ["rope", "circulant:optim.lr=1e30"], seeds=2, out=tmp_path, jobs=2, quiet=True)
    assert len(list(tmp_path.glob("runs/rope/*/result.json"))) == 2


def test_a_row_that_cannot_be_built_is_refused_before_anything_is_made(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("stringpe.training.comparison.build", lambda _: pytest.fail("the data was asked for"))
    for row, text in (("circulant:block_size=5", "block_size must be even"), ("caley", "'caley'")):
        with pytest.raises(ValueError, match=text):
            compare(toy, ["rope", row], seeds=1, out=tmp_path, jobs=1, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_row_is_a_name_or_a_function_with_options_and_changes():
    assert row_changes("circulant:block_size=8,model.depth=none") == [
        *("model.encoding=circulant", "model.encoding_options.block_size=8", "model.depth=none"),
    ]
    assert row_changes("my_module:spiral") == ["model.encoding=my_module:spiral"]
    assert row_changes("my_module:spiral:turns=3,seed=1") == [
        *("model.encoding=my_module:spiral", "model.encoding_options.turns=3", "model.encoding_options.seed=1"),
    ]


def test_rates_are_chosen_row_by_row_on_a_seed_of_their_own(toy, tmp_path):
    tuning = Tuning((1e-5, 1e-2), 0.5)
    found = compare(toy, ["rope", "none"], seeds=1, out=tmp_path, jobs=2, tuning=tuning, quiet=True)
    assert "one seed" in found.text
    assert "interval" not in found.text
    written = json.loads((tmp_path / "results.json").read_text())
    for row in ("rope", "none"):
        tried = written["tuning"][row]
        assert set(tried) == {"1e-05", "0.01"}
        assert written["rates"][row] == float(best(tried))
        recipe = json.loads((tmp_path / f"runs/{row}/seed0/recipe.json").read_text())
        assert recipe["optim"] == {**asdict(toy.optim), "lr": float(best(tried))}
    short = json.loads((tmp_path / "tuning/rope/0.01/recipe.json").read_text())
    assert (short["seed"], short["loop"]["steps"], short["optim"]["warmup_steps"]) == (1000, 6, 2)
    assert "by one run of 0.5 of the length with seed 1000" in found.text
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tuning/*/*/*")}
    compare(toy, ["rope", "none"], seeds=1, out=tmp_path, tuning=tuning, quiet=True)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("tuning/*/*/*")} == stamps


def test_a_rate_that_diverges_is_not_chosen(changed, tmp_path):
    wild = changed(optim={"clip": 0.0, "warmup_steps": 0}, loop={"steps": 4})
    compare(wild, ["rope"], seeds=1, out=tmp_path, jobs=1, tuning=Tuning((1e30, 1e-3)), quiet=True)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["tuning"]["rope"]["1e+30"] == 0
    assert written["rates"]["rope"] == 1e-3
    with pytest.raises(ValueError, match=r"no learning rate of 1e\+30 trains the row rope"):
        compare(wild, ["rope"], seeds=1, out=tmp_path / "b", jobs=1, tuning=Tuning((1e30,)), quiet=True)
    with pytest.raises(ValueError, match="positive rates and a share"):
        compare(wild, ["rope"], seeds=1, out=tmp_path / "c", tuning=Tuning((1e-3,), 0.0), quiet=True)


def test_of_equal_rates_the_smallest_is_taken():
    assert best({"0.01": 0.5, "0.001": 0.5, "1": 0.4}) == "0.001"


def test_the_baseline_must_be_a_row(toy, tmp_path):
    with pytest.raises(ValueError, match="baseline 'rope' is not among the rows none"):
        compare(toy, ["none"], out=tmp_path, baseline="rope")


def test_the_report_needs_nothing_from_outside(done):
    text = done[1].report.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", text)
    assert "<script" not in text
    assert text.count("data:image/svg+xml;base64,") == 2
    assert text.count("data:image/png;base64,") == 12
    for row in ROWS:
        assert f"<td>{row}</td>" in text


def test_without_matplotlib_the_report_has_its_table_and_says_why(done, monkeypatch):
    from training_toy import TOY

    out, _ = done
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(RuntimeWarning, match="matplotlib is not installed"):
        found = compare(TOY, ROWS, seeds=2, out=out, quiet=True)
    assert "<td>absolute</td>" in found.report.read_text()
    assert "svg+xml" not in found.report.read_text()
    monkeypatch.undo()
    compare(TOY, ROWS, seeds=2, out=out, quiet=True)  # put the figures back for the other tests


def test_every_figure_shows_and_the_console_is_silent(done, tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed: apt-get install --no-install-recommends chromium")
    probe = """<script>addEventListener("load", () => {
      const widths = [...document.images].map(i => i.naturalWidth);
      document.body.dataset.probe = JSON.stringify(widths);
    });</script>"""
    page = tmp_path / "report.html"
    page.write_text(done[1].report.read_text().replace("</body>", probe + "</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-dev-shm-usage", "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom"]
    run = subprocess.run(
        [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
    )
    widths = json.loads(re.search(r'data-probe="([^"]*)"', run.stdout)[1])
    assert len(widths) == 14
    assert all(width > 0 for width in widths)
    assert not [line for line in run.stderr.splitlines() if "CONSOLE" in line]


def summary(difference):
    return Summary("a", Estimate(50.0, 49.0, 51.0, 3), difference, {0: 50.0}, 1e-3, 1000, 10, 1.5, None)


def test_cells_mark_what_is_told_from_chance():
    assert cells(summary(Estimate(1.0, 0.5, 1.5, 3)))[:3] == ("a", "50.00 ± 1.00", "+1.00 ± 0.50 *")
    assert cells(summary(Estimate(-0.2, -0.5, 0.1, 3)))[2] == "-0.20 ± 0.30"
    assert cells(summary(None))[2] == "baseline"
    assert cells(summary(None))[-1] == "–"


def test_text_is_aligned_and_csv_is_complete():
    rows = [summary(None), summary(Estimate(1.0, None, None, 1))]
    lines = as_text(rows, "top-1", ["A note."]).splitlines()
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[-1] == "A note."
    header, *body = as_csv(rows).splitlines()
    assert all(len(line.split(",")) == len(header.split(",")) for line in body)


def test_summaries_are_paired_by_seed():
    def result(score):
        return {"metrics": {"top1": score}, "parameters": 7}

    cost = {"parameters": 7, "encoding_parameters": 0, "step_ms": 1.0, "peak_bytes": None}
    results = {"a": {0: result(0.4), 1: result(0.6)}, "b": {0: result(0.41), 1: result(0.61)}}
    found = summarise(results, {"a": cost}, {"a": 1e-3, "b": 1e-3}, "top1", "a")
    assert found[1].difference.mean == pytest.approx(1.0)
    assert found[1].difference.half_width == pytest.approx(0.0, abs=1e-9)
    assert found[0].score.half_width > 50
    assert cells(found[0])[-4:] == ("7", "0", "1.0", "–")
    assert cells(found[1])[-4:] == ("7", "–", "–", "–")  # not measured


def test_curves_are_means_over_common_steps(tmp_path):
    (tmp_path / "m").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "val/top1": 0.5}\n{"step": 3, "loss": null}\n')
    assert read_curve(tmp_path / "m", "loss") == [(1, 2.0)]
    steps, mean, low, high = mean_curve([[(1, 2.0), (2, 3.0)], [(1, 4.0)]])
    assert (steps, mean, low, high) == ([1], [3.0], [2.0], [4.0])


def test_rows_of_one_encoding_share_a_colour_and_equal_changes_their_dashes():
    looks = line_looks(["rope", "cayley", "rope:model.depth=none", "cayley:model.depth=none"])
    assert len(set(looks.values())) == 4
    assert looks["rope"][0] == looks["rope:model.depth=none"][0] != looks["cayley"][0]
    assert looks["rope:model.depth=none"][1] == looks["cayley:model.depth=none"][1] != looks["rope"][1]
