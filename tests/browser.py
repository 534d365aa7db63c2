"""A real browser, for pages that people look at."""

import html
import json
import re
import shutil
import subprocess

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1100,720",
    "--virtual-time-budget=4000",
)  # fmt: skip


def results_in_browser(page, script, folder):
    """Open the page, run the script in it, and return what it passes to `report(value)`, as text per call."""
    browser = shutil.which("google-chrome") or shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed: apt-get install --no-install-recommends chromium")
    probe = (
        "<script>const reported = [];"
        "const report = value => { reported.push(String(value));"
        " document.body.dataset.reported = JSON.stringify(reported); };"
        "window.onerror = message => report('error: ' + message);</script>"
    )
    path = folder / "page.html"
    path.write_text(
        page.replace("<body>", f"<body>{probe}", 1).replace("</body>", f"<script>{{ {script} }}</script></body>")
    )
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (found,) = re.findall(r'data-reported="(.*?)"', shown.split("<body", 1)[1].split(">", 1)[0] + '"') or [""]
    return json.loads(html.unescape(found)) if found else []
