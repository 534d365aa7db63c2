"""A comparison, from its arguments to its report."""

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from stringpe import recipes, tasks
from stringpe.recipes.design import Column, Design, PlannedRun, Tuning
from stringpe.recipes.overrides import override
from stringpe.training import compare
from stringpe.training.comparison import best_rate, score_column
from stringpe.training.comparison_table import best_rows

pytestmark = pytest.mark.slow

ROWS = ("none", "absolute", "circulant:block_size=4")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    from training_toy import TOY

    out = tmp_path_factory.mktemp("compare")
    return out, compare(TOY, ROWS, seeds=2, out=out, jobs=2, quiet=True)


def test_a_sweep_over_block_sizes_is_one_command(toy, tmp_path):
    recipe = override(toy, ["loop.steps=1", "model.heads=1", "model.encoding_options.rope.base=50"])
    rows = ["circulant:block_size={4,8,16}", "rope"]
    found = compare(recipe, rows, 1, tmp_path, jobs=1, costs=False, quiet=True, best=True, metrics=["top1", "top5"])
    labels = [s.label for s in found.summaries]
    assert labels == ["circulant:block_size=4", "circulant:block_size=8", "circulant:block_size=16", "rope"]
    assert found.summaries[0].parameters < found.summaries[1].parameters < found.summaries[2].parameters
    assert [list(s.cells) for s in found.summaries] == [["top1", "top5"]] * 4
    assert "| best of 1 seed" in found.text
    assert "best of 1 seed" in found.report.read_text()


def test_metrics_that_the_task_does_not_measure_are_refused_before_anything_runs(toy, tmp_path):
    with pytest.raises(
        ValueError, match=r"no metric of the task classification named 'iou': .*The names are top1, top5"
    ):
        compare(toy, ["rope"], 1, tmp_path / "out", metrics=["iou"])
    for name in ("loss", "count"):
        with pytest.raises(ValueError, match=f"--metrics shows shares, in percent, and {name} is not one"):
            compare(toy, ["rope"], 1, tmp_path / "out", metrics=[name])
    assert not (tmp_path / "out").exists()


def test_columns_that_the_recipe_does_not_measure_are_left_out_and_named(toy, tmp_path, capsys):
    columns = (Column("small"), Column("large", metric="top1_32"), Column("larger", metric="top1_64"))
    toy = override(toy, ["loop.eval_sizes=32", "loop.steps=1"])
    found = compare(toy, ["rope"], 1, tmp_path / "out", design=Design(columns=columns), costs=False)
    assert list(found.summaries[0].cells) == ["small", "large"]
    assert "left out, because this recipe does not measure it: larger" in capsys.readouterr().err
    with pytest.raises(ValueError, match="measure none of the columns larger"):
        compare(toy, ["rope"], 1, tmp_path / "none", design=Design(columns=columns[2:]))
    with pytest.raises(ValueError, match=r"do not measure top1_64, the share .* on images of 64 pixels per side"):
        compare(toy, ["rope"], 1, tmp_path / "none", metrics=["top1_64"])


@pytest.mark.parametrize(
    ("recipe", "changes", "metric"),
    [
        ("scenes_objects_far", ["data.cameras=any"], "far"),
        ("scenes_detection3d", ["loop.eval_points=0"], "iou_monte_carlo"),
    ],
)
def test_tasks_know_what_a_recipe_measures(recipe, changes, metric):
    measured = recipes.load(recipe, ["loop.eval_points=10"] if metric == "iou_monte_carlo" else [])
    task = tasks.task_class(measured.task)
    assert task.measures(measured, metric)
    assert not task.measures(recipes.load(recipe, changes), metric)


def test_a_column_that_the_runs_did_not_measure_is_named(toy, tmp_path):
    results = [(PlannedRun("rope", 0, toy, tmp_path), {"metrics": {"top1": 0.5}})]
    assert score_column(Column("main"), results, "top1") == {"rope": {0: 50.0}}
    with pytest.raises(ValueError, match=r"the runs of rope did not measure 'iou': they have top1"):
        score_column(Column("IoU", metric="iou"), results, "top1")


def test_the_best_seed_is_shown_on_request(done):
    out, found = done
    assert "best of" not in found.text
    head, *rows = best_rows(found.summaries)
    assert head[0] == "best of 2 seeds"
    assert f"{max(found.summaries[1].main.seeds.values()):.2f}" in rows[1]
    assert "best" in (out / "table.csv").read_text().splitlines()[0].split(",")


