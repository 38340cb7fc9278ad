"""What must be made before anything can be scored: training, fitting, sampling; and the engines that do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from guda.diffusion import distributed
from guda.engine.loop import Watcher
from guda.engine.processes import Workers, run_tasks
from guda.engine.ray import RayOptions, RayWorkers, import_ray, run_on_ray
from guda.errors import GudaError
from guda.memory import check_memory
from guda.methods.base import METHODS, get_method
from guda.methods.regroup import placebos_of, takes_placebos
from guda.run.data import load_data, load_prompts, prompt_files
from guda.run.models import full_name, full_tasks, need_training
from guda.run.run import Run
from guda.run.samples import collect_samples, query_count, sample_tasks
from guda.run.task import Task, pending

Engine = Callable[[Run, list[Task], str], int]


def local_engine(workers: int | None = None, watch: Callable[[str], Watcher] | None = None) -> Engine:
    """Tasks in worker processes here; `watch(title)` makes something that shows their progress."""
    pool = Workers(workers)

    def engine(run: Run, tasks: list[Task], title: str) -> int:
        return run_tasks(run, tasks, pool, watch(title) if watch and pending(run, tasks) else None)

    return engine


def ray_engine(options: RayOptions, watch: Callable[[str], Watcher] | None = None) -> Engine:
    """The same tasks on a Ray cluster; needs the extra `ray`."""
    if distributed.world_size() > 1:
        raise GudaError(
            "ray-under-launch", "--engine ray starts its own processes; run guda by itself, not under accelerate launch"
        )
    import_ray(options.where)  # fails early where Ray is not installed
    pool = RayWorkers(options)

    def engine(run: Run, tasks: list[Task], title: str) -> int:
        return run_on_ray(run, tasks, pool, watch(title) if watch and pending(run, tasks) else None)

    return engine


def ready(run: Run, tasks: list[Task]) -> list[Task]:
    """The same tasks, once the prompts that some of them need are there."""
    if any(set(task.needs) & set(prompt_files(run)) for task in pending(run, tasks)):
        load_prompts(run)
    return tasks


def base_tasks(run: Run) -> list[Task]:
    return [] if run.recipe.model.path else full_tasks(run, need_training(run).seed)


def train(run: Run, engine: Engine) -> str:
    """Train the run's full model; returns its folder."""
    if run.recipe.model.path:
        raise GudaError(
            "training-not-needed",
            f"{run.root} has a model already ({run.recipe.model.path}); there is nothing to train",
        )
    engine(run, ready(run, base_tasks(run)), "train")
    return str(run.path("models", full_name(need_training(run).seed)))


def fit_tasks(run: Run, methods: Sequence[str]) -> list[Task]:
    tasks = base_tasks(run)
    for name in methods:
        found = get_method(run, name)
        found.check()
        tasks += found.fit()
    return tasks


def fit(run: Run, methods: Sequence[str], engine: Engine, placebos: int = 0) -> int:
    """`placebos`: how many random groups to unlearn too, as a null reference for the scores."""
    tasks = fit_tasks(run, methods)
    if placebos:
        found = [get_method(run, name) for name in methods]
        # of several methods those that can; where none can, the first says why
        for method in [m for m in found if takes_placebos(m)] or found[:1]:
            tasks += placebos_of(method, placebos).fit()
    return engine(run, ready(run, tasks), f"fit {', '.join(methods)}")


def sample(run: Run, engine: Engine) -> str:
    """Draw the recipe's query set from the run's model; returns its name."""
    n = query_count(run, run.recipe.queries)
    check_memory(n * math.prod(load_data(run).shape), f"{n:,} pictures", "draw fewer")
    engine(run, ready(run, base_tasks(run) + sample_tasks(run, run.recipe.queries)), "sample")
    return collect_samples(run, run.recipe.queries)


def default_methods(run: Run) -> tuple[list[str], list[str]]:
    """(what `guda fit` fits, what it leaves out): an oracle retrains the model for every group, so it is fitted when it
    is asked for by name."""
    oracles = [name for name in run.recipe.methods if METHODS.find(name).oracle]
    return [name for name in run.recipe.methods if name not in oracles], oracles


def fitted_methods(run: Run) -> list[str]:
    """Methods with a finished artifact: the recipe's, then others."""
    names = [*run.recipe.methods, *(m for m in METHODS if m not in run.recipe.methods)]
    return [m for m in names if _can_be(run, m) and _set(run, m) and get_method(run, m).fitted()]


def _can_be(run: Run, name: str) -> bool:
    """Whether it scores pictures, and is not a retraining in a run that trains nothing."""
    cls = METHODS.find(name)
    return cls.scored and (not cls.oracle or run.recipe.training is not None)


def _set(run: Run, name: str) -> bool:
    """Whether its settings are known: a method that needs some to be given is fitted only where a recipe gives them."""
    fields = METHODS[name].Config.model_fields.values() if name in METHODS else ()
    return name in run.recipe.methods or not any(f.is_required() for f in fields)


def scorable_methods(run: Run) -> list[str]:
    """What `guda score` scores by default: what is fitted, and with it the recipe's methods that are fitted for free.
    The free ones alone are no answer where the recipe asks for others."""
    fitted = fitted_methods(run)
    free = [m for m in run.recipe.methods if m not in fitted and METHODS.find(m).ranks_groups and _free(run, m)]
    asked = [m for m in default_methods(run)[0] if not _free(run, m)]
    if asked and not any(m in fitted for m in asked) and not any(not _free(run, m) for m in fitted):
        return fitted
    order = [*run.recipe.methods, *fitted]
    return [m for m in dict.fromkeys(order) if m in fitted or m in free]


def _free(run: Run, name: str) -> bool:
    method = get_method(run, name)
    return (not method.trains or run.recipe.training is not None) and method.free


def check_scorable(run: Run, methods: Sequence[str]) -> None:
    """Refuse methods that must be fitted by hand first; those that cost no evaluation are fitted when they score."""
    for name in methods:
        method = get_method(run, name)
        if method.fitted():
            continue
        if not _free(run, name):
            check_fitted(run, [name])
        if pending(run, base_tasks(run)):
            raise GudaError("model-not-trained", f"{run.root} has no trained model yet; run: guda train {run.root}")
        method.check()


def fit_free(run: Run, methods: Sequence[str], engine: Engine) -> None:
    """Fit those that are not fitted yet; they are `check_scorable`, so it costs no evaluation of the run's network."""
    if left := [m for m in methods if not get_method(run, m).fitted()]:
        fit(run, left, engine)


def check_fitted(run: Run, methods: Sequence[str]) -> None:
    for name in methods:
        if not get_method(run, name).fitted():
            raise GudaError("method-not-fitted", f"{name} is not fitted in {run.root}{_fit_hint(run, name)}")


def _fit_hint(run: Run, name: str) -> str:
    fix = f"run: guda fit {run.root} --method {name}"
    if run.changes:
        return f" with these options; {fix} with the same options"
    if not any(run.path("artifacts").glob(f"{name}-*")):
        return f"; {fix}"
    return (
        f" with the recipe's settings, only with others; {fix}, or score with the options that it was fitted with "
        f"(--set, --groups), or make them the run's: guda set {run.root} methods.{name}.KEY=VALUE"
    )
