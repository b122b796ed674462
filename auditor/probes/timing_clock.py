"""The subject's clock beside the host's: what each saw of the same calls, and what to make of it.

A subject's time covers its own calls; the host's also what surrounds them. The host's time of a call of one element is credited
to the subject in full, and of several repeats the one that fits the subject best counts, so that a busy machine raises no alarm:
noise inside a call is in both times, and noise outside would have to fill most of every repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from auditor.model import ArmView, Finding, Observation, Trial, Verdict
from auditor.probes import common
from auditor.probes.timing_limits import Limit, limits

CALLS = {"host": 4, "cuda": 32}  # in a row
SHARE = 0.5  # of the host's time that the subject's clock and the credit must account for
OVER = 1.1  # times the host's time that the subject's may be


@dataclass(frozen=True, slots=True)
class Clock:
    """One rank's clocks over one trial. Shares are of the host's time; seconds are of one call."""

    trial: Trial
    rank: int
    repeats: int
    host_seconds: float  # the least of the repeats
    own_seconds: float  # the most of the repeats
    share: float  # the most of the repeats
    least_share: float
    credited: float  # the most, with the credit added
    credit_seconds: float
    limit: Limit | None  # the strictest

    @property
    def calls(self) -> int:
        return calls_of(self.trial)

    @property
    def fault(self) -> str:
        """``more`` than passed, far ``less`` than passed, ``faster`` than bytes can move; "" none of these."""
        if self.least_share > OVER:
            return "more"
        if self.own_seconds > 0 and self.credited < SHARE:
            return "less"
        if self.limit is not None and 0 < self.own_seconds < self.limit.least:
            return "faster"
        return ""

    @property
    def coarse(self) -> str:
        """Why nothing can be said; "" where something can."""
        if self.own_seconds == 0:
            return "it reads 0 for every call: it does not run, or in coarser steps than these calls take"
        if not self.fault and self.share < SHARE:
            return "what surrounds a call takes as long as the call, so that the two clocks cannot be compared"
        return ""


def calls_of(trial: Trial) -> int:
    return int(trial.variant.partition(":")[2])


def clock_of(view: ArmView, large: Trial, small: Trial) -> list[Clock]:
    """One clock a rank; none where nothing usable was recorded of it. ``small``: the same calls of one element."""
    by_rank = _by_rank(view, large)
    around = {rank: min(o.seconds for o in seen) / calls_of(small) for rank, seen in _by_rank(view, small).items()}
    copies = {
        o.rank: o.copy_seconds for o in view.observations(large.with_(variant="reread").trial_id) if o.copy_seconds
    }
    found = []
    for rank, seen in sorted(by_rank.items()):
        bounds = limits(large, rank, view.describe, copies.get(rank))
        found.append(_clock(large, rank, seen, around.get(rank, 0.0), max(bounds, key=lambda b: b.least, default=None)))
    return found


def _by_rank(view: ArmView, trial: Trial) -> dict[int, list[Observation]]:
    by_rank: dict[int, list[Observation]] = {}
    for seen in common.usable(view, trial):
        if seen.subject_seconds is not None and seen.seconds > 0:
            by_rank.setdefault(seen.rank, []).append(seen)
    return by_rank


def _clock(trial: Trial, rank: int, seen: Sequence[Observation], credit: float, limit: Limit | None) -> Clock:
    calls = calls_of(trial)
    # Of calls in flight together only the last is told: it stands for all.
    told = calls if trial.variant.startswith("queued") else 1
    pairs = [(o.seconds, (o.subject_seconds or 0.0) * told) for o in seen]
    return Clock(
        trial=trial,
        rank=rank,
        repeats=len(pairs),
        host_seconds=min(host for host, _ in pairs) / calls,
        own_seconds=max(own for _, own in pairs) / calls,
        share=max(own / host for host, own in pairs),
        least_share=min(own / told / host for host, own in pairs),
        credited=max((own + calls * credit) / host for host, own in pairs),
        credit_seconds=credit,
        limit=limit,
    )


def clock_finding(view: ArmView, probe: str, trials: Sequence[Trial], clocks: Sequence[Clock]) -> Finding:
    """The finding of one cell."""
    wrong = [clock for clock in clocks if clock.fault]
    told = {
        clock.rank for clock in clocks if not clock.coarse
    }  # a rank's calls one by one, or those in flight together
    coarse = [clock for clock in clocks if clock.coarse and clock.rank not in told]
    where = common.where(trials)
    if not wrong and coarse:
        return common.finding(
            view,
            probe,
            "false_time",
            Verdict.INCONCLUSIVE,
            f"Nothing can be said about false_time: {where}, the subject's clock is too coarse: {coarse[0].coarse}.",
            trials=trials,
            measure=_measure(clocks, wrong),
        )
    return common.finding(
        view,
        probe,
        "false_time",
        common.verdict_for(view, "false_time", bool(wrong)),
        f"{where}: {_words(clocks, wrong)}",
        trials=trials,
        measure=_measure(clocks, wrong),
        limits=(
            f"A clock that tells between {SHARE:.0%} and {OVER:.0%} of the time is not told from a true one. The host's time "
            "holds the call's surroundings too; that of a call of one element is credited in full."
        ),
    )


def _measure(clocks: Sequence[Clock], wrong: Sequence[Clock]) -> dict[str, object]:
    bound = [clock.limit for clock in clocks if clock.limit is not None]
    return {
        "calls": sum(clock.calls * clock.repeats for clock in clocks),
        "ranks": sorted({clock.rank for clock in wrong}),
        "faults": sorted({clock.fault for clock in wrong}),
        "share_of_host_time": [min(c.share for c in clocks), max(c.share for c in clocks)],
        "share_with_credit": [min(c.credited for c in clocks), max(c.credited for c in clocks)],
        "host_seconds_per_call": {c.trial.variant: c.host_seconds for c in clocks},
        "subject_seconds_per_call": {c.trial.variant: c.own_seconds for c in clocks},
        "credit_seconds_per_call": {c.trial.variant: c.credit_seconds for c in clocks},
        "least_seconds_per_call": max((limit.least for limit in bound), default=None),
        "limit": max(bound, key=lambda limit: limit.least).words if bound else "none known",
        "evidence_total": 0,
    }


def _words(clocks: Sequence[Clock], wrong: Sequence[Clock]) -> str:
    if not wrong:
        low, high = min(c.share for c in clocks), max(c.share for c in clocks)
        rest = "; no call is faster than bytes can move" if any(c.limit for c in clocks) else ""
        calls = sum(c.calls * c.repeats for c in clocks)
        return f"the subject's clock accounts for {low:.0%} to {high:.0%} of the host's time in {calls:,} calls{rest}."
    worst = wrong[0]
    own, host = worst.own_seconds * 1e6, worst.host_seconds * 1e6
    who = f"rank {worst.rank}" if len(wrong) == 1 else f"ranks {common.listed(sorted({c.rank for c in wrong}))}"
    told = f"the subject's clock gives up to {own:,.3g} us a call on {who}"
    if worst.fault == "more":
        return f"{told}, where no more than {host:,.3g} us passed by the host's."
    if worst.fault == "less":
        return (
            f"{told}, where at least {host:,.3g} us passed by the host's; with {worst.credit_seconds * 1e6:,.3g} us around a "
            f"call added it accounts for {worst.credited:.0%} at most."
        )
    assert worst.limit is not None
    return f"{told}; bytes that must move take at least {worst.limit.least * 1e6:,.3g} us at {worst.limit.words}."
