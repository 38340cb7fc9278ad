"""One function per command, used by Python and `cli/` alike. Each resumes where it stopped and redoes nothing."""

from guda.methods.health import warnings
from guda.run.samples import query_count
from guda.steps.ablate import ablate, read_ablation
from guda.steps.calibrate import calibrate
from guda.steps.calibration import calibration_note
from guda.steps.cluster import ClusterConfig, plan_cluster
from guda.steps.distil import distil
from guda.steps.evaluate import evaluate, evaluate_bands, pipeline, run_all, run_methods
from guda.steps.fit import (
    Engine,
    check_fitted,
    check_scorable,
    default_methods,
    fit,
    fit_tasks,
    fitted_methods,
    local_engine,
    ray_engine,
    sample,
    scorable_methods,
    train,
)
from guda.steps.function import evaluate_cross, evaluate_function
from guda.steps.health import health, health_methods
from guda.steps.init import applicable, init, status, suit_methods
from guda.steps.likelihood import evaluate_likelihood, likelihood, likelihood_path
from guda.steps.memory import plan_memory
from guda.steps.pairs import pairs, parse_pairs
from guda.steps.partition import partition
from guda.steps.plan import Budget, outline, plan, seconds_per_evaluation
from guda.steps.prompts import prompts_build, prompts_show
from guda.steps.queries import add_queries, choose_or_add_queries, choose_queries, keep_queries
from guda.steps.sanity import read_sanity, sanity
from guda.steps.score import (
    ask_origins,
    band_shares,
    evals_per_picture,
    placebo_null,
    placebo_set,
    score,
    scored_methods,
    scores_folder,
    scores_path,
    up_to_date,
    upper_levels,
    variant,
    watch,
)
from guda.steps.screen import evaluate_screen, known_recall
from guda.steps.search_space import parse_space, read_space
from guda.steps.settings import (
    change_groups,
    change_queries,
    change_scoring,
    change_settings,
    override,
    parse_settings,
    set_values,
    update_settings,
)
from guda.steps.shares import ShareOptions, read_shares, shares, shares_file
from guda.steps.sizing import check_hours, sized, steps_per_second
from guda.steps.tune import tune
from guda.steps.without import draw_without, without, without_file

__all__ = [
    "Budget",
    "ClusterConfig",
    "Engine",
    "ShareOptions",
    "ablate",
    "add_queries",
    "applicable",
    "ask_origins",
    "band_shares",
    "calibrate",
    "calibration_note",
    "change_groups",
    "change_queries",
    "change_scoring",
    "change_settings",
    "check_fitted",
    "check_hours",
    "check_scorable",
    "choose_or_add_queries",
    "choose_queries",
    "default_methods",
    "distil",
    "draw_without",
    "evals_per_picture",
    "evaluate",
    "evaluate_bands",
    "evaluate_cross",
    "evaluate_function",
    "evaluate_likelihood",
    "evaluate_screen",
    "fit",
    "fit_tasks",
    "fitted_methods",
    "health",
    "health_methods",
    "init",
    "keep_queries",
    "known_recall",
    "likelihood",
    "likelihood_path",
    "local_engine",
    "outline",
    "override",
    "pairs",
    "parse_pairs",
    "parse_settings",
    "parse_space",
    "partition",
    "pipeline",
    "placebo_null",
    "placebo_set",
    "plan",
    "plan_cluster",
    "plan_memory",
    "prompts_build",
    "prompts_show",
    "query_count",
    "ray_engine",
    "read_ablation",
    "read_sanity",
    "read_shares",
    "read_space",
    "run_all",
    "run_methods",
    "sample",
    "sanity",
    "scorable_methods",
    "score",
    "scored_methods",
    "scores_folder",
    "scores_path",
    "seconds_per_evaluation",
    "set_values",
    "shares",
    "shares_file",
    "sized",
    "status",
    "steps_per_second",
    "suit_methods",
    "train",
    "tune",
    "up_to_date",
    "update_settings",
    "upper_levels",
    "variant",
    "warnings",
    "watch",
    "without",
    "without_file",
]
