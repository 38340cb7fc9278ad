"""Job: one picture being scored by the service; any number of pages can watch it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from guda.errors import GudaError
from guda.web.snapshot import Snapshot


class Job:
    """One picture being scored; snapshots are only ever appended, so any number of pages can read them."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.error: GudaError | None = None
        self.started = False
        self._news = threading.Condition()
        self.done = False

    def tell(self, snapshot: Snapshot) -> None:
        with self._news:
            self.snapshots.append(snapshot)
            self._news.notify_all()

    def end(self, error: GudaError | None) -> None:
        with self._news:
            self.error, self.done = error, True
            self._news.notify_all()

    def watch(self) -> Iterator[Snapshot]:
        """Every snapshot, waiting for the next one; raises the job's error if it failed."""
        seen = 0
        while True:
            with self._news:
                self._news.wait_for(lambda: self.done or len(self.snapshots) > seen)  # noqa: B023 - waited for here
                found, ended = self.snapshots[seen:], self.done
            yield from found
            seen += len(found)
            if ended and seen == len(self.snapshots):
                if self.error is not None:
                    raise self.error
                return
