"""What every test leaves as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Half of hypothesis's own number: every run draws others, and a run of all tests has to stay under ten minutes on two cores. No
# deadline, since a loaded machine is no failure.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """A backend sets its library's variables for the whole process; the next test of this process must not see them."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)
