"""What a person sees while waiting: a bar with an estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

from guda.engine.loop import Watcher

LINE_EVERY = 10.0  # seconds between plain lines


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
    from guda.table import human_count, human_time

    each = human_time(value["seconds_per_evaluation"] * 1000)
    lines = [
        f"{value['run']}: {value['groups']} groups, {human_count(value['parameters'])} parameters, "
        f"{each} per 1,000 evaluations ({value['settings']}), {value['workers']} workers",
        f"  {'left to do':<44}{'evaluations':>14}{'time':>12}{'disk':>12}",
    ]
    for row in value["rows"]:
        disk = f"{row['disk'] / 1e6:.1f} MB"
        lines.append(f"  {row['what']:<44}{human_count(row['evals']):>14}{human_time(row['seconds']):>12}{disk:>12}")
    if value["alternatives"]:
        lines.append("  precision against budget (per query)")
    for row in value["alternatives"]:
        width = "unknown" if row["half_width"] is None else f"± {row['half_width']:.2g} nats"
        lines.append(
            f"    {row['method']:<16}{row['rounds']:>3} rounds {human_count(row['evals_per_query']):>10} evaluations"
            f"{human_time(row['seconds_per_query']):>12}   {width}"
        )
    return "\n".join([*lines, value["note"]])


def outline_text(value: dict[str, Any]) -> str:
    """`guda plan RECIPE` for people."""
    from guda.table import human_count

    wide = max(44, *(len(r["what"]) + 1 for r in value["rows"]))
    lines = [
        f"{value['recipe']}: {value['groups']} of {value['of']} groups, {human_count(value['parameters'])} parameters, "
        f"{_known(value['queries'])} queries, {_known(value['evals_per_model_and_query'])} evaluations per model and "
        "query",
        f"  {'to do':<{wide}}{'evaluations':>14}{'disk':>12}",
    ]
    lines += [f"  {r['what']:<{wide}}{human_count(r['evals']):>14}{_bytes(r['disk']):>12}" for r in value["rows"]]
    if value["bank"]:
        lines.append(f"  a bank of {value['groups']} counterfactuals takes")
    lines += [f"    {store:<14}{_bytes(size):>12}" for store, size in value["bank"].items()]
    return "\n".join([*lines, value["note"]])


def cluster_text(value: dict[str, Any]) -> str:
    """`guda plan --cluster` for people."""
    from guda.table import human_count, human_time

    lines = [
        f"{value['run']}: {', '.join(value['methods'])} from nothing, {value['groups']} groups, "
        f"{value['queries']} queries",
        f"  {'to do':<34}{'tasks':>9}{'evaluations':>14}{'worker-hours':>14}{'disk':>12}",
    ]
    for part in value["parts"]:
        lines.append(
            f"  {part['what']:<34}{part['tasks']:>9}{human_count(part['evals']):>14}"
            f"{part['seconds'] / 3600:>14.2f}{_bytes(part['disk']):>12}"
        )
    lines.append(f"  {'workers':>9}{'time':>14}{'busy':>7}{'paid hours':>12}{'cost':>12}   what holds it up")
    for row in value["schedules"]:
        cost = "" if row["cost"] is None else f"{row['cost']:,.2f}"
        lines.append(
            f"  {row['workers']:>9}{human_time(row['makespan']):>14}{row['utilisation']:>7.0%}"
            f"{row['paid_hours']:>12.2f}{cost:>12}   {row['bottleneck']}: {row['advice']}"
        )
    told = [kind for kind, recorded in value["recorded"].items() if not recorded]
    note = f"not recorded by this run: {', '.join(told)}" if told else "as this run recorded them"
    return "\n".join(
        [*lines, f"Seconds per evaluation {note}; overhead, start, submit, failures are assumptions (--set)."]
    )


def _known(n: int | None) -> str:
    return "–" if n is None else str(n)


def _bytes(n: float | None) -> str:
    if n is None:
        return "–"
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"
