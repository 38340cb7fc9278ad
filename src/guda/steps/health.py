"""What a method's counterfactuals do to training images whose group is known: forgetting, leakage, drift."""

from __future__ import annotations

from collections.abc import Sequence

from guda.errors import GudaError
from guda.methods.base import get_method
from guda.methods.health import Health, check_health, measure_health, write_health
from guda.methods.reference import reference, reference_tasks
from guda.run.run import Run
from guda.run.task import Task
from guda.steps.fit import Engine, check_fitted, fitted_methods
from guda.steps.score import prepared
from guda.steps.settings import override


def health_methods(run: Run) -> list[str]:
    """Fitted methods with counterfactuals to check; the oracle only when asked for."""
    found = [get_method(run, m) for m in fitted_methods(run)]
    names = [m.method_id for m in found if m.counterfactuals and m.ranks_groups and not m.oracle]
    if not names:
        raise GudaError("method-not-fitted", f"nothing is unlearned in {run.root} yet; run: guda fit {run.root}")
    return names


def health(run: Run, methods: Sequence[str], engine: Engine, n: int | None = None) -> dict[str, Health]:
    """Leakage matrix and drift of each method, also written to health/<artifact>.json; see methods/health.py.

    `n`: training images of each group; default: the recipe's."""
    run = override(run, scoring={} if n is None else {"reference": n})
    chosen = [check_health(get_method(run, m)) for m in methods]
    check_fitted(run, methods)
    images = reference(run)

    def work() -> dict[str, Health]:
        tasks: list[Task] = []
        planned: set[str] = set()
        for found in chosen:
            tasks += reference_tasks(found, images, planned)
        engine(run, tasks, f"health of {', '.join(methods)}")
        return {m.method_id: measure_health(m, images) for m in chosen}

    measured = prepared(run, chosen, engine, work)
    for found in chosen:
        write_health(run, found, measured[found.method_id])
    return measured
