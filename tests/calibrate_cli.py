"""Runs ``auditor calibrate`` and ``auditor check`` in this process, quickly: the gates wait for less time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from auditor import calibrate
from auditor.calibrate import gates
from auditor.calibrate.record import sealed
from auditor.cli import main


class Cli:
    """``code``, ``out`` and ``err`` of the last command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys = folder, capsys
        monkeypatch.chdir(folder)
        monkeypatch.setattr(gates, "LINGER", (0.12, 0.12))
        self.code, self.out, self.err = 0, "", ""

    def __call__(self, *words: Any) -> int:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        self.code = int(end.value.code or 0)
        captured = self._capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        assert "Traceback" not in self.out + self.err
        return self.code

    def record(self, name: str = "bound.json") -> dict[str, Any]:
        return calibrate.load(self.folder / name)

    def change(self, name: str = "bound.json", **conditions: Any) -> None:
        """A record as it would be had it been made under other conditions; ``a__b`` stands for the nested a.b."""
        record = self.record(name)
        for key, value in conditions.items():
            *path, last = key.split("__")
            place = record["conditions"]
            for part in path:
                place = place[part]
            place[last] = value
        record.pop("digest")
        record.pop("schema")
        (self.folder / name).write_text(json.dumps(sealed(record)))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(tmp_path, capsys, monkeypatch)
