"""Pipeline folders that are incomplete, of another kind or LoRA-tuned: refused by name, or exact."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import EDMEulerScheduler, FlowMatchEulerDiscreteScheduler, LCMScheduler
from safetensors.torch import load_file, save_file

import tiny_pipelines
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from refusals import refused


@pytest.fixture
def copied(tiny_pipeline: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(kind: str) -> Path:
        shutil.copytree(tiny_pipeline(kind), tmp_path / kind)
        return tmp_path / kind

    return copy


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("kind", "part"),
    [("sd", "vae"), ("sd", "tokenizer"), ("sdxl", "text_encoder_2"), ("sd3", "tokenizer_2"), ("sd3-t5", "tokenizer_3")],
)
def test_a_missing_part_is_named(kind: str, part: str, copied: Callable[[str], Path]) -> None:
    folder = copied(kind)
    shutil.rmtree(folder / part)
    with pytest.raises(GudaError, match=rf"Pipeline without its {part}; get the whole"):
        Denoiser.from_pretrained(folder)


def test_other_pipelines_are_refused_by_their_class(copied: Callable[[str], Path]) -> None:
    folder = copied("sd")
    edit_json(folder / "model_index.json", _class_name="AltDiffusionPipeline")
    with refused("pipeline-unsupported"):
        Denoiser.from_pretrained(folder)


@pytest.mark.parametrize(
    ("part", "name"), [("vae", "AsymmetricAutoencoderKL"), ("text_encoder", "BertModel"), ("unet", "UNet2DModel")]
)
def test_parts_of_another_class_are_refused_by_name(part: str, name: str, copied: Callable[[str], Path]) -> None:
    folder = copied("sd")
    edit_json(folder / "model_index.json", **{part: ["diffusers", name]})
    with pytest.raises(GudaError, match=f"{part} is a {name}; guda reads"):
        Denoiser.from_pretrained(folder)


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        (LCMScheduler(), "LCMScheduler belongs to a distilled"),
        (EDMEulerScheduler(), "EDMEulerScheduler"),
        (FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), "use_dynamic_shifting"),
    ],
)
def test_an_unsupported_scheduler_is_refused_by_name(scheduler: Any, line: str, copied: Callable[[str], Path]) -> None:
    folder = copied("sd")
    scheduler.save_pretrained(folder / "scheduler")
    with pytest.raises(GudaError, match=line):
        Denoiser.from_pretrained(folder)


def test_inpainting_and_guidance_distilled_networks_are_refused(tmp_path: Path) -> None:
    tiny_pipelines.sd(in_channels=9).save_pretrained(tmp_path / "inpaint")
    with refused("network-channels-differ", match="9 channels to 4"):
        Denoiser.from_pretrained(tmp_path / "inpaint")
    tiny_pipelines.sd(time_cond_proj_dim=8).save_pretrained(tmp_path / "lcm")
    with refused("network-feature-unsupported"):
        Denoiser.from_pretrained(tmp_path / "lcm")


@pytest.mark.parametrize("part", ["vae", "text_encoder", "unet"])
@pytest.mark.parametrize("damage", ["missing", "nan", "truncated", "pickled"])
def test_broken_weights_of_any_part_are_refused(part: str, damage: str, copied: Callable[[str], Path]) -> None:
    file = next((copied("sd") / part).glob("*.safetensors"))
    state = load_file(file)
    name = next(n for n in sorted(state) if n.endswith(".bias"))
    if damage == "missing":
        state.pop(name)
    if damage == "nan":
        state[name][0] = float("nan")
    save_file(state, file, metadata={"format": "pt"})
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:500])
    if damage == "pickled":
        torch.save(state, file.with_suffix(".bin"))
        file.unlink()
    lines = {"missing": "lack|one side only", "nan": "NaN", "truncated": "cannot be loaded", "pickled": "pickled"}
    with pytest.raises(GudaError, match=lines[damage]) as caught:
        Denoiser.from_pretrained(file.parents[1])
    assert "\n" not in str(caught.value)


def test_half_precision_checkpoints_compute_in_float32_on_the_cpu(
    tiny_pipeline: Callable[[str], Path], tmp_path: Path
) -> None:
    pipe = tiny_pipelines.read(tiny_pipeline("sdxl")).to(torch.float16)
    pipe.save_pretrained(str(tmp_path / "half"))
    denoiser = Denoiser.from_pretrained(tmp_path / "half").to("cpu")
    frozen: Any = denoiser.frozen
    parts = [denoiser.module, *frozen.parts().values()]
    assert {p.dtype for part in parts for p in part.parameters()} == {torch.float32}
    assert {frozen._stored[name] for name in frozen.parts()} == {torch.float16}
    before = frozen.digest()
    frozen.to("meta")  # where a GPU would be: stored precision, but for a VAE that overflows in it
    assert {name: part.dtype for name, part in frozen.parts().items()} == {
        "vae": torch.float32, "text_encoder": torch.float16, "text_encoder_2": torch.float16,
    }  # fmt: skip
    assert frozen.digest() == before


def test_only_needed_files_are_downloaded(
    tiny_pipeline: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import filter_repo_objects

    offered = [str(p.relative_to(tiny_pipeline("sd"))) for p in tiny_pipeline("sd").rglob("*") if p.is_file()]
    more = ["v1-5-pruned.safetensors", "unet/diffusion_pytorch_model.fp16.safetensors", "safety_checker/config.json",
            "unet/diffusion_pytorch_model.bin", "unet/diffusion_pytorch_model.non_ema.safetensors",
            "safety_checker/model.safetensors"]  # fmt: skip
    taken: list[str] = []

    def snapshot(path: str, allow_patterns: list[str], ignore_patterns: list[str] | None = None) -> str:
        taken.extend(
            filter_repo_objects([*offered, *more], allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        )
        return str(tiny_pipeline("sd"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    denoiser = Denoiser.from_pretrained("somebody/tiny")
    assert set(offered) <= set(taken)
    assert not any(name.endswith((".safetensors", ".bin")) for name in set(taken) - set(offered))
    assert denoiser.frozen is not None
    assert denoiser.frozen.source() == {"kind": "pipeline", "path": "somebody/tiny"}


# ---- LoRA ---------------------------------------------------------------------------------------------------------

LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
TEXT_LAYER = "encoder.layers.1.self_attn.q_proj"


def factors(shape: torch.Size, rank: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(rank, shape[1], generator=g), torch.randn(shape[0], rank, generator=g)


def write_lora(file: Path, module: Any, **layers: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A file as diffusers writes it: unet.LAYER.lora_A.weight, lora_B.weight; alpha = rank, so the scale is 1."""
    made, state = {}, {}
    for part, layer in layers.items():
        made[part] = a, b = factors(module[part].get_submodule(layer).weight.shape)
        state |= {f"{part}.{layer}.lora_A.weight": a, f"{part}.{layer}.lora_B.weight": b}
    save_file(state, file)
    return made


