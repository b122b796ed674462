"""``--accept``: what somebody answers for, until when; every mistake in the file named by its key path."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from recorded import Arm, finding, make_run, make_trial, one_up, planned, right

from auditor import compare
from auditor.compare import accepted
from auditor.errors import ConfigError

TODAY = datetime.date(2026, 12, 1)
MODE = """
[[accept]]
kind = "rounding_mode"
format = "bfloat16"
measure = { mode = "ties_to_even" }
owner = "numerics"
reason = "both are legal"
expires = 2027-06-30
"""
BITS = """
[[accept]]
kind = "bits"
arm = ["ring", "tree"]
format = ["bfloat16", "binary16"]
owner = "numerics"
reason = "follows from the mode"
expires = 2027-06-30
"""


@pytest.fixture
def changed(tmp_path: Path) -> Any:
    """A comparison in which the mode of two formats and the bits of one changed, or what is given instead."""

    def run(*after: Any) -> Any:
        trials = planned(make_trial(7), probes=("rounding",)) + planned(
            make_trial(7, fmt="binary16"), probes=("rounding",)
        )
        for name, output in (("a", right), ("b", _bfloat16_only)):
            usual = [_mode("ties_to_away" if name == "a" else "ties_to_even", fmt) for fmt in ("bfloat16", "binary16")]
            rows = after if after and name == "b" else usual
            make_run(tmp_path / name, Arm(planned=trials, output=output), findings=rows)
        return compare.compare([str(tmp_path / "a"), str(tmp_path / "b")], policy="changed")

    return run


def _mode(name: str, fmt: str) -> Any:
    return finding("rounding_mode", "INFORMATION", probe="rounding", scope={"format": fmt}, measure={"mode": name})


def _bfloat16_only(trial: Any, repeat: int, rank: int) -> Any:
    return (one_up(3) if trial.call.format == "bfloat16" else right)(trial, repeat, rank)


def applied(comparison: Any, tmp_path: Path, text: str, today: datetime.date = TODAY) -> Any:
    path = tmp_path / "accept.toml"
    path.write_text(text)
    return accepted.apply(comparison, accepted.load(path), "accept.toml", today)


def test_what_is_accepted_no_longer_counts(changed: Any, tmp_path: Path) -> None:
    comparison = changed()
    assert len(comparison.open) == 3
    some = applied(comparison, tmp_path, MODE + BITS)
    assert [getattr(one, "format", None) or one.cell["format"] for one in some.open] == [("binary16",)]
    assert (some.verdict, some.exit_code, some.trouble) == ("changed", 1, ())
    every = applied(comparison, tmp_path, MODE.replace('"bfloat16"', '["bfloat16", "binary16"]') + BITS)
    assert (every.verdict, every.exit_code, every.open) == ("accepted", 0, [])
    assert "accept[0] (rounding_mode; numerics: both are legal)" in {one.accepted for one in every.changes}


def test_an_expired_entry_is_loud_and_covers_nothing(changed: Any, tmp_path: Path) -> None:
    comparison = applied(changed(), tmp_path, MODE, datetime.date(2027, 7, 1))
    (line,) = comparison.trouble
    assert line.startswith(
        "accept.toml: accept[0] (rounding_mode; numerics: both are legal) EXPIRED on 2027-06-30: 1 change"
    )
    assert len(comparison.open) == 3
    assert applied(comparison, tmp_path, MODE, datetime.date(2027, 6, 30)).exit_code == 1  # the last day still counts
    assert len(applied(comparison, tmp_path, MODE, datetime.date(2027, 6, 30)).open) == 2


def test_an_entry_that_covers_nothing_is_named(changed: Any, tmp_path: Path) -> None:
    comparison = applied(
        changed(), tmp_path, MODE.replace("bfloat16", "binary32") + BITS.replace('"ring", "tree"', '"nvls"')
    )
    assert [("is not used" in line, "accept[" in line) for line in comparison.trouble] == [(True, True)] * 2
    expired = applied(comparison, tmp_path, MODE.replace("bfloat16", "binary32"), datetime.date(2030, 1, 1))
    assert "EXPIRED on 2027-06-30: it covers nothing now" in expired.trouble[-1]


def test_a_further_change_is_not_covered(changed: Any, tmp_path: Path) -> None:
    comparison = changed(_mode("toward_zero", "bfloat16"), _mode("ties_to_away", "binary16"))
    some = applied(comparison, tmp_path, MODE)
    assert [one.kind for one in some.open if hasattr(one, "kind")] == ["rounding_mode"]
    assert "is not used" in some.trouble[0]


def test_a_fail_is_covered_only_where_the_entry_says_so(changed: Any, tmp_path: Path) -> None:
    wrong = finding(
        "rounding_mode", "FAIL", probe="rounding", scope={"format": "bfloat16"}, measure={"mode": "ties_to_even"}
    )
    comparison = changed(wrong, _mode("ties_to_away", "binary16"))
    assert applied(comparison, tmp_path, MODE).worse
    assert not applied(comparison, tmp_path, MODE + 'verdict = "FAIL"\n').worse


def test_a_wide_change_is_not_covered_by_a_narrow_entry(changed: Any, tmp_path: Path) -> None:
    both = finding("path_split", "FAIL", probe="rounding", scope={"format": ["bfloat16", "binary16"]})
    comparison = changed(_mode("ties_to_away", "bfloat16"), _mode("ties_to_away", "binary16"), both)
    narrow = MODE.replace("rounding_mode", "path_split").replace(
        'measure = { mode = "ties_to_even" }', 'verdict = "FAIL"'
    )
    assert [one.kind for one in applied(comparison, tmp_path, narrow).worse] == ["path_split"]
    assert not applied(comparison, tmp_path, narrow.replace('format = "bfloat16"\n', "")).worse


def test_every_mistake_is_named_with_its_key_path(tmp_path: Path) -> None:
    path = tmp_path / "accept.toml"
    path.write_text(
        """
        accepted = 1
        [[accept]]
        kind = "rounding_mod"
        format = ["bfloat16", "bf16"]
        owner = ""
        expires = "2027-06-30"
        verdict = "PASS"
        [[accept]]
        kinds = "bits"
        measure = 3
        collective = []
        [[accept]]
        kind = "bits"
        measure = { mode = "x" }
        owner = "me"
        reason = "why"
        expires = 2027-06-30T10:00:00
        """
    )
    with pytest.raises(ConfigError) as caught:
        accepted.load(path)
    lines = [line.removeprefix(f"{path}: ") for line in str(caught.value).splitlines()]
    assert [line.split(" ")[0] for line in lines] == [
        "accepted",
        "accept[0].reason",
        "accept[0].owner",
        "accept[0].kind",
        "accept[0].format[1]",
        "accept[0].verdict",
        "accept[0].expires",
        "accept[1].kinds",
        *(f"accept[1].{key}" for key in ("kind", "owner", "reason", "expires")),
        "accept[1].collective",
        "accept[1].measure",
        "accept[2].measure",
        "accept[2].expires",
    ]
    assert "did you mean rounding_mode?" in lines[3]
    assert "write it as 2027-06-30, without quotes" in lines[6]
    assert "say who answers for it" in lines[9]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"accept = 3", "accept is not a list of tables; write [[accept]]"),
        (b"[[accept]", "is not TOML"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "accept.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        accepted.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
