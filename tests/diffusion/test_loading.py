"""The diffusers folder layout: what loads, loads bitwise; what would load wrongly is refused with the fix."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler
from safetensors.torch import load_file, save_file

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.errors import GudaError
from refusals import refused


def weights_file(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    state = load_file(weights_file(folder))
    edit(state)
    save_file(state, weights_file(folder), metadata={"format": "pt"})


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def saved(make_mlp: Callable[..., Denoiser], tmp_path: Path) -> Path:
    make_mlp().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_residual_mlp_round_trip_is_bitwise(make_mlp: Callable[..., Denoiser], tmp_path: Path) -> None:
    denoiser = make_mlp("squaredcos_cap_v2:100:v_prediction")
    denoiser.save_pretrained(tmp_path / "m")
    again = Denoiser.from_pretrained(tmp_path / "m")
    assert again.digest() == denoiser.digest()
    assert again.schedule.digest == denoiser.schedule.digest
    x, t = torch.randn(2, 1, 4, 4), torch.tensor([1, 99])
    with torch.no_grad():
        assert torch.equal(again.eps(x, t), denoiser.eps(x, t))


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_unet_round_trip_is_bitwise(make_unet: Callable[..., Any], tmp_path: Path, prediction: str) -> None:
    denoiser = Denoiser.from_module(make_unet(num_class_embeds=2), make_scheduler(f"linear:50:{prediction}"))
    denoiser.save_pretrained(tmp_path)
    again = Denoiser.from_pretrained(tmp_path)
    assert again.digest() == denoiser.digest()
    assert (again.shape, again.n_classes) == ((1, 8, 8), 2)
    assert again.schedule.prediction == prediction
    assert again.schedule.digest == denoiser.schedule.digest


def test_a_pipeline_saved_by_diffusers_loads(make_unet: Callable[..., Any], tmp_path: Path) -> None:
    unet = make_unet()
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=40, beta_schedule="squaredcos_cap_v2")).save_pretrained(
        tmp_path
    )
    denoiser = Denoiser.from_pretrained(tmp_path)
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([1, 39])
    with torch.no_grad():
        assert torch.equal(denoiser.eps(x, t), unet(x, t).sample)
    assert (
        denoiser.schedule.digest == Denoiser.from_module(unet, make_scheduler("squaredcos_cap_v2:40")).schedule.digest
    )


def test_what_guda_saves_diffusers_loads(make_unet: Callable[..., Any], tmp_path: Path) -> None:
    denoiser = Denoiser.from_module(make_unet(), make_scheduler("linear:40"))
    denoiser.save_pretrained(tmp_path)
    pipeline = DDPMPipeline.from_pretrained(str(tmp_path))
    assert Denoiser.from_module(pipeline.unet, pipeline.scheduler).digest() == denoiser.digest()


def test_checkpoints_with_the_old_names_of_attention_weights_load(
    make_unet: Callable[..., Any], tmp_path: Path
) -> None:
    """As google/ddpm-cifar10-32 has them: diffusers renames them, which must not count as missing or unknown."""
    denoiser = Denoiser.from_module(make_unet(), make_scheduler("linear:40"))
    denoiser.save_pretrained(tmp_path)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def rename(state: dict[str, torch.Tensor]) -> None:
        for name in list(state):
            for new, former in old.items():
                if f"attentions.0.{new}." in name:
                    state[name.replace(new, former)] = state.pop(name)

    edit_weights(tmp_path / "unet", rename)
    assert any("proj_attn" in name for name in load_file(weights_file(tmp_path / "unet")))
    assert Denoiser.from_pretrained(tmp_path).digest() == denoiser.digest()


def test_a_bare_model_folder_is_refused_with_the_fix_and_works_with_it(
    make_unet: Callable[..., Any], tmp_path: Path
) -> None:
    make_unet().save_pretrained(tmp_path / "bare")
    with refused("schedule-missing", match=r"no noise schedule.*--scheduler linear:1000"):
        Denoiser.from_pretrained(tmp_path / "bare")
    assert Denoiser.from_pretrained(tmp_path / "bare", scheduler="linear:1000").schedule.T == 1000
    DDIMScheduler(num_train_timesteps=77).save_pretrained(tmp_path / "given")
    assert Denoiser.from_pretrained(tmp_path / "bare", scheduler=str(tmp_path / "given")).schedule.T == 77
    DDIMScheduler(num_train_timesteps=66).save_pretrained(tmp_path / "scheduler")  # beside it, as in a pipeline
    assert Denoiser.from_pretrained(tmp_path / "bare").schedule.T == 66


def test_a_given_scheduler_wins_over_the_folders_own(saved: Path) -> None:
    assert Denoiser.from_pretrained(saved).schedule.T == 100
    assert Denoiser.from_pretrained(saved, scheduler="linear:30:sample").schedule.prediction == "sample"


@pytest.mark.parametrize("text", ["linear", "linear:1", "linear:x", "cosine:1000", "nowhere/at/all"])
def test_a_scheduler_that_is_neither_folder_nor_description_is_refused(text: str) -> None:
    with refused("scheduler-invalid"):
        make_scheduler(text)


# ---- broken or foreign folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_a_number_is_refused_by_name(saved: Path, bad: float) -> None:
    edit_weights(saved / "unet", lambda state: state["blocks.1.up.bias"].__setitem__(5, bad))
    with refused("weights-not-finite", match=r"'blocks.1.up.bias' holds NaN or infinity"):
        Denoiser.from_pretrained(saved)


@pytest.mark.parametrize("kind", ["mlp", "unet"])
def test_a_missing_weight_is_not_replaced_by_random_numbers(
    kind: str, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any], tmp_path: Path
) -> None:
    denoiser = make_mlp() if kind == "mlp" else Denoiser.from_module(make_unet(), make_scheduler("linear:100"))
    denoiser.save_pretrained(tmp_path)
    name = "out.bias" if kind == "mlp" else "conv_in.weight"
    edit_weights(tmp_path / "unet", lambda state: state.pop(name))
    with pytest.raises(GudaError, match=f"'{name}' is on one side only"):
        Denoiser.from_pretrained(tmp_path)


def test_an_extra_weight_is_not_dropped_in_silence(saved: Path) -> None:
    edit_weights(saved / "unet", lambda state: state.update({"more": torch.zeros(2)}))
    with refused("weights-mismatch", match="'more' is on one side only"):
        Denoiser.from_pretrained(saved)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What diffusers says of models while a test runs."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    places = [logging.getLogger(f"diffusers.{name}") for name in ("configuration_utils", "models.modeling_utils")]
    for place in places:
        place.addHandler(handler)
    yield found
    for place in places:
        place.removeHandler(handler)


@pytest.fixture
def saved_unet(make_unet: Callable[..., Any], tmp_path: Path) -> Path:
    Denoiser.from_module(make_unet(), make_scheduler("linear:100")).save_pretrained(tmp_path / "unet")
    return tmp_path / "unet"


def test_a_refused_model_is_one_line_without_warnings_of_diffusers(saved_unet: Path, said: list[str]) -> None:
    edit_json(saved_unet / "unet" / "config.json", unheard_of=1)
    edit_weights(saved_unet / "unet", lambda state: state.update({"more": torch.zeros(2)}))
    with refused("weights-mismatch"):
        Denoiser.from_pretrained(saved_unet)
    edit_json(saved_unet / "unet" / "config.json", block_out_channels="x")
    with refused("model-unloadable"):
        Denoiser.from_pretrained(saved_unet)
    assert said == []


def test_a_model_that_loads_shows_what_diffusers_warns_of_once(saved_unet: Path, said: list[str]) -> None:
    edit_json(saved_unet / "unet" / "config.json", unheard_of=1)
    Denoiser.from_pretrained(saved_unet)
    assert len(said) == 1
    assert "unheard_of" in said[0]


def test_weights_of_another_shape_are_refused(saved: Path) -> None:
    edit_weights(saved / "unet", lambda state: state.update({"out.bias": torch.zeros(7)}))
    with refused("model-unloadable"):
        Denoiser.from_pretrained(saved)


def test_a_truncated_file_is_refused(saved: Path) -> None:
    file = weights_file(saved / "unet")
    file.write_bytes(file.read_bytes()[:1000])
    with refused("model-unloadable"):
        Denoiser.from_pretrained(saved)


def test_pickled_weights_are_not_read(saved: Path) -> None:
    file = weights_file(saved / "unet")
    torch.save(load_file(file), saved / "unet" / "diffusion_pytorch_model.bin")
    file.unlink()
    with refused("weights-not-safetensors"):
        Denoiser.from_pretrained(saved)


def test_an_unknown_class_is_refused_by_name(saved: Path) -> None:
    edit_json(saved / "model_index.json", unet=["diffusers", "UNet1DModel"])
    with refused("network-unsupported", match=r"'UNet1DModel' is not supported; guda reads .*UNet2DModel"):
        Denoiser.from_pretrained(saved)


def test_a_latent_pipeline_is_not_taken_for_a_pixel_model(saved: Path) -> None:
    edit_json(saved / "model_index.json", vqvae=["diffusers", "VQModel"])
    with refused("pipeline-unsupported"):
        Denoiser.from_pretrained(saved)


def test_a_learned_variance_pipeline_is_refused(make_unet: Callable[..., Any], tmp_path: Path) -> None:
    DDPMPipeline(make_unet(out_channels=2), DDPMScheduler(variance_type="learned_range")).save_pretrained(tmp_path)
    with refused("network-variance-learned"):
        Denoiser.from_pretrained(tmp_path)


def test_an_unknown_scheduler_class_and_damaged_json_are_refused(saved: Path) -> None:
    config = saved / "scheduler" / "scheduler_config.json"
    edit_json(config, _class_name="NoSuchScheduler")
    with refused("model-class-not-allowed", match="NoSuchScheduler"):
        Denoiser.from_pretrained(saved)
    for text in ("{", "[1]"):
        config.write_text(text)
        with refused("model-config-unreadable"):
            Denoiser.from_pretrained(saved)


def test_paths_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    with refused("model-folder-invalid"):
        Denoiser.from_pretrained(tmp_path)
    with refused("model-missing"):
        Denoiser.from_pretrained(tmp_path / "absent")


def test_a_plain_module_cannot_be_saved_as_a_diffusers_folder(tmp_path: Path) -> None:
    denoiser = Denoiser.from_module(torch.nn.Identity(), make_scheduler("linear:10"), shape=(1, 2, 2))
    with refused("network-not-saveable"):
        denoiser.save_pretrained(tmp_path)
