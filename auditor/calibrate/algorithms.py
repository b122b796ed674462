"""Which algorithms a library can be asked for, as the arms of a calibration: an order of additions each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from auditor.config import ArmSpec

# By backend and collective: name -> environment, and the path that must then have run ("" where the library does not say).
# MPI: the same algorithm in the words of MPICH, Open MPI and Intel MPI; what a library has no word for it ignores.
MPICH = "MPIR_CVAR_{}_INTRA_ALGORITHM"
OPEN_MPI = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
Row = tuple[Mapping[str, str], str]
ALGORITHMS: dict[tuple[str, str], dict[str, Row]] = {
    ("mpi", "all_reduce"): {
        "ring": (
            {
                MPICH.format("ALLREDUCE"): "ring",
                **OPEN_MPI,
                "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
                "I_MPI_ADJUST_ALLREDUCE": "8",
            },
            "",
        ),
        "recursive_doubling": (
            {
                MPICH.format("ALLREDUCE"): "recursive_doubling",
                **OPEN_MPI,
                "OMPI_MCA_coll_tuned_allreduce_algorithm": "3",
                "I_MPI_ADJUST_ALLREDUCE": "1",
            },
            "",
        ),
    },
    ("mpi", "reduce_scatter"): {
        "pairwise": ({MPICH.format("REDUCE_SCATTER_BLOCK"): "pairwise"}, ""),
        "recursive_doubling": ({MPICH.format("REDUCE_SCATTER_BLOCK"): "recursive_doubling"}, ""),
    },
    ("nccl", "all_reduce"): {"ring": ({"NCCL_ALGO": "Ring"}, "RING"), "tree": ({"NCCL_ALGO": "Tree"}, "TREE")},
    ("nccl", "reduce_scatter"): {"ring": ({"NCCL_ALGO": "Ring"}, "RING")},
}


def arms_of(
    backend: str, collective: str, ranks: int, options: Mapping[str, Any], env: Mapping[str, str]
) -> list[ArmSpec]:
    """The library as it comes, and each algorithm that is known here by name."""
    rows = {"default": ({}, ""), **ALGORITHMS.get((backend, collective), {})}
    return [
        ArmSpec(name=name, backend=backend, ranks=ranks, options=options, env={**env, **more}, path=path or None)
        for name, (more, path) in rows.items()
    ]


def toml_of(title: str, arms: Iterable[ArmSpec], sweep: Mapping[str, Any], probes: Iterable[str]) -> str:
    """A config as text, so that what was run can be run again: ``auditor run FILE``."""
    lines = [f"title = {_value(title)}"]
    for arm in arms:
        lines += ["", "[[arm]]", *(f"{key} = {_value(getattr(arm, key))}" for key in ("name", "backend", "ranks"))]
        if arm.path:
            lines.append(f"path = {_value(arm.path)}")
        for table in ("options", "env"):
            if given := getattr(arm, table):
                lines += [f"[arm.{table}]", *(f"{_value(key)} = {_value(value)}" for key, value in given.items())]
    lines += ["", "[sweep]", *(f"{key} = {_value(value)}" for key, value in sweep.items())]
    return "\n".join([*lines, "", "[probes]", f"run = {_value(list(probes))}", ""])


def _value(value: Any) -> str:
    """JSON's texts, numbers, booleans and lists are TOML's too."""
    return json.dumps(value, ensure_ascii=False)