def test_the_table_has_scores_differences_and_costs(done):
    out, found = done
    assert [s.label for s in found.summaries] == list(ROWS)
    none, absolute, circulant = found.summaries
    assert absolute.main.test is None
    assert none.main.test.difference.count == 2
    scores = {s: v / 100 for s, v in circulant.main.seeds.items()}
    written = json.loads((out / "results.json").read_text())["results"]["circulant:block_size=4"]
    assert {int(s[4:]): r["metrics"]["top1"] for s, r in written.items()} == pytest.approx(scores)
    assert all(len(r["digest"]["weights"]) == 32 for r in written.values())
    assert circulant.encoding_parameters > none.encoding_parameters == 0
    assert absolute.parameters > none.parameters
    assert all(0 < s.step_ms[1] <= s.step_ms[0] <= s.step_ms[2] for s in found.summaries)
    assert all(0 < s.ratio[1] <= s.ratio[0] <= s.ratio[2] for s in found.summaries)
    assert absolute.ratio == (1.0, 1.0, 1.0)
    assert all(s.peak_bytes is None for s in found.summaries)  # not on a CPU
    assert (out / "table.md").read_text() == found.text
    assert "(none below three seeds)" in " ".join(found.text.split())
    assert " *" not in found.text.partition("## Cost")[0].replace("; * marks", "")


def test_the_curves_of_all_runs_are_in_one_file(done):
    out, found = done
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {(row["row"], row["seed"]) for row in rows} == {(label, seed) for label in ROWS for seed in (0, 1)}
    last = {(row["row"], row["seed"]): row["val/top1"] for row in rows if "val/top1" in row}
    for summary in found.summaries:
        for seed, score in summary.main.seeds.items():
            assert last[summary.label, seed] == pytest.approx(score / 100, rel=1e-5)


def test_finished_runs_are_not_run_again(done):
    from training_toy import TOY

    out, first = done
    stamps = {p: p.stat().st_mtime_ns for p in [*out.glob("runs/*/*/*"), out / "costs.json"]}
    again = compare(TOY, ROWS, seeds=2, out=out, jobs=1, quiet=True)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert again.summaries == first.summaries


def test_a_failing_row_does_not_stop_the_others(toy, tmp_path):
    with pytest.raises(ValueError, match=r"(?s)2 of 4 runs failed.*circulant:optim.lr=1e30 seed 0: the loss is"):
        compare(toy, ["rope", "circulant:optim.lr=1e30"], seeds=2, out=tmp_path, jobs=2, quiet=True)
    assert len(list(tmp_path.glob("runs/rope/*/result.json"))) == 2


