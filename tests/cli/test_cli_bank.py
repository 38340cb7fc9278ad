"""`guda bank`: what is stored is shown, taken in, checked and handed out; nothing is replaced, nothing is guessed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commandline import Answer, Guda, refused
from safetensors.torch import save_file
from tinyrun import SET, Inline, copy_run, digits_folder, exact, finished_root, tiny, tree, unet_folder, write_digits

from guda import steps
from guda.diffusion.denoiser import Denoiser
from guda.files import read_tensors
from guda.run.models import load_model
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual


def as_json(answer: Answer) -> Any:
    assert answer.code == 0, answer
    return json.loads(answer.out)


def artifact(run: Run, pattern: str) -> Path:
    (found,) = run.path("artifacts").glob(pattern)
    return found


def refit(run: Run, store: str) -> None:
    steps.change_settings(run, ["retrack"], [f"store={store}"])
    steps.fit(run, ["retrack"], Inline())


def test_the_verbs_are_in_the_help(guda: Guda) -> None:
    assert " bank " in guda("--help").out
    shown = guda("bank", "--help")
    for verb in ("ls", "add", "verify", "export"):
        assert f" {verb} " in shown.out


# ---- ls -----------------------------------------------------------------------------------------------------------


def test_ls_says_what_is_stored_and_what_it_costs(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    refit(run, "lora:2:bf16")
    rows = as_json(guda("bank", "ls", run.root, "--json"))["counterfactuals"]
    by = {(r["method"], r["group"], r["kind"]): r for r in rows}
    assert len(rows) == len(by) == 6 + 3 + 3
    full = sum(4 * v.numel() for v in load_model(run, "base").weights().values())
    for (method, group, kind), row in by.items():
        path = run.path(row["file"])
        assert row["bytes"] == path.stat().st_size
        assert row["share"] == row["bytes"] / full
        assert path.name.startswith(f"000{group}-")
        if kind == "weights":
            assert method in ("logo-s1", "logo-s2")
            assert (row["rank"], row["dtype"], row["base_ok"], row["used"]) == (None, "fp32", None, True)
        elif kind == "delta":
            assert (row["rank"], row["dtype"], row["base_ok"], row["used"]) == (None, "fp32", True, False)
        else:
            assert (kind, row["rank"], row["dtype"], row["base_ok"], row["used"]) == ("lora", 2, "bf16", True, True)
            assert row["share"] < 0.5 * by[method, group, "delta"]["share"]
    shown = guda("bank", "ls", run.root).out.splitlines()
    assert shown[0].split() == ["method", "group", "kind", "rank", "dtype", "bytes", "of", "a", "copy", "base"]
    assert sum("(other settings)" in line for line in shown) == 3
    assert shown[-1].startswith("12 models, ")


def test_ls_tells_the_seeds_of_an_unlearning_apart(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    file = artifact(run, "retrack-*/0001-*")
    (file.parent / "s1").mkdir()
    (file.parent / "s1" / file.name).write_bytes(file.read_bytes())
    shown = [line.split()[0] for line in guda("bank", "ls", run.root).out.splitlines()]
    assert shown.count("retrack-s1") == 1
    assert shown.count("retrack") == 3
    assert shown.count("logo-s1") == 3


def test_ls_marks_another_base_and_damage(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    file = artifact(run, "retrack-*/0001-*")
    tensors, header = read_tensors(file)
    Counterfactual("delta", "1", "0" * 64, header["method"], tensors).save(file)
    artifact(run, "retrack-*/0002-*").write_bytes(b"junk")
    lines = guda("bank", "ls", run.root).out.splitlines()
    assert sum(line.endswith("OTHER") and " 1 " in line for line in lines) == 1
    assert sum(" damaged " in line for line in lines) == 1


def test_an_empty_bank(guda: Guda, tmp_path: Path) -> None:
    root = tmp_path / "run"
    steps.init(root, tiny(digits_folder()))
    assert f"create them with: guda fit {root}" in guda("bank", "ls", root).out
    assert guda("bank", "verify", root).out == "0 counterfactuals, all sound\n"
    refused(guda("bank", "ls", tmp_path / "absent"), "does not exist")


# ---- add ----------------------------------------------------------------------------------------------------------


def test_an_added_counterfactual_is_what_fitting_would_have_made(guda: Guda, tmp_path: Path) -> None:
    run, elsewhere = copy_run(tmp_path / "run"), tmp_path / "made.safetensors"
    shutil.rmtree(run.path("terms"))
    shutil.rmtree(run.path("scores"))
    file = artifact(run, "retrack-*/0001-*")
    shutil.move(file, elsewhere)
    refused(guda("score", run.root, "-m", "retrack"), "retrack is not fitted")
    value = as_json(guda("bank", "add", run.root, "--group", "1", "--method", "retrack", elsewhere, "--json"))
    assert value["added"]
    assert (value["kind"], run.path(value["file"])) == ("delta", file)
    assert file.read_bytes() == elsewhere.read_bytes()
    before = tree(run.root)
    again = guda("bank", "add", run.root, elsewhere, "-g", "1", "-m", "retrack")
    assert again.code == 0
    assert again.out.startswith("Already there: retrack without 1 (delta)")
    assert tree(run.root) == before
    steps.score(run, SET, list(run.recipe.methods), Inline())
    assert exact(run.root) == exact(finished_root())


@pytest.mark.parametrize("form", ["guda", "state dict", "folder", "bare folder", "delta"])
def test_a_retraining_made_elsewhere_is_taken_in_any_form(guda: Guda, tmp_path: Path, form: str) -> None:
    run = copy_run(tmp_path / "run")
    file, given = artifact(run, "logo-*/s2/0001-*"), tmp_path / "given.safetensors"
    logo, base = Counterfactual.load(file), load_model(run, "base")
    if form == "guda":
        shutil.copy(file, given)
    elif form == "state dict":
        save_file(logo.tensors, given)
    elif form == "delta":
        Counterfactual.delta(base, logo.tensors, "1", "x").save(given)
    else:
        given = tmp_path / "given"
        logo.apply(base).save_pretrained(given)
        if form == "bare folder":
            shutil.move(given / "unet", tmp_path / "bare")
            given = tmp_path / "bare"
    file.unlink()
    value = as_json(guda("bank", "add", run.root, given, "-g", "1", "-m", "logo", "--seed", 2, "--json"))
    assert (value["method"], value["kind"], run.path(value["file"])) == ("logo-s2", "weights", file)
    found = Counterfactual.load(file)
    if form == "delta":  # sums and differences round
        torch.testing.assert_close(found.tensors, logo.tensors, rtol=1e-6, atol=1e-6)
    else:
        assert found.digest() == logo.digest()
        assert exact(run.root) == exact(finished_root())


@pytest.mark.parametrize("form", ["state dict", "half precision", "folder", "weights", "lowrank"])
def test_an_unlearned_model_made_elsewhere_becomes_a_change_to_the_base(guda: Guda, tmp_path: Path, form: str) -> None:
    run = copy_run(tmp_path / "run")
    base, given = load_model(run, "base"), tmp_path / "given.safetensors"
    weights = {k: v + 0.25 for k, v in base.weights().items()}
    if form == "state dict":
        save_file(weights, given)
    elif form == "half precision":
        save_file({k: v.bfloat16() for k, v in weights.items()}, given)
    elif form == "weights":
        Counterfactual("weights", "1", "", "x", weights).save(given)
    elif form == "lowrank":
        from guda.unlearning.bank import Packing

        Packing.parse("lowrank:1").pack(Counterfactual.delta(base, weights, "1", "x")).save(given)
    else:
        given = tmp_path / "given"
        base.with_weights(weights).save_pretrained(given)
    file = artifact(run, "retrack-*/0001-*")
    file.unlink()
    value = as_json(guda("bank", "add", run.root, given, "-g", "1", "-m", "retrack", "--json"))
    found = Counterfactual.load(file)
    kind = "lowrank" if form == "lowrank" else "delta"
    assert (found.kind, found.method, found.group, found.base) == (kind, "retrack", "1", base.digest())
    assert found.digest() == value["digest"]
    close = 0.02 if form == "half precision" else 1e-5
    torch.testing.assert_close(found.apply(base).weights(), weights, rtol=0, atol=close)
    assert guda("bank", "verify", run.root).code == 0


def test_another_one_is_refused_showing_both_digests(guda: Guda, tmp_path: Path) -> None:
    run, given = copy_run(tmp_path / "run"), tmp_path / "given.safetensors"
    base = load_model(run, "base")
    there = Counterfactual.load(artifact(run, "retrack-*/0001-*"))
    other = Counterfactual.delta(base, {k: v + 1 for k, v in base.weights().items()}, "1", "retrack")
    other.save(given)
    before = tree(run.root)
    answer = guda("bank", "add", run.root, given, "-g", "1", "-m", "retrack")
    refused(answer, "holds another counterfactual", there.digest(), other.digest())
    assert tree(run.root) == before


def test_what_cannot_be_added_leaves_the_run_alone(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    base, good = load_model(run, "base"), tmp_path / "good.safetensors"
    for pattern in ("retrack-*/0001-*", "logo-*/s2/0001-*"):
        artifact(run, pattern).unlink()
    weights = base.weights()
    Counterfactual.delta(base, {k: v + 1 for k, v in weights.items()}, "1", "retrack").save(good)

    def state(name: str, **changes: Any) -> Path:
        path = tmp_path / f"{name}.safetensors"
        save_file({k: v for k, v in (weights | changes).items() if v is not None}, path)
        return path

    tensors, _ = read_tensors(good)
    Counterfactual("delta", "1", "0" * 64, "m", tensors).save(tmp_path / "foreign.safetensors")
    nan = Counterfactual("delta", "1", base.digest(), "m", tensors | {"inp.bias": torch.full((32,), torch.nan)})
    nan.save(tmp_path / "nan.safetensors")
    (tmp_path / "flipped.safetensors").write_bytes(good.read_bytes()[:-1] + b"x")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    (tmp_path / "weights.bin").write_bytes(b"junk")
    (tmp_path / "empty").mkdir()
    before = tree(run.root)
    for options, parts in (
        (["-g", "1", "-m", "retrack", tmp_path / "absent"], ["does not exist"]),
        (["-g", "7", "-m", "retrack", good], ["unknown group '7'"]),
        (["-g", "2", "-m", "retrack", good], ["left-out group", "'1'", "'2'"]),
        (["-g", "1", "-m", "retrak", good], ["unknown method", "did you mean"]),
        (["-g", "1", "-m", "similarity-pixel", good], ["keeps no counterfactual models"]),
        (["-g", "1", "-m", "retrack", "--seed", 1, good], ["--seed is for methods of several seeds"]),
        (["-g", "1", "-m", "logo", good], ["needs --seed", "1, 2"]),
        (["-g", "1", "-m", "logo", "--seed", 5, good], ["has no seed 5", "methods.logo.seeds"]),
        (["-g", "1", "-m", "retrack", tmp_path / "foreign.safetensors"], ["base model", "0" * 64, base.digest()]),
        (["-g", "1", "-m", "retrack", tmp_path / "nan.safetensors"], ["NaN or infinity in weight 'inp.bias'"]),
        (["-g", "1", "-m", "retrack", tmp_path / "flipped.safetensors"], ["is damaged: digest"]),
        (["-g", "1", "-m", "retrack", tmp_path / "junk.safetensors"], ["is damaged"]),
        (["-g", "1", "-m", "retrack", tmp_path / "weights.bin"], ["not a .safetensors file"]),
        (["-g", "1", "-m", "retrack", tmp_path / "empty"], ["neither model_index.json nor config.json"]),
        (["-g", "1", "-m", "retrack", unet_folder()], ["noise schedule"]),
        (["-g", "1", "-m", "logo", "--seed", 2, state("few", **{"inp.bias": None})], ["does not fit", "inp.bias"]),
        (["-g", "1", "-m", "retrack", state("short", **{"inp.bias": torch.zeros(3)})], ["'inp.bias' is (3,)"]),
        (
            ["-g", "1", "-m", "logo", "--seed", 2, state("inf", **{"inp.bias": torch.full((32,), torch.inf)})],
            ["NaN or infinity in weight 'inp.bias'"],
        ),
    ):  # fmt: skip
        refused(guda("bank", "add", run.root, *options), *parts)
        assert tree(run.root) == before, options


def test_retrainings_can_be_added_before_the_model_is_trained(guda: Guda, tmp_path: Path) -> None:
    root, given = tmp_path / "run", tmp_path / "given.safetensors"
    shutil.copy(artifact(Run.open(finished_root()), "logo-*/s1/0000-*"), given)
    steps.init(root, tiny(digits_folder()))
    assert as_json(guda("bank", "add", root, given, "-g", "0", "-m", "logo", "--seed", 1, "--json"))["added"]
    assert guda("bank", "verify", root).out == "1 counterfactuals, all sound\n"
    assert as_json(guda("bank", "ls", root, "--json"))["counterfactuals"][0]["used"]
    refused(guda("bank", "add", root, given, "-g", "0", "-m", "retrack"), "no trained model yet")


# ---- verify -------------------------------------------------------------------------------------------------------


def test_verify_names_every_problem(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    assert guda("bank", "verify", run.root).out == "9 counterfactuals, all sound\n"
    base = load_model(run, "base")
    flipped, foreign, nan = (artifact(run, f"retrack-*/000{k}-*") for k in range(3))
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"x")
    tensors, _ = read_tensors(foreign)
    Counterfactual("delta", "1", "0" * 64, "retrack", tensors).save(foreign)
    Counterfactual("delta", "2", base.digest(), "retrack", {"inp.bias": torch.full((32,), torch.nan)}).save(nan)
    swapped, short, cut = (artifact(run, f"logo-*/s1/000{k}-*") for k in range(3))
    shutil.copy(artifact(run, "logo-*/s2/0001-*"), swapped)
    Counterfactual("weights", "1", "", "logo-s1", {"inp.bias": torch.zeros(3)}).save(short)
    cut.write_bytes(cut.read_bytes()[:100])
    answer = guda("bank", "verify", run.root)
    assert answer.code == 2
    assert answer.err == ""
    lines = dict(line.split(": ", 1) for line in answer.out.splitlines())
    expected = {
        flipped: "is damaged: digest", foreign: f"found '{'0' * 64}', given '{base.digest()}'",
        nan: "NaN or infinity in weight 'inp.bias'", swapped: "without '1', in the place of '0'",
        short: "does not fit this network", cut: "is damaged",
    }  # fmt: skip
    assert set(lines) == {str(f.relative_to(run.root)) for f in expected}
    for file, part in expected.items():
        assert part in lines[str(file.relative_to(run.root))]
    machine = guda("bank", "verify", run.root, "--json")
    assert machine.code == 2
    value = json.loads(machine.out)
    assert value["files"] == 9
    assert {p["file"] for p in value["problems"]} == set(lines)


# ---- export -------------------------------------------------------------------------------------------------------


def test_export_is_the_counterfactual_as_a_model(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    base = load_model(run, "base")
    value = as_json(guda("bank", "export", run.root, tmp_path / "m", "-m", "retrack", "-g", "1", "--json"))
    loaded = Denoiser.from_pretrained(tmp_path / "m")
    item = Counterfactual.load(artifact(run, "retrack-*/0001-*"))
    assert loaded.digest() == item.apply(base).digest() == value["weights"] != base.digest()
    assert loaded.schedule.digest == base.schedule.digest
    assert guda("bank", "export", run.root, tmp_path / "l", "-m", "logo", "-g", "2", "--seed", 2).code == 0
    logo = Counterfactual.load(artifact(run, "logo-*/s2/0002-*"))
    assert Denoiser.from_pretrained(tmp_path / "l").digest() == logo.apply(base).digest()
    refused(guda("bank", "export", run.root, tmp_path / "m", "-m", "retrack", "-g", "2"), "exists already")
    refused(guda("bank", "export", run.root, tmp_path / "n", "-m", "logo", "-g", "2"), "needs --seed")
    refused(guda("bank", "export", run.root, tmp_path / "n", "-m", "shift", "-g", "2"), "guda fit", "--method shift")
    assert not (tmp_path / "n").exists()


def test_a_lora_student_of_a_unet_is_scored_and_exported_for_diffusers(guda: Guda, tmp_path: Path) -> None:
    from diffusers import DDPMPipeline

    value = tiny(write_digits(tmp_path / "art", each=6)).model_dump(mode="json")
    value["model"] = {"path": str(unet_folder())}
    value["methods"] = {"retrack": value["methods"]["retrack"] | {"store": "lora:1", "steps": 2}}
    run = steps.init(tmp_path / "run", Recipe.model_validate(value))
    steps.fit(run, ["retrack"], Inline())
    (row, *_) = as_json(guda("bank", "ls", run.root, "--json"))["counterfactuals"]
    assert (row["kind"], row["rank"], row["base_ok"]) == ("lora", 1, True)
    steps.sample(run, Inline())
    scores = steps.score(run, run.query_sets()[0], ["retrack"], Inline())["retrack"]
    assert bool((scores.score != 0).any())
    assert guda("bank", "export", run.root, tmp_path / "m", "-m", "retrack", "-g", "0").code == 0
    unet = DDPMPipeline.from_pretrained(tmp_path / "m").unet
    item = Counterfactual.load(artifact(run, "retrack-*/0000-*"))
    torch.testing.assert_close(dict(unet.state_dict()), item.apply(load_model(run, "base")).weights(), rtol=0, atol=0)
