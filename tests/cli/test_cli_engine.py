"""--engine: every verb that has work done takes it, and what cannot be is one line."""

import inspect
import os
import sys
from pathlib import Path

import pytest
from commandline import Guda, refused

from guda.cli.main import app
from guda.cli.options import ENGINE, Json, RunFolder, command

OPTIONS = {"workers", "engine", "address", "cpus_per_task", "gpus_per_task", "mem_per_task"}


def test_every_verb_that_takes_workers_takes_an_engine() -> None:
    found = {c.callback.__name__: set(inspect.signature(c.callback).parameters) for c in app.registered_commands}
    assert {
        "demo",
        "train",
        "fit",
        "sample",
        "score",
        "health",
        "likelihood",
        "tune",
        "ablate",
        "reproduce",
        "pairs",
    } <= {name for name, parameters in found.items() if parameters >= OPTIONS}
    reckoning = {name for name, parameters in found.items() if "workers" in parameters and "engine" not in parameters}
    assert reckoning == {"plan"}  # runs nothing


def test_options_stand_where_the_engine_stood_and_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict] = []
    monkeypatch.setattr("guda.cli.options.make_engine", lambda quiet, **asked: made.append(asked | {"quiet": quiet}))
    got: list[tuple] = []

    @command
    def verb(run: RunFolder, engine: object = ENGINE, as_json: Json = False) -> None:
        got.append((run, engine, as_json))

    names = list(inspect.signature(verb).parameters)
    assert names[0] == "run"
    assert set(names[1:-1]) == OPTIONS
    assert names[-1] == "as_json"
    given = {"workers": 3, "engine": "ray", "address": "auto", "cpus_per_task": 2.0, "gpus_per_task": 0.5}
    verb(run=Path("r"), as_json=True, mem_per_task=None, **given)
    assert made == [{"quiet": True, "mem_per_task": None, **given}]
    assert got == [(Path("r"), None, True)]


@pytest.mark.parametrize("option", ["--address", "--cpus-per-task", "--gpus-per-task", "--mem-per-task"])
def test_what_only_ray_can_do(guda: Guda, tmp_path: Path, option: str) -> None:
    refused(guda("train", tmp_path, option, "1"), f"{option} is for --engine ray")


def test_without_ray_one_line_says_what_to_install(guda: Guda, monkeypatch: pytest.MonkeyPatch) -> None:
    from tinyrun import finished_root

    monkeypatch.setitem(sys.modules, "ray", None)
    refused(guda("score", finished_root(), "--engine", "ray"), "needs Ray", 'pip install "guda[ray]"')


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--gpus-per-task", "1.5"], "neither a share of one GPU nor a whole number"),
        (["--address", "ray://head:10001"], "start guda on a node of the cluster and give HOST:PORT"),
    ],
)
def test_what_ray_cannot_do(guda: Guda, options: list[str], part: str) -> None:
    from tinyrun import finished_root

    refused(guda("score", finished_root(), "--engine", "ray", *options), part)


def test_ray_s_private_cluster_is_on_loopback_and_has_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from guda.engine.ray import ENVIRONMENT, RayOptions, _init, import_ray

    class Ray:
        def init(self, **given: object) -> None:
            self.given = given

    names = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    for name in (*names, *ENVIRONMENT):  # all that is set here is undone
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr("importlib.import_module", lambda name: Ray())
    theirs = RayOptions("head:6379")
    _init(ray := import_ray(theirs.where), theirs)
    assert (ray.given["address"], "_node_ip_address" in ray.given) == ("head:6379", False)
    assert "RAY_AUTH_TOKEN" not in os.environ  # a cluster that was there has its own, or none
    _init(ray := import_ray(RayOptions().where), RayOptions())
    assert (ray.given["_node_ip_address"], ray.given["include_dashboard"]) == ("127.0.0.1", False)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) >= 32
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    import_ray(RayOptions().where)
    assert os.environ["RAY_AUTH_TOKEN"] != token
