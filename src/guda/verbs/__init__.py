"""One function per verb of the command line, for Python and for `cli/` alike. Each resumes and redoes nothing."""

from guda.diffusion.queries import query_count
from guda.verbs.ablate import ablate, read_ablation
from guda.verbs.cluster import ClusterConfig, plan_cluster
from guda.verbs.evaluate import evaluate, evaluate_bands, pipeline
from guda.verbs.health import health, health_methods
from guda.verbs.likelihood import evaluate_likelihood, likelihood, likelihood_path
from guda.verbs.outline import outline
from guda.verbs.pairs import pairs, parse_pairs
from guda.verbs.partition import partition
from guda.verbs.plan import Budget, plan
from guda.verbs.project import (
    change_groups,
    change_queries,
    change_scoring,
    change_settings,
    init,
    parse_settings,
    status,
)
from guda.verbs.prompts import prompts_build, prompts_show
from guda.verbs.queries import add_queries, choose_or_add_queries, choose_queries
from guda.verbs.reproduce import read_reproduction, reproduce, reproductions, scaled_recipe
from guda.verbs.reproduce_plan import plan_reproduction
from guda.verbs.score import (
    band_shares,
    evals_per_picture,
    placebo_null,
    score,
    scored_methods,
    scores_path,
    upper_levels,
    variant,
    watch,
)
from guda.verbs.space import parse_space, read_space
from guda.verbs.tune import tune
from guda.verbs.work import (
    Engine,
    check_fitted,
    fit,
    fit_tasks,
    fitted_methods,
    local_engine,
    ray_engine,
    sample,
    train,
)

__all__ = [
    "Budget",
    "ClusterConfig",
    "Engine",
    "ablate",
    "add_queries",
    "band_shares",
    "change_groups",
    "change_queries",
    "change_scoring",
    "change_settings",
    "check_fitted",
    "choose_or_add_queries",
    "choose_queries",
    "evals_per_picture",
    "evaluate",
    "evaluate_bands",
    "evaluate_likelihood",
    "fit",
    "fit_tasks",
    "fitted_methods",
    "health",
    "health_methods",
    "init",
    "likelihood",
    "likelihood_path",
    "local_engine",
    "outline",
    "pairs",
    "parse_pairs",
    "parse_settings",
    "parse_space",
    "partition",
    "pipeline",
    "placebo_null",
    "plan",
    "plan_cluster",
    "plan_reproduction",
    "prompts_build",
    "prompts_show",
    "query_count",
    "ray_engine",
    "read_ablation",
    "read_reproduction",
    "read_space",
    "reproduce",
    "reproductions",
    "sample",
    "scaled_recipe",
    "score",
    "scored_methods",
    "scores_path",
    "status",
    "train",
    "tune",
    "upper_levels",
    "variant",
    "watch",
]
