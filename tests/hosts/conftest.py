"""`pytest tests/hosts --write-table` puts the table of families and features into docs/attach.md, from what it ran."""

import re
from pathlib import Path

import pytest
from host_families import feature_table

PAGE = Path(__file__).parents[2] / "docs" / "attach.md"


def pytest_addoption(parser):
    parser.addoption("--write-table", action="store_true", help="write the table of families into docs/attach.md")


def pytest_configure(config):
    if config.getoption("--write-table", False):
        config.pluginmanager.register(Table())


class Table:
    """Collects outcomes by test and family."""

    def __init__(self):
        self.outcomes = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.outcomes[report.nodeid] = report.outcome

    def passed(self, test, family):
        label = f"{family.package} {family.name}"
        found = [
            outcome
            for node, outcome in self.outcomes.items()
            if f"::{test}[" in node and re.search(rf"\[{re.escape(label)}(-\w+)?\]$", node)
        ]
        return bool(found) and set(found) == {"passed"}

    def pytest_sessionfinish(self):
        text = PAGE.read_text(encoding="utf-8")
        table = feature_table(self.passed)
        PAGE.write_text(re.sub(r"\| family \|.*?(?=\n\n)", lambda _: table, text, flags=re.DOTALL), encoding="utf-8")
