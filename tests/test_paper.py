"""docs/paper.md: every row says what it is, and every recipe and command on the page runs, at a small size."""

import json
import re
from pathlib import Path

import pytest
from stand_in import demonstration
from tower_files import write_tower

from captioned_files import depth as depth_map
from captioned_files import picture, shard, words
from detection_toy import pictures
from stringpe import recipes
from stringpe.cli.main import main
from stringpe.recipes import aloha, kuka
from stringpe.recipes.design import plan_runs
from stringpe.robots.data.writer import Writer

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/paper.md").read_text()
ROWS = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in PAGE.splitlines() if line[:2] == "| "]
ROWS = [row for row in ROWS if row != ("paper", "here", "status")]
COMMANDS = {
    " ".join(found.split()[: 2 if found.startswith(("train", "compare", "data")) else 1])
    for found in re.findall(r"`stringpe ((?:train|compare|data|eval|figure)[^`]*)`", PAGE)
}
ELSEWHERE = {
    "compare properties": "cli/test_main.py",
    "data depth": "data/test_depth_lifting.py",
    "data scenes": "cli/test_main.py",
    "data demos": "robots/test_demos.py",
}
"""Commands that tests of their own run."""

pytestmark = pytest.mark.filterwarnings("ignore:.*image encoder starts at random", "ignore::ResourceWarning")

LOOP = ["loop.steps=1", "loop.batch_size=4", "loop.eval_batch=4", "loop.compile=false", "loop.precision=no"]
LOOP += ["loop.eval_every=0"]
VIT = ["model.dim=16", "model.layers=1", "model.heads=1", "data.image_size=32", *LOOP]
TEXT = ["text.dim=16", "text.layers=1", "text.heads=2", "text.width=16", "text.vocab=300", "text.context=24"]
POLICY = ["policy.dim=32", "policy.heads=2", "policy.encoder_layers=1", "policy.decoder_layers=1", "policy.chunk=4"]
POLICY += ["policy.execute=2", "data.image_size=16", "augment.shift=1", *LOOP]


def run(*command):
    main([str(word) for word in command])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_row_says_what_it_is_and_why(row):
    assert len(row) == 3, row
    kind = re.match(r"present|different|not possible here", row[2])
    assert kind, f"{row[0]}: {row[2]!r} is not a status"
    if kind[0] != "present":
        assert re.search(r"since|because|needs? |not public|which need", row[2]), f"{row[0]} does not say why"
    assert "`" in row[1] or row[1] == "–"
    assert (row[1] == "–") <= (kind[0] == "not possible here")


def test_the_page_has_every_numbered_statement_table_and_section():
    for number in range(1, 6):
        assert f"theorem 3.{number}" in PAGE or number == 1, number
    assert "definition 3.1" in PAGE
    headings = re.findall(r"^## .*", PAGE, flags=re.MULTILINE)
    assert {letter for heading in headings for letter in re.findall(r"\b[A-G]\b", heading)} == set("ABCDEFG")
    equations = {int(n) for span in re.findall(r"equations? (\d+(?:(?: to | and )\d+)?)", PAGE) for n in _numbers(span)}
    assert equations >= set(range(1, 15))
    assert all(f"table {n}" in PAGE or f"tables {n}" in PAGE or f"and {n}" in PAGE for n in range(1, 7))


def _numbers(span):
    found = [int(n) for n in re.findall(r"\d+", span)]
    return range(found[0], found[-1] + 1)


def test_every_command_of_the_page_is_run_somewhere():
    here = Path(__file__).read_text()
    for command in COMMANDS:
        kind, _, name = command.partition(" ")
        if command in ELSEWHERE:
            text = (ROOT / "tests" / ELSEWHERE[command]).read_text()
            assert re.search(rf'"{kind}", "{name}"|\b{kind} {name}\b', text), command
        else:
            assert f'run("{kind}", ' + (f'"{name}"' if name else "") in here, f"stringpe {command} is run by no test"


