"""What an MPI library is called, which native types it has, and which algorithm the environment asks of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# First match wins. MPICH's derivatives print "MPICH Version" too, further down, so they come first.
NAMES = (
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library ([\d.]+)")),
    ("Cray MPICH", re.compile(r"CRAY MPICH version ([\w.]+)", re.IGNORECASE)),
    ("MVAPICH", re.compile(r"MVAPICH\d?(?:-Plus)? Version\s*:\s*([\w.]+)")),
    ("Open MPI", re.compile(r"Open MPI v?([\w.]+)")),
    ("MPICH", re.compile(r"MPICH Version\s*:\s*([\w.]+)")),
)
# bfloat16 has no name in the MPI standard that mpi4py can look up, only a handle. A wrong handle aborts the process, so each is
# tied to the releases in which it was seen, and the datatype's name and size are checked before it is used.
BFLOAT16_HANDLES = (
    ("MPICH", re.compile(r"5\.0(\.|$)"), 0x4C00024C, "MPIX_BFLOAT16"),
    ("Intel MPI", re.compile(r"2021\.18(\.|$)"), 0x4C000247, "MPIX_C_BF16"),
)
SHORT = {"all_reduce": "ALLREDUCE", "reduce_scatter": "REDUCE_SCATTER_BLOCK", "reduce": "REDUCE"}


@dataclass(frozen=True, slots=True)
class Library:
    """``version`` is "" where the text does not say. ``text``: first line of MPI_Get_library_version."""

    name: str
    version: str
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


def identify(text: str) -> Library:
    """The library behind MPI_Get_library_version's text; an unknown one is named by its first line."""
    text = text.strip("\0 \n")
    first = text.splitlines()[0].strip() if text else "unknown MPI"
    for name, pattern in NAMES:
        if found := pattern.search(text):
            return Library(name, found.group(1), first)
    return Library(first, "", first)


def native_formats(mpi: Any, library: Library) -> frozenset[str]:
    """Formats with a native datatype. Needs no running MPI."""
    names = {"binary64", "binary32"}
    if mpi.FLOAT16_T != mpi.DATATYPE_NULL:
        names.add("binary16")
    if _standard_bfloat16(mpi) is not None or _bfloat16_row(library) is not None:
        names.add("bfloat16")
    return frozenset(names)


def native_types(mpi: Any, library: Library) -> dict[str, Any]:
    """Format name -> datatype, for a running MPI. A bfloat16 handle that is not what its row says is left out."""
    types = {"binary64": mpi.DOUBLE, "binary32": mpi.FLOAT}
    if mpi.FLOAT16_T != mpi.DATATYPE_NULL:
        types["binary16"] = mpi.FLOAT16_T
    if (standard := _standard_bfloat16(mpi)) is not None:
        types["bfloat16"] = standard
    elif (row := _bfloat16_row(library)) is not None:
        datatype = mpi.Datatype.fromhandle(row[0])
        if datatype.Get_size() == 2 and datatype.Get_name() == row[1]:
            types["bfloat16"] = datatype
    return types


def _standard_bfloat16(mpi: Any) -> Any:
    datatype = getattr(mpi, "BFLOAT16_T", mpi.DATATYPE_NULL)
    return datatype if datatype != mpi.DATATYPE_NULL else None


def _bfloat16_row(library: Library) -> tuple[int, str] | None:
    for name, version, handle, type_name in BFLOAT16_HANDLES:
        if library.name == name and version.match(library.version):
            return handle, type_name
    return None


def algorithm_asked(library: Library, collective: str, environ: Mapping[str, str]) -> str:
    """The algorithm that the environment asks for; ``default`` where none, ``unreported`` for a library not known here.

    Asked for, not taken: no MPI says what ran. MPICH falls back silently where an algorithm does not fit a call, unless
    MPIR_CVAR_COLLECTIVE_FALLBACK=error.
    """
    short = SHORT[collective]
    if library.name in ("MPICH", "Cray MPICH", "MVAPICH"):
        asked = [
            _mpich(f"{short}{part}", environ) for part in ("_INTRA_ALGORITHM", "_POSIX_INTRA_ALGORITHM", "_COMPOSITION")
        ]
    elif library.name == "Intel MPI":
        asked = [environ.get(f"I_MPI_ADJUST_{short}", "")]
    elif library.name == "Open MPI":
        asked = [_open_mpi(short.lower(), environ)]
    else:
        return "unreported"
    return "+".join(word for word in asked if word and word != "auto") or "default"


def _mpich(name: str, environ: Mapping[str, str]) -> str:
    """MPICH reads three prefixes; of several the last one here wins in its start-up code."""
    values = [environ.get(prefix + name, "") for prefix in ("MPICH_", "MPIR_PARAM_", "MPIR_CVAR_")]
    return next((value for value in reversed(values) if value), "")


def _open_mpi(short: str, environ: Mapping[str, str]) -> str:
    if environ.get("OMPI_MCA_coll_tuned_use_dynamic_rules", "0").lower() in ("", "0", "false", "no"):
        return ""  # without it the tuned component ignores the algorithm
    value = environ.get(f"OMPI_MCA_coll_tuned_{short}_algorithm", "")
    return "" if value in ("", "0", "ignore") else f"tuned:{value}"
