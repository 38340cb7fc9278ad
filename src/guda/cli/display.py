"""Terminal output: progress display, plans, and the health of a method."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from guda.engine.loop import Watcher

if TYPE_CHECKING:
    from guda.methods.health import Health

LINE_EVERY = 10.0  # seconds between plain lines

NAME = 16  # characters of a group's name


class Display:
    """Makes watchers for the engine; writes to stderr, so that --json keeps stdout clean."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)
        self.quiet = quiet
        self._open = ExitStack()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def watch(self, title: str) -> Watcher:
        if self.quiet:
            return lambda done, total, fraction, running: None
        return self._bar(title) if self.console.is_terminal else self._lines(title)

    @contextmanager
    def count(self, title: str, least: int = 200) -> Iterator[Callable[[int, int], None]]:
        """Progress of what is counted one by one in this process; fewer than `least` are not worth a line."""
        watch: Watcher | None = None

        def told(done: int, total: int) -> None:
            nonlocal watch
            if total >= least:
                watch = watch or self.watch(title)
                watch(done, total, done / total, [])

        with self:
            yield told

    def _bar(self, title: str) -> Watcher:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns: tuple[Any, ...] = (
            TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("left"), Remaining(), TextColumn("[dim]{task.fields[detail]}"),
        )  # fmt: skip
        self._open.close()
        progress = self._open.enter_context(Progress(*columns, console=self.console))
        bar = progress.add_task(title, total=1.0, detail="")

        def watch(done: int, total: int, fraction: float, running: list[str]) -> None:
            detail = f"{done}/{total} tasks" + (f" · {running[0]}" if running else "")
            progress.update(bar, completed=fraction, detail=detail)

        return watch

    def _lines(self, title: str) -> Watcher:
        started = last = time.monotonic()
        print(f"{title} ...", file=sys.stderr, flush=True)

        def watch(done: int, total: int, fraction: float, running: list[str]) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < LINE_EVERY and done < total:
                return
            last = now
            left = (now - started) * (1 - fraction) / fraction if fraction > 0.01 else None
            estimate = "" if left is None else f", about {left:.0f} s left"
            print(f"{title}: {done}/{total} tasks, {fraction:.0%}{estimate}", file=sys.stderr, flush=True)

        return watch


def plan_text(value: dict[str, Any]) -> str:
    """`guda plan` for people."""
    from guda.table import Table, count, human_count, human_time, seconds, size

    each = human_time(value["seconds_per_evaluation"] * 1000)
    rows = [r for r in value["rows"] if r["evals"] or r["disk"]]
    done = [r["what"] for r in value["rows"] if r not in rows]
    left = Table.of(
        "", ("left to do", "evaluations", "time", "disk"),
        [(r["what"], count(r["evals"]), seconds(r["seconds"]), size(r["disk"])) for r in rows],
    )  # fmt: skip
    lines = [
        f"{value['run']}: {value['groups']} groups, {human_count(value['parameters'])} parameters",
        f"{each} per 1,000 evaluations ({value['settings']}), {value['workers']} workers",
        left.plain() if rows else "  nothing is left to do",
    ]
    if done:
        lines += textwrap.wrap(f"done or free: {'; '.join(done)}", 80, initial_indent="  ", subsequent_indent="    ")
    if value["alternatives"]:
        table = [
            (r["method"], str(r["rounds"]), count(r["evals_per_query"]), seconds(r["seconds_per_query"]),
             "unknown" if r["half_width"] is None else f"± {r['half_width']:.2g} nats")
            for r in value["alternatives"]
        ]  # fmt: skip
        columns = ("method", "rounds", "evaluations", "time", "half-width")
        lines += ["  precision against budget (per query)", Table.of("", columns, table).plain("    ")]
    return "\n".join([*lines, value["note"]])


def outline_text(value: dict[str, Any]) -> str:
    """`guda plan RECIPE` for people."""
    from guda.table import MISSING, Table, count, human_bytes, human_count, size

    queries, draws = (MISSING if n is None else n for n in (value["queries"], value["evals_per_model_and_query"]))
    rows = [(r["what"], count(r["evals"]), size(r["disk"])) for r in value["rows"]]
    lines = [
        f"{value['recipe']}: {value['groups']} of {value['of']} groups, {human_count(value['parameters'])} parameters, "
        f"{queries} queries, {draws} evaluations per model and query",
        Table.of("", ("to do", "evaluations", "disk"), rows).plain(),
    ]
    if value["bank"]:
        lines.append(f"  a bank of {value['groups']} counterfactuals takes")
    lines += [f"    {store:<14}{human_bytes(n):>12}" for store, n in value["bank"].items()]
    return "\n".join([*lines, value["note"]])


