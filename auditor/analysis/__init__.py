"""Recorded run -> findings.json. Pure: no subject, no network, years later (DESIGN §3)."""

from auditor.analysis.files import SCHEMA, findings_of, plain, read_findings, write_findings, write_whole
from auditor.analysis.findings import RecordedRun, analyze, exit_code
from auditor.analysis.recompute import disagreements
from auditor.analysis.reproduce import command

__all__ = [
    "SCHEMA",
    "RecordedRun",
    "analyze",
    "command",
    "disagreements",
    "exit_code",
    "findings_of",
    "plain",
    "read_findings",
    "write_findings",
    "write_whole",
]
