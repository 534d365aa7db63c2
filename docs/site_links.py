"""A hook of mkdocs: in the site, links to files of the repository that are not pages, such as sources and notebooks,
lead to the repository's address. In the files themselves they stay relative, for readers there and in editors."""

import re
import tomllib
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

ROOT = Path(__file__).parent.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The text of a page with these links replaced; mkdocs calls this once per page."""

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match.groups(default="")
        path = normpath(join(dirname(page.file.src_uri), target))
        shown = (Path(config.docs_dir) / path).is_file() and not path.endswith(".ipynb")  # a browser shows their JSON
        if shown or not (ROOT / path).exists():
            return match[0]
        return f"[{label}]({REPOSITORY}/blob/main/{path}{anchor})"

    return re.sub(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)", replace, markdown)
