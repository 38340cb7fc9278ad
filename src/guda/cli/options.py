"""Options and manners that the verbs of the command line share."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from guda.diffusion import distributed
from guda.errors import GudaError

RunFolder = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]

Workers = Annotated[int | None, typer.Option(help="Worker processes; default: one per core.", min=1)]  # to reckon with

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]

Method = Annotated[list[str] | None, typer.Option("--method", "-m", help="Method id; repeat for several.")]

Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        help="Fit and score these groups only, e.g. Cubism,Dapple, or level:1 of a tree; kept in the recipe. "
        "`all` undoes it.",
    ),
]

Drift = Annotated[
    str | None, typer.Option(help="keep, or subtract: less what unlearning does to other groups; kept in the recipe.")
]

QuerySet = Annotated[str | None, typer.Option("--queries", "-q", help="A folder of pictures, or a query set's name.")]

ENGINE: Any = None  # default of a verb's `engine`, which `works` fills in


# what `works` adds to a verb: name -> (annotation, default)
_ADDED: dict[str, tuple[Any, Any]] = {
    "workers": (
        Annotated[int | None, typer.Option(help="Tasks at a time; default: one per core, or as many as fit.", min=1)],
        None,
    ),
    "engine": (
        Annotated[Literal["local", "ray"], typer.Option(help="Where tasks run: processes here, or a Ray cluster.")],
        "local",
    ),
    "address": (
        Annotated[
            str | None, typer.Option(help="Ray: HOST:PORT or auto; default: $RAY_ADDRESS, else a cluster of its own.")
        ],
        None,
    ),
    "num_cpus_per_task": (
        Annotated[float | None, typer.Option(help="Ray: CPUs, and threads, of a task; default: 1.", min=0.01)],
        None,
    ),
    "num_gpus_per_task": (
        Annotated[
            float | None,
            typer.Option(help="Ray: GPUs of a task, also 0.5; default: 1 where the cluster has any.", min=0),
        ],
        None,
    ),
    "memory_per_task": (Annotated[float | None, typer.Option(help="Ray: GB of memory of a task.", min=0.001)], None),
}


def works(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb that has work done: takes the options above on the command line and is given the `engine` they make.

    typer reads options off a signature, so the verb's is rewritten: `engine` gives way to what it is made from."""
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for name, old in inspect.signature(verb).parameters.items():
        if name != "engine":
            parameters.append(old.replace(annotation=hints[name]))
            continue
        kind = inspect.Parameter.KEYWORD_ONLY if old.kind is old.KEYWORD_ONLY else old.POSITIONAL_OR_KEYWORD
        for added, (hint, default) in _ADDED.items():
            parameters.append(inspect.Parameter(added, kind, default=default, annotation=hint))

    @functools.wraps(verb)
    def command(**given: Any) -> None:
        asked = {name: given.pop(name) for name in _ADDED}
        verb(**given, engine=make_engine(given["as_json"], **asked))

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def make_engine(quiet: bool, workers: int | None = None, engine: str = "local", **ray: Any) -> Callable[..., int]:
    """Where tasks run, with a display of how far they are. Nothing heavy is imported before the first of them."""
    if engine == "local" and (given := [name for name, value in ray.items() if value is not None]):
        raise GudaError("engine-option-mismatch", f"--{given[0].replace('_', '-')} is for --engine ray")

    @functools.cache
    def made() -> tuple[Any, Callable[..., int]]:
        from guda.cli.show import Display
        from guda.steps import local_engine, ray_engine

        display = Display(quiet or not distributed.is_main())
        if engine == "local":
            return display, local_engine(workers, display.watch)
        from guda.engine.ray import RayOptions

        options = RayOptions(
            ray.get("address"), workers, ray.get("num_cpus_per_task") or 1.0, ray.get("num_gpus_per_task"),
            ray.get("memory_per_task"),
        )  # fmt: skip
        return display, ray_engine(options, display.watch)

    def run(*args: Any) -> int:
        display, work = made()
        with display:
            return work(*args)

    return run


def say(value: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False) if as_json else text)