def test_the_lists_of_tasks_are_those_that_there_are():
    from stringpe.robots.sim import aloha_tasks, kuka_tasks

    assert set(aloha.TASKS) == {entry.name for entry in aloha_tasks.ENTRIES}
    assert set(kuka.TASKS) == {entry.name for entry in kuka_tasks.ENTRIES}


@pytest.mark.slow
def test_classification(tmp_path):
    for kind in ("cat", "dog"):
        for split in ("train", "val"):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(4):
                (tmp_path / split / kind / f"{i}.png").write_bytes(picture(40 * i + 60 * (kind == "cat"), (40, 36)))
    data = [f"data.train={tmp_path}/train", f"data.val={tmp_path}/val", "data.num_classes=2", "data.workers=0"]
    run("train", "imagenet2012", *VIT, *data, "--out", tmp_path / "a")
    run("train", "places365", *VIT, *data, "--out", tmp_path / "b")
    sweep = ["--encodings", "circulant:block_size={4,8,16}", "--seeds", "1", "--jobs", "1", "--no-costs"]
    run("compare", "imagenet2012", *VIT, *data, *sweep, "--out", tmp_path / "c")
    table = (tmp_path / "c/table.md").read_text()
    assert all(f"circulant:block_size={size}" in table for size in (4, 8, 16))


@pytest.fixture(scope="module")
def captioned(tmp_path_factory):
    """Captioned shards with depth."""
    samples = {
        f"{i}": {"png": picture(9 * i, (40, 36)), "json": words(f"a thing {i}"), "depth.png": depth_map(size=(40, 36))}
        for i in range(8)
    }
    path = shard(tmp_path_factory.mktemp("captioned") / "pairs.tar", samples)
    return ["data.source=shards", f"data.train={path}", f"data.val={path}", "data.train_size=8", "data.workers=0"]


@pytest.mark.slow
def test_retrieval_and_detection_in_3d_from_its_towers(captioned, tmp_path):
    towers = ["model.dim=32", "model.layers=1", "model.heads=1", "data.image_size=32", *LOOP, *TEXT]
    rows = plan_runs(recipes.load("webli3d"), recipes.load_design("webli3d").rows, 1, tmp_path)
    options = {p.label: p.recipe.model.options for p in rows}
    assert options["circulant"] == {"block_size": 32}
    assert options["cayley"] == options["absolute:model.depth=none"] == {}
    one = ["--seeds", "1", "--jobs", "1", "--no-costs"]
    run("compare", "webli3d", *towers, *captioned, *one, "--out", tmp_path / "rows")
    found = json.loads((tmp_path / "rows/results.json").read_text())["results"]
    assert list(found) == list(options)
    run("train", "webli3d", *towers, *captioned, "model.encoding=rope", "--out", tmp_path / "towers/rope")
    world = ["data.train_size=8", "data.val_size=4", f"data.cache={tmp_path}", "loop.eval_points=50"]
    world += [f"model.start={tmp_path}/towers/{{encoding}}", "text.tokenizer="]
    run("train", "owlvit3d", *towers, *world, "model.encoding=rope", "--out", tmp_path / "boxes")
    assert "iou_monte_carlo" in json.loads((tmp_path / "boxes/result.json").read_text())["metrics"]
    run("figure", f"rope={tmp_path / 'boxes'}", "--rows", 1, "--out", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").exists()
    best = [
        "--encodings",
        "rope",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--no-costs",
        "--best",
        "--metrics",
        "iou_monte_carlo",
    ]
    run("compare", "owlvit3d", *towers, *world, "model.encoding=rope", *best, "--out", tmp_path / "best")
    assert "best of 2 seeds" in (tmp_path / "best/table.md").read_text()


@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_detection_in_2d_as_the_paper(captioned, tmp_path, loss):
    towers = ["model.dim=32", "model.layers=1", "model.heads=2", "model.patch_size=8", "model.encoding=circulant"]
    towers += [*LOOP, *TEXT]
    start = tmp_path / "towers/circulant"
    run("train", "owlvit_towers", *towers, "data.image_size=32", f"loss.kind={loss}", *captioned, "--out", start)
    for name, lvis, seed in (("first", False, 0), ("second", True, 3), ("lvis", True, 5), ("coco", False, 7)):
        pictures(tmp_path, name, 8, seed, lvis=lvis)
    data = [f"data.train={tmp_path}/first.tar + {tmp_path}/second.tar", "data.mix=0.75 0.25", "data.image_size=64"]
    data += [f"data.val={tmp_path}/lvis.tar", f"model.start={tmp_path}/towers/{{encoding}}", "data.workers=0"]
    run("train", "owlvit_paper", *towers, *data, "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run/result.json").read_text())["metrics"]
    assert {"AP", "APr", "APc", "APf"} <= set(metrics)
    run("eval", tmp_path / "run", f"data.val={tmp_path}/coco.tar", "--out", tmp_path / "coco")
    assert "APr" not in json.loads((tmp_path / "coco/metrics.json").read_text())
    if loss == "siglip":
        one = [
            "model.pool=mean",
            "model.encoding=rope",
            "model.start=",
            f"data.train={tmp_path}/first.tar",
            "data.mix=",
        ]
        run("train", "owlvit_coco", *towers, *data, *one, "--out", tmp_path / "coco-run")


