"""Known vulnerabilities of the packages that a constraints file pins: `make audit`.

pip-audit asks a public list. A package that the list does not know is not a package without vulnerabilities, so those
that could not be looked up are counted; where none could, nothing counts as audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

NOT_AUDITED = 3
"""Exit status where the list could not be reached, or knows none of the packages."""


def main(constraints: str) -> int:
    """0: nothing known; 1: something known, listed; NOT_AUDITED: nothing was looked up."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", constraints, "--no-deps", "--disable-pip"]
    try:
        done = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        packages = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        print(f"audit: {constraints} was not audited, the list of vulnerabilities did not answer in 600 s")
        return NOT_AUDITED
    except ValueError:
        if "No module named pip_audit" in done.stderr:
            print(f"audit: {constraints} was not audited, pip-audit is not installed: pip install 'stringpe[audit]'")
            return NOT_AUDITED
        reason = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1][:200]
        print(f"audit: {constraints} was not audited, the list of vulnerabilities cannot be reached ({reason})")
        return NOT_AUDITED
    text, status = judge(packages, constraints)
    print(text)
    return status


def judge(packages: list[dict[str, Any]], constraints: str) -> tuple[str, int]:
    """What to say of pip-audit's findings, and the exit status."""
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    found = [(p["name"], p["version"], v) for p in packages for v in p.get("vulns", ())]
    known = len(packages) - len(skipped)
    if not known:
        return (
            f"audit: {constraints} was not audited, none of its {len(packages)} packages could be looked up",
            NOT_AUDITED,
        )
    lines = [
        f"{name} {version}: {v['id']}, mended in {', '.join(v['fix_versions']) or 'no version'}"
        for name, version, v in found
    ]
    missing = f"; {len(skipped)} could not be looked up: {', '.join(skipped)}" if skipped else ""
    lines.append(f"audit: {len(found)} known vulnerabilities in {known} packages of {constraints}{missing}")
    return "\n".join(lines), 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
