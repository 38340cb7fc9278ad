"""Training theta_full, its LOGO counterparts and a group-conditional twin: one loop, exact resume.

E || target - network(x_t, t, c) ||^2 with AdamW, warm-up and cosine, clipping, and an EMA in fp32 (SPEC section 3),
from fresh weights or from one pretrained start, which LOGO then shares with the full model. How a step is spread over
pieces, processes and precisions is `launch.py`'s. All randomness is a function of (key, step), so a checkpoint is
weights, EMA, optimiser moments and the stream's cursor; a resumed run ends in the same bits as an uninterrupted one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guda.config import TrainingConfig
from guda.data.groups import Groups
from guda.diffusion.checkpoint import State, newest, restore, save
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser, Latents, encode_all
from guda.diffusion.launch import launch
from guda.diffusion.lora import merged, wrap
from guda.diffusion.noise import generator, torch_seed
from guda.diffusion.stream import Batch, Stream
from guda.errors import GudaError


def stream_key(seed: int, leave_out: str | None, coupled: bool) -> tuple[str | int, ...]:
    """Coupled LOGO runs share the stream and the initial weights of the full model of that seed."""
    return (seed, "train") if coupled or leave_out is None else (seed, "train", leave_out)


def fresh(denoiser: Denoiser, key: tuple[str | int, ...], labels: int | None = None) -> Denoiser:
    """A newly initialised network of the same architecture, or of its twin that is told one of `labels` classes."""
    module: Any = denoiser.module
    if not hasattr(module, "from_config"):
        raise GudaError(
            "network-not-rebuildable",
            f"{type(module).__name__} has no from_config, so it cannot be made anew; use a diffusers model",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(*key, "init"))
        new = copy.copy(denoiser)
        # diffusers drops what it believes to be defaults, positional arguments among them
        config = {k: v for k, v in module.config.items() if k != "_use_default_values"}
        if labels is not None:
            config["num_class_embeds"] = new.n_classes = labels
        new.module = type(module).from_config(config).to(denoiser.device).eval()
    return new


def group_condition(
    groups: Groups, index: np.ndarray, dropout: float, key: tuple[str | int, ...], device: torch.device
) -> Cond:
    """Each image's group, or with probability `dropout` the null label, which comes after the last group."""
    dropped = generator(*key).random(len(index)) < dropout
    return Cond({"class_labels": torch.from_numpy(np.where(dropped, len(groups), groups.labels[index])).to(device)})


def prompt_condition(
    denoiser: Denoiser, prompts: Sequence[str], index: np.ndarray, dropout: float, key: tuple[str | int, ...]
) -> Cond | None:
    """Each image's prompt, or with probability `dropout` the empty one."""
    dropped = generator(*key).random(len(index)) < dropout
    cond = denoiser.condition(["" if d else prompts[i] for i, d in zip(index, dropped, strict=True)])
    return None if cond is None else cond.to(denoiser.device)


