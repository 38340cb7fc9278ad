"""What methods of a run are compared with."""

from __future__ import annotations

from guda.errors import GudaError
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.run.run import Run


def run_oracle(run: Run) -> ElboMethod:
    """What methods of this run are held against."""
    against = run.recipe.evaluation.against
    oracle = get_method(run, against)
    if not has_counterfactuals(oracle) or not oracle.oracle:
        raise GudaError(
            "evaluation-oracle-unsupported",
            f"evaluation.against = {against!r}: only logo is an oracle with retrainings to compare",
        )
    return oracle