@pytest.mark.slow
def test_aloha_over_many_tasks_then_one(tmp_path):
    write_tower(tmp_path / "siglip", "siglip")
    for name in aloha.TASKS[:3]:
        with Writer(tmp_path / name, fps=10) as writer:
            for seed in range(3):
                writer.add(demonstration(seed), task=name, seed=seed)
    many = ",".join(str(tmp_path / name) for name in aloha.TASKS[:3])
    own = [*POLICY, "policy.sample_steps=2", f"data.cache={tmp_path}", "data.val_size=4"]
    tower = f"policy.encoder=siglip:{tmp_path / 'siglip'}"
    run("train", "aloha", *own, tower, f"data.train={many}", "--out", tmp_path / "many")
    start = f"model.start={tmp_path / 'many'}"
    run("train", "aloha_finetune", *own, start, f"data.train={tmp_path / aloha.TASKS[0]}", "--out", tmp_path / "one")
    rows = ["--encodings", "absolute", "rope", "cayley", "--seeds", "1", "--jobs", "1", "--no-costs"]
    run("compare", "aloha", *own, tower, f"data.train={many}", *rows, "--out", tmp_path / "rows")
    found = json.loads((tmp_path / "rows/results.json").read_text())["results"]
    sizes = {row: next(iter(runs.values()))["parameters"] for row, runs in found.items()}
    assert sizes["absolute"] + 2 * 2 * 2 < sizes["rope"] < sizes["cayley"]  # frequencies, and not the gates alone


@pytest.mark.slow
def test_kuka_on_three_tasks(tmp_path):
    write_tower(tmp_path / "pali", "paligemma")
    for name in kuka.TASKS:
        with Writer(tmp_path / name, fps=10) as writer:
            for seed in range(3):
                writer.add(demonstration(seed, depth=True), task=name, seed=seed)
    data = [f"data.train={','.join(str(tmp_path / name) for name in kuka.TASKS)}", f"data.cache={tmp_path}"]
    small = [
        "policy.negatives=2",
        "policy.candidates=2",
        "policy.langevin_steps=1",
        "policy.modes=2",
        "data.val_size=4",
    ]
    tower = [f"policy.encoder=paligemma:{tmp_path / 'pali'}", "model.registers=0"]
    assert recipes.load("kuka").optim.schedule == "constant"
    run("train", "kuka", *POLICY, *data, *small, *tower, "--out", tmp_path / "run")
    from stringpe.tasks.policy import load_policy

    policy = load_policy(tmp_path / "run")
    assert policy.spec.tasks == kuka.TASKS
    assert policy.observer.encoder.wants_depth
