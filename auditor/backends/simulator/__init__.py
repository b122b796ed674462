"""A backend whose numerics are known to the bit: legal variants and the B300 rule of NUMERICS §1.

It answers what the auditor would say of a subject that does exactly this; no GPU takes part.
"""

from auditor.backends.simulator.backend import Simulator

__all__ = ["Simulator"]
