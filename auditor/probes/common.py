"""What every probe uses: usable observations, scopes, evidence rows, verdicts, and one finding per cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from auditor import inputs
from auditor.model import ArmView, Codes, Evidence, Finding, Observation, Planned, Trial, Verdict, asked_by
from auditor.numerics.formats import Format

MAX_ROWS = 16

# Wrong without being asked (DESIGN §5); any other kind is a legal property unless [expect] states otherwise.
FAIL_KINDS = frozenset(
    (
        "unwritten",
        "overrun",
        "send_modified",
        "wrong_value",
        "missing_term",
        "duplicate_term",
        "stale_term",
        "prefill_leak",
        "foreign_read",
        "rank_disagreement",
        "not_repeatable",
        "not_faithful",
        "early_return",
        "false_time",
        "crash",
        "hang",
        "path_not_taken",
        "backend_error",
    )
)


def usable(view: ArmView, trial: Trial) -> list[Observation]:
    """The observations that a probe may look at: status ok, and the inputs were right when the call began.

    Ordered by (repeat, rank). A flipped input is the harness's finding (input_corrupt), not the subject's; since it is
    part of every rank's sum, the whole repeat is left out.
    """
    seen = view.observations(trial.trial_id)
    spoilt = {o.repeat for o in seen if not o.send_before}
    return [o for o in seen if o.status == "ok" and o.repeat not in spoilt]


def receiving(view: ArmView, trial: Trial) -> list[Observation]:
    """Those of :func:`usable` whose rank must get a result and whose output was recorded."""
    receivers = set(trial.call.receivers(trial.rank_n))
    return [o for o in usable(view, trial) if o.rank in receivers and o.digest]


def refused(view: ArmView, trial: Trial) -> bool:
    """Whether the library refused every call of the trial; that finding is the harness's, and no probe has a question left."""
    seen = {one.status for one in view.observations(trial.trial_id)}
    return seen == {"unsupported"}


def trials_of(view: ArmView, probe: str) -> list[Planned]:
    """The trials that the probe asked for, in plan order."""
    return list(asked_by(view, probe))


def cell(trial: Trial) -> tuple[str, str, str]:
    """(collective, op, format): what findings are aggregated by."""
    return trial.call.collective, trial.call.op, trial.call.format


def no_data_reason(view: ArmView, trials: Sequence[Trial]) -> str:
    """Why nothing can be said about trials without a usable observation."""
    if not trials:
        return "the plan holds no trial for it"
    seen = [o for t in trials for o in view.observations(t.trial_id)]
    states = sorted({o.status for o in seen if o.status != "ok"})
    if states:
        return f"no call returned a result (status {', '.join(states)})"
    if any(not o.send_before for o in seen):
        return "the inputs were not as generated when the calls began"
    return "nothing was recorded"


# ---------------------------------------------------------------------------------------------------------------- scope


def scope_of(trials: Iterable[Trial], **more: Any) -> dict[str, Any]:
    """The Trial's and the Call's own field names: one value where all trials share it, else the sorted values."""
    values: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in trial.to_json().items():
            seen = values.setdefault(name, [])
            if value not in seen:
                seen.append(value)
    merged = {name: seen[0] if len(seen) == 1 else sorted(seen, key=_order) for name, seen in values.items()}
    return {**merged, **more}


def _order(value: Any) -> tuple[str, Any]:
    return ("", value) if isinstance(value, (int, float)) else (type(value).__name__, str(value))


# ------------------------------------------------------------------------------------------------------------- evidence


def hex_code(fmt: Format, code: int) -> str:
    return f"0x{int(code):0{fmt.bits // 4}x}"


def send_index(trial: Trial, rank: int, index: int) -> int:
    """The send index whose sum lands at element ``index`` of the rank's receive range."""
    return inputs.receiver_range(trial, rank)[0] + index


def term_codes(trial: Trial, repeat: int, rank: int, index: int) -> list[int]:
    """Each member's input of the sum that lands at receive index ``index`` of the rank, in group order."""
    at = send_index(trial, rank, index)
    return [int(inputs.send_codes(trial, repeat, member, at, at + 1)[0]) for member in trial.members]


def evidence_rows(
    trial: Trial,
    seen: Observation,
    indices: Iterable[int],
    observed: Codes,
    expected: Codes | str | None,
    room: int = MAX_ROWS,
) -> list[Evidence]:
    """Rows for receive indices ``indices`` (at most ``room``).

    ``observed``: the whole output, or the codes in the order of the indices if shorter; ``expected``: likewise, or text.
    """
    fmt, rows = trial.call.fmt, []
    for number, index in enumerate(indices):
        if number >= room:
            break
        want = (
            expected
            if expected is None or isinstance(expected, str)
            else hex_code(fmt, _pick(expected, trial, number, index))
        )
        rows.append(
            Evidence(
                trial=trial.trial_id,
                rank=seen.rank,
                repeat=seen.repeat,
                index=int(index),
                inputs=tuple(hex_code(fmt, c) for c in term_codes(trial, seen.repeat, seen.rank, int(index))),
                observed=hex_code(fmt, _pick(observed, trial, number, index)),
                expected=want or "",
            )
        )
    return rows


