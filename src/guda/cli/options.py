"""What the commands share: common options, options generated from the fields of a config, and the engine.

    @command
    def sample(run: RunFolder, changes: Changes = fields(QueriesConfig, "n as -n", "seed"), engine: Any = ENGINE, ...)

typer reads options off a signature, so `command` rewrites it: `changes` gives way to one option for each named field,
with the field's description as its help, and `engine` to the options that say where tasks run. The function is called
with the fields that were given, as a dict, and with the engine.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import annotated_types
import typer

from guda.config import Config
from guda.diffusion import distributed
from guda.errors import GudaError

RunFolder = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]

Workers = Annotated[int | None, typer.Option(help="Worker processes; default: one per core.", min=1)]  # of an estimate

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]

Method = Annotated[list[str] | None, typer.Option("--method", "-m", help="Method id; repeat for several.")]

Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        help="Fit and score only these groups, e.g. Cubism,Dapple, or level:1 of a tree, or `all`; for this command.",
    ),
]

QuerySet = Annotated[str | None, typer.Option("--queries", "-q", help="A folder of pictures, or a query set's name.")]

StoredSet = Annotated[str | None, typer.Option("--queries", "-q", help="Name of a query set; default: the recipe's.")]


def finite(value: float | None) -> float | None:
    """For options that are not whole numbers: typer's limits let nan and inf pass."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


Changes = dict[str, Any]  # fields of a config that were given, by name

ENGINE: Any = object()  # default of a command's `engine`

Options = dict[str, tuple[Any, Any]]  # name of a parameter -> (annotation, default)

_ENGINE_OPTIONS: Options = {
    "workers": (
        Annotated[
            int | None,
            typer.Option(help="Tasks at a time; default: one per core, or as many as fit.", min=1, metavar="N"),
        ],
        None,
    ),
    "engine": (
        Annotated[Literal["local", "ray"], typer.Option(help="Where tasks run: processes here, or a Ray cluster.")],
        "local",
    ),
    "address": (
        Annotated[
            str | None,
            typer.Option(help="Ray: HOST:PORT or auto; default: $RAY_ADDRESS, else a cluster of its own.", metavar="A"),
        ],
        None,
    ),
    "cpus_per_task": (
        Annotated[
            float | None,
            typer.Option(help="Ray: CPUs and threads per task; default: 1.", min=0.01, callback=finite, metavar="N"),
        ],
        None,
    ),
    "gpus_per_task": (
        Annotated[
            float | None,
            typer.Option(
                help="Ray: GPUs per task, may be a fraction (0.5); default: 1 if the cluster has any.",
                min=0,
                callback=finite,
                metavar="N",
            ),
        ],
        None,
    ),
    "mem_per_task": (
        Annotated[
            float | None, typer.Option(help="Ray: GB of memory per task.", min=0.001, callback=finite, metavar="GB")
        ],
        None,
    ),
}


# ---- options made from configs ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fields:
    config: type[Config]
    names: dict[str, str]  # field -> its option

    def options(self) -> Options:
        return {field: (self._annotation(field, name), None) for field, name in self.names.items()}

    def _annotation(self, field: str, name: str) -> Any:
        """Whole numbers are checked by typer; everything else when the recipe is read, which names the field."""
        about = self.config.model_fields[field]
        kind = next((t for t in get_args(about.annotation) if t is not NoneType), about.annotation)
        limits: dict[str, Any] = {}
        for limit in about.metadata if kind is int else ():
            if isinstance(limit, annotated_types.Ge):
                limits["min"] = limit.ge
            elif isinstance(limit, annotated_types.Gt):
                limits["min"] = limit.gt + 1  # type: ignore[operator]
            elif isinstance(limit, annotated_types.Le):
                limits["max"] = limit.le
        choices = get_args(about.annotation) if get_origin(about.annotation) is Literal else ()
        text = str(about.description)
        for other, option in self.names.items():  # as it is called here
            text = text.replace(f"`{other}`", option)
        optional = (kind if kind in (int, float, bool) else str) | None
        if kind is bool:
            name = f"{name}/{name.replace('--', '--no-', 1)}"
        return Annotated[optional, typer.Option(name, help=text, metavar="|".join(map(str, choices)) or None, **limits)]


def fields(config: type[Config], *names: str) -> Any:
    """Default of a parameter that stands for these fields: "group_by" is the option --group-by, "n as -n" is -n."""
    options = {}
    for name in names:
        field, _, option = name.partition(" as ")
        options[field] = option or f"--{field.replace('_', '-')}"
    return Fields(config, options)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function with the signature that typer is to see."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    replaced: dict[str, list[str]] = {}
    for name, old in inspect.signature(function).parameters.items():
        if old.default is not ENGINE and not isinstance(old.default, Fields):
            parameters.append(old.replace(annotation=hints[name]))
            continue
        added = _ENGINE_OPTIONS if old.default is ENGINE else old.default.options()
        parameters += [old.replace(name=n, annotation=hint, default=default) for n, (hint, default) in added.items()]
        replaced[name] = list(added)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        asked = {name: {n: given.pop(n) for n in names} for name, names in replaced.items()}
        for name, values in asked.items():
            if name == "engine":
                given[name] = make_engine(given["as_json"], **values)
            else:
                given[name] = {field: value for field, value in values.items() if value is not None}
        function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


# ---- running and answering ----------------------------------------------------------------------------------------
def make_engine(quiet: bool, workers: int | None = None, engine: str = "local", **ray: Any) -> Callable[..., int]:
    """Where tasks run, with a progress display. Nothing heavy is imported before the first of them."""
    if engine == "local" and (given := [name for name, value in ray.items() if value is not None]):
        raise GudaError("engine-option-mismatch", f"--{given[0].replace('_', '-')} is for --engine ray")

    @functools.cache
    def make() -> tuple[Any, Callable[..., int]]:
        from guda.cli.display import Display
        from guda.steps import local_engine, ray_engine

        display = Display(quiet or not distributed.is_main())
        if engine == "local":
            return display, local_engine(workers, display.watch)
        from guda.engine.ray import RayOptions

        options = RayOptions(
            ray.get("address"), workers, ray.get("cpus_per_task") or 1.0, ray.get("gpus_per_task"),
            ray.get("mem_per_task"),
        )  # fmt: skip
        return display, ray_engine(options, display.watch)

    def run(*args: Any) -> int:
        display, work = make()
        with display:
            return work(*args)

    return run


def say(value: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False) if as_json else text)
