"""The only loop that calls a backend: fill, call, look, record; per trial, per repeat, per local rank.

What is checked on every repeat, byte for byte: the send arena (fills and payload) before and after the call, and the guards
of the receive range; the whole of both arenas after a trial where that costs no more than the trial itself.
"""

from auditor.harness.loop import Harness, Job, Progress, Recorder

__all__ = ["Harness", "Job", "Progress", "Recorder"]
