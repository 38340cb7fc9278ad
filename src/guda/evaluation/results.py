"""The one schema of measured results: files under benchmarks/results/; a run's evaluation.json is one entry.

    {schema, command, machine, datasets: {name: {n_queries, seeds, ceiling: {metric: {mean, lo, hi}},
     methods: {id: {metrics: {metric: {mean, lo, hi}}, fit_evals, fit_seconds, score_evals, score_seconds}},
     figures: {name: number}}}}

Every figure is a mean with its 95 % interval. Costs are in evaluation units: forward of one sample = 1,
forward and backward = 3.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    ValidationError,
)

from guda.config import Config
from guda.errors import GudaError
from guda.evaluation.attributable import Attributability
from guda.evaluation.ceiling import CEILING, Comparison, Floor, Reliability
from guda.evaluation.intervals import Figure
from guda.files import library_versions, read_json, write_json

SCHEMA: Literal["guda-results/1"] = "guda-results/1"


class Cost(Config):
    """Null = not measured."""

    fit_evals: NonNegativeFloat | None = Field(
        default=None, description="evaluation units per group, without theta_full"
    )
    fit_seconds: NonNegativeFloat | None = Field(
        default=None, description="time of fitting all groups, summed over workers"
    )
    score_evals: NonNegativeFloat | None = Field(default=None, description="evaluation units per query")
    score_seconds: NonNegativeFloat | None = Field(
        default=None, description="time of scoring all queries, summed over workers"
    )


class MethodEntry(Cost):
    metrics: dict[str, Figure]
    ratio_to_ceiling: dict[str, Figure] | None = None
    difference: dict[str, Figure] | None = Field(default=None, description="minus the entry's `reference`, paired")


ALPHA = 0.05

NULL = "spearman_null"  # among the figures: Spearman of the stripped null (ceiling.py), with .lo and .hi


class PairFigure(Figure):
    """A difference of two methods, paired over queries."""

    p: float = Field(ge=0, le=1, description="two-sided sign-flip permutation test over queries")
    p_holm: float = Field(ge=0, le=1, description="the same, Holm-corrected over all pairs and metrics of the entry")

    @property
    def separated(self) -> bool:
        return super().separated and self.p_holm <= ALPHA


class PairEntry(Config):
    a: str
    b: str
    metrics: dict[str, PairFigure] = Field(description="a - b; positive = a agrees better with LOGO")


class GroupAverage(Figure):
    """What the average picture scores for one group, nats."""

    stderr: NonNegativeFloat = Field(description="over the pictures of the average")


class DatasetEntry(Config):
    omitted = dict.fromkeys(("averages", "attributable", "oracle"), (None,))

    n_queries: int = Field(ge=1)
    seeds: list[int] = Field(description="seeds of the LOGO oracle")
    ceiling: dict[str, Figure] | None = Field(description="one LOGO retraining; null with one seed")
    methods: dict[str, MethodEntry]
    figures: dict[str, FiniteFloat] = Field(default_factory=dict, description="any other measured number")
    n_groups: int | None = Field(default=None, ge=2)
    estimand: str | None = Field(default=None, description="what the oracle's scores are, with t_max")
    unit: Literal["nats", "log ratio", "log units"] = "nats"
    sign: Literal[
        "positive = the group mattered", "positive = the group mattered more than for the average picture",
        "larger = the model changes more without the group",
        "positive = models of random halves of the groups explain the picture better with the group",
        "positive = models of random halves of the groups explain the picture better with the group, "
        "more than for the average picture",
        "positive = models of random halves of the groups come closer to the full model with the group",
        "positive = models of random halves of the groups come closer to the full model with the group, "
        "more than for the average picture",
    ] = "positive = the group mattered"  # fmt: skip
    oracle: str | None = Field(default=None, description="what methods are compared with; null: logo")
    reliability: Reliability | None = None
    random: dict[str, FiniteFloat] | None = Field(default=None, description="expected figures of random rankings")
    reference: str | None = Field(default=None, description="the method that `difference` is taken to")
    note: str | None = None
    floor: Floor | None = Field(default=None, description="query-noise floor; null with one round")
    pairs: list[PairEntry] | None = Field(default=None, description="methods against each other; null: not tested")
    averages: dict[str, dict[str, GroupAverage]] | None = Field(
        default=None, description="of excess scores: by method and group, what is left out of them"
    )
    attributable: dict[str, Attributability] | None = Field(
        default=None, description="by method with several trainings or placebos: which groups can be attributed at all"
    )


class Machine(Config):
    cpu: str
    cores: int
    memory_gb: float | None
    accelerator: str | None
    python: str
    platform: str
    versions: dict[str, str]


class ResultsFile(Config):
    schema_: Literal["guda-results/1"] = Field(SCHEMA, alias="schema")
    command: str = Field(description="what to run to measure it again")
    machine: Machine
    datasets: dict[str, DatasetEntry]


def dataset_entry(
    comparison: Comparison,
    seeds: Sequence[int],
    estimand: str,
    costs: Mapping[str, Cost] | None = None,
    figures: Mapping[str, float] | None = None,
    pairs: Sequence[PairEntry] | None = None,
    floor: Floor | None = None,
    **named: Any,
) -> DatasetEntry:
    """What `compare` found, and costs by method id; the cost of `logo` goes with the ceiling's figures.

    `named`: unit and sign of the scores, if not nats of an ELBO difference; averages of excess scores; attributable."""
    costs = costs or {}
    if len(seeds) != comparison.n_seeds:
        raise GudaError(
            "seed-names-mismatch", f"{len(seeds)} seed names for {comparison.n_seeds} LOGO seeds; name each seed once"
        )
    unknown = sorted(set(costs) - set(comparison.methods) - {CEILING})
    if unknown:
        raise GudaError(
            "cost-method-unknown", f"costs are given for methods that were not compared: {', '.join(unknown)}"
        )
    ceiling = comparison.ceiling.intervals if comparison.ceiling else None
    methods = {}
    if CEILING in costs:
        methods[CEILING] = MethodEntry(metrics=ceiling or {}, **costs[CEILING].model_dump())
    for name, found in comparison.methods.items():
        methods[name] = MethodEntry(
            metrics=found.intervals,
            ratio_to_ceiling=found.ratio_to_ceiling or None,
            difference=found.difference or None,
            **costs.get(name, Cost()).model_dump(),
        )
    return DatasetEntry(
        n_queries=comparison.n_queries,
        seeds=list(seeds),
        ceiling=ceiling,
        methods=methods,
        figures=dict(figures or {}),
        n_groups=comparison.n_groups,
        estimand=estimand,
        reliability=comparison.reliability,
        random=comparison.random,
        reference=comparison.reference,
        note=comparison.note,
        floor=floor,
        pairs=list(pairs) if pairs else None,
        **named,
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None  # no sysconf on Windows


def _accelerator() -> str | None:
    torch = sys.modules.get("torch")  # who measured on a GPU has imported it; nobody else should wait for it
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def machine() -> Machine:
    """Where the numbers were measured."""
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gb=_memory_gb(),
        accelerator=_accelerator(),
        python=platform.python_version(),
        platform=platform.platform(),
        versions=library_versions(),
    )


def write_results(path: Path, command: str, datasets: Mapping[str, DatasetEntry]) -> ResultsFile:
    """Write a results file with this machine's description, and return what was written."""
    file = ResultsFile(schema=SCHEMA, command=command, machine=machine(), datasets=dict(datasets))
    write_json(path, file.model_dump(mode="json", by_alias=True))
    return file


def keep_entry(
    path: Path, command: str, name: str, entry: DatasetEntry, order: Iterable[str] = ()
) -> dict[str, DatasetEntry]:  # fmt: skip
    """Replace one data set's entry and keep the others, which other processes may have measured in the meantime; those
    named in `order` come first. Returns all."""
    found = (read_results(path).datasets if path.is_file() else {}) | {name: entry}
    found = {n: found[n] for n in dict.fromkeys([*order, *found]) if n in found}
    write_results(path, command, found)
    return found


def read_results(path: Path) -> ResultsFile:
    return read_file(path, ResultsFile)


def read_entry(path: Path) -> DatasetEntry:
    """A run's evaluation.json."""
    return read_file(path, DatasetEntry)


Schema = TypeVar("Schema", bound=BaseModel)


def read_file(
    path: Path, schema: type[Schema], code: str = "evaluation-file-invalid", what: str = f"{SCHEMA} file"
) -> Schema:
    """A JSON file of measured results; `code` and `what` name its kind where it does not match the schema."""
    try:
        return schema.model_validate(read_json(path))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GudaError(code, f"{path} is not a valid {what} ({where}: {first['msg']}); measure it again") from None
