"""From what explains single observations to one kind a fault: a cell's wrong observations are judged together.

A kind is named where it explains all of them; else where it is the only one that explains many elements of some, and then
also for those that are too small to tell by themselves. What is left is plainly wrong.
"""

from __future__ import annotations

from collections import Counter

from auditor.model import PREFILLS
from auditor.probes.explain import EXCHANGED, Bad

KINDS = ("prefill_leak", "unwritten", "missing_term", "duplicate_term", "stale_term")
ENOUGH = 4  # elements, or different inputs, that agree with a prediction by more than luck


def resolve(bads: list[Bad]) -> list[str]:
    """The kind of each observation, in order; ``wrong_value`` where nothing is named."""
    if not bads:
        return []
    _doubt_prefills(bads)
    whole = _explaining_all(bads)
    # Two mistakes at once, so only where one does not do: bits of neighbouring ranks differ by a factor of 2, so twice the
    # one is nearly always the other.
    if not whole:
        for bad in bads:
            if EXCHANGED in bad.reasons:
                bad.reasons.setdefault("duplicate_term", bad.reasons[EXCHANGED])
        whole = _explaining_all(bads)
    if kind := _one(whole, bads):
        return [kind] * len(bads)
    strong = _strong(bads)
    return [_alone(bad, strong) for bad in bads]


def _explaining_all(bads: list[Bad]) -> list[str]:
    return [kind for kind in KINDS if all(kind in bad.reasons for bad in bads)]


def _doubt_prefills(bads: list[Bad]) -> None:
    """Take back what rests on too little. "unwritten" takes all three prefills to tell, or a signalling NaN with a payload of
    its own, which arithmetic never returns. "prefill_leak" takes a NaN that took part: a sum with what the range held is a
    doubled term in place.
    """
    held = [b for b in bads if "unwritten" in b.reasons and not b.trial.in_place]
    payload = any(b.trial.call.fmt.mantissa_bits >= 4 and b.trial.prefill != "finite" for b in held)
    if not payload and {b.trial.prefill for b in held} != set(PREFILLS):
        for bad in held:
            del bad.reasons["unwritten"]
    leaking = [b for b in bads if "prefill_leak" in b.reasons]
    if all(b.trial.in_place or b.trial.prefill == "finite" for b in leaking):
        for bad in leaking:
            del bad.reasons["prefill_leak"]


def _one(kinds: list[str], bads: list[Bad]) -> str:
    """The kind among those that explain everything; "" where they are several or rest on too little."""
    if "unwritten" in kinds:
        return "unwritten"  # in place, "all other terms missing" predicts the same bits as "never written"
    if len(kinds) != 1:
        return ""
    return kinds[0] if _credible(kinds[0], bads) else ""


def _credible(kind: str, bads: list[Bad]) -> bool:
    """Agreement beyond luck: four different inputs, or two where several repeats show it."""
    if kind == "prefill_leak":
        return True
    points = len(set().union(*(b.data_points for b in bads)))
    return points >= ENOUGH or (points >= 2 and len({b.seen.repeat for b in bads}) >= 2)


def _strong(bads: list[Bad]) -> list[str]:
    """Kinds that are the only explanation of an observation with enough wrong elements, the most frequent first; and kinds
    that explain nine in ten observations.
    """
    alone: Counter[str] = Counter()
    for bad in bads:
        kinds = [k for k in KINDS if k in bad.reasons]
        if len(kinds) == 1 and (len(bad.index) >= ENOUGH or kinds[0] == "unwritten"):
            alone[kinds[0]] += 1
    most = [k for k in KINDS if sum(k in b.reasons for b in bads) >= 0.9 * len(bads)]
    return list(dict.fromkeys([*(kind for kind, _ in alone.most_common()), *(k for k in most if _credible(k, bads))]))


def _alone(bad: Bad, strong: list[str]) -> str:
    kind = next((k for k in strong if k in bad.reasons), "")
    if kind:
        return kind
    if not bad.reasons and "stale_term" in strong and bad.seen.repeat == 0:
        return "stale_term"  # the data before a trial's first call are those of another call, or of none
    return "wrong_value"


def ways(bads: list[Bad], kind: str, most: int = 6) -> list[str]:
    """The fewest descriptions that cover the observations, greedily, at most ``most``: several often fit one."""
    left = [set(b.reasons.get(kind, ())) for b in bads]
    chosen: list[str] = []
    while any(left) and len(chosen) < most:
        counted = Counter(label for labels in left for label in labels)
        label = max(counted, key=lambda text: counted[text])
        chosen.append(label)
        left = [set() if label in labels else labels for labels in left]
    return chosen
