"""Cases played on an arm's real backend: processes started for it, kept while they live, ended when one dies or hangs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from auditor.config import ArmSpec, Config, Sweep
from auditor.errors import AuditError, Unavailable
from auditor.evidence.cases import Case, Outcome, Place, Seen, seen_from_json
from auditor.evidence.perform import END, SETUP, outcome_of, publish
from auditor.evidence.shrink import GiveUp
from auditor.launch import HANG_AFTER_PRACTICE, SLOWEST_LINK, STUCK_AFTER_ERROR
from auditor.model import Capabilities
from auditor.pipeline import Offer, probe_arms
from auditor.plan import ArmPlan
from auditor.processes import KILL_GRACE, Ending, arm_environment, mpiexec
from auditor.socket_control import star
from auditor.worker import die_with_parent

POLL = 0.002
START_LIMIT = 120.0  # seconds for imports, devices and communicators


def offered(arm: ArmPlan) -> Offer:
    """What the arm's backend offers here and now, and how it is started. Raises Unavailable, or what the probe raises."""
    spec = ArmSpec(
        name=arm.name, backend=arm.backend, ranks=arm.rank_n, options=arm.options, env=arm.env, path=arm.path
    )
    offer = probe_arms(Config(title="", arms=(spec,), sweep=Sweep()))[arm.name]
    if isinstance(offer.offered, Unavailable):
        raise offer.offered
    return offer


