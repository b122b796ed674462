"""From what a workload gave to the record of its bound, and from a record to a verdict on a new output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor import environment
from auditor.calibrate import held_out, planted
from auditor.calibrate.assumptions import assumptions, planting
from auditor.calibrate.measured import Measured, Models, Workload
from auditor.calibrate.planted import Law
from auditor.calibrate.record import sealed
from auditor.calibrate.reference import Reference
from auditor.calibrate.rules import NAN_STEPS, Known, Rule, rules, steps_from
from auditor.calibrate.study import compared
from auditor.errors import AuditError
from auditor.model import Codes, Verdict
from auditor.numerics.ulp_error import err_ulp

PLANTED = 4096  # outputs that errors are planted in, spread evenly
Index = npt.NDArray[np.int64]


class Unmeasurable(AuditError):
    """The workload's outputs allow no bound: a failed subject."""

    exit_code = 1


def calibrated(
    workload: Workload, request: Mapping[str, Any], *, margin: float, law: Law, seed: int, orders_held_out: int
) -> dict[str, Any]:
    """Measure a workload and make its record. The planted errors are drawn before the workload is asked for anything.

    Raises Unmeasurable where an order gives NaN, and what the workload raises.
    """
    errors = law.draw(seed, min(PLANTED, workload.elements()))
    fixed = {"law": str(law), "seed": seed, "elements": len(errors), "draws_sha256": planted.draws_digest(errors)}
    measured = workload.measure(orders_held_out)
    return sealed({**_record(measured, margin, law, errors), "request": dict(request), "planted": fixed})


def _record(measured: Measured, margin: float, law: Law, errors: npt.NDArray[np.float64]) -> dict[str, Any]:
    reference = measured.reference
    rows = [order_row(name, codes, reference) for name, codes in measured.orders.items()]
    bound = bound_of(rows, measured, margin)
    legal = fitting(measured)
    known = known_of(bound, measured, legal.codes)
    every = rules(reference, known)
    index = sample(len(reference))
    few = rules(reference.at(index), known.at(index))
    base = measured.first[index]
    others = held_out.judged(measured.held_out, every, reference, bound["worst"]["ulp_steps"])
    under_law = planted.under_law(reference.fmt, few, base, errors)
    content = {
        "workload": measured.conditions["workload"],
        "conditions": dict(measured.conditions),
        "bound": bound,
        "orders": rows,
        "checks": list(measured.checks),
        "rules": [{"name": rule.name, "label": rule.label, "says": rule.says} for rule in few],
        "law": {
            "accepted": under_law,
            "says": planting(
                law, measured, bound.get("ulp_steps"), under_law.get("measured", {}).get("count", 0), len(base)
            ),
        },
        "curves": planted.curves(reference.fmt, few, base),
        "held_out": others,
        "replay": measured.replay.says,
        "assumptions": assumptions(measured, legal, rows, others),
        "gates": [gate.to_json() for gate in measured.gates],
        "verdict": str(worst_gate(measured)),
        "environment": dict(measured.environment) or environment.collect(),
        "run_id": measured.run_id,
    }
    return {**content, "study": compared(content, law)}


def sample(n: int) -> Index:
    """At most :data:`PLANTED` indices, spread evenly."""
    few = min(n, PLANTED)
    return (np.arange(few, dtype=np.int64) * n) // max(few, 1)


def order_row(name: str, codes: Codes, reference: Reference) -> dict[str, Any]:
    """One order's distances: steps and real ulp at the worst element, and how many elements are not the rounded reference."""
    steps = steps_from(reference, codes)
    real = err_ulp(reference.fmt, codes, reference.split)
    worst = int(np.argmax(steps)) if len(steps) else 0
    usable = real[np.isfinite(real)]
    return {
        "order": name,
        "ulp_steps": int(steps[worst]) if len(steps) else 0,
        "err_ulp": float(np.max(np.abs(usable), initial=0.0)),
        "signed_err_ulp": [float(np.min(usable, initial=0.0)), float(np.max(usable, initial=0.0))],
        "median_steps": int(np.median(steps)) if len(steps) else 0,
        "at": worst,
        "differ": int(np.count_nonzero(steps)),
        "nan": int(np.count_nonzero(steps == NAN_STEPS)),
        "elements": len(steps),
        "digest": sha256(codes.tobytes()).hexdigest()[:16],
    }


