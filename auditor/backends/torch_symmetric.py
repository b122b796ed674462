"""torch's operations on symmetric memory: all_reduce by loads from the peers' memory, or by the switch.

``torch.ops.symm_mem`` has them; they take a tensor of symmetric memory and the name of a process group, and sum alone. Which ones
work in place is told by the trailing underscore of their names. Source: torch's symmetric memory module (its schemas were read).
"""

from __future__ import annotations

from typing import Any

from auditor.errors import Unsupported
from auditor.model import Call, Capabilities

FORMATS = frozenset({"bfloat16", "binary32"})
ALIGNMENT = 16  # bytes that the kernels read at a time; they refuse a tensor that begins elsewhere


class Symmetric:
    """Symmetric memory of one rank, and one of the operations on it."""

    def __init__(self, torch: Any, operation: str) -> None:
        from importlib import import_module

        self._torch, self._operation = torch, operation
        self._memory = import_module("torch.distributed._symmetric_memory")
        self._dist = import_module("torch.distributed")
        self._kept: list[Any] = []

    @staticmethod
    def capabilities(operation: str, rank_n_max: int | None) -> Capabilities:
        """All of these are sums over all ranks at 16-byte aligned places."""
        del operation
        return Capabilities(
            collectives=frozenset({"all_reduce"}),
            ops=frozenset({"sum"}),
            formats=FORMATS,
            rank_n_max=rank_n_max,
            memory="cuda",
            element_alignment=ALIGNMENT,
            features=frozenset({"path", "queue", "timing"}),
        )

    def allocate(self, nbytes: int, device: Any) -> Any:
        """A uint8 tensor of symmetric memory, a little longer than asked for. Collective over all ranks."""
        whole = self._memory.empty(nbytes + 512, dtype=self._torch.uint8, device=device)
        self._memory.rendezvous(whole, self._dist.group.WORLD)
        self._kept.append(whole)
        return whole

    def all_reduce(self, call: Call, group: Any, source: Any, target: Any) -> None:
        """Raises Unsupported on a group, since the memory is symmetric over all ranks, and where the operation refuses a range
        that does not end on its words.
        """
        if group is not None:
            raise Unsupported(f"torch: {self._operation} is offered over all ranks alone")
        if not call.count:
            return
        try:
            self._perform(getattr(self._torch.ops.symm_mem, self._operation), source, target)
        except RuntimeError as error:
            words = " ".join(str(error).split())[:300]
            if "align" in words or "divisible" in words or "multiple" in words:
                raise Unsupported(f"torch: {self._operation} of {call.count} {call.format}: {words}") from error
            raise

    def _perform(self, verb: Any, source: Any, target: Any) -> None:
        name = self._dist.group.WORLD.group_name
        if not self._operation.endswith("_"):
            target.copy_(verb(source, "sum", name))
            return
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)
        verb(target, "sum", name)

    def close(self) -> None:
        self._kept.clear()
