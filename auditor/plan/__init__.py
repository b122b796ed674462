"""Config + probes -> ordered trials, each once. What the machine, its owner or the library excludes is waived with a reason."""

from auditor.plan.building import MEMORY_SHARE, active_n, build, machine_memory
from auditor.plan.multicast import multicast_waiver
from auditor.plan.records import SCHEMA, STATUSES, ArmPlan, Plan
from auditor.plan.summary import output_bytes, size, summary

__all__ = [
    "MEMORY_SHARE",
    "SCHEMA",
    "STATUSES",
    "ArmPlan",
    "Plan",
    "active_n",
    "build",
    "machine_memory",
    "multicast_waiver",
    "output_bytes",
    "size",
    "summary",
]
