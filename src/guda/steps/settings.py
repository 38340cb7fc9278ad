"""Settings of a run: for one command, or for good.

An option of a command (`guda fit --set lr=3e-4`, `guda score --rounds 7`) holds for that command: `override` gives the
run under those settings, and the recipe stays as it is. Models and terms are named after their settings, so the next
command with the same options finds them; scores go to a folder of their own beside the recipe's (Run.set_apart).
`guda set` and the functions `change_*` write the recipe. Either way everything is checked first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from guda import parsing
from guda.errors import GudaError, choices, suggestion
from guda.methods.base import METHODS, get_method
from guda.run.data import load_data, scored_groups
from guda.run.models import run_schedule
from guda.run.recipe import LOCKED, Recipe
from guda.run.run import Run
from guda.scoring.plan import make_plan, prior_density

Given = dict[str, dict[str, Any]]  # section -> key -> value; of `methods`: method -> its settings


def override(
    run: Run,
    *,
    scoring: Mapping[str, Any] | None = None,
    queries: Mapping[str, Any] | None = None,
    likelihood: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    groups: str | None = None,
    methods: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
) -> Run:
    """The run under the options of one command: fields of recipe sections, `--groups`, and `--set` texts, which belong
    to the only one of `methods`. Nothing is written."""
    given: Given = {
        "scoring": dict(scoring or {}),
        "queries": dict(queries or {}),
        "likelihood": dict(likelihood or {}),
        "evaluation": dict(evaluation or {}),
    }
    if groups is not None:
        given["scoring"]["groups"] = parse_groups(run, groups)
    if settings:
        given["methods"] = {_only(methods or []): parse_settings(settings)}
    given = {section: fields for section, fields in given.items() if fields}
    return checked(run, given) if given else run


def checked(run: Run, changes: Given) -> Run:
    """The run with these changes, if its recipe is sound with them."""
    check_queries(run, changes.get("queries", {}))
    changed = run.with_changes(changes)
    for method in changes.get("methods", {}):
        found = get_method(changed, method)  # refuses an unknown method or setting
        if found.oracle:
            found.check()  # and a seed that is no retraining
    if "groups" in changes.get("scoring", {}):
        scored_groups(changed)  # refuses unknown names and groups that overlap
    if "scoring" in changes:
        schedule = run_schedule(run)
        make_plan(schedule, changed.recipe.scoring, prior_density(schedule))
    return changed


def keep(run: Run, changes: Given) -> None:
    """Write changes into the run's recipe, once all of them are checked."""
    plain = Run(run.root, run.info, run.address)
    run.update(checked(plain, changes).recipe)


# ---- for good --------------------------------------------------------------------------------------------------------


def set_values(run: Run, texts: Sequence[str]) -> dict[str, Any]:
    """`guda set`: `section.key=value` texts into the recipe; returns what was set, by dotted name."""
    if not texts:
        raise GudaError("set-syntax-invalid", "give settings as section.key=value, e.g. scoring.rounds=6")
    given: Given = {}
    flat = parse_settings(texts)
    for name, value in flat.items():
        section, _, key = name.partition(".")
        known = [s for s in Recipe.model_fields if s not in (*LOCKED, "name", "defaults")]
        if section == "training" and run.made("training") is None:
            known.append(section)
        elif section in LOCKED:
            raise GudaError(
                "set-section-locked",
                f"{name}: section {section} is locked, as everything in {run.root} depends on it; make another run",
            )
        if section not in known or not key:
            raise GudaError(
                "set-key-unknown",
                f"{name}: write SECTION.KEY=VALUE, or methods.METHOD.KEY=VALUE; sections: {choices(known)}"
                f"{suggestion(section, known)}",
            )
        if section == "methods":
            method, _, field = key.partition(".")
            if method not in METHODS or not field:
                raise GudaError(
                    "method-unknown" if field else "set-key-unknown",
                    f"{name}: write methods.METHOD.KEY=VALUE; methods: {choices(sorted(METHODS))}"
                    f"{suggestion(method, METHODS)}",
                )
            given.setdefault("methods", {}).setdefault(method, {})[field] = value
        elif name == "scoring.groups" and isinstance(value, str | int):
            given.setdefault("scoring", {})["groups"] = parse_groups(run, str(value))
        else:
            given.setdefault(section, {})[key] = value
    if training := given.pop("training", None):
        run.edit_training(run.recipe.changed({"training": training}))
    if given:
        keep(run, given)
    return flat


def change_settings(run: Run, methods: Sequence[str], settings: Sequence[str]) -> None:
    """`key=value` settings of one method, written into the run's recipe; what it makes gets a name of its own."""
    update_settings(run, _only(methods), parse_settings(settings))


def update_settings(run: Run, method: str, changes: Mapping[str, Any]) -> None:
    """Settings of one method as values, written into the run's recipe."""
    keep(run, {"methods": {method: dict(changes)}})


def change_scoring(run: Run, **changes: Any) -> None:
    """Settings of the `scoring` section, written into the run's recipe; finished terms stay under their own names."""
    if given := {k: v for k, v in changes.items() if v is not None}:
        keep(run, {"scoring": given})


def change_groups(run: Run, text: str | None) -> None:
    """Which groups are fitted and scored, written into the run's recipe; see `parse_groups`."""
    if text is not None:
        keep(run, {"scoring": {"groups": parse_groups(run, text)}})


def change_queries(run: Run, **changes: Any) -> None:
    """Settings of the `queries` section, written into the run's recipe."""
    if given := {k: v for k, v in changes.items() if v is not None}:
        keep(run, {"queries": given})


# ---- texts -----------------------------------------------------------------------------------------------------------


def _only(methods: Sequence[str]) -> str:
    if len(methods) != 1:
        raise GudaError("set-method-ambiguous", "--set changes one method: give exactly one --method")
    return methods[0]


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts, the values as YAML."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise GudaError("set-syntax-invalid", f"--set {text!r}: write key=value")
        try:
            found[key] = parsing.parse_yaml(value)
        except parsing.ParseError:
            raise GudaError("set-not-yaml", f"--set {text!r:.80}: the value is not valid YAML") from None
    return found


def parse_groups(run: Run, text: str) -> list[str] | None:
    """`a,b`: which groups are fitted and scored; `level:N` of a tree: those of that depth; `all`: every group."""
    if text == "all":
        return None
    known = load_data(run).groups
    names = known.listed(text)
    if level := re.fullmatch(r"level:([0-9]{1,9})", text):
        levels = known.levels(known.leaves)
        if not 1 <= int(level[1]) <= len(levels):
            raise GudaError("group-level-unknown", f"--groups {text}: the groups have levels 1 to {len(levels)}")
        names = [known.names[k] for k in levels[int(level[1]) - 1]]
    known.check_apart([known.index(name) for name in names])  # refuses an unknown one, naming those there are
    if len(set(names)) < 2:
        raise GudaError(
            "groups-too-few", f"--groups {text!r}: attribution compares groups; give at least two, or `all`"
        )
    return names


def check_queries(run: Run, given: Mapping[str, Any]) -> None:
    """A text-to-image run counts objects, others pictures."""
    prompted = run.recipe.prompts is not None
    if prompted and "n" in given:
        raise GudaError(
            "sample-count-unsupported",
            "a text-to-image run draws one picture per object and style: give --objects instead of -n",
        )
    if not prompted and given.get("objects") is not None:
        raise GudaError("sample-objects-unsupported", "--objects is for text-to-image runs; give -n")