def test_a_lora_can_be_fused_into_the_weights(tiny_pipeline: Callable[[str], Path], tmp_path: Path) -> None:
    base = Denoiser.from_pretrained(tiny_pipeline("sd"))
    a, b = write_lora(tmp_path / "style.safetensors", {"unet": base.module}, unet=LAYER)["unet"]
    tuned = Denoiser.from_pretrained(tiny_pipeline("sd"), lora=str(tmp_path / "style.safetensors"), fused=True)
    assert set(tuned.weights()) == set(base.weights())  # one plain network
    expected = base.weights() | {f"{LAYER}.weight": base.weights()[f"{LAYER}.weight"] + b @ a}
    for name, value in tuned.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    assert tuned.digest() != base.digest()
    x_t, t = torch.randn(1, 4, 8, 8), torch.tensor([500])
    with torch.no_grad():
        one, two = (d.eps(x_t, t, d.condition(["a cat"])) for d in (base, tuned))
        manual = base.with_weights(expected)
        torch.testing.assert_close(two, manual.eps(x_t, t, manual.condition(["a cat"])), rtol=1e-4, atol=1e-5)
    assert (one - two).abs().max() > 1e-4
    assert base.frozen is not None
    assert tuned.frozen is not None
    assert tuned.frozen.digest() == base.frozen.digest()
    assert "lora" not in tuned.frozen.source()


