"""Options that are made from the fields of a config: one description for recipe, documentation and help."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from commandline import Guda

from guda.cli.options import Changes, Json, RunFolder, command, fields
from guda.config import LikelihoodConfig, QueriesConfig


def test_fields_become_options_and_what_is_given_comes_back() -> None:
    got: list[Changes] = []

    @command
    def verb(
        run: RunFolder, changes: Changes = fields(QueriesConfig, "n as -n", "seed"), as_json: Json = False
    ) -> None:
        got.append(changes)

    parameters = inspect.signature(verb).parameters
    assert list(parameters) == ["run", "n", "seed", "as_json"]
    kind, option = get_args(parameters["n"].annotation)
    assert kind == int | None
    assert option.default == "-n"  # typer takes the first positional argument for the name
    assert option.min == 1  # gt=0
    assert option.help.startswith("Samples to draw from the full model")
    assert get_args(parameters["seed"].annotation)[1].default == "--seed"
    verb(run=Path("r"), n=None, seed=0, as_json=False)
    assert got == [{"seed": 0}]


def test_choices_are_shown_and_other_fields_are_called_by_their_options() -> None:
    options = fields(LikelihoodConfig, "solver").options()
    assert get_args(options["solver"][0])[1].metavar == "heun|rk4|adaptive"
    named = fields(QueriesConfig, "n as -n", "objects").options()
    assert get_args(named["n"][0])[1].help.endswith("text-to-image: see --objects.")


@pytest.mark.parametrize("verb", ["sample", "likelihood", "score", "init"])
def test_the_help_of_every_such_verb_is_drawn(guda: Guda, verb: str) -> None:
    assert guda(verb, "--help").code == 0


def test_help_needs_no_torch() -> None:
    code = "import sys, guda.cli.main; sys.exit(any(m in sys.modules for m in ('torch', 'diffusers', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
