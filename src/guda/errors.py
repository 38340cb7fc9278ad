"""The one exception a user can cause: a single line that says what is wrong, where, and how to fix it.

Every error has a code as well (`run-missing`, `group-unknown`): the words of a message may be improved at any time,
the code of a cause stays. Programs and tests match codes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

PREFIX = "guda: "  # of the line on stderr

_LINE = re.compile(rf"{PREFIX}(?P<message>.*) \[(?P<code>[a-z0-9]+(-[a-z0-9]+)+)\]")


class GudaError(Exception):
    """Shown as one line; the command line exits with code 2."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, str(self))

    @property
    def line(self) -> str:
        """What the command line prints."""
        return f"{PREFIX}{' '.join(str(self).split())} [{self.code}]"


def from_line(line: str) -> GudaError | None:
    """The error that another process printed as `line`, if it is one."""
    found = _LINE.fullmatch(line.rstrip())
    return GudaError(found["code"], found["message"]) if found else None


class NotFinite(GudaError):
    """NaN or infinity where numbers should be: too large a learning rate, say. A trial of many may end so."""


class OneProcess(GudaError):
    """Met by one of several processes that run the same command; the others cannot tell it."""


class Mismatch(GudaError):
    """Something on disk was made from other inputs than those given now; shows both values."""

    def __init__(self, code: str, what: str, found: object, given: object, fix: str) -> None:
        super().__init__(code, f"{what}: found {found!r}, given {given!r}; {fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        return GudaError, (self.code, str(self))  # what reaches another process is the line, not its parts


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key, sub in value.items() for k, v in _flat(sub, f"{prefix}{key}.").items()}
    return {prefix[:-1]: value}


def refuse_difference(code: str, where: str, found: dict[str, Any], given: dict[str, Any], fix: str) -> None:
    """Raise for the first field on which two nested values differ."""
    one, two = _flat(found), _flat(given)
    for key in sorted(one.keys() | two.keys()):
        if one.get(key) != two.get(key):
            raise Mismatch(code, f"{where}: {key} differs", one.get(key), two.get(key), fix)


def first_line(error: BaseException) -> str:
    """What a library said, short enough for a line of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def choices(names: Iterable[str], limit: int = 20) -> str:
    """The known names, for an error message; a long list is cut, saying so."""
    names = list(names)
    more = f", ... and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def suggestion(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" or nothing: what an error message about an unknown name says first."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
