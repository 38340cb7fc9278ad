"""A model folder is data: nothing of it is run, unpickled or fetched, whatever it names; refused by a code."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guda.baselines.encoders import transformer
from guda.config import ModelConfig
from guda.data.captioners import load_vlm
from guda.data.text import text_encoder
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import build_network, make_scheduler
from refusals import refused


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Exists once something of the folder has run."""
    return tmp_path / "ran"


@pytest.fixture
def model(make_unet: Callable[..., Any], marker: Path, tmp_path: Path) -> Path:
    """A good model with a module and a pickle beside it that nobody may touch."""
    folder = tmp_path / "model"
    Denoiser.from_module(make_unet(), make_scheduler("linear:10")).save_pretrained(folder)
    code = f"import os\nos.mkdir({str(marker)!r})\nclass Evil:\n    pass\n"
    for place in (folder, folder / "unet", folder / "scheduler"):
        (place / "evil.py").write_text(code)
        (place / "pipeline.py").write_text(code)
        (place / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    return folder


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def test_code_and_pickles_beside_a_model_are_left_alone(model: Path, marker: Path) -> None:
    assert Denoiser.from_pretrained(model).schedule.T == 10
    assert not marker.exists()


@pytest.mark.parametrize("name", ["DiffusionPipeline", "UNet2DModel", "AutoModel", "StableDiffusionPipeline", None])
def test_a_scheduler_is_a_scheduler(name: str | None, model: Path, marker: Path) -> None:
    """Every class of diffusers has `from_pretrained`; a pipeline's imports modules, a network's may unpickle."""
    edit_json(model / "scheduler" / "scheduler_config.json", _class_name=name)
    edit_json(model / "scheduler" / "model_index.json", _class_name=["pipeline", "Evil"], unet=["evil", "Evil"])
    (model / "scheduler" / "config.json").write_bytes((model / "unet" / "config.json").read_bytes())
    with refused("model-class-not-allowed"):
        Denoiser.from_pretrained(model)
    assert not marker.exists()


def test_a_module_beside_the_model_is_refused(model: Path, marker: Path) -> None:
    for part in ("unet", "scheduler"):
        before = (model / "model_index.json").read_text()
        edit_json(model / "model_index.json", **{part: ["evil", "Evil"]})
        with refused("model-class-not-allowed", match=part):
            Denoiser.from_pretrained(model)
        (model / "model_index.json").write_text(before)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ({"auto_map": {"AutoModel": "evil.Evil"}}, "model-code-refused"),
        ({"nested": [{"custom_pipelines": {"x": {}}}]}, "model-code-refused"),
        ({"attn_implementation": "somebody/kernel"}, "model-code-refused"),
        ({"quantization_config": {"quant_method": "evil"}}, "model-quantized"),
        ({"layers_per_block": 10**12}, "setting-too-large"),
        ({"layers_per_block": 10**8}, "model-options-invalid"),
        ({"block_out_channels": [10**6, 10**6]}, "memory-too-small"),
    ],
)
def test_settings_that_run_or_allocate_are_refused(setting: dict[str, Any], code: str, model: Path) -> None:
    edit_json(model / "unet" / "config.json", **setting)
    with refused(code):
        Denoiser.from_pretrained(model)


def test_only_pickles_is_not_a_model(model: Path, marker: Path) -> None:
    for file in (model / "unet").glob("*.safetensors"):
        file.unlink()
    with refused("weights-not-safetensors"):
        Denoiser.from_pretrained(model)
    assert not marker.exists()


@pytest.mark.parametrize("shard", ["diffusion_pytorch_model.bin", "../../weights.safetensors", 3])
def test_an_index_of_shards_names_safetensors_beside_it(shard: Any, model: Path, marker: Path) -> None:
    edit_json(model / "unet" / "diffusion_pytorch_model.safetensors.index.json", weight_map={"conv_in.weight": shard})
    with refused("weights-not-safetensors"):
        Denoiser.from_pretrained(model)
    assert not marker.exists()


def test_pipes_and_links_to_themselves_do_not_hang(model: Path) -> None:
    config = model / "unet" / "config.json"
    config.unlink()
    os.mkfifo(config)
    with refused("file-not-regular"):
        Denoiser.from_pretrained(model)
    config.unlink()
    config.symlink_to("config.json")
    with refused("file-unreadable"):
        Denoiser.from_pretrained(model)


def test_a_link_to_a_file_elsewhere_is_followed(model: Path, tmp_path: Path) -> None:
    """The Hub's cache consists of such links."""
    config = model / "unet" / "config.json"
    config.rename(tmp_path / "blob")
    config.symlink_to(tmp_path / "blob")
    assert Denoiser.from_pretrained(model).schedule.T == 10


def test_all_parts_of_a_pipeline_are_checked_before_the_first_is_loaded(
    tiny_pipeline: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from diffusers import UNet2DConditionModel

    folder = Path(shutil.copytree(tiny_pipeline("sd"), tmp_path / "sd"))
    edit_json(folder / "tokenizer" / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    loaded = []
    monkeypatch.setattr(UNet2DConditionModel, "from_pretrained", lambda *a, **k: loaded.append(a))
    with refused("model-code-refused", match="tokenizer_config.json"):
        Denoiser.from_pretrained(folder)
    edit_json(folder / "tokenizer" / "tokenizer_config.json", auto_map=None)
    edit_json(folder / "text_encoder" / "adapter_config.json", base_model_name_or_path="somebody/model")
    with refused("model-adapter-refused"):
        Denoiser.from_pretrained(folder)
    assert not loaded


def test_encoders_and_captioners_ask_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}))
    (folder / "evil.py").write_text("raise SystemExit")
    for load in (
        lambda: transformer(str(folder)),
        lambda: load_vlm(str(folder)),
        lambda: text_encoder(f"clip:{folder}"),
    ):
        with refused("model-code-refused"):
            load()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with refused("model-class-not-allowed", match="gpt2"):
        transformer(str(folder))
    with refused("model-class-not-allowed", match="gpt2"):
        load_vlm(str(folder))


@pytest.mark.parametrize("text", ["linear:²", "linear:10000000000", "linear:1" + "0" * 5000, "linear:-5"])
def test_a_schedule_of_absurd_length_is_refused(text: str) -> None:
    with refused("scheduler-invalid"):
        make_scheduler(text)


def test_a_scheduler_file_of_absurd_length_is_refused(model: Path) -> None:
    for steps in (10**10, 1, True, "1000", None):
        edit_json(model / "scheduler" / "scheduler_config.json", num_train_timesteps=steps)
        with refused("scheduler-invalid"):
            Denoiser.from_pretrained(model)


@pytest.mark.parametrize(
    ("net", "options", "code"),
    [
        ("mlp", {"depth": 10**9}, "model-options-invalid"),
        ("mlp", {"width": 10**7}, "memory-too-small"),
        ("unet2d", {"layers_per_block": 10**6}, "model-options-invalid"),
    ],
)
def test_a_network_that_cannot_fit_is_refused_before_it_is_made(net: str, options: dict[str, int], code: str) -> None:
    with refused(code):
        build_network(ModelConfig(net=net, options=options), (1, 8, 8))  # type: ignore[call-arg]
