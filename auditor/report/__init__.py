"""findings.json and the record -> report.html, one offline file; JUnit, SARIF and Markdown beside it; the terminal's summary."""

from __future__ import annotations

from pathlib import Path

from auditor.report.exports import Exports

__all__ = ["Exports", "export", "is_current", "write"]


def write(run_dir: Path) -> Path:
    """Write ``report.html`` whole or not at all; returns its path.

    Raises EvidenceError where findings.json or the record is missing, torn or of another kind, or the page cannot be written.
    """
    from auditor.report import page  # loads jinja2 and h5py

    return page.write(Path(run_dir))


def export(run_dir: Path, exports: Exports) -> None:
    """Write the files that were asked for. Raises EvidenceError as :func:`write` does."""
    from auditor.report import exports as made

    made.write(Path(run_dir), exports)


def is_current(run_dir: Path) -> bool:
    """Whether report.html is there and was made from the findings.json that is there."""
    from auditor.report.surroundings import sha256

    page, findings = Path(run_dir) / "report.html", Path(run_dir) / "findings.json"
    try:
        return sha256(findings) in page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
