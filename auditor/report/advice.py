"""What a verdict means in words, and what a person does next: each step with its command."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auditor.config import BUILT_IN
from auditor.model import Verdict
from auditor.report.words import Row, measure, one_line, part, verdict_of, worst_of

VERDICT_WORDS = {
    Verdict.FAIL: "At least one fault was found",
    Verdict.INCONCLUSIVE: "No fault was found, but questions stayed open",
    Verdict.INFORMATION: "No fault was found; properties that are legal were",
    Verdict.PASS: "No fault was found in what was looked at",
    Verdict.WAIVED: "Nothing could be looked at",
}
CODES = {
    0: "nothing FAILs",
    1: "something FAILs",
    2: "wrong usage or config",
    3: "the auditor failed, or a backend is absent",
    5: "nothing conclusive",
    130: "interrupted",
}
LATER = "NEW_RUN"  # stands for the directory of a run that does not exist yet


@dataclass(frozen=True, slots=True)
class Step:
    """``words``: one sentence. ``command``: a line for a shell, or empty where there is none."""

    words: str
    command: str = ""


def code_words(code: Any) -> str:
    """What an exit code means; empty for an unknown one."""
    return CODES.get(code, "") if isinstance(code, int) else ""


def plan_of(run_dir: Path) -> dict[str, Any]:
    """plan.json's content, for the commands that start a run again; {} where it is missing or torn: they are shorter then."""
    try:
        found = json.loads((run_dir / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def place(run_dir: Path) -> str:
    """The run directory as a command names it: from here where it lies below, from the home directory, or whole."""
    whole = run_dir.absolute()
    for root, before in ((Path.cwd(), ""), (Path(os.path.expanduser("~")), "~/")):
        if root != Path("/") and whole.is_relative_to(root) and whole != root:
            return before + shlex.quote(whole.relative_to(root).as_posix())
    return shlex.quote(whole.as_posix())


def steps(content: Mapping[str, Any], rows: Sequence[Row], plan: Mapping[str, Any], run: str) -> list[Step]:
    """What a person does now, the first thing first; never empty.

    ``content``: that of findings.json; ``rows``: its findings; ``plan``: plan.json's content, or {} where it is not known;
    ``run``: the run directory as a command names it (:func:`place`).
    """
    if content.get("exit_code") == 130:
        return [Step("The run was interrupted: go on with it, then read its findings.", _resume(plan, run))]
    verdict = worst_of(rows)
    worst = [row for row in rows if verdict_of(row) is verdict]
    models = {arm.get("name") for arm in content.get("arms", ()) if part(arm, "describe").get("simulated") is True}
    first = next((row for row in worst if row.get("arm") not in models), None)
    if verdict is Verdict.FAIL and first is None:
        return _of_model(worst[0])
    made = {
        Verdict.FAIL: _of_fail,
        Verdict.INCONCLUSIVE: _of_open,
        Verdict.INFORMATION: _of_properties,
        Verdict.PASS: _of_pass,
        Verdict.WAIVED: _of_nothing,
    }[verdict](first or next(iter(worst), {}), rows, plan, run)
    if any(arm.get("status") == "failed" for arm in content.get("arms", ())):
        made.insert(1, Step("Go on with the arms that failed, once their reason is mended.", _resume(plan, run)))
    return made


def _of_model(first: Row) -> list[Step]:
    name = one_line(first.get("id", ""))
    return [
        Step(
            f"What fails is a model, so nothing needs mending: read {name} to see how such a fault shows.",
            _reproduce(first),
        ),
        Step("See which backends are here, and audit one of them.", "auditor backends"),
    ]


def _of_fail(first: Row, _rows: Sequence[Row], _plan: Mapping[str, Any], run: str) -> list[Step]:
    name = one_line(first.get("id", ""))
    return [
        Step(f"Run {name} again, to see whether it repeats.", _reproduce(first)),
        Step(
            "Make the bundle that its maintainer needs: the smallest case, raw bits, environment.",
            f"auditor evidence {run} --finding {shlex.quote(name)}",
        ),
        _compare("Keep this directory, and compare it with a run after any change.", run),
    ]


def _of_open(first: Row, _rows: Sequence[Row], plan: Mapping[str, Any], run: str) -> list[Step]:
    name = one_line(first.get("id", ""))
    if first.get("kind") == "not_run":
        return [Step(f"Read in {name} why trials were not run, mend that, and go on.", _resume(plan, run))]
    return [
        Step(
            f"Ask {name} again, with more repeats or counts where it says that there was too little.", _reproduce(first)
        )
    ]


def _of_properties(_first: Row, rows: Sequence[Row], plan: Mapping[str, Any], run: str) -> list[Step]:
    compare = _compare("Keep this directory, and compare it with a run after any change.", run)
    modes = {str(measure(row).get("mode")) for row in rows if row.get("kind") == "rounding_mode"}
    if not modes:
        return [
            Step("State the properties that you rely on under [expect] in the config: a later change is then a FAIL."),
            compare,
        ]
    wanted = (
        f"expect.rounding_mode={_toml(modes.pop())}"
        if len(modes) == 1 and not modes & {"mixed", "undetermined"}
        else ""
    )
    again = shlex.join([*_run(plan), "--set", wanted]) if wanted else ""
    return [
        Step("See what the measured rounding does to a long sum.", f"auditor impact {run}"),
        Step("State what you rely on under [expect] in the config: a later change is then a FAIL.", again),
        compare,
    ]


def _of_pass(_first: Row, _rows: Sequence[Row], _plan: Mapping[str, Any], run: str) -> list[Step]:
    return [_compare("Keep this directory, and compare it with a run after the next upgrade.", run)]


def _of_nothing(_first: Row, _rows: Sequence[Row], plan: Mapping[str, Any], _run_dir: str) -> list[Step]:
    return [
        Step(
            "This page shows nothing about the subject: see which backends are here and what the others need.",
            "auditor backends",
        ),
        Step("Mend what is missing, then see what would run.", shlex.join(["auditor", "plan", *_run(plan)[2:]])),
    ]


def _toml(mode: str) -> str:
    return f'"{mode}"'


def _compare(words: str, run: str) -> Step:
    return Step(words, f"auditor compare {run} {LATER}")


def _reproduce(row: Row) -> str:
    return one_line(row.get("reproduce", ""))


def _run(plan: Mapping[str, Any]) -> list[str]:
    """``auditor run CONFIG ARGUMENTS`` as the run was started."""
    source = plan.get("config", BUILT_IN)
    arguments = plan.get("arguments")
    words = ["auditor", "run", *([] if source in (None, "", BUILT_IN) else [str(source)])]
    return words + [str(word) for word in (arguments if isinstance(arguments, list) else ())]


def _resume(plan: Mapping[str, Any], run: str) -> str:
    return f"{shlex.join(_run(plan))} --resume --out {run}"
