"""How a trial's call is issued: once or several times, plain, registered, as a replayed graph, after communicators changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from auditor.errors import Unsupported
from auditor.model import Trial, Window


class Variant:
    """How one trial's call is issued: plain, several times, registered, as a replayed graph, or after the communicators
    changed.
    """

    def __init__(self, backend: Any, features: frozenset[str], trial: Trial) -> None:
        self.backend, self.trial = backend, trial
        self.timing, self.own = "timing" in features, 0.0
        self.name, _, argument = trial.variant.partition(":")
        self.k = int(argument or 0)
        self.replay: Callable[[], None] | None = None
        needs = {"history": "history", "recreate": "recreate", "registered": "registration"}
        needs |= {"graph": "graph", "queued": "queue"}
        if self.name in needs and needs[self.name] not in features:
            raise Unsupported(f"variant {trial.variant} needs the feature {needs[self.name]!r}")
        if self.name == "history":
            backend.perturb(self.k)

    def __call__(self, repeat: int, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        if self.name == "recreate" and 0 < repeat <= self.k:
            self.backend.recreate()
        if self.name == "registered" and repeat == 0:
            for window in (*send.values(), *recv.values()):
                self.backend.register(window)
        if self.name == "graph":
            if self.replay is None:
                self.replay = self.backend.capture(self.trial.call, send, recv)
            self.replay()
        elif self.name == "queued":
            for _ in range(self.k):
                self.backend.enqueue(self.trial.call, send, recv)
            self.backend.wait()
        elif self.name == "burst":
            self._burst(send, recv)
        else:
            self.backend.run(self.trial.call, send, recv)

    def _burst(self, send: Mapping[int, Window], recv: Mapping[int, Window]) -> None:
        self.own = 0.0
        for _ in range(self.k):
            self.backend.run(self.trial.call, send, recv)
            self.own += float(self.backend.last_seconds()) if self.timing else 0.0

    def subject_seconds(self) -> float | None:
        """By the subject's own clock: of all calls of a burst, else of the last one; None where it has none."""
        if not self.timing:
            return None
        return self.own if self.name == "burst" else float(self.backend.last_seconds())

    def done(self) -> None:
        """Undo what this trial changed, so that the next one's calls are plain. Without ``deregister`` ranges stay registered."""
        if self.name == "history":
            self.backend.perturb(0)
        elif self.name == "registered" and hasattr(self.backend, "deregister"):
            self.backend.deregister()
