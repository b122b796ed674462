"""What each kind of finding asks, and where a person looks first when it is there. For the page, SARIF's rules and JUnit.

The kinds are those of the findings' contract; a kind that is not among them (a later version's) is described by its name alone.
"""

from __future__ import annotations

from typing import NamedTuple


class About(NamedTuple):
    """``looks_for``: what a finding of the kind is about, in one sentence. ``look_at``: what to do where it is a FAIL."""

    looks_for: str
    look_at: str


GRID = (
    "See in which counts and shifts it happens: a last word, a partial word or one alignment points at the vector loop."
)
TERM = "See which rank the evidence names, then audit that rank's host, GPU and links alone."
LEGAL = "Legal by itself: it fails only where the config's [expect] demands otherwise."
LOGS = "Keep the logs of the process and of its driver; run the command again with one trial to see whether it repeats."

KINDS = {
    # coverage
    "unwritten": About("Elements of the receive range that the call never wrote.", GRID),
    "overrun": About("Bytes outside the receive range that the call wrote.", GRID),
    "send_modified": About(
        "A send buffer that an out-of-place call changed.", "Check how the send buffer is registered."
    ),
    "wrong_value": About("Outputs that no legal order and rounding of the sum could give.", GRID),
    "missing_term": About("Sums in which the contribution of a rank is missing.", TERM),
    "duplicate_term": About("Sums in which the contribution of a rank counts twice.", TERM),
    "stale_term": About("Sums that hold a contribution of an earlier call.", TERM),
    "prefill_leak": About("Results that hold what stood in the receive buffer before the call.", GRID),
    # rounding
    "rounding_mode": About("How one inexact addition is rounded.", LEGAL),
    "not_faithful": About("Outputs of one addition that are neither of the exact sum's two neighbours.", GRID),
    "double_rounding": About("Sums that are rounded to an accumulator first and to the format afterwards.", LEGAL),
    # accumulator and order
    "accumulator": About("The format in which partial sums are kept.", LEGAL),
    "hop_rounding": About("Whether partial sums are rounded to the format on their way from rank to rank.", LEGAL),
    "summation_tree": About("The order in which the ranks' contributions are added.", LEGAL),
    "average_scaling": About("By which formula, and how wide, an average is made.", LEGAL),
    # special
    "nan": About("What becomes of NaN, whichever rank holds it.", "See which rank, count and shift lose it."),
    "infinity": About(
        "What becomes of infinities, whichever rank holds them.", "See which rank, count and shift lose it."
    ),
    "negative_zero": About("The sign of sums that are zero.", LEGAL),
    "subnormal_flush": About("Whether subnormal inputs or sums are flushed to zero.", LEGAL),
    "overflow": About("Sums past the format's maximum.", LEGAL),
    # repeatability
    "not_repeatable": About(
        "Whether the same call on the same data gives the same bits each time.",
        "See whether one rank or one path differs; then fix the algorithm and protocol and run again.",
    ),
    "rank_disagreement": About("Whether all ranks receive the same bits from one call.", TERM),
    "fresh_process": About(
        "Whether a fresh process gives the same bits.", "Compare what each process chose: path, GPU, variables."
    ),
    "history_dependence": About(
        "Whether earlier calls or communicators change the bits of a later call.",
        "Compare the paths that the calls report before and after.",
    ),
    # placement
    "shift_dependence": About("Whether the same data give other bits when the buffers are shifted.", LEGAL),
    "count_dependence": About("Whether the same leading data give other bits in a longer range.", LEGAL),
    "position_dependence": About("Whether the same data give other bits elsewhere in the range.", LEGAL),
    "in_place_difference": About("Whether in-place calls give other bits than calls out of place.", LEGAL),
    "path_split": About("Whether parts of one range are summed by different code.", LEGAL),
    # tail, neighbours, paths
    "foreign_read": About(
        "Whether bytes outside the send range change results inside it.",
        "Until it is mended: pad the range to a whole word with zeros, or switch the path that does it off.",
    ),
    "neighbour_dependence": About("Whether the rounding of an element depends on other elements.", LEGAL),
    "path_difference": About("Whether the arms of the run give the same bits from the same data.", LEGAL),
    # timing, tolerance
    "early_return": About(
        "Whether a call returns before its result is there.",
        "Synchronise the stream before reading; then tell the maintainer.",
    ),
    "false_time": About(
        "Whether the time that the subject reports fits the time that passed.", "Time with a clock of your own."
    ),
    "ulp_bound": About(
        "How far outputs lie from the exact sum.", "See which ranks, counts and paths exceed the bound."
    ),
    # harness
    "crash": About("Calls that end the subject's process.", LOGS),
    "hang": About("Calls that do not return.", LOGS),
    "backend_error": About("Calls within the stated capabilities that the subject refuses with an error.", LOGS),
    "unsupported": About("What could not be asked here, with the reason.", "Nothing was measured: see the reason."),
    "path_not_taken": About(
        "Whether the library took the path that the arm states.",
        "Check the arm's env and options: what this arm measured is another path.",
    ),
    "input_corrupt": About(
        "Send buffers that were wrong before the call.",
        "Check that host's memory before anything is laid at the fabric.",
    ),
    "not_run": About(
        "Trials that were planned and not run, with the reason.", "Go on with --resume, or run the arm again."
    ),
}


def about(kind: str) -> About:
    """What a kind is about; of an unknown one, its name in words."""
    return KINDS.get(kind) or About(f"{kind.replace('_', ' ').capitalize() or 'An unnamed kind'}.", "")
