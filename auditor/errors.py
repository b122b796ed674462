"""Errors that a person may see. Each message says what happened, where, and what to do, in one line."""

from __future__ import annotations


class AuditError(Exception):
    """Base of every error that the auditor raises on purpose."""

    exit_code = 3


class ConfigError(AuditError):
    """The config, the command line or the launcher is wrong; nothing was measured."""

    exit_code = 2


class Unavailable(AuditError):
    """A backend cannot run here: its library, device or permission is missing."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[Unavailable], tuple[str, str]]:
        return type(self), (self.reason, self.remedy)


class Unsupported(AuditError):
    """The subject refuses a call that it does not offer; a result, not a failure."""


class BackendError(AuditError):
    """The subject returned an error status on a call that its capabilities allow."""


class EvidenceError(AuditError):
    """A recorded file is missing, torn, foreign or contradicts its digests."""