def to_batch(denoiser: Denoiser, x0: Latents, batch: Batch, flips: bool) -> tuple[torch.Tensor, ...]:
    """(x_0, t, eps, x_t) of a batch of the stream."""
    x = x0.take(batch.index, batch.flip if flips else None)
    t, eps = torch.from_numpy(batch.t), torch.from_numpy(batch.eps)
    x, eps = x.to(denoiser.device), eps.to(denoiser.device)
    return x, t.to(denoiser.device), eps, denoiser.schedule.add_noise(x, eps, t)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """torch.manual_seed would format a traceback for every device it might seed later: 10 % of a small step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@dataclass
class Trained:
    weights: dict[str, torch.Tensor]  # the scored ones: EMA or raw, by recipe
    earlier: float  # seconds spent before this process resumed it
    losses: list[float]  # mean training loss per 1 % of the run


def train(
    denoiser: Denoiser,
    images: np.ndarray,
    groups: Groups,
    config: TrainingConfig,
    *,
    seed: int,
    leave_out: str | None = None,
    coupled: bool = True,
    checkpoint: Path | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
    label_dropout: float | None = None,
    prompts: Sequence[str] | None = None,
    fine_tune: bool = False,
    latents: Latents | None = None,
) -> Trained:
    """Train a fresh network of `denoiser`'s architecture on all groups, or on all but `leave_out`.

    `fine_tune`: start from `denoiser`'s own weights instead. `prompts`: one per image, for text-to-image models.
    `latents`: the images encoded before. With `label_dropout` it is its class-conditional twin: told each image's
    group, or a null label instead."""
    if denoiser.frozen is not None and prompts is None:
        raise GudaError(
            "training-prompts-missing",
            "a text-to-image model is trained with one prompt per image; build them with: guda prompts",
        )
    if config.lora is not None and not fine_tune:
        raise GudaError(
            "lora-start-missing", "training.lora adapts a pretrained model: give model.start, or remove training.lora"
        )
    start = (fine_tune, latents or encode_all(denoiser, images, config.flips), prompts)
    with torch.random.fork_rng(devices=[]):  # dropout is seeded step by step; the caller's generator is left alone
        return _train(denoiser, groups, config, seed, leave_out, coupled, checkpoint, tick, label_dropout, *start)


def _train(
    denoiser: Denoiser, groups: Groups, config: TrainingConfig, seed: int, leave_out: str | None, coupled: bool,
    checkpoint: Path | None, tick: Callable[[int, int], None], label_dropout: float | None, fine_tune: bool,
    x0: Latents, prompts: Sequence[str] | None,
) -> Trained:  # fmt: skip
    key = stream_key(seed, leave_out, coupled)
    # a twin has other inputs than the pretrained start, so it begins afresh
    labels = None if label_dropout is None else len(groups) + 1
    model = denoiser.clone() if fine_tune and labels is None else fresh(denoiser, key, labels)
    module = model.module.float()  # an EMA in fp16 would stand still (SPEC section 3)
    if config.lora is not None:
        wrap(module, config.lora, *key, "lora")
    stream = Stream(
        key, groups, model.shape, model.schedule.T,
        leave_out=None if leave_out is None else groups.index(leave_out),
        exposure_matched=config.matched(fine_tune),
    )  # fmt: skip
    parameters = [p for p in module.parameters() if p.requires_grad]
    launched = launch(config.precision, model.device)
    state = _start(config, module, parameters, stream, launched.scaler)
    if checkpoint is not None:
        found = newest(checkpoint)
        if (name := launched.told(None if found is None else found.name)) is not None:
            restore(checkpoint / name, state)

    started = time.monotonic()
    every = max(1, config.steps // 100)
    recent = torch.zeros(())
    pieces = launched.pieces(config.batch, config.accumulate)
    called = model.module = launched.prepare(module)
    module.train()
    while state.step < config.steps:
        step, cond = state.step, None
        drawn = stream.take(config.batch)
        x, t, eps, x_t = to_batch(model, x0, drawn, config.flips)
        if label_dropout is not None:
            cond = group_condition(groups, drawn.index, label_dropout, (*key, "labels", step), model.device)
        elif prompts is not None:
            cond = prompt_condition(model, prompts, drawn.index, config.prompt_dropout, (*key, "prompts", step))
        target = model.target(x, eps, t)
        state.optimizer.zero_grad(set_to_none=True)
        for piece, share in pieces:
            # masks of a piece are its own, wherever it is computed; a whole batch starts at place 0
            place = () if piece.start == 0 else (piece.start,)
            _seed_dropout(model.device, torch_seed(*key, "dropout", step, *place))
            with nullcontext() if piece is pieces[-1][0] else launched.holding(called):
                said = model.raw(x_t[piece], t[piece], None if cond is None else cond[piece])
                loss = torch.nn.functional.mse_loss(said, target[piece])
                launched.backward(loss if share == 1.0 else loss * share)
            recent += share * loss.detach().cpu() / every
        launched.step(state.optimizer, parameters, config.clip)
        state.schedule.step()
        if state.ema is not None:
            state.ema.step(parameters)
        state.step = step = step + 1
        if step % every == 0:
            state.losses.append(float(launched.mean(recent)))
            recent = torch.zeros(())
            if not np.isfinite(state.losses[-1]):
                raise GudaError(
                    "training-diverged",
                    f"training diverged before step {step} (loss {state.losses[-1]}); lower training.lr",
                )
        tick(step, config.steps)
        # only where the running mean is empty, so that the loss curve resumes exactly too
        due = step // config.checkpoint_every > (step - every) // config.checkpoint_every
        if checkpoint is not None and launched.leads and step % every == 0 and due and step < config.steps:
            save(checkpoint, state, state.seconds + time.monotonic() - started)
    model.module = module.eval()
    if state.ema is not None:
        state.ema.copy_to(parameters)
    model.check_finite("training", "it diverged: lower the learning rate")
    if config.lora is not None:
        return Trained(merged(module), state.seconds, state.losses)
    return Trained({k: v.detach().cpu().clone() for k, v in module.state_dict().items()}, state.seconds, state.losses)


def _start(config: TrainingConfig, module: Any, parameters: list[Any], stream: Stream, scaler: Any) -> State:
    """AdamW, its learning rate and the EMA of what moves, before the first step."""
    from diffusers.optimization import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
    from diffusers.training_utils import EMAModel

    optimizer = torch.optim.AdamW(
        parameters, config.lr, betas=(0.9, 0.999), weight_decay=config.weight_decay, fused=True
    )
    schedule = (
        get_cosine_schedule_with_warmup(optimizer, config.warmup, config.steps)
        if config.schedule == "cosine"
        else get_constant_schedule_with_warmup(optimizer, config.warmup)
    )
    ema = None if config.ema is None else EMAModel(parameters, decay=config.ema, foreach=True)
    return State(module, optimizer, schedule, ema, stream, scaler)
