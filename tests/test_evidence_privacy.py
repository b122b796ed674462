"""What must not leave: found in every kind of text, replaced by value, and refused where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from auditor.errors import EvidenceError
from auditor.evidence.privacy import REMOVED, Privacy, gathered

ENVIRON = {
    "HOME": "/data/people/alice",
    "USER": "alice",
    "LOGNAME": "alice.b",
    "API_TOKEN": "tok-123456789",
    "SHORT_KEY": "abc",
    "PATH": "/usr/bin",
}
ENVIRONMENT = {
    "system": {"host": "gpu07.cluster.example"},
    "variables": {"SLURM_NODELIST": "gpu07,gpu08", "NCCL_ALGO": "Ring"},
}


def guard(*, anonymize: bool = False, environ: dict[str, str] | None = None, **more: Any) -> Privacy:
    return gathered(
        [ENVIRONMENT], [{"hosts": "gpu07 gpu08"}], ["nvls"], anonymize=anonymize, environ=environ or ENVIRON, **more
    )


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/data/people/alice/lib/libmpi.so", "~/lib/libmpi.so"),
        ("/data/people/alicent/x", "/data/people/alicent/x"),
        ("of alice, not of malice or alice-in", "of USER, not of malice or alice-in"),
        ("alice.b was here", "USER was here"),
        ("key tok-123456789.", f"key {REMOVED}."),
        ("/home/bob/x and https://u:pw@host/x", "/home/USER/x and https://host/x"),
        ("password=hunter2, then", "password=..., then"),
    ],
)
def test_texts(text: str, clean: str) -> None:
    assert guard().text(text) == clean


def test_hosts_stay_unless_asked() -> None:
    text = "gpu07.cluster.example and gpu08 at 10.0.0.7 (10.0.0.7), not 127.0.0.1 or 1.2.3.999; gpu070"
    assert guard().text(text) == text
    hidden = guard(anonymize=True).text(text)
    assert "gpu07." not in hidden
    assert "gpu08" not in hidden
    assert "gpu070" in hidden
    assert hidden.count("address1") == 2
    assert "127.0.0.1" in hidden
    assert "1.2.3.999" in hidden
    assert not guard(anonymize=True).leaks(hidden)


def test_a_gpus_own_id_goes_with_the_hosts() -> None:
    facts = {"gpus": [{"uuid": "GPU-1234", "serial": "77", "name": "H200"}, {"uuid": "GPU-5678", "serial": None}]}
    assert guard().json(facts) == facts
    assert guard(anonymize=True).json(facts) == {
        "gpus": [{"uuid": "uuid1", "serial": "serial1", "name": "H200"}, {"uuid": "uuid2", "serial": None}]
    }


def test_structure_stays_and_entries_that_speak_of_secrets_go() -> None:
    raw = {"a": ["alice", 1, None, 2.5], "MY_SECRET": "x", "arm": "nvls", "deep": {"auth": 1, "b": True}}
    assert guard().json(raw) == {"a": ["USER", 1, None, 2.5], "arm": "nvls", "deep": {"b": True}}


def test_common_words_and_short_names_are_nobodys() -> None:
    for name in ("root", "al", "sum", "bfloat16", "tail"):
        some = guard(environ={"HOME": "/", "USER": name})
        assert some.users == ()
        assert some.text(f"{name} of rank 0") == f"{name} of rank 0"


def test_what_is_left_is_refused_without_being_repeated() -> None:
    some = guard(anonymize=True)
    some.check("x", "nothing here")
    with pytest.raises(EvidenceError, match="would give away a secret's value") as secret:
        some.check("plan.json", "tok-123456789")
    assert "tok-" not in str(secret.value)
    with pytest.raises(EvidenceError, match=r"plan\.json would give away the user name alice, the host name gpu08"):
        some.check("plan.json", "alice on gpu08")