class Live:
    """Called with a case, gives its outcome; a crash or a hang is an outcome too. Use as a context manager.

    Raises GiveUp once hangs have used up ``hang_budget`` seconds, ``seconds`` are over, or the processes do not start.
    """

    def __init__(
        self,
        arm: ArmPlan,
        offer: Offer,
        scratch: Path,
        *,
        hang_budget: float,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arm, self._offer, self._scratch = arm, offer, scratch
        self._budget, self._clock = hang_budget, clock
        self._until = clock() + seconds
        self._seconds, self._hung, self._starts = seconds, 0.0, 0
        self._troupe: _Troupe | None = None

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __call__(self, case: Case) -> Outcome:
        if self._clock() > self._until:
            raise GiveUp(f"the {self._seconds:g} s for it were over (--shrink-time)")
        if self._hung >= self._budget:
            raise GiveUp(f"hangs had used up their {self._budget:g} s (--hang-budget)")
        troupe = self._ready_for(case)
        moved = sum(step.data.nbytes for step in case.steps) * case.repeats
        allowance = min(HANG_AFTER_PRACTICE + moved / SLOWEST_LINK, max(self._budget - self._hung, 0.5))
        began = self._clock()
        outcome = troupe.play(case, allowance)
        if outcome.ended == "hang":
            self._hung += self._clock() - began
        if outcome.ended not in ("", "unsupported"):
            self.end()
        return outcome

    def encore(self) -> None:
        """The next case gets fresh processes, and the time for the search no longer counts."""
        self._until = math.inf
        self.end()

    def end(self) -> None:
        """The next case gets fresh processes."""
        if self._troupe is not None:
            self._troupe.end()
            self._troupe = None

    def _ready_for(self, case: Case) -> _Troupe:
        known = self._troupe
        if known is not None and (known.rank_n != case.rank_n or known.nbytes < case.nbytes):
            self.end()
        if self._troupe is None:
            directory = self._scratch / f"start{self._starts}"
            self._starts += 1
            self._troupe = _Troupe(self._arm, self._offer, directory, case.rank_n, case.nbytes)
        return self._troupe


class _Troupe:
    """The processes of one start: one that drives every rank, or one a rank, under mpiexec or with sockets between them."""

    def __init__(self, arm: ArmPlan, offer: Offer, directory: Path, rank_n: int, nbytes: int) -> None:
        self.rank_n, self.nbytes = rank_n, nbytes
        self._directory, self._number = directory, 0
        self._drivers = range(rank_n) if offer.process_model == "one" else range(1)
        features = offer.offered.features if isinstance(offer.offered, Capabilities) else frozenset()
        directory.mkdir(parents=True)
        setup = {"backend": arm.backend, "options": dict(arm.options), "nbytes": nbytes, "features": sorted(features)}
        publish(directory / SETUP, json.dumps(setup))
        log = directory / "output.log"
        with log.open("wb") as stream:
            self._processes = self._started(arm, offer, stream)
        self._ending = Ending((), log)
        try:
            self._await_start()
        except BaseException:
            self.end()
            raise

    def _started(self, arm: ArmPlan, offer: Offer, log: Any) -> list[subprocess.Popen[bytes]]:
        player = [sys.executable, "-m", "auditor.worker", "case", str(self._directory)]
        n = str(self.rank_n)
        if offer.process_model != "one":
            return [_begin([*player, n], arm, log)]
        if offer.needs_mpi:  # the launcher, when it is asked to end, takes its ranks with it
            return [_begin([*mpiexec(arm.env), "-n", n, *player], arm, log, by=signal.SIGTERM)]
        ends, every = star(self.rank_n)
        numbers = [[end.fileno() for end in mine] for mine in ends]
        started = [_begin([*player, n, str(rank), *map(str, fds)], arm, log, fds) for rank, fds in enumerate(numbers)]
        for end in every:
            end.close()
        return started

    def _gone(self) -> bool:
        """Whether a process has ended: none does before it is told to."""
        return any(process.poll() is not None for process in self._processes)

    def _await_start(self) -> None:
        until = time.monotonic() + START_LIMIT
        while not all((self._directory / f"ready.{rank}").exists() for rank in self._drivers):
            if self._gone():
                raise GiveUp(f"the backend does not start with {self.rank_n} ranks: {self._ending.last_words(1)}")
            if time.monotonic() > until:
                raise GiveUp(f"the backend did not start with {self.rank_n} ranks within {START_LIMIT:g} s")
            time.sleep(POLL)

    def play(self, case: Case, allowance: float) -> Outcome:
        number, self._number = self._number, self._number + 1
        publish(self._directory / f"case.{number}.json", json.dumps(case.to_json()))
        paths = {rank: self._directory / f"seen.{number}.{rank}.json" for rank in self._drivers}
        rows: dict[int, dict[Place, Seen]] = {}
        until = time.monotonic() + allowance
        while len(rows) < len(paths):
            gone = self._gone()  # asked before looking: what it left last is then seen
            for rank, path in paths.items():
                if rank not in rows and path.exists():
                    rows[rank] = _read(path, case)
                    if any(seen.status != "ok" for seen in rows[rank].values()):
                        until = min(until, time.monotonic() + STUCK_AFTER_ERROR)
            if len(rows) < len(paths) and (gone or time.monotonic() > until):
                return self._broken_off(rows, "crash" if gone else "hang", allowance)
            time.sleep(POLL)
        return outcome_of(case, {place: seen for some in rows.values() for place, seen in some.items()})

    def _broken_off(self, rows: Mapping[int, dict[Place, Seen]], how: str, allowance: float) -> Outcome:
        seen = {place: one for some in rows.values() for place, one in some.items()}
        bad = next((one for one in seen.values() if one.status != "ok"), None)
        if bad is not None:  # its peers wait for a rank that raised
            return Outcome(seen=seen, ended=bad.status, words=bad.message)
        said = self._ending.last_words(1)
        words = f"no return within {allowance:.1f} s" if how == "hang" else f"a process ended during the call: {said}"
        return Outcome(seen=seen, ended=how, words=words)

    def end(self) -> None:
        """Politely, then by force: the whole group; ranks die with their parents."""
        publish(self._directory / END, "")
        for process in self._processes:
            _end(process)


def _begin(
    command: list[str], arm: ArmPlan, log: Any, fds: Sequence[int] = (), by: signal.Signals = signal.SIGKILL
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=arm_environment(arm.env),
        pass_fds=fds,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(by),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(KILL_GRACE / 4)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(KILL_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read(path: Path, case: Case) -> dict[Place, Seen]:
    try:
        rows = json.loads(path.read_text())
        return {(r, s, k): seen_from_json(raw, case.fmt) for r, s, k, raw in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(f"{path}: is no record of a case ({error})") from error
