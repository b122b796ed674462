"""What must not leave the building: secrets, user names and home directories; on request, host names and addresses.

Texts are rewritten value by value, never structure: a field that the formats fix (a collective, a trial's id, the name of an arm)
keeps its meaning, and what is left of a forbidden word after that is an error, not a leak.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auditor.config.records import KINDS, PROBE_KINDS
from auditor.environment.variables import SECRET, private
from auditor.errors import EvidenceError
from auditor.inputs import FAMILIES
from auditor.model import COLLECTIVES, OPS
from auditor.numerics.formats import FORMATS

SHORTEST = 3  # names and secrets below this length would be found in every other word
COMMON = frozenset(
    ("root", "user", "nobody", "ubuntu", "admin", "runner", "localhost", "none")
)  # say nothing of anybody
# Words that a record is made of; somebody who is called so cannot be told from them.
VOCABULARY = frozenset((*COLLECTIVES, *OPS, *FORMATS, *FAMILIES, *PROBE_KINDS, *KINDS))
MACHINE_IDS = frozenset(("uuid", "serial"))  # of a GPU
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
REMOVED = "[removed]"


@dataclass(slots=True)
class Privacy:
    """``text`` and ``json`` rewrite; ``leaks`` says what of the forbidden words is still in a text.

    ``secrets``: values. ``users``: login names. ``homes``: directories. ``hosts``: names, empty where they may stay.
    """

    secrets: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    anonymize: bool = False
    kept: frozenset[str] = frozenset()  # words with a meaning of their own, such as the names of arms
    _addresses: dict[str, str] = field(default_factory=dict)
    _ids: dict[str, dict[str, str]] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """A text without what must not leave."""
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        for home in self.homes:
            text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
        text = private(text)
        for user in self.users:
            text = _whole_word(user).sub("USER", text)
        if self.anonymize:
            for number, host in enumerate(self.hosts, 1):
                text = _whole_word(host).sub(f"host{number}", text)
            text = ADDRESS.sub(self._address, text)
        return text

    def _address(self, found: re.Match[str]) -> str:
        octets = found.group().split(".")
        if any(int(octet) > 255 for octet in octets) or found.group().startswith("127."):
            return found.group()
        return self._addresses.setdefault(found.group(), f"address{len(self._addresses) + 1}")

    def json(self, value: Any) -> Any:
        """The same structure with every text value rewritten, and without the entries whose names speak of a secret."""
        if isinstance(value, str):
            return value if value in self.kept else self.text(value)
        if isinstance(value, Mapping):
            kept = {str(key): item for key, item in value.items() if not SECRET.search(str(key))}
            return {key: self._id(key, item) if key in MACHINE_IDS else self.json(item) for key, item in kept.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value

    def _id(self, name: str, value: Any) -> Any:
        """A machine's own number, which names its owner to whoever sold it."""
        if not self.anonymize or not isinstance(value, str):
            return self.json(value)
        known = self._ids.setdefault(name, {})
        return known.setdefault(value, f"{name}{len(known) + 1}")

    def leaks(self, text: str) -> list[str]:
        """What is forbidden and still there; secrets are not repeated in the words."""
        found = ["a secret's value" for secret in self.secrets if secret in text]
        found += [f"the home directory {home}" for home in self.homes if home in text]
        found += [f"the user name {user}" for user in self.users if _whole_word(user).search(text)]
        hosts = self.hosts if self.anonymize else ()
        return found + [f"the host name {host}" for host in hosts if _whole_word(host).search(text)]

    def check(self, name: str, text: str) -> None:
        """Raises EvidenceError where a file that is to leave still has a forbidden word."""
        found = self.leaks(text)
        if found:
            raise EvidenceError(
                f"{name} would give away {', '.join(dict.fromkeys(found))}; nothing was written: rename what carries that name"
            )


def _whole_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9_.-]){re.escape(word)}(?![A-Za-z0-9_-])")


def gathered(
    environments: Iterable[Mapping[str, Any]],
    describes: Iterable[Mapping[str, Any]],
    arm_names: Iterable[str],
    *,
    anonymize: bool,
    environ: Mapping[str, str] | None = None,
) -> Privacy:
    """What is known of secrets, users and hosts: from this process's surroundings and from the record itself."""
    here = os.environ if environ is None else environ
    secrets = [value for name, value in here.items() if SECRET.search(name) and len(value) >= 2 * SHORTEST]
    users = {here.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")} | _account(here)
    homes = {here.get("HOME", ""), str(Path.home())} - {"", "/", "/root"}
    users |= {Path(home).name for home in homes}
    hosts: dict[str, None] = {}
    for environment in environments:
        hosts |= dict.fromkeys(_hosts_of(environment))
    for describe in describes:
        hosts |= dict.fromkeys(str(describe.get("hosts", "")).split())
    arms = list(arm_names)
    return Privacy(
        secrets=tuple(sorted(set(secrets), key=len, reverse=True)),
        users=_by_length(sorted(name for name in users if len(name) >= SHORTEST and name not in COMMON | VOCABULARY)),
        homes=tuple(sorted(homes, key=len, reverse=True)),
        hosts=_by_length(name for name in hosts if len(name) >= 2 and name not in COMMON),
        anonymize=anonymize,
        kept=frozenset(arms),
    )


def _account(environ: Mapping[str, str]) -> set[str]:
    """The login name by the system's own list, where there is one."""
    if environ is not os.environ or not hasattr(os, "getuid"):
        return set()
    try:
        import pwd

        return {pwd.getpwuid(os.getuid()).pw_name}
    except (ImportError, KeyError):
        return set()


def _hosts_of(environment: Mapping[str, Any]) -> list[str]:
    """The host that a process noted, and the nodes that a batch system's variables list."""
    found = [str(environment.get("system", {}).get("host", ""))]
    for name, value in environment.get("variables", {}).items():
        if name.endswith(("NODELIST", "HOSTS", "HOSTNAME", "NODENAME")):
            found += [str(value), *re.split(r"[,\s]+", str(value))]
    short = [name.partition(".")[0] for name in found]
    return [name for name in dict.fromkeys([*found, *short]) if name]


def _by_length(names: Iterable[str]) -> tuple[str, ...]:
    """The longest first, so that node1.cluster goes before node1; equal lengths as they were met."""
    return tuple(sorted(names, key=len, reverse=True))
