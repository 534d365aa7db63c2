"""The long description: README.md with links that lead somewhere from an index of packages, too.

Everything else about the package is in pyproject.toml, the address of the repository included.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def absolute_links(text: str, repository: str, version: str) -> str:
    """README.md with relative links that lead to the files of a version in the repository, and relative images to the
    files themselves. Anchors lead to README.md there, since an index gives headings no anchors. Addresses stay."""

    def replace(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if re.match(r"\w+:", target):
            return match[0]
        target = f"README.md{target}" if target.startswith("#") else target
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", replace, text)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/stringpe/__init__.py").read_text(encoding="utf-8"))
    assert version is not None
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=absolute_links(readme, project["urls"]["Repository"], version[1]),
        long_description_content_type="text/markdown",
    )
