"""The generator of tools/fuzz.py: input `number` of a seed is a Case, a function of both and of the world's file names.

Some inputs are known to be bad, because no reading of the documentation accepts them (a negative size, a cut PNG, a
YAML list as a recipe). The others may be harmless: they must be refused cleanly or work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin

import yaml
from fuzz_case import Case, pack
from fuzz_values import (
    ABSURD,
    NOT_A_NUMBER,
    NOT_A_TEXT,
    NOT_POSITIVE,
    ODD,
    WORDS,
    numbers,
    spoil_picture,
    spoil_text,
)
from tiny_world import GROUPS, RECIPE

Maker = Callable[[Random, "World"], Case]

INIT = ["init", "new", "--recipe", "recipe.yaml"]
FROM_ART = ["init", "new", "--data", "art", "--model", "model"]


class World:
    """What the generator knows: names of files, commands and settings; nothing that a clock or a machine changes."""

    def __init__(self, root: Path) -> None:
        from typer.main import get_command

        from guda.cli.main import app
        from guda.methods.base import METHODS

        self.run_files = sorted(p.relative_to(root).as_posix() for p in (root / "run").rglob("*") if p.is_file())
        self.model_files = sorted(p.relative_to(root).as_posix() for p in (root / "model").rglob("*") if p.is_file())
        self.commands: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]
        self.methods = {name: cls.Config.model_fields for name, cls in sorted(METHODS.items())}
        self.index = (root / "styled" / "metadata.jsonl").read_text()


# ---- recipes -------------------------------------------------------------------------------------------------------
def _field(rng: Random, world: World) -> tuple[list[str], Any]:
    """A place in a recipe and what is known about its values."""
    from guda.run.recipe import Recipe

    sections = {n: f for n, f in Recipe.model_fields.items() if n not in ("name", "methods")}
    if rng.random() < 0.25:
        method = rng.choice(["retrack", *world.methods])
        name = rng.choice(sorted(world.methods[method]) or ["none"])
        return ["methods", method, name], world.methods[method].get(name)
    section = rng.choice(sorted(sections))
    config = next((t for t in (sections[section].annotation, *get_args(sections[section].annotation))
                   if hasattr(t, "model_fields")), None)  # fmt: skip
    if config is None:
        return [section], None
    name = rng.choice(sorted(config.model_fields))
    return [section, name], config.model_fields[name]


def _kind(about: Any) -> tuple[str, bool]:
    """number, text, choice or other; and whether null is accepted."""
    types = [about.annotation, *get_args(about.annotation)] if about is not None else []
    optional = type(None) in types
    if get_origin(about.annotation if about is not None else None) is Literal:
        return "choice", False
    for kind, found in (("number", (int, float)), ("text", (str,))):
        if any(t in types for t in found) and len([t for t in types if t in (int, float, str, bool)]) == 1:
            return kind, optional
    return "other", optional


def _value(rng: Random, about: Any) -> tuple[Any, bool]:
    kind, _ = _kind(about)
    if kind == "number" and rng.random() < 0.7:
        return rng.choice([*NOT_A_NUMBER, *NOT_POSITIVE]), True
    if kind == "text" and rng.random() < 0.5:
        return rng.choice(NOT_A_TEXT), True
    if kind == "choice" and rng.random() < 0.7:
        return rng.choice(["nope", "", 3, [], {}, "ELBO "]), True
    return rng.choice(ODD), False


def recipe_value(rng: Random, world: World) -> Case:
    value = json.loads(json.dumps(RECIPE))
    keys, about = _field(rng, world)
    found, bad = _value(rng, about)
    place = value
    for key in keys[:-1]:
        if not isinstance(place.get(key), dict):
            place[key] = {"steps": 3} if key in world.methods and "steps" in world.methods[key] else {}
        place = place[key]
    if rng.random() < 0.1:
        place["no_such_key"], bad = found, True
    else:
        place[keys[-1]] = found
    try:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError, ValueError):
        text = json.dumps(value, default=str)
    text = text.encode("utf-8", "replace").decode()
    return Case("recipe", INIT, [["text", "recipe.yaml", text]], bad, f"{'.'.join(keys)} = {found!r:.60}")


def recipe_text(rng: Random, world: World) -> Case:
    data, bad, what = spoil_text(rng, yaml.safe_dump(RECIPE, sort_keys=False), yaml=True)
    return Case("recipe", INIT, [["write", "recipe.yaml", pack(data)]], bad, what)


# ---- pictures and folders ------------------------------------------------------------------------------------------
def image(rng: Random, world: World) -> Case:
    name, data, bad, what = spoil_picture(rng)
    if rng.random() < 0.7:
        where = f"art/{rng.choice(GROUPS)}/{name}"
        return Case("image", [*FROM_ART, *(["--size", "8"] if rng.random() < 0.3 else [])],
                    [["write", where, pack(data)]], bad, what)  # fmt: skip
    argv = ["score", "run", "-q", "pictures", "-m", "similarity-pixel"]
    return Case("image", argv, [["write", f"pictures/{name}", pack(data)]], bad, f"query: {what}")


NAMES = (
    "\udcff", "a\nb", "\t", " ", "-m", "--help", "💥", "a" * 250, "..x", "con", "a,b", "a=b", "a:b", "é", "e\u0301",
    "\u202eevil", "{x}", "%d", "'\"", "<script>", "=1+1", "*", "[a]", "CIRCLES", "circles ", "all", "level:1", "\\",
)  # fmt: skip


def folder(rng: Random, world: World) -> Case:
    good = "art/circles/00.png"
    options: list[tuple[str, list[list[Any]], bool]] = [
        ("empty", [["folder", "art"]], True),
        ("missing", [["delete", "art"]], True),
        ("a file", [["delete", "art"], ["text", "art", "x"]], True),
        ("one group", [["delete", "art/crosses"], ["delete", "art/stripes"]], True),
        ("an empty group", [["folder", "art/empty"]], False),
        ("a picture at the top", [["copy", "art/top.png", good]], False),
        ("a pipe", [["fifo", "art/circles/z.png"]], True),
        ("a pipe with another name", [["fifo", "art/circles/z.txt"]], False),
        ("a device", [["link", "art/circles/z.png", "/dev/zero"]], True),
        ("an endless device", [["link", "art/circles/z.png", "/dev/urandom"]], True),
        ("a link to nothing", [["link", "art/circles/z.png", "nowhere"]], True),
        ("a link to itself", [["link", "art/circles/z.png", "z.png"]], True),
        ("a group that links to itself", [["link", "art/again", "again"]], False),
        ("a group that links upwards", [["link", "art/again", "../art"]], True),
        ("a folder named like a picture", [["folder", "art/circles/z.png"]], False),
        ("deep", [["deep", "art/deep", rng.choice([50, 300, 1200])]], False),
        ("pipe for metadata", [["fifo", "art/metadata.jsonl"]], False),
        ("folder for metadata", [["folder", "art/metadata.jsonl"]], False),
        ("pipe for prompts", [["fifo", "pictures/prompts.jsonl"]], True),
        ("foreign pictures", [["text", f"art/circles/z.{rng.choice(['heic', 'svg', 'psd', 'avif'])}", "x"]], True),
    ]
    name = rng.choice(NAMES)
    options.append((f"a group named {name!a}", [["copy", f"art/{name}/0.png", good]], False))
    options.append((f"a picture named {name!a}", [["copy", f"art/circles/{name}.png", good]], False))
    what, changes, bad = rng.choice(options)
    if what == "pipe for prompts":
        return Case("folder", ["score", "run", "-q", "pictures", "-m", "similarity-pixel"], changes, bad, what)
    argv, how = FROM_ART, rng.random()
    if how < 0.2:
        argv = ["sanity", "run", "--heldout", "art", "-m", "similarity-pixel"]
        bad = bad and what not in ("one group",)  # one known group can be asked about
    elif how < 0.35:
        argv = ["score", "run", "-q", "art", "-m", "similarity-pixel"]
        bad = bad and what not in ("one group",)
    return Case("folder", argv, changes, bad, what)


def metadata(rng: Random, world: World) -> Case:
    rows = [json.loads(line) for line in world.index.splitlines()]
    column = rng.choice(["style", "style", "tags", "year", "nope", "style/year", "file_name", "", "style/", "/"])
    bad, what, as_csv = column in ("nope", "style/", "/"), f"by {column!r}", rng.random() < 0.3
    if rng.random() < 0.65:  # one cell
        row = rng.choice(rows)
        key = rng.choice(["file_name", "style", "tags", "year", "prompt"])
        paths = ["../art/circles/00.png", "/etc/passwd", "nope.png", "circles/cats/0.png\0", "circles/cats", ".", "//"]
        row[key] = rng.choice([*paths, *ODD]) if key == "file_name" else rng.choice(ODD)
        bad, what = bad or (key == "file_name" and not as_csv), f"{what}, {key} = {row[key]!r:.50}"
        if rng.random() < 0.2:
            rows.append(row)
    elif rng.random() < 0.5:
        del rows[0]
        bad, what = True, f"{what}, a picture without a row"
    text = "".join(json.dumps(r) + "\n" for r in rows)
    changes: list[list[Any]] = [["text", "styled/metadata.jsonl", text]]
    if as_csv:
        lines = [",".join(rows[0])] + [",".join(str(v).replace(",", ";") for v in r.values()) for r in rows]
        text = rng.choice(["\n", "\r", "\r\n", '"\n'][:3] * 3 + ['"\n']).join(lines)
        text += rng.choice(["", "", '\n"', "\n" + "x" * 200_000, "\0", "\n,,,,,,,,,,,\n"])
        text = text.encode("utf-8", "replace").decode()
        changes = [["delete", "styled/metadata.jsonl"], ["text", "styled/metadata.csv", text]]
        bad = False
    elif rng.random() < 0.3:
        data, bad, more = spoil_text(rng, text, yaml=False)
        bad, what = bad and more != "blank", f"{what}, {more}"
        changes = [["write", "styled/metadata.jsonl", pack(data)]]
    argv = ["init", "new", "--data", "styled", "--model", "model", "--group-by", column]
    if rng.random() < 0.2:
        argv += ["--content-by", rng.choice(["level:2", "style", "nope", "tags", "level:9"])]
    return Case("metadata", argv, changes, bad, what)


def prompts(rng: Random, world: World) -> Case:
    rows: list[Any] = [{"file_name": f"q{i}.png", "prompt": "x"} for i in range(2)]
    if rng.random() < 0.5:
        rows[0][rng.choice(["file_name", "prompt"])] = rng.choice(ODD)
        text = "".join(json.dumps(r) + "\n" for r in rows)
        changes, what = [["text", "pictures/prompts.jsonl", text]], f"{rows[0]!r:.60}"
    else:
        data, _, what = spoil_text(rng, "".join(json.dumps(r) + "\n" for r in rows), yaml=False)
        changes = [["write", "pictures/prompts.jsonl", pack(data)]]
    argv = ["score", "run", "-q", "pictures", "-m", "retrack"]
    return Case("prompts", argv, changes, True, f"an unconditional model: {what}")


# ---- models and runs -----------------------------------------------------------------------------------------------
CLASSES = (
    "DiffusionPipeline", "AutoPipelineForText2Image", "UNet2DConditionModel", "os", "os.system", "", None, 3, [], {},
    "FlaxUNet2DModel", "AutoencoderKL", "DDPMSchedulerx", "../x", "__import__", "ConfigMixin", "torch", "UNet2DModel ",
)  # fmt: skip


def _damage(rng: Random, path: str, files: list[str]) -> tuple[list[list[Any]], str]:
    """One fault in one file; which changes, and what they do."""
    structured = path.endswith(".json")
    what = rng.choice(
        ["cut", "flip", "empty", "delete", "folder", "copy", "link", *(["set"] * 6 if structured else [])]
    )
    if what == "cut":
        return [["cut", path, rng.random()]], "cut"
    if what == "flip":
        return [["flip", path, [[rng.random(), rng.randrange(1, 256)] for _ in range(rng.choice([1, 1, 4, 40]))]]], what
    if what == "empty":
        return [["text", path, ""]], what
    if what == "copy":
        other = rng.choice([f for f in files if f.rpartition(".")[2] == path.rpartition(".")[2]] or files)
        return [["copy", path, other.replace("[", "[[]")]], f"the contents of {other}"
    if what == "link":
        target = rng.choice(["nowhere", Path(path).name, "/dev/zero", ".."])
        return [["link", path, target]], f"a link to {target}"
    if what == "set":
        keys, value = [rng.randrange(99) for _ in range(rng.randrange(1, 4))], rng.choice(ODD)
        return [["set", path, keys, value]], f"{keys} = {value!r:.40}"
    return [[what, path]], what


def model(rng: Random, world: World) -> Case:
    how = rng.random()
    bad = False
    if how < 0.3:
        path, key = rng.choice(
            [("model/model_index.json", "_class_name"), ("model/unet/config.json", "_class_name"),
             ("model/scheduler/scheduler_config.json", "_class_name"), ("model/model_index.json", "unet")]
        )  # fmt: skip
        value = rng.choice(CLASSES)
        if key == "unet":
            value = rng.choice([[str(value), "UNet2DModel"], ["diffusers", value], value])
        changes, what = [["set", path, [key], value]], f"{Path(path).name}: {key} = {value!r}"
        bad = "scheduler" not in path and key == "_class_name" and "unet" in path
    elif how < 0.6:
        path = rng.choice(["model/unet/config.json", "model/scheduler/scheduler_config.json"])
        numbers_of = {
            "model/unet/config.json": ["sample_size", "in_channels", "out_channels", "layers_per_block",
                                       "block_out_channels", "norm_num_groups", "down_block_types", "act_fn",
                                       "attention_head_dim", "no_such_key", "time_embedding_type", "norm_eps"],
            "model/scheduler/scheduler_config.json": ["num_train_timesteps", "beta_start", "beta_end", "beta_schedule",
                                                      "prediction_type", "trained_betas", "no_such_key",
                                                      "thresholding", "clip_sample", "variance_type", "steps_offset"],
        }  # fmt: skip
        key, value = rng.choice(numbers_of[path]), rng.choice([*ODD, *NOT_POSITIVE, ABSURD])
        changes, what = [["set", path, [key], value]], f"{Path(path).name}: {key} = {value!r:.50}"
    else:
        path = rng.choice(world.model_files)
        changes, what = _damage(rng, path, world.model_files)
        what = f"{path}: {what}"
    argv = rng.choice([FROM_ART, FROM_ART, ["init", "new", "--data", "art", "--model", "model/unet", "--scheduler",
                                            rng.choice(["linear:50", "model/scheduler", "model"])]])  # fmt: skip
    bad = bad and "model" not in argv  # a pipeline's index names the classes, the config beside the weights does not
    return Case("model", argv, changes, bad, what)


# commands that meet a damaged run; what they do on a whole one takes little
ON_A_RUN: tuple[list[str], ...] = (
    ["status", "run"], ["status", "run", "--json"], ["plan", "run"], ["train", "run"], ["sample", "run"],
    ["score", "run"], ["fit", "run"], ["fit", "run", "-m", "retrack", "-m", "logo"],
    ["score", "run", "-q", "pictures", "-m", "retrack"],
    ["score", "run", "-m", "retrack", "--stop", "budget=200"], ["evaluate", "run"], ["evaluate", "run", "--bands"],
    ["evaluate", "run", "--json", "--pairs"], ["report", "run"], ["report", "run", "--csv", "--json", "--no-drawings"],
    ["calibrate", "run", "-m", "retrack", "-n", "4"], ["health", "run", "-n", "2"], ["bank", "ls", "run"],
    ["bank", "verify", "run"], ["bank", "export", "run", "exported", "-g", "circles", "-m", "retrack"],
    ["figure", "run", "ranking"], ["sanity", "run", "--heldout", "art", "-m", "similarity-pixel"],
    ["init", "run", "--recipe", "recipe.yaml"], ["plan", "run", "--cluster", "10"],
    ["shares", "run"], ["shares", "run", "--by", "subsets", "--json"], ["without", "run", "--groups", "circles"],
    ["without", "run", "--groups", "circles", "--by", "subsets", "--json"], ["score", "run", "-m", "datamodel"],
    ["score", "run", "-m", "retrack", "--stop", "budget=200", "--screen", "posterior:2"],
)  # fmt: skip


def run_folder(rng: Random, world: World) -> Case:
    """A finished run with one damaged file; every fifth time a few files, or its terms or scores removed as well."""
    files = [f for f in world.run_files if "/timings/" not in f]
    kinds = sorted({"/".join(f.split("/")[1:3]) for f in files})
    kind = rng.choice(kinds)  # by place, or the many parts of the terms would be all that is ever damaged
    path = rng.choice([f for f in files if f.startswith(f"run/{kind}")])
    if rng.random() < 0.05:
        path = rng.choice([f for f in world.run_files if "/timings/" in f])
    changes, what = _damage(rng, path, files)
    if path.endswith(("recipe.yaml",)) and rng.random() < 0.7:
        data, _, what = spoil_text(rng, yaml.safe_dump(RECIPE), yaml=True)
        changes = [["write", path, pack(data)]]
    elif path.endswith(".json") and rng.random() < 0.25:
        data, _, what = spoil_text(rng, '{"format": 1}', yaml=False)
        changes = [["write", path, pack(data)]]
    if rng.random() < 0.2:
        gone = rng.choice(
            ["run/scores", "run/terms", "run/evaluation.json", "run/figures", "run/queries", "run/pilot.json"]
        )
        changes = [["delete", gone], *changes]
        what += f", without {gone}"
    return Case("run", rng.choice(ON_A_RUN), changes, False, f"{path}: {what}")


def bank_file(rng: Random, world: World) -> Case:
    """A model to import that is not one."""
    changes, what = _damage(rng, "model.safetensors", ["model.safetensors", "art/circles/00.png", *world.model_files])
    what = f"bank add: {what}"
    argv = ["bank", "add", "run", "model.safetensors", "-g", rng.choice([*GROUPS, "nope", ""]), "-m", "hybrid"]
    if rng.random() < 0.3:
        head = rng.choice([b"\xff" * 8, (2**62).to_bytes(8, "little"), (2).to_bytes(8, "little") + b"{}",
                           (9).to_bytes(8, "little") + b'{"a":[1]}'])  # fmt: skip
        changes, what = [["write", "model.safetensors", pack(head + b"x" * 50)]], "bank add: a strange header"
    return Case("bank", argv, changes, False, what)


# ---- options -------------------------------------------------------------------------------------------------------
# a good call of every command, to which one or two odd options are added; None: never called here
CALLS: dict[str, list[str] | None] = {
    "init": FROM_ART, "train": ["train", "run"], "fit": ["fit", "run", "-m", "retrack"], "sample": ["sample", "run"],
    "score": ["score", "run", "-m", "retrack"], "evaluate": ["evaluate", "run"],
    "sanity": ["sanity", "run", "--heldout", "art", "-m", "similarity-pixel"],
    "calibrate": ["calibrate", "run", "-m", "retrack", "-n", "4"], "health": ["health", "run", "-m", "retrack"],
    "likelihood": ["likelihood", "run", "-m", "retrack", "-n", "2", "--steps", "2", "--seeds", "1"],
    "plan": ["plan", "run"], "report": ["report", "run"], "status": ["status", "run"], "methods": ["methods"],
    "figure": ["figure", "run", "ranking"], "tune": ["tune", "run", "-m", "retrack", "--trials", "1", "-n", "2",
                                                      "--search", "steps=1|2", "--groups", "2"],
    "shares": ["shares", "run", "--no-pool"], "without": ["without", "run", "--groups", "circles", "--draw", "0"],
    "distil": ["distil", "run", "--set", "pictures=8"],
    "pairs": ["pairs", "run"], "ablate": ["ablate", "run", "lambda"],
    "reproduce": ["reproduce", "digits", "--plan"], "bank": ["bank", "ls", "run"],
    "prompts": ["prompts", "show", "run"], "demo": None, "serve": None,
}  # fmt: skip
NOT_HERE = {"help", "version", "engine", "pdf", "workers", "open_"}  # others' processes; a browser
LONG_WORK = {"train", "pairs", "ablate"}  # a good call of these takes long: only bad ones are made


def _option_kind(param: Any) -> type:
    """int, float or str; typer has kept it in different places."""
    if hasattr(param, "type_descriptor"):
        return param.type_descriptor.annotation
    return {"integer": int, "float": float}.get(param.type.name.split()[0], str)


def options(rng: Random, world: World) -> Case:
    name = rng.choice(sorted(n for n in world.commands if CALLS.get(n, ["x"]) is not None))
    argv = list(CALLS.get(name) or [name, "run"])
    params = [p for p in world.commands[name].params if getattr(p, "opts", None) and p.name not in NOT_HERE]
    params = [p for p in params if p.opts[0].startswith("-")]
    bad, notes = False, []
    for _ in range(rng.choice([1, 1, 2])):
        if not params or rng.random() < 0.08:
            argv += [rng.choice(["--no-such-option", "extra", "-z", "--json=3", "--method"])]
            bad = True
            break
        param = rng.choice(params)
        option = max(param.opts, key=len)
        if param.is_flag:
            argv += [option]
            continue
        if (kind := _option_kind(param)) in (int, float):
            value, wrong = numbers(rng, kind is int)
            bad |= wrong
        else:
            value = rng.choice(WORDS)
        notes.append(f"{option} {value!a:.50}")
        argv += [option, value]
    if rng.random() < 0.12 and len(argv) > 1 and name not in ("reproduce", "methods", "plan", "init"):
        place = argv.index("run") if "run" in argv else 1
        argv[place] = rng.choice([w for w in WORDS if not w.startswith(("/", "run", "-", "..")) and "://" not in w])
        bad, notes = True, [*notes, f"run {argv[place]!a:.40}"]
    if name in LONG_WORK and not bad:
        argv += ["--no-such-option"]
        bad = True
    return Case("options", argv, [], bad, f"{name} {' '.join(notes)}")


def setting(rng: Random, world: World) -> Case:
    """fit --set, on every method."""
    method = rng.choice(sorted(world.methods))
    known = world.methods[method]
    if not known:
        return Case("settings", ["fit", "run", "-m", method, "--set", "x=1"], [], True, "a setting of none")
    name = rng.choice(sorted(known))
    value, bad = _value(rng, known[name])
    text = value if isinstance(value, str) else {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(
        str(value), json.dumps(value))  # fmt: skip
    bad = bad and not (isinstance(value, str) and value in ("0x10", "", "--", "nan"))  # as YAML reads them, or as text
    argv = ["fit", "run", "-m", method, "--set", f"{name}={text}"]
    for other, small in (("steps", 2), ("draws", 4), ("dim", 8), ("fisher_images", 4), ("epochs", 1)):
        if other in known and other != name:
            argv += ["--set", f"{other}={small}"]
    return Case("settings", argv, [], bad, f"{method}: {name} = {value!r:.50}")


MAKERS: tuple[tuple[int, Maker], ...] = (
    (16, recipe_value), (8, recipe_text), (14, image), (8, folder), (9, metadata), (3, prompts), (10, model),
    (20, run_folder), (3, bank_file), (20, options), (9, setting),
)  # fmt: skip


def make(seed: int, number: int, world: World) -> Case:
    rng = Random(f"{seed}/{number}")
    maker = rng.choices([m for _, m in MAKERS], [w for w, _ in MAKERS])[0]
    return maker(rng, world)
