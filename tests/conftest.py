"""What every test leaves as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """A backend sets its library's variables for the whole process; the next test of this process must not see them."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)
