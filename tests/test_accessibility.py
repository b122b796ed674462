"""The page in a real browser: nothing that axe-core calls a fault, no wider than its window, nothing asked of a network.

Optional: it needs Node.js, Chromium, and ``npm install --prefix tests/accessibility`` (``make pages`` does that).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_runs import NASTY, USUAL, finding, make_run, row

from auditor import report

FOLDER = Path(__file__).parent / "accessibility"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def look() -> Any:
    """Asks the checker about pages; skips where what it needs is not there."""
    node, browser = shutil.which("node"), next(filter(None, map(shutil.which, BROWSERS)), None)
    if node is None or browser is None:
        pytest.skip(f"{'Node.js' if node is None else 'Chromium'} is not installed")
    if not (FOLDER / "node_modules" / "axe-core").is_dir():
        pytest.skip("axe-core and playwright-core are not installed: npm install --prefix tests/accessibility")

    def ask(*pages: Path) -> list[Any]:
        command = [node, str(FOLDER / "check.mjs"), browser, *map(str, pages), "--widths", "360,1280"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        found: list[Any] = json.loads(done.stdout)
        return found

    return ask


def test_the_page_has_no_fault_that_a_checker_finds(look: Any, tmp_path: Path) -> None:
    long = "unbreakable_" * 60 + "word " * 200
    odd = [
        finding("FAIL", claim=long, limits=long, reproduce="auditor run " + long, evidence=(row(observed="x" * 300),)),
        finding("INCONCLUSIVE", "crash", claim=NASTY),
    ]
    pages = [
        report.write(make_run(tmp_path / "usual", USUAL)),
        report.write(make_run(tmp_path / "odd", odd, title=long)),
        report.write(make_run(tmp_path / "none", [], trials=[], ran=[], exit_code=5)),
    ]
    seen = look(*pages)
    assert len(seen) == len(pages) * 2 * 3  # dark and light; 360, 1280 and the checker's own width
    for one in seen:
        where = f"{one['page']} at {one['width']}, {one['colorScheme']}"
        assert [(fault["rule"], fault["first"]) for fault in one["violations"]] == [], where
        assert one["widest"] <= one["width"], where
        assert one["asked"] == [], where
    for one in seen:
        told = [fault for fault in one["incomplete"] if one["width"] > 1280 and fault["rule"] == "color-contrast"]
        untold = [
            html
            for fault in told
            for html in fault["html"]
            if not html.startswith(("<text", '<span class="box', "<td "))
        ]
        assert (
            untold == []
        )  # of drawings the checker cannot tell the background: their colours have a test of their own
