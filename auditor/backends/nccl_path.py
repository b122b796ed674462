"""What NCCL really ran, read from its own debug output of this process.

NCCL writes a line for every call, from rank 0 of the communicator alone (its source: ``if (comm->rank == 0) INFO(NCCL_TUNING``):

    AllReduce: 2042 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
    AllReduce [Symmetric]: 2042 Bytes -> Kernel AllReduce_AGxLL_R nchannels 2 nthreads 512 nWorks 1

which become ``RING/LL/1`` and ``SYMK/AllReduce_AGxLL_R/2``: algorithm, protocol, channels. A process that holds no rank 0, and a
communicator of one rank, print nothing; their path is ``unreported``. Releases before 2.23 print numbers for the names.

NCCL reads the variables once a process. They are set only where they are not set: a user's own NCCL_DEBUG_FILE is read instead,
and a user's NCCL_DEBUG=WARN means that there is no path to read.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

UNREPORTED = "unreported"
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
SUBSYSTEMS = "TUNING,REG"
ALGORITHM = re.compile(r"Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?")
SYMMETRIC = re.compile(r"\[Symmetric\]: \d+ Bytes -> Kernel (\w+)(?: nchannels (\d+))?")
COPY_ENGINE = re.compile(r"\[(?:Hierarchical )?(?:Copy Engine|CE)\]: \d+ Bytes ->")
WARNING = re.compile(r"NCCL WARN (.*)")


def taken(text: str) -> str:
    """The path that the lines of one call tell; several different ones joined by ``+``; "" where no line tells one."""
    found = [path for line in text.splitlines() if (path := _path_of(line))]
    return "+".join(dict.fromkeys(found))


def _path_of(line: str) -> str:
    if symmetric := SYMMETRIC.search(line):
        kernel, channels = symmetric.groups()
        return "/".join(part for part in ("SYMK", kernel, channels) if part)
    if algorithm := ALGORITHM.search(line):
        name, protocol, low, high = algorithm.groups()
        channels = "" if low is None else str(int(high) - int(low) + 1)
        return "/".join(part for part in (_name(name, ALGORITHMS), _name(protocol, PROTOCOLS), channels) if part)
    return "CE" if COPY_ENGINE.search(line) else ""


def _name(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text.upper()


def warnings(text: str) -> str:
    """NCCL's own words of what went wrong, in order, without repetition; "" where it gave none."""
    return "; ".join(dict.fromkeys(found.group(1).strip() for found in WARNING.finditer(text)))


@dataclass(slots=True)
class Trace:
    """The debug output of this process. ``silent``: why no path can be read from it; "" where one can."""

    file: Path
    ours: bool
    silent: str = ""
    _fd: int = -1

    def open(self) -> None:
        """Begin to read, once NCCL has made the file (it does when the first communicator is made). A file of ours has no name
        from then on, so that nothing is left behind even by a crash."""
        if self._fd >= 0 or self.silent:
            return
        try:
            self._fd = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.silent = f"NCCL's debug file cannot be read: {error.strerror}"
            return
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.silent = f"NCCL_DEBUG_FILE = {self.file} is no regular file"
        elif self.ours:
            self.file.unlink()
            self.file.parent.rmdir()

    def mark(self) -> int:
        """Where the output ends now."""
        return os.fstat(self._fd).st_size if self._fd >= 0 and not self.silent else 0

    def since(self, mark: int) -> str:
        """What NCCL wrote after ``mark``."""
        if self._fd < 0 or self.silent:
            return ""
        return os.pread(self._fd, max(self.mark() - mark, 0), mark).decode(errors="replace")


def why_silent(environ: MutableMapping[str, str]) -> str:
    """Why the user's own variables keep a path from being read; "" where they do not. Changes nothing."""
    level = environ.get("NCCL_DEBUG", "INFO").upper()
    if level not in ("INFO", "TRACE"):
        return f"NCCL_DEBUG={level} keeps NCCL from saying what it runs; unset it or set INFO"
    names = [name.strip().upper() for name in environ.get("NCCL_DEBUG_SUBSYS", "TUNING").split(",")]
    excluding = names[0].startswith("^")
    named = "TUNING" in [name.lstrip("^") for name in names]
    if excluding == named and "ALL" not in names:
        return f"NCCL_DEBUG_SUBSYS={environ['NCCL_DEBUG_SUBSYS']} leaves TUNING out, which says what ran"
    return ""


def prepare(environ: MutableMapping[str, str]) -> Trace:
    """Set NCCL's debug variables where they are not set; to be called before NCCL first writes."""
    silent = why_silent(environ)
    asked = (
        "NCCL_DEBUG" in environ
    )  # the user wants the output: it is kept, with the subsystems that NCCL shows by default
    if not silent:
        environ.setdefault("NCCL_DEBUG", "INFO")
        environ.setdefault("NCCL_DEBUG_SUBSYS", f"INIT,BOOTSTRAP,ENV,{SUBSYSTEMS}" if asked else SUBSYSTEMS)
    if "NCCL_DEBUG_FILE" in environ:
        return Trace(_expanded(environ["NCCL_DEBUG_FILE"]), False, silent)
    if silent:
        return Trace(Path(os.devnull), False, silent)
    directory = Path(tempfile.mkdtemp(prefix="auditor-nccl-"))
    environ["NCCL_DEBUG_FILE"] = str(directory / "nccl.%p")
    return Trace(directory / f"nccl.{os.getpid()}", not asked)


def _expanded(pattern: str) -> Path:
    """As NCCL does it: %p is the process, %h the host's name without its domain."""
    return Path(pattern.replace("%p", str(os.getpid())).replace("%h", socket.gethostname().partition(".")[0]))


_of_this_process: dict[int, Trace] = {}


def trace() -> Trace:
    """The one Trace of this process; NCCL keeps its debug file open until the process ends."""
    if os.getpid() not in _of_this_process:
        _of_this_process[os.getpid()] = prepare(os.environ)
    return _of_this_process[os.getpid()]
