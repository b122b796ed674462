"""findings.json and the record -> report.html, one offline file; the summary for a terminal is in ``summary``.

JUnit, SARIF and Markdown are further modules beside ``page``: each takes the same findings and the same reader.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["write"]


def write(run_dir: Path) -> Path:
    """Write ``report.html`` whole or not at all; returns its path.

    Raises EvidenceError where findings.json or the record is missing, torn or of another kind, or the page cannot be written.
    """
    from auditor.report import page  # loads jinja2 and h5py

    return page.write(Path(run_dir))
