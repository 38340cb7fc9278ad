"""A base with one LoRA as the model under study, from the command line: LoRAs alone are changed and stored."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commandline import Guda, refused
from safetensors.torch import load_file, save_file
from textrun import STYLES, WORDS, sd_folder, styles_folder, write_prompted
from tinyrun import Inline

import tiny_pipelines
from guda import steps
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.lora import adapted, is_adapter
from guda.errors import GudaError
from guda.run.models import load_model
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual, bank_fraction, full_bytes

FIT = {"steps": 3, "lr": 1e-3, "batch_forget": 2, "batch_retain": 2}


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 2 on every attention projection of the tiny U-Net, with a scale of 3."""
    base, g = Denoiser.from_pretrained(sd_folder()), torch.Generator().manual_seed(0)
    state: dict[str, torch.Tensor] = {}
    layers: list[str] = []
    for name, layer in base.module.named_modules():
        if name.endswith(("to_q", "to_k", "to_v")):
            out, into = layer.weight.shape
            state[f"unet.{name}.lora_A.weight"] = torch.randn(2, into, generator=g) / into**0.5
            state[f"unet.{name}.lora_B.weight"] = torch.randn(out, 2, generator=g) / 10
            layers.append(name)
    file = tmp_path_factory.mktemp("lora") / "style.safetensors"
    about = {"unet.r": 2, "unet.lora_alpha": 6, "unet.target_modules": layers, "unet.rank_pattern": {}}
    save_file(state, file, {"format": "pt", "lora_adapter_metadata": json.dumps(about)})
    return file


def start(guda: Guda, tmp_path: Path, lora: Path, **sections: Any) -> Path:
    run, file = tmp_path / "run", tmp_path / "mine.yaml"
    made = guda(
        "init", run, "--model", sd_folder(), "--lora", lora, "--data", styles_folder(), "--content-by", "level:2"
    )
    assert made.code == 0, made.err
    recipe = Run.open(run).recipe
    assert {s["store"] for s in [*recipe.methods.values(), *recipe.defaults.values()]} == {"fp32"}
    value = recipe.model_dump(mode="json") | {"prompts": {"source": "file", "lists": WORDS}}
    value["methods"] = {"anchors-uniform": FIT}
    value["scoring"] |= {"strata": 3, "rounds": 2, "block": 8, "estimand": "elbo", "excess": False, "foreign": "skip"}
    file.write_text(json.dumps(value | sections))
    run = tmp_path / "second"
    assert guda("init", run, "--recipe", file).code == 0
    assert guda("prompts", "build", run).code == 0
    return run


@pytest.mark.slow
def test_only_the_lora_is_changed_and_stored(guda: Guda, tmp_path: Path, lora: Path) -> None:
    run = start(guda, tmp_path, lora)
    steps.fit(Run.open(run), ["anchors-uniform"], Inline())
    model, base = load_model(Run.open(run), "base"), Denoiser.from_pretrained(sd_folder())
    assert adapted(model.module)
    numbers = sum(v.numel() for k, v in model.weights().items() if is_adapter(k))
    files = sorted((run / "artifacts").glob("anchors-uniform-*/*.safetensors"))
    assert len(files) == len(STYLES)
    assert bank_fraction(model, "fp32") * full_bytes(model.module) == 4 * numbers
    for file in files:
        item = Counterfactual.load(file)
        assert all(is_adapter(name) for name in item.tensors)
        assert sum(v.nbytes for v in item.tensors.values()) == 4 * numbers
        changed = item.apply(model).weights()
        assert any(not torch.equal(changed[k], v) for k, v in model.weights().items() if is_adapter(k))
        for name, value in base.weights().items():  # bit by bit the published base
            apart = name if name in changed else name.replace(".weight", ".base_layer.weight")
            assert torch.equal(changed[apart], value)
    folder = write_prompted(tmp_path / "pictures")
    scored = guda("score", run, "--queries", folder, "--workers", 1, "--json")
    assert scored.code == 0, scored.err
    assert json.loads(scored.out)["scores"]["anchors-uniform"]["unit"] == "nats"
    # what is handed out is a LoRA file that diffusers puts on the base
    out = tmp_path / "without"
    assert guda("bank", "export", run, out, "-m", "anchors-uniform", "-g", STYLES[0]).code == 0
    pipe = tiny_pipelines.read(sd_folder())
    pipe.load_lora_weights(out)
    mine = Counterfactual.load(files[0]).apply(model)
    x_t, t = torch.randn(1, 4, 8, 8), torch.tensor([500])
    cond = mine.condition(["a cat"])
    assert cond is not None
    with torch.no_grad():
        theirs = pipe.unet(x_t, t, **cond.tensors).sample
        torch.testing.assert_close(mine.raw(x_t, t, cond), theirs, rtol=1e-4, atol=1e-5)
        assert (model.raw(x_t, t, cond) - theirs).abs().max() > 1e-5


def test_logo_retrains_the_lora_from_the_base(guda: Guda, tmp_path: Path, lora: Path) -> None:
    training = {"steps": 4, "batch": 4, "lr": 1e-2, "warmup": 0, "schedule": "constant", "ema": None}
    run = start(guda, tmp_path, lora, training=training, methods={"logo": {"seeds": [1]}})
    opened = Run.open(run)
    steps.fit(opened, ["logo"], Inline())
    model, full = load_model(opened, "base"), load_model(opened, "full-s1")
    assert [p.name for p in sorted((run / "models" / "full-s1").glob("*.safetensors"))] == ["adapter.safetensors"]
    kept = load_file(run / "models" / "full-s1" / "adapter.safetensors")
    assert set(kept) == {k for k in model.weights() if is_adapter(k)}
    a = [k for k in kept if "lora_A" in k]
    assert not any(torch.equal(kept[k], model.weights()[k]) for k in a)  # not the published LoRA, trained on
    for file in sorted((run / "artifacts").glob("logo-*/**/*.safetensors")):
        item = Counterfactual.load(file)
        assert (item.kind, set(item.tensors), item.base) == ("weights", set(kept), model.digest())
        weights = item.apply(model).weights()
        for name, value in model.weights().items():
            assert torch.equal(weights[name], value) == (not is_adapter(name))
        assert not torch.equal(weights[a[0]], full.weights()[a[0]])


def test_a_second_lora_is_refused(guda: Guda, tmp_path: Path, lora: Path) -> None:
    run = start(guda, tmp_path, lora)
    with pytest.raises(GudaError) as caught:
        steps.fit(
            steps.override(Run.open(run), methods=["anchors-uniform"], settings=["store=lora:4"]),
            ["anchors-uniform"],
            Inline(),
        )
    assert caught.value.code == "lora-already-there"
    value = Run.open(run).recipe.model_dump(mode="json") | {"training": {"steps": 4, "lora": 2}}
    (tmp_path / "more.yaml").write_text(json.dumps(value))
    refused(guda("init", tmp_path / "third", "--recipe", tmp_path / "more.yaml"), "remove training.lora")
