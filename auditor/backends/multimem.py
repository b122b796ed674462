"""Own kernels over a multicast pointer, or, with the same skeleton, over loads from every rank (DESIGN §4).

``multimem.ld_reduce`` asks the NVSwitch for the sum of an address on all GPUs. The kernels are ours (multimem.cu), so the form is
known, and so is what each element went through: the switch adds no less than 4 bytes, aligned, and a lone 16-bit element at
either end needs another way (multimem_split). ``path()`` says it, as in ``UNICAST/one_shot/bf16x2.acc::f32/s1.w3.v4.w1/st16``:
provider, algorithm, form, ways in the order of the elements, widest store.

:class:`Multimem` drives all GPUs from this process; provider ``nvshmem`` is one process a GPU (:class:`MultimemOne`).

Options
    provider     "unicast" (default): loads from every rank, added on the SM in the group's order. Of a multicast pointer: "nccl"
                 (a symmetric window), "nvshmem" (mc_ptr), "driver" (cuMulticastCreate and what follows). Those need
                 allow_multicast = true, and that no switch forbids it.
    algorithm    of all_reduce. "one_shot" (default): every rank reduces everything. "two_shot": each a share, which it stores
                 to all.
    accumulator  "wide" (default): .acc::f32, of 8-bit formats .acc::f16; binary32 has none. "plain": the format itself.
    vector       "v4" (default), "v2", "v1": registers of 4 bytes a load; "v8": the scalar forms, such as .v8.bf16.
    lone         "scalar" (default): a lone element is loaded from every rank and added on the SM. "pair": it is taken out of the
                 reduced word around it, which reads its neighbours.
    devices      GPU numbers of the ranks, in order. Default: all. One number may come several times with provider unicast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from auditor.backends.cuda_device import Lanes, choose_devices, describe_devices, device_count, load_cupy
from auditor.backends.gpu_sharing import most_on_one
from auditor.backends.multimem_compile import compiler_version, disassembler_version
from auditor.backends.multimem_describe import limits, models
from auditor.backends.multimem_driver import DriverFabric
from auditor.backends.multimem_fabric import Fabric, unreachable
from auditor.backends.multimem_kernels import Variant, of_each, sass_words
from auditor.backends.multimem_launch import Kernels
from auditor.backends.multimem_nccl import NcclFabric
from auditor.backends.multimem_nvshmem import NvshmemFabric
from auditor.backends.multimem_options import COMPUTE, UNICAST, check_options, offered_formats, permit
from auditor.backends.multimem_split import Split, split, store_width
from auditor.errors import Unavailable, Unsupported
from auditor.model import COLLECTIVES, Call, Capabilities, Window, World
from auditor.mpi_control import launcher_rank_and_size

FABRICS: dict[str, type[Fabric]] = {
    UNICAST: Fabric,
    "nccl": NcclFabric,
    "nvshmem": NvshmemFabric,
    "driver": DriverFabric,
}
Windows = Mapping[int, Window]


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's kernel: what it reads, where the result goes, which of the range's steps it does."""

    rank: int
    sources: tuple[int, ...]
    source_switch: int
    targets: tuple[int, ...]
    target_switch: int
    count: int
    steps: Split
    begin: int
    end: int


