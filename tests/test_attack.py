"""A short part of `make attack`, with a fixed seed: nothing may break. The whole of it is described in
docs/reliability.md."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import audit
import pytest

RUN = Path(__file__).parents[1] / "attack" / "run.py"


def attack(*words, seed=0):
    """What `python attack/run.py` prints, in a process of its own: it forks, which a process with threads cannot."""
    done = subprocess.run(
        [sys.executable, str(RUN), *words, "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def cases(printed):
    """Cases and faults by attack, from the table."""
    rows = [line.split("|") for line in printed.splitlines() if line.startswith("|")]
    return {
        row[1].strip(): tuple(int(cell.replace(",", "")) for cell in row[2:4])
        for row in rows
        if row[2].strip()[0].isdigit()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "least"),
    [
        (["properties=100000", "calls=900"], {"laws of encodings and boxes": 100_000, "malformed calls": 900}),
        (["pictures=60"], {"damaged pictures": 1200}),
        (["files=130"], {"corrupt files": 130}),
        (["invocations=120"], {"wrong invocations": 120}),
        (["kills=14", "writers=1"], {"kills": 14, "concurrent writers": 20}),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else "",
)
def test_nothing_breaks(words, least):
    found = cases(attack(*words))
    assert all(found[name][0] >= count for name, count in least.items())
    assert not any(faults for _, faults in found.values())


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("python: No module named pip_audit", "pip-audit is not installed: pip install 'stringpe[audit]'"),
        ("a\nConnectionError: no route", "the list of vulnerabilities cannot be reached (ConnectionError: no route)"),
    ],
)
def test_an_audit_that_could_not_be_made_says_so(monkeypatch, capsys, stderr, words):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert audit.main("pins.txt") == audit.NOT_AUDITED == 3
    assert capsys.readouterr().out == f"audit: pins.txt was not audited, {words}\n"


@pytest.mark.parametrize(
    ("packages", "words", "status"),
    [
        ([{"name": "a", "skip_reason": "not found"}], "p.txt was not audited, none of its 1 packages could be", 3),
        ([], "p.txt was not audited, none of its 0 packages could be looked up", 3),
        ([{"name": "a", "version": "1", "vulns": []}], "audit: 0 known vulnerabilities in 1 packages of p.txt", 0),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            "0 known vulnerabilities in 1 packages of p.txt; 1 could not be looked up: b",
            0,
        ),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": []}]}],
            "a 1: CVE-1, mended in no version\naudit: 1 known vulnerabilities",
            1,
        ),
    ],
)
def test_an_audit_counts_what_could_not_be_looked_up(packages, words, status):
    text, found = audit.judge(packages, "p.txt")
    assert words in text
    assert found == status


def rows_of(page, heading):
    """The rows of the tables below a heading of a page, without their heads."""
    text = (RUN.parents[1] / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ") and "`" in line]


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/reliability.md", "Faults and their tests"),
        ("docs/reliability.md", "Later faults and their tests"),
        ("SECURITY.md", "Tests that try to break the promises"),
    ],
)
def test_the_tests_that_a_table_names_exist(page, heading):
    rows = rows_of(page, heading)
    assert rows
    for row in rows:
        named = re.findall(r"`(\S+\.py)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            tree = ast.parse((RUN.parents[1] / "tests" / file).read_text())
            assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, test)


def test_every_fault_of_the_first_attack_has_a_row():
    rows = rows_of("docs/reliability.md", "Faults and their tests")
    assert {row.split("|")[1].split()[0] for row in rows} >= {
        *(f"N{i}" for i in range(1, 15)), *(f"L{i}" for i in range(1, 7)), *(f"S{i}" for i in range(1, 4))
    }  # fmt: skip