def _pick(codes: Codes, trial: Trial, number: int, index: int) -> int:
    return int(codes[index] if len(codes) == trial.call.count else codes[number])


# ------------------------------------------------------------------------------------------------------------- verdicts


def verdict_for(view: ArmView, kind: str, present: bool) -> Verdict:
    """Verdict on a kind that is there or not. ``[expect]``: True allows, False forbids it; else DESIGN §5's default."""
    if not present:
        return Verdict.PASS
    stated = view.expect.get(kind)
    forbidden = kind in FAIL_KINDS if stated is None else stated is False
    return Verdict.FAIL if forbidden else Verdict.INFORMATION


def verdict_for_value(view: ArmView, kind: str, value: str, possible: Sequence[str] = ()) -> Verdict:
    """Verdict on a kind with a value (rounding_mode). ``possible``: the values left where it is undetermined."""
    stated = view.expect.get(kind)
    if stated is None or stated is True:
        return Verdict.INFORMATION
    allowed = [stated] if isinstance(stated, str) else list(stated) if isinstance(stated, (list, tuple)) else []
    if value in allowed:
        return Verdict.PASS
    if value == "undetermined" and set(allowed) & set(possible):
        return Verdict.PASS if set(possible) <= set(allowed) else Verdict.INCONCLUSIVE
    return Verdict.FAIL


# ------------------------------------------------------------------------------------------------------- aggregation


@dataclass(slots=True)
class Case:
    """Discrepancies of one kind in one cell: the trials that show it, how much of it, a capped sample of rows."""

    trials: dict[str, Trial] = field(default_factory=dict)
    rows: list[Evidence] = field(default_factory=list)
    elements: int = 0
    observations: set[tuple[str, int, int]] = field(default_factory=set)
    indices: set[int] = field(default_factory=set)  # a sample of receive indices, capped
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, trial: Trial, seen: Observation, elements: int, rows: Iterable[Evidence] = (), **notes: Any) -> None:
        self.trials[trial.trial_id] = trial
        self.observations.add((trial.trial_id, seen.repeat, seen.rank))
        self.elements += int(elements)
        # A few rows a trial, so that the sample spans the trials rather than the first one's elements.
        self.rows.extend(list(rows)[: max(0, MAX_ROWS - len(self.rows))])
        for name, value in notes.items():
            known = self.notes.setdefault(name, [])
            if value not in known:
                known.append(value)

    @property
    def room(self) -> int:
        """How many rows may still be added; ask before making rows, they cost input generation."""
        return min(4, MAX_ROWS - len(self.rows))

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for _, _, rank in self.observations})

    @property
    def repeats(self) -> list[int]:
        return sorted({repeat for _, repeat, _ in self.observations})

    def measure(self, **more: Any) -> dict[str, Any]:
        """Numbers common to all probes: what was found, in how many observations, trials, ranks and repeats."""
        base = {
            "elements": self.elements,
            "observations": len(self.observations),
            "trials": len(self.trials),
            "ranks": self.ranks,
            "repeats": self.repeats,
            "evidence_total": self.elements,
        }
        return {**base, **more}


def finding(
    view: ArmView,
    probe: str,
    kind: str,
    verdict: Verdict,
    claim: str,
    *,
    trials: Iterable[Trial],
    measure: Mapping[str, Any] | None = None,
    evidence: Sequence[Evidence] = (),
    limits: str = "",
    scope: Mapping[str, Any] | None = None,
) -> Finding:
    """A finding of this arm. ``trials`` make the scope; ``scope`` adds to it or overrides."""
    return Finding(
        arm=view.arm,
        probe=probe,
        kind=kind,
        verdict=verdict,
        claim=claim,
        measure=measure or {},
        scope={**scope_of(trials), **(scope or {})},
        evidence=tuple(evidence[:MAX_ROWS]),
        limits=limits,
    )


def inconclusive(view: ArmView, probe: str, kind: str, trials: Sequence[Trial], reason: str) -> Finding:
    """Nothing can be said about ``kind``; ``reason`` says why and reads on after a colon."""
    return finding(
        view, probe, kind, Verdict.INCONCLUSIVE, f"Nothing can be said about {kind}: {reason}.", trials=trials
    )


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(values: Iterable[Any], cap: int = 6) -> str:
    """``1, 2 and 5``; long lists are cut with their length stated."""
    texts = [str(v) for v in values]
    if len(texts) > cap:
        return ", ".join(texts[:cap]) + f", ... ({len(texts)} in all)"
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1] if texts else "none"


def where(trials: Iterable[Trial]) -> str:
    """The call cell as words: ``all_reduce sum of bfloat16 on 4 ranks``."""
    some = list(trials)
    names = [listed(sorted({getattr(t.call, a) for t in some})) for a in ("collective", "op", "format")]
    return f"{names[0]} {names[1]} of {names[2]} on {listed(sorted({len(t.members) for t in some}))} ranks"
