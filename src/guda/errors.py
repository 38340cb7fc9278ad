"""The one exception a user can cause: a single line that says what is wrong, where, and how to fix it."""


class GudaError(Exception):
    """Shown as one line; the command line exits with code 2."""


class NotFinite(GudaError):
    """NaN or infinity where numbers should be: too large a learning rate, say. A trial of many may end so."""


class OneProcess(GudaError):
    """Met by one of several processes that run the same command; the others cannot tell it."""


class Mismatch(GudaError):
    """Something on disk was made from other inputs than those given now; shows both values."""

    def __init__(self, what: str, found: object, given: object, fix: str) -> None:
        super().__init__(f"{what}: found {found!r}, given {given!r}; {fix}")

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return GudaError, (str(self),)  # what reaches another process is the line, not its parts
