"""Peak memory before the work: `guda plan RUN --memory`, and for published architectures by name.

An estimate from shapes (diffusion/footprint.py): weights and activations in fp32, a step counted tensor by tensor on
torch's meta device. bf16 autocast about halves the activations. A card counts as large enough where the peak and
OVERHEAD, for what is not counted, are below its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from guda.diffusion.footprint import Footprint, scoring_footprint, step_peak, training_footprint, weight_bytes
from guda.diffusion.lora import adapted, wrap
from guda.diffusion.low_memory import recompute
from guda.errors import GudaError, choices
from guda.methods.base import get_method
from guda.run.data import scored_groups
from guda.run.models import architecture
from guda.run.run import Run
from guda.unlearning.bank import Packing
from guda.unlearning.operators.continuation import ContinuationConfig
from guda.unlearning.unlearn import OPERATORS, UnlearnConfig

CARDS = (8, 16, 24, 80)  # GB

OVERHEAD = 1e9  # bytes: the context of a GPU and its libraries

Call = Callable[[nn.Module], torch.Tensor]

NOTE = (
    "An estimate from shapes, fp32: weights, optimiser, EMA, and activations, gradients and temporaries of one step. "
    "Not counted: fragmentation; 1 GB is added for a GPU's context before it says `fits`. VAE and text encoders are "
    "released before training."
)


@dataclass(frozen=True)
class Architecture:
    """A published network and what it is called with, by its shapes."""

    pixels: int
    network: Callable[[], Any]
    inputs: Callable[[int], dict[str, Any]]  # of so many pictures
    texts: Callable[[], list[Any]]  # text encoders

    def call(self, n: int) -> Call:
        given = self.inputs(n)
        return lambda module: module(**given).sample


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def _unet(n: int, size: int, width: int, **more: Any) -> dict[str, Any]:
    hidden = _meta(n, 77, width)
    return {"sample": _meta(n, 4, size, size), "timestep": _meta(n), "encoder_hidden_states": hidden} | more


def _sd15() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(sample_size=64, cross_attention_dim=768)


def _sdxl() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=128, block_out_channels=(320, 640, 1280), layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20), cross_attention_dim=2048,
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )  # fmt: skip


def _flux() -> Any:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(guidance_embeds=True)


def _sdxl_inputs(n: int) -> dict[str, Any]:
    return _unet(n, 128, 2048, added_cond_kwargs={"text_embeds": _meta(n, 1280), "time_ids": _meta(n, 6)})


def _flux_inputs(n: int) -> dict[str, Any]:
    return {"hidden_states": _meta(n, 4096, 64), "timestep": _meta(n), "guidance": _meta(n),
            "pooled_projections": _meta(n, 768), "encoder_hidden_states": _meta(n, 512, 4096),
            "txt_ids": _meta(512, 3), "img_ids": _meta(4096, 3)}  # fmt: skip


def _clip(hidden: int, layers: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
        projection_dim=hidden,
    )  # fmt: skip
    return CLIPTextModelWithProjection(config)


def _t5_xxl() -> Any:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, is_encoder_decoder=False,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return T5EncoderModel(config)


ARCHITECTURES = {
    "sd15": Architecture(512, _sd15, lambda n: _unet(n, 64, 768), lambda: [_clip(768, 12)]),
    "sdxl": Architecture(1024, _sdxl, _sdxl_inputs, lambda: [_clip(768, 12), _clip(1280, 32)]),
    "flux": Architecture(1024, _flux, _flux_inputs, lambda: [_clip(768, 12), _t5_xxl()]),
}

IMAGES = 4  # of an unlearning step: two of the group, two of the others (recipes/own-style.yaml)

BLOCK = 8  # images of a scoring call

RANK = 16


def plan_memory(what: Run | str, methods: Sequence[str] | None = None) -> dict[str, Any]:
    """Rows of `Footprint` in bytes, each with the CARDS (GB) it fits on. `methods`: of a run; default: the recipe's."""
    if isinstance(what, Run):
        model = architecture(what)
        rows, parameters, pixels = list(_run_rows(what, methods)), model.n_parameters(), model.image_shape[-1]
    elif what in ARCHITECTURES:
        rows, parameters = _known_rows(ARCHITECTURES[what])
        pixels = ARCHITECTURES[what].pixels
    else:
        raise GudaError(
            "model-architecture-unknown",
            f"no architecture is known as {what!r} ({choices(tuple(ARCHITECTURES))}), and it is not a run folder",
        )
    return {
        "model": what if isinstance(what, str) else str(what.root),
        "parameters": parameters,
        "pixels": pixels,
        "cards": list(CARDS),
        "rows": [
            asdict(r) | {"peak": r.peak, "fits": [n for n in CARDS if r.peak + OVERHEAD <= n * 1e9]} for r in rows
        ],
        "note": NOTE,
    }


