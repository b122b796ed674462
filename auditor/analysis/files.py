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
    """What ``findings.json`` holds. Raises EvidenceError where it is missing, torn or of another kind."""
    path = Path(run_dir) / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be read: {error.strerror}; make it with: auditor analyze {run_dir}"
        ) from error
    except ValueError as error:
        raise EvidenceError(f"{path}: is not JSON ({error}); make it again with: auditor analyze {run_dir}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise EvidenceError(f"{path}: is not of schema {SCHEMA!r}; make it again with: auditor analyze {run_dir}")
    return content