def memory_text(value: dict[str, Any]) -> str:
    """`guda plan --memory` for people."""
    from guda.table import Table, human_count

    columns = ("work", "weights", "optimiser", "step", "peak", *(f"{n} GB" for n in value["cards"]))
    rows = [
        (r["what"], *(f"{r[key] / 1e9:.1f} GB" for key in ("weights", "moments", "step", "peak")),
         *("fits" if n in r["fits"] else "-" for n in value["cards"]))
        for r in value["rows"]
    ]  # fmt: skip
    head = f"{value['model']}: {human_count(value['parameters'])} parameters, pictures of {value['pixels']} pixels"
    return "\n".join([head, Table.of("", columns, rows).plain(), value["note"]])


def cluster_text(value: dict[str, Any]) -> str:
    """`guda plan --cluster` for people."""
    from guda.table import Column, Table, count, number, seconds, size

    parts = [
        (p["what"], str(p["tasks"]), count(p["evals"]), number(p["seconds"] / 3600), size(p["disk"]))
        for p in value["parts"]
    ]
    schedules = [
        (str(s["workers"]), seconds(s["makespan"]), f"{s['utilisation']:.0%}", number(s["paid_hours"]),
         "" if s["cost"] is None else f"{s['cost']:,.2f}", f"{s['bottleneck']}: {s['advice']}")
        for s in value["schedules"]
    ]  # fmt: skip
    columns = (Column("workers", align="right"), "time", "busy", "billed hours", "cost",
               Column("bottleneck", align="left"))  # fmt: skip
    unrecorded = [kind for kind, recorded in value["recorded"].items() if not recorded]
    note = f"not recorded by this run: {', '.join(unrecorded)}" if unrecorded else "as this run recorded them"
    lines = [
        f"{value['run']}: {', '.join(value['methods'])} from scratch, {value['groups']} groups, "
        f"{value['queries']} queries",
        Table.of("", ("to do", "tasks", "evaluations", "worker-hours", "disk"), parts).plain(),
        Table.of("", columns, schedules).plain(),
        f"Seconds per evaluation {note}; overhead, start, submit, failures are assumptions (--set).",
    ]
    return "\n".join(lines)


VERDICT = len("forgets nothing") + 2


def health_tables(found: Health, width: int) -> Iterator[Any]:
    """Renderables for rich: the whole matrix if it fits the width, otherwise each row's largest leak."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    from guda.table import decimals, measured, plus_minus, signed

    matrix = np.array(found.matrix)
    names = [name if len(name) <= NAME else name[: NAME - 1] + "…" for name in found.groups]
    beside = np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)  # the leakage
    digits = min(decimals(beside), 2)
    cells = [[signed(v, digits) for v in row] for row in matrix]
    drift = [" ".join(measured(d.mean, d.lo, d.hi, digits)) for d in found.drift]
    errors = [plus_minus(d.mean, d.stderr, digits) for d in found.drift]
    columns = [max(len(names[j]), *(len(row[j]) for row in cells)) for j in range(len(names))]
    room = sum(c + 2 for c in columns) + max(len("without"), *map(len, names)) + max(map(len, errors)) + 4
    whole = room + VERDICT <= width
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("without", no_wrap=True)
    for title in ["drift", *names] if whole else ["drift [95 %]", "itself", "largest leak"]:
        table.add_column(Text(title), justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    verdicts = list(found.verdicts.values())
    for k, name in enumerate(names):
        if whole:
            shown = [Text(text, "bold" if j == k else "") for j, text in enumerate(cells[k])]
        else:
            j = int(np.abs(beside[k]).argmax())
            shown = [Text(cells[k][k], "bold"), Text(f"{names[j]} {cells[k][j]}")]
        table.add_row(Text(name), Text(errors[k] if whole else drift[k]), *shown, Text(verdicts[k]))
    yield Text(f"{found.method}: nats; positive = images explained worse without the group", "bold")
    yield Text(f"{found.estimand}; on {sum(found.images)} {found.note}", "dim")
    yield table
    if whole:
        yield Text("rows: removed group; columns: whose images; diagonal: forgetting; off the diagonal: leakage", "dim")
    yield Text("drift: mean over the images of all other groups" + (", ± standard error" if whole else ""), "dim")
    yield Text(found.unsound() or f"{found.method}: all {len(names)} counterfactuals are sound", "bold")