def _known_rows(known: Architecture) -> tuple[list[Footprint], int]:
    from diffusers import AutoencoderKL

    with torch.device("meta"):
        module, texts = known.network().eval(), known.texts()
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2,
        ).eval()  # fmt: skip
    picture = _meta(4, 3, known.pixels, known.pixels)
    encoding = step_peak(vae, lambda m: m.encode(picture).latent_dist.mode(), train=False)  # type: ignore[operator]
    # text encoders keep the 16 bits they are published in
    encoders = weight_bytes(vae) + sum(weight_bytes(text) for text in texts) // 2
    parameters = sum(p.numel() for p in module.parameters())
    rows = [
        Footprint("encode 4 pictures, and prompts", encoders, 0, encoding),
        scoring_footprint(f"score, blocks of {BLOCK}", module, known.call(BLOCK)),
        training_footprint(f"unlearn {IMAGES} images, store fp32", module, known.call(IMAGES), frozen_copies=1),
        training_footprint("fine-tune 1 image, EMA", module, known.call(1), ema=True),
    ]
    recompute(module)
    tuned = training_footprint(
        "fine-tune 1 image, EMA, checkpointing, adamw8bit", module, known.call(1), optimizer="adamw8bit", ema=True
    )
    with torch.device("meta"):
        wrap(module, RANK, 0, "plan")
    lean = training_footprint(f"unlearn {IMAGES} images, lora:{RANK}, checkpointing", module, known.call(IMAGES))
    single = training_footprint(f"unlearn 2 images, lora:{RANK}, checkpointing", module, known.call(2))
    return [*rows, tuned, lean, single], parameters


def _run_rows(run: Run, methods: Sequence[str] | None) -> Iterator[Footprint]:
    """The run's own network, with the settings of its recipe."""
    model, training = architecture(run), run.recipe.training

    def on_meta() -> nn.Module:
        return model.clone(share=True).module.to("meta")

    def call(n: int) -> Call:
        x, t = _meta(n, *model.shape), torch.zeros(n, dtype=torch.long, device="meta")
        cond = None if not model.conditional else model.condition(["" if model.frozen else "0"] * n)
        twin = model.clone(share=True)

        def ask(module: nn.Module) -> torch.Tensor:
            twin.module = module
            return twin.raw(x, t, None if cond is None else cond.to("meta"))

        return ask

    block = run.recipe.scoring.block
    yield scoring_footprint(f"score, blocks of {block}", on_meta(), call(block))
    for name in methods or run.recipe.methods:
        config = get_method(run, name).config
        if not isinstance(config, UnlearnConfig):
            continue
        module, images = on_meta(), config.batch_forget + config.batch_retain
        if isinstance(config, ContinuationConfig):
            images = config.batch or (images if training is None else training.batch)
        lora = Packing.parse(config.store).kind == "lora"
        # one pass for all groups keeps what each has changed, twice while it is packed
        deltas = 2 * len(scored_groups(run)) if name in OPERATORS and OPERATORS[name].together else 0
        if lora:
            with torch.device("meta"):
                wrap(module, Packing.parse(config.store).rank, 0, "plan")
        if config.checkpointing:
            recompute(module)
        yield training_footprint(
            f"unlearn by {name}, {images} images, {config.store}", module, call(images),
            frozen_copies=0 if lora or adapted(module) else 1 + deltas, optimizer=config.optimizer,
        )  # fmt: skip
    if training is not None:
        module, images = on_meta(), -(-training.batch // training.accumulate)
        if training.lora is not None:
            with torch.device("meta"):
                wrap(module, training.lora, 0, "plan")
        if training.checkpointing:
            recompute(module)
        yield training_footprint(
            f"train, {images} images at a time", module, call(images), optimizer=training.optimizer,
            ema=training.ema is not None,
        )  # fmt: skip
