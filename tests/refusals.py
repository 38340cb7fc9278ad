"""A refusal as a user meets it: one line, found by its stable code; the words may change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from guda.errors import GudaError


@contextmanager
def refused(code: str, match: str = "", kind: type[GudaError] = GudaError) -> Iterator[pytest.ExceptionInfo[GudaError]]:
    """`match`: data that the line must show (a name, a number, both values), not its prose."""
    with pytest.raises(kind) as error:
        yield error
    assert error.value.code == code, error.value.line
    assert "\n" not in str(error.value)
    assert re.search(match, str(error.value)), str(error.value)
