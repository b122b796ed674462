"""Input families: pure functions of (family, seed, rank_n, rank, index), the same on host and device.

>>> generate(Family.parse("order_exact:format=binary32"), FORMATS["bfloat16"], 7, rank_n=2, rank=0, start=0, stop=4)

Any rank can therefore recompute all ranks' inputs, and the exact sum, without communication. ``rank_n`` and
``rank`` count the members that send data (``Trial.active``).
"""

from auditor.inputs.families import FAMILIES, check, generate, recipe
from auditor.inputs.scaled import rank_coded_bits, rank_coded_layout, rank_coded_passes
from auditor.inputs.trials import active_positions, receiver_range, send_codes, terms

__all__ = [
    "FAMILIES",
    "active_positions",
    "check",
    "generate",
    "rank_coded_bits",
    "rank_coded_layout",
    "rank_coded_passes",
    "receiver_range",
    "recipe",
    "send_codes",
    "terms",
]
