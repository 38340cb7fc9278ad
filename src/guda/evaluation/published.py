"""The paper's published tables, from published.yaml: what ours stand beside.

    published().table("main.cifar10").rows["das"].metrics["top1"] == 0.716

They are of other data, models and machines than a run here; `PublishedTable.where` says which, wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import Field, FiniteFloat, field_validator, model_validator

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.metrics import METRICS

TIMES = ("preprocessing", "query", "total")

CORRELATIONS = ("pearson", "spearman", "top1", "ndcg3_linear")


class Duration(Config):
    """A published time, hours and minutes."""

    text: str = Field(pattern=r"^<?\d+:[0-5]\d$", description="h:mm; with < an upper bound")

    @property
    def seconds(self) -> float:
        """An upper bound where the text says so (`bound`)."""
        hours, _, minutes = self.text.removeprefix("<").partition(":")
        return 3600.0 * int(hours) + 60.0 * int(minutes)

    @property
    def bound(self) -> bool:
        return self.text.startswith("<")


class PublishedRow(Config):
    name: str = Field(description="as in the paper")
    id: str | None = Field(None, description="the method of guda that stands for it")
    main: bool = Field(False, description="the paper's own method or configuration")
    metrics: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="by metric; empty where none is published"
    )
    times: dict[str, Duration] = Field(default_factory=dict, description="by name in TIMES")
    query_seconds: FiniteFloat | None = Field(None, description="per query, where the text has it")


class Setting(Config):
    """Data that tables are measured on."""

    name: str
    groups: int
    queries: int


class PublishedTable(Config):
    key: str
    label: str | None = Field(description="in the paper's source; null: named in its text only")
    part: int = Field(0, description="which tabular of that table")
    title: str
    note: str = ""
    data: Setting
    hardware: str
    axis: str = Field(description="what the rows differ in: method, or a setting")
    metrics: tuple[str, ...] = ()
    fixed: dict[str, Any] = Field(default_factory=dict, description="settings that are not swept")
    rows: dict[str, PublishedRow]

    @property
    def where(self) -> str:
        return f"published, {self.data.name}, H100" if "H100" in self.hardware else f"published, {self.data.name}"

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [m for m in metrics if m not in METRICS and m not in CORRELATIONS]:
            raise ValueError(f"unknown metrics {unknown}")
        return metrics


class Published(Config):
    source: str
    tables: dict[str, PublishedTable]

    def table(self, key: str) -> PublishedTable:
        if key not in self.tables:
            raise GudaError(
                "published-table-unknown", f"no published table {key!r}; there are {', '.join(self.tables)}"
            )
        return self.tables[key]

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        """The file says once per table what its numbers are; here every number has its name."""
        if "settings" not in value:
            return value
        tables = {}
        for key, table in value["tables"].items():
            metrics = table.get("metrics", ())
            rows = {name: _row(name, row, metrics) for name, row in table["rows"].items()}
            tables[key] = table | {
                "key": key, "data": value["settings"][table["data"]], "hardware": value["hardware"], "rows": rows,
            }  # fmt: skip
        return {"source": value["source"], "tables": tables}


def _row(key: str, row: Mapping[str, Any], metrics: list[str]) -> dict[str, Any]:
    rest = {k: v for k, v in row.items() if k not in ("values", "times")}
    found = {"name": key, **rest}
    if "values" in row:
        found["metrics"] = dict(zip(metrics, row["values"], strict=True))
    if "times" in row:
        found["times"] = {name: {"text": text} for name, text in zip(TIMES, row["times"], strict=True)}
    return found


@cache
def published() -> Published:
    import yaml

    return Published.model_validate(yaml.safe_load((files("guda.evaluation") / "published.yaml").read_text("utf-8")))