class Multimem:
    """All of the ranks' GPUs in this one process."""

    name: ClassVar[str] = "multimem"
    process_model: ClassVar[str] = "all"

    @classmethod
    def for_options(cls, options: Mapping[str, Any]) -> type[Multimem]:
        """The class that the options ask for. Raises ConfigError on a wrong option."""
        return MultimemOne if check_options(options)["provider"] == "nvshmem" else Multimem

    @classmethod
    def probe(cls, options: Mapping[str, Any]) -> Capabilities:
        """Asks permission, then loads CuPy, NVRTC and the provider's library; makes no context.

        Raises Unavailable, or ConfigError on a wrong option.
        """
        chosen = check_options(options)
        permit(chosen, os.environ)
        cupy = load_cupy()
        gpu_n = device_count(cupy)
        numbers = [number for number in chosen["devices"] if number < gpu_n] or list(range(gpu_n))
        major = smallest_major(cupy, numbers)
        compiler_version()
        FABRICS[chosen["provider"]].load(cupy)
        unicast = chosen["provider"] == UNICAST
        if unicast:
            unreachable(cupy, numbers)
        return Capabilities(
            collectives=frozenset(COLLECTIVES),
            ops=frozenset({"sum"}),
            formats=offered_formats(chosen, major),
            rank_n_max=cls._rank_n_max(len(chosen["devices"]) or gpu_n),
            in_place=chosen["algorithm"] == "two_shot",
            memory="cuda",
            features=frozenset({"queue", "timing", "path"} | ({"groups"} if unicast else set())),
        )

    @classmethod
    def _rank_n_max(cls, gpu_n: int) -> int | None:
        return gpu_n

    def __init__(self, world: World, options: Mapping[str, Any]) -> None:
        self._options = check_options(options)
        permit(self._options, os.environ)
        cupy = load_cupy()
        self._world = world
        self._devices = choose_devices(world, self._options["devices"], device_count(cupy))
        major = smallest_major(cupy, self._devices.values())
        self._lanes = Lanes(cupy, self._devices)
        self._kernels = Kernels(self._lanes)
        self._fabric = FABRICS[self._options["provider"]](world, self._lanes)
        self._switch = self._options["provider"] != UNICAST
        self._variants = {name: self._variant(name) for name in sorted(offered_formats(self._options, major))}
        self._kernels.prepare(list(self._variants.values()))
        self._path = ""
        self._timed: tuple[int, ...] = ()  # ranks of the last call
        self._busy: set[int] = set()  # ranks of calls in flight
        self._open = True

    def _variant(self, name: str) -> Variant:
        chosen = self._options
        return Variant(name, chosen["accumulator"], chosen["vector"], self._switch, chosen["lone"] == "pair")

    def allocate(self, nbytes: int) -> dict[int, Any]:
        """Local rank -> 1-D uint8 CuPy array of ``nbytes`` on its own GPU, 512-byte aligned. Collective over all ranks."""
        return self._fabric.allocate(nbytes)

    def run(self, call: Call, send: Windows, recv: Windows) -> None:
        """Perform the call. Raises Unsupported or BackendError; a lost CUDA context ends the process."""
        self.enqueue(call, send, recv)
        self.wait()

    def enqueue(self, call: Call, send: Windows, recv: Windows) -> None:
        """Put the call on the ranks' streams and return; the windows are the kernels' until :meth:`wait`."""
        variant = self._check(call, send, recv)
        ranks = tuple(send)
        if not ranks:
            return
        shares = list(self._shares(call, variant, send, recv))
        self._lanes.settle(rank for rank in ranks if rank not in self._busy)
        self._busy.update(ranks)
        self._timed = ranks
        what = f"multimem {call.collective} {call.op} of {call.count} {call.format}"
        with self._lanes.speaking(what):
            self._lanes.begin(ranks)
            self._fabric.meet(ranks)  # what all of them send is there
            for share in shares:
                self._launch(variant, share)
            self._fabric.meet(ranks)  # nobody reads any more, and what others store here has come
            self._lanes.end(ranks)
        self._path = self._path_of(call, variant, shares)

    def wait(self) -> None:
        """Return when every enqueued call is done."""
        busy, self._busy = sorted(self._busy), set()
        self._lanes.wait(busy)

    def _check(self, call: Call, send: Windows, recv: Windows) -> Variant:
        """The kernel that the call needs. Raises Unsupported where there is none."""
        if call.collective not in COLLECTIVES or call.op != "sum" or call.format not in self._variants:
            offered = ", ".join(self._variants)
            raise Unsupported(f"multimem has no {call.collective} {call.op} of {call.format} here; it sums {offered}")
        if self._switch and call.members(self._world.rank_n) != tuple(range(self._world.rank_n)):
            raise Unsupported("the switch reduces over all ranks, in no order of theirs: no groups")
        shared = [rank for rank in send if recv[rank].buffer is send[rank].buffer]
        if shared and call.collective == "all_reduce" and self._options["algorithm"] == "one_shot":
            raise Unsupported(
                'one_shot in place would overwrite what others still read; options.algorithm = "two_shot"'
            )
        return self._variants[call.format]

    def _shares(self, call: Call, variant: Variant, send: Windows, recv: Windows) -> Iterator[Share]:
        """What each local rank's kernel does. all_reduce two_shot: a part of the steps, stored to all; else its own range."""
        members, size = call.members(self._world.rank_n), call.fmt.itemsize
        everyone = self._fabric.addresses(send, members)
        two_shot = call.collective == "all_reduce" and self._options["algorithm"] == "two_shot"
        results = self._fabric.addresses(recv, members) if two_shot else ()
        for rank in send:
            position = members.index(rank)
            if call.collective == "reduce" and position != call.root:
                continue
            skip = position * call.count * size if call.collective == "reduce_scatter" else 0
            sources = tuple(address + skip for address in everyone)
            switched = self._fabric.through_switch(send[rank]) + skip if self._switch else 0
            steps = split(sources[0], call.count, size, variant.unit)
            part = (position, position + 1, len(members)) if two_shot else (0, 1, 1)
            yield Share(
                rank=rank,
                sources=alike(sources),
                source_switch=switched,
                targets=alike(results) if two_shot else (recv[rank].address,),
                target_switch=self._fabric.through_switch(recv[rank]) if two_shot and self._switch else 0,
                count=call.count,
                steps=steps,
                begin=steps.steps * part[0] // part[2],
                end=steps.steps * part[1] // part[2],
            )

    def _launch(self, variant: Variant, share: Share) -> None:
        lane, n = self._lanes[share.rank], share.end - share.begin
        if not n:
            return
        with lane.device:
            sources, targets = (self._kernels.table(lane, one) for one in (share.sources, share.targets))
            read = (sources, len(share.sources), share.source_switch)
            written = (targets, len(share.targets), share.target_switch)
            self._kernels.launch(lane, variant, n, (*read, *written, share.count, share.begin, share.end))

    def _path_of(self, call: Call, variant: Variant, shares: list[Share]) -> str:
        provider = self._options["provider"]
        top = f"MULTIMEM({provider})" if self._switch else "UNICAST"
        way = {"all_reduce": self._options["algorithm"], "reduce_scatter": "own_share", "reduce": "at_root"}[
            call.collective
        ]
        lone = "p" if variant.pair else "s"
        texts = [share.steps.text(self._options["vector"], lone) for share in shares]
        widths = [
            f"st{store_width(share.targets[0], variant.itemsize, variant.unit, share.steps, share.sources[0])}"
            for share in shares
        ]
        parts = [f"{text}/{width}" if text != "nothing" else text for text, width in zip(texts, widths, strict=True)]
        return "/".join((top, way, variant.body.label, "+".join(dict.fromkeys(parts)) or "elsewhere"))

    def path(self) -> str:
        """What the last call's elements went through, as in the module's first lines; several ranges' ways joined by ``+``."""
        return self._path

    def last_seconds(self) -> float:
        """Seconds between CUDA events around the last call, the longest of this process's ranks."""
        return self._lanes.seconds(self._timed)

    def describe(self) -> Mapping[str, Any]:
        """Options, the model that the numbers should follow, the kernels' SASS, versions, GPUs. JSON scalars."""
        lane = self._lanes[next(iter(self._lanes))]
        architecture = self._kernels.architecture(lane)
        opcodes = of_each(sass_words, list(self._variants.values()), architecture)
        chosen = {key: value for key, value in self._options.items() if key != "devices"}
        return {
            **chosen,
            **self._fabric.describe(),
            **describe_devices(self._lanes.cupy, self._devices.values()),
            "process_model": self.process_model,
            **limits(self._switch, most_on_one(self._devices.values())),
            "architecture": architecture,
            "nvrtc": compiler_version(),
            "nvdisasm": disassembler_version(),
            **{f"form.{name}": variant.body.mnemonic for name, variant in self._variants.items() if self._switch},
            **{f"model.{name}": text for name, text in models(self._variants).items()},
            **{f"sass.{name}": text for name, text in zip(self._variants, opcodes, strict=True)},
        }

    def close(self) -> None:
        """Frees what allocate gave; idempotent."""
        if not self._open:
            return
        self._open = False
        self._fabric.close()
        self._lanes.close()


class MultimemOne(Multimem):
    """One process a GPU: memory, pointer and barriers are NVSHMEM's."""

    process_model: ClassVar[str] = "one"

    @classmethod
    def _rank_n_max(cls, gpu_n: int) -> int | None:
        return gpu_n if launcher_rank_and_size() is None else None


def smallest_major(cupy: Any, devices: Iterable[int]) -> int:
    """Of the compute capabilities. Raises Unavailable below 9, where multimem and additions of bfloat16 begin."""
    majors = {int(cupy.cuda.runtime.getDeviceProperties(number)["major"]) for number in devices}
    if (least := min(majors)) < COMPUTE:
        raise Unavailable(
            f"multimem needs GPUs of compute capability 9.0, one here has {least}", "use a Hopper or later GPU"
        )
    return least


def alike(addresses: tuple[int, ...]) -> tuple[int, ...]:
    """The same addresses. Raises Unsupported where they are not alike modulo 16: all ranks' accesses are cut in one way."""
    if len({address % 16 for address in addresses}) > 1:
        raise Unsupported("the ranks' ranges start at unlike alignments; these kernels cut all of them in one way")
    return addresses
