from pathlib import Path

from guda.runs.run import Run


def write_report(run: Run, queries: str) -> Path:
    return run.path("report.html")
