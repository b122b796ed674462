"""What a person asks for: TOML -> Config, and Scope, what one arm's probes may plan from (DESIGN §7).

``load`` reports every mistake at once, one line each, with the file and the key path:
``configs/nccl.toml: sweep.count[3] = 1.5 is not a whole number of elements``.
"""

from auditor.config.reader import load, toml_value
from auditor.config.records import (
    ALL_PROBES,
    BUILT_IN,
    HARNESS_KINDS,
    KINDS,
    PROBE_KINDS,
    WORD,
    ArmSpec,
    Config,
    Exclusion,
    Scope,
    Sweep,
)

__all__ = [
    "ALL_PROBES",
    "BUILT_IN",
    "HARNESS_KINDS",
    "KINDS",
    "PROBE_KINDS",
    "WORD",
    "ArmSpec",
    "Config",
    "Exclusion",
    "Scope",
    "Sweep",
    "load",
    "toml_value",
]