def test_a_lora_of_the_text_encoder_too_belongs_to_the_frozen_part(
    tiny_pipeline: Callable[[str], Path], tmp_path: Path
) -> None:
    base = Denoiser.from_pretrained(tiny_pipeline("sd"))
    frozen: Any = base.frozen
    text = frozen.parts()["text_encoder"]
    layer = next(n for n, _ in text.named_modules() if n.endswith(TEXT_LAYER))
    file = tmp_path / "both.safetensors"
    write_lora(file, {"unet": base.module, "text_encoder": text}, unet=LAYER, text_encoder=layer)
    tuned = Denoiser.from_pretrained(tiny_pipeline("sd"), lora=str(file))
    assert tuned.frozen is not None
    assert tuned.frozen.digest() != frozen.digest()
    tuned.save_pretrained(tmp_path / "saved")
    again = Denoiser.from_pretrained(tmp_path / "saved")
    assert again.frozen is not None
    assert again.frozen.digest() == tuned.frozen.digest()


@torch.no_grad()
def test_a_lora_stays_apart_from_its_base(tiny_pipeline: Callable[[str], Path], tmp_path: Path) -> None:
    file = str(tmp_path / "style.safetensors")
    base = Denoiser.from_pretrained(tiny_pipeline("sd"))
    write_lora(tmp_path / "style.safetensors", {"unet": base.module}, unet=LAYER)
    apart, fused = (Denoiser.from_pretrained(tiny_pipeline("sd"), lora=file, fused=f) for f in (False, True))
    x_t, t = torch.randn(2, 4, 8, 8), torch.tensor([3, 500])
    one, two = (d.eps(x_t, t, d.condition(["a cat", ""])) for d in (apart, fused))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    trained = {n for n, p in apart.module.named_parameters() if p.requires_grad}
    assert trained == {f"{LAYER}.lora_{x}.default.weight" for x in "AB"}
    for name, value in base.weights().items():
        assert torch.equal(apart.weights()[name.replace(LAYER, f"{LAYER}.base_layer")], value)
    twin = apart.clone()
    for (name, mine), theirs in zip(apart.module.named_parameters(), twin.module.parameters(), strict=True):
        assert (mine.data_ptr() == theirs.data_ptr()) == (".lora_" not in name)  # one base in memory
    with refused("adapter-base-changed"):
        apart.with_weights(apart.weights() | {"conv_in.bias": base.weights()["conv_in.bias"] + 1})
    apart.save_pretrained(tmp_path / "saved")  # a plain network for everyone else
    again = Denoiser.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(again.eps(x_t, t, again.condition(["a cat", ""])), two, rtol=1e-4, atol=1e-5)


def test_loras_that_do_not_fit_are_refused_in_one_line(
    tiny_pipeline: Callable[[str], Path], make_mlp: Callable[..., Denoiser], tmp_path: Path
) -> None:
    file, folder = tmp_path / "other.safetensors", tiny_pipeline("sd")
    save_file({"unet.nowhere.lora_A.weight": torch.ones(2, 4), "unet.nowhere.lora_B.weight": torch.ones(4, 2)}, file)
    for bad, line in ((str(file), "lora"), (str(tmp_path / "no.safetensors"), "is not a .safetensors file")):
        with pytest.raises(GudaError, match=line) as caught:
            Denoiser.from_pretrained(folder, lora=bad)
        assert "\n" not in str(caught.value)
    make_mlp().save_pretrained(tmp_path / "mlp")
    with refused("lora-unsupported"):
        Denoiser.from_pretrained(tmp_path / "mlp", lora=str(file))
