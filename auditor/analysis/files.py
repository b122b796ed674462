"""findings.json on disk."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from auditor.errors import EvidenceError
from auditor.model import Finding

SCHEMA = "auditor-findings/1"
NAME = "findings.json"


def plain(value: Any) -> Any:
    """Only what JSON has: NumPy scalars and arrays become numbers and lists; what is no finite number becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_whole(path: Path, text: str) -> Path:
    """Write a text file whole or not at all; returns its path. Raises EvidenceError where it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise EvidenceError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def write_findings(run_dir: Path, content: Mapping[str, Any]) -> Path:
    """Write ``findings.json`` whole or not at all; returns its path. Raises EvidenceError where it cannot be written."""
    return write_whole(Path(run_dir) / NAME, json.dumps(plain(content), indent=1, allow_nan=False) + "\n")


def read_findings(run_dir: Path) -> dict[str, Any]:
    """What ``findings.json`` holds. Raises EvidenceError where it is missing, torn, of another kind or not of its schema."""
    run_dir = Path(run_dir)
    path = run_dir / NAME
    again = f"make it again with: auditor analyze {run_dir}"
    if not run_dir.is_dir():
        what = "is a file" if run_dir.exists() else "there is no such directory"
        raise EvidenceError(f"{run_dir}: {what}; name a run directory, as auditor run prints it")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be read: {error.strerror}; make it with: auditor analyze {run_dir}"
        ) from error
    except ValueError as error:
        raise EvidenceError(f"{path}: is not JSON ({error}); {again}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise EvidenceError(f"{path}: its schema is {schema!r}, this version reads {SCHEMA!r}; {again}")
    wrong = _wrong_shape(content)
    if wrong:
        raise EvidenceError(f"{path}: {wrong}; {again}")
    return dict(content)


def findings_of(content: Mapping[str, Any], run_dir: Path) -> list[Finding]:
    """The findings of a content of findings.json as records. Raises EvidenceError where one is of another shape."""
    found = []
    for number, row in enumerate(content["findings"]):
        try:
            found.append(Finding.from_json(row))
        except (TypeError, KeyError, ValueError) as error:
            words = " ".join(str(error).split())
            where = f"{Path(run_dir) / NAME}: findings[{number}] cannot be read"
            raise EvidenceError(f"{where} ({words}); make it again with: auditor analyze {run_dir}") from None
    return found


def _wrong_shape(content: Mapping[str, Any]) -> str:
    """Which part of findings.json has not the form that readers rely on; empty where all have."""
    if type(content.get("exit_code")) is not int:
        return f"exit_code = {content.get('exit_code')!r} is not a whole number"
    if not isinstance(content.get("verdict"), str):
        return f"verdict = {content.get('verdict')!r} is not a word"
    for key in ("arms", "findings"):
        rows = content.get(key)
        if not isinstance(rows, list):
            return f"{key} is not a list"
        odd = next((number for number, row in enumerate(rows) if not isinstance(row, dict)), None)
        if odd is not None:
            return f"{key}[{odd}] is not an object"
    return ""