def test_a_row_that_cannot_be_built_is_refused_before_anything_is_made(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("stringpe.training.comparison.create", lambda _: pytest.fail("the data was asked for"))
    for row, text in (("circulant:block_size=5", "block_size must be even"), ("caley", "'caley'")):
        with pytest.raises(ValueError, match=text):
            compare(toy, ["rope", row], seeds=1, out=tmp_path, jobs=1, quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row", ["rope", "rope:loop.seeds=3"])
def test_the_number_of_seeds_is_said_in_one_place(tmp_path, row):
    recipe = override(recipes.load("relations"), ["loop.seeds=3"] if row == "rope" else [])
    with pytest.raises(ValueError, match=r"loop.seeds=3: a comparison trains .* together by itself.*with --seeds"):
        compare(recipe, [row, "none"], 2, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_parts_of_a_step_are_checked_before_anything_is_made(changed, tmp_path):
    with pytest.raises(ValueError, match=r"16 examples per step do not divide into loop.accumulate=3 parts"):
        compare(changed(loop={"accumulate": 3}), ["rope"], 1, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_rates_are_chosen_row_by_row_on_a_seed_of_their_own(toy, tmp_path):
    tuning = Tuning((1e-5, 1e-2), 0.5)
    found = compare(toy, ["rope", "none"], seeds=1, out=tmp_path, jobs=2, tuning=tuning, quiet=True)
    assert "one seed" in found.text
    assert "interval" not in found.text
    written = json.loads((tmp_path / "results.json").read_text())
    for row in ("rope", "none"):
        tried = written["tuning"][row]
        assert set(tried) == {"1e-05", "0.01"}
        assert written["rates"][row] == float(best_rate(tried))
        recipe = json.loads((tmp_path / f"runs/{row}/seed0/recipe.json").read_text())
        assert recipe["optim"] == {**asdict(toy.optim), "lr": float(best_rate(tried))}
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
    assert best_rate({"0.01": 0.5, "0.001": 0.5, "1": 0.4}) == "0.001"


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
    assert "<details><summary>Recipe</summary>" in text


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


def test_the_questions_are_written_before_the_runs_and_cannot_change(toy, tmp_path, monkeypatch):
    from stringpe.training import comparison

    def look(*_):
        written = json.loads((tmp_path / "design.json").read_text())
        assert [c["name"] for c in written["contrasts"]] == [c.name for c in Design().contrasts]
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "run_all", look)
    with pytest.raises(KeyboardInterrupt):
        compare(toy, ["rope"], seeds=1, out=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="holds another comparison"):
        compare(toy, ["rope"], seeds=1, out=tmp_path, quiet=True, design=Design(margin=1.0))


def test_a_second_comparison_in_one_folder_is_told_of_the_first(toy, tmp_path):
    from stringpe.io.files import hold_lock

    with (
        hold_lock(tmp_path / ".lock", "x"),
        pytest.raises(ValueError, match=r"comparison in .* is in use by process \d+"),
    ):
        compare(toy, ["rope"], seeds=1, out=tmp_path, quiet=True)


COLUMNS = Design(
    rows=("absolute", "rope_mixed", "cayley"),
    seeds=3,
    columns=recipes.load_design("relations").columns,
    contrasts=recipes.load_design("relations").contrasts,
    about="What this is for.",
)


@pytest.fixture(scope="module")
def related(tmp_path_factory):
    out = tmp_path_factory.mktemp("relations")
    short = recipes.load("relations", ["loop.steps=3", "loop.batch_size=4", "data.val_size=8", "model.dim=32"])
    return out, compare(short, out=out, design=COLUMNS, jobs=1, costs=False, quiet=True)


def test_columns_are_other_metrics_or_trainings_of_their_own(related):
    out, found = related
    assert sorted(p.name for p in (out / "runs").iterdir()) == sorted(
        f"{row}{variant}" for row in COLUMNS.rows for variant in ("", "-W_q-W_k-frozen", "-linear-attention")
    )
    kept = json.loads((out / "results.json").read_text())
    names = ["as trained", "coordinates moved", "W_q, W_k frozen", "linear attention"]
    assert list(kept["scores"]) == names
    run = kept["results"]["cayley"]["seeds0-2"]["metrics"]
    assert kept["scores"]["as trained"]["cayley"]["1"] == pytest.approx(100 * run["seed1/top1"])
    assert kept["scores"]["coordinates moved"]["cayley"]["2"] == pytest.approx(100 * run["seed2/moved"])
    frozen = kept["results"]["cayley"]["W_q, W_k frozen seeds0-2"]["metrics"]
    assert kept["scores"]["W_q, W_k frozen"]["cayley"]["0"] == pytest.approx(100 * frozen["seed0/top1"])
    assert [len(s.cells) for s in found.summaries] == [4, 4, 4]
    assert len(found.findings) == 8


def test_the_report_opens_with_the_question_and_whether_it_was_answered(related):
    page = related[1].report.read_text()
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles[:6] == [
        *("The task", "Conclusion", "What cannot be concluded", "Scores", "Cost", "How the numbers were made"),
    ]
    assert page.index("What this is for.") < page.index("expectations of this comparison") < page.index("<table>")
    assert page.count("<table>") == 3
    assert "<li>as trained: all weights are trained" in page
    assert "step (ms)" not in page  # was not measured
    assert "<h2>Samples of the data</h2>" not in page


PARENT = """
import sys, os
from pathlib import Path
from stringpe import recipes, tasks
from stringpe.training import compare

if __name__ == "__main__":
    endless = ["loop.steps=100000", "loop.log_every=1", "loop.batch_size=2", "data.val_size=4"]
    recipe = recipes.load("relations", endless)
    compare(recipe, ["rope", "cayley"], seeds=1, out=sys.argv[1], jobs=2, quiet=True, costs=False)
"""


@pytest.mark.parametrize("number", [9, 15])
def test_workers_end_with_their_parent_whatever_ended_it(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "out")], stderr=subprocess.DEVNULL)
    logs = [tmp_path / f"out/runs/{row}/seed0/metrics.jsonl" for row in ("rope", "cayley")]
    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs))
    workers = children(parent.pid)
    assert len(workers) >= 2
    parent.send_signal(number)
    parent.wait(timeout=20)
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def children(process):
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _parent(p) == process]


def _parent(folder):
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def wait_until(holds, seconds=90):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