def bound_of(rows: Sequence[Mapping[str, Any]], measured: Measured, margin: float) -> dict[str, Any]:
    """``kind`` ulp: margin times the worst of the orders, in both units; ``kind`` absolute: as it was written down.

    Raises Unmeasurable where an output is NaN.
    """
    for row in rows:
        if row["nan"]:
            trouble = [f"{gate.kind}: {gate.says}" for gate in measured.gates if gate.verdict is Verdict.FAIL]
            where = f"{measured.conditions['workload']}: order {row['order']}"
            words = f"gives NaN at {row['nan']:,} of {row['elements']:,} elements, so nothing can be measured."
            raise Unmeasurable(" ".join([where, words, *trouble]))
    worst = max(rows, key=lambda row: row["ulp_steps"])
    told = {key: worst[key] for key in ("order", "ulp_steps", "at")} | {"err_ulp": max(row["err_ulp"] for row in rows)}
    if measured.absolute is not None:
        largest = max(float(row["max_abs_error_float64"]) for row in measured.checks)
        return {"kind": "absolute", "absolute": measured.absolute, "worst_absolute": largest, "worst": told}
    return {
        "kind": "ulp",
        "margin": margin,
        "worst": told,
        "ulp_steps": math.floor(margin * told["ulp_steps"]),
        "err_ulp": margin * told["err_ulp"],
    }


def fitting(measured: Measured) -> Models:
    """The listed legal outputs, where every output of the calibration is one of them: else the models are not the library's."""
    listed = measured.legal
    if listed.codes is None:
        return listed
    for name, output in measured.orders.items():
        outside = int(np.count_nonzero(~(listed.codes == output).any(axis=0)))
        if outside:
            words = f"but order {name} has {outside:,} outputs that are none of them: the library rounds otherwise"
            return Models(None, f"{listed.says}: {len(listed.codes):,} models, {words}")
    words = f"{len(listed.codes):,} models, and every output of the calibration is one of theirs"
    return Models(listed.codes, f"{listed.says}: {words}")


def known_of(bound: Mapping[str, Any], measured: Measured, legal: Codes | None) -> Known:
    """What the rules may rest on, for a bound of a record."""
    return Known(
        steps=bound.get("ulp_steps"),
        absolute=bound.get("absolute"),
        directed=measured.directed,
        replay=measured.replay.codes,
        legal=legal,
    )


def worst_gate(measured: Measured) -> Verdict:
    """The worst verdict of the gates; PASS where nothing fails."""
    return Verdict.FAIL if any(gate.verdict is Verdict.FAIL for gate in measured.gates) else Verdict.PASS


def applied(record: Mapping[str, Any], measured: Measured) -> tuple[Verdict, list[str]]:
    """A record's bound on new outputs, and what stands beside it: the a-priori bound and the set of legal outputs, where known.

    FAIL where a gate fails or any of these rejects an element.
    """
    named = ("measured", "absolute", "a_priori", "legal_outputs")
    listed = any(rule["name"] == "legal_outputs" for rule in record["rules"])
    reference = measured.reference
    known = known_of(record["bound"], measured, measured.legal.codes if listed else None)
    chosen = [rule for rule in rules(reference, known) if rule.name in named]
    lines = [f"{gate.kind}: {gate.says}" for gate in measured.gates if gate.verdict is Verdict.FAIL]
    for name, codes in measured.orders.items():
        lines += [line for rule in chosen if (line := _rejected(rule, name, codes, reference))]
    return (Verdict.FAIL, lines) if lines else (Verdict.PASS, [])


def _rejected(rule: Rule, order: str, codes: Codes, reference: Reference) -> str:
    wrong = np.flatnonzero(~rule.accepts(codes))
    if not len(wrong):
        return ""
    first, steps = int(wrong[0]), int(steps_from(reference, codes[:])[wrong[0]])
    far = f"{steps:,} steps from the reference" if steps != NAN_STEPS else "NaN"
    code = f"0x{int(codes[first]):0{reference.fmt.bits // 4}x}"
    return (
        f"order {order}: {rule.label} ({rule.says}) rejects {len(wrong):,} of {len(codes):,} elements, the first at index "
        f"{first}: {code}, {far}"
    )
