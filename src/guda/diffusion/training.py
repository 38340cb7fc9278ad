"""Training theta_full, its LOGO counterparts and a group-conditional twin: one loop, exact resume.

E || target - network(x_t, t, c) ||^2 with AdamW, warm-up and cosine, clipping, and an EMA in fp32,
from fresh weights or from one pretrained start, which LOGO then shares with the full model. `distributed.py` spreads a
step over pieces, processes and precisions.

A checkpoint is the trained weights, EMA, optimiser moments, learning rate and stream position. All randomness is a
function of (key, step), so this is enough to end in the same bits as an uninterrupted run. Frozen weights (LoRA) are
not saved: they are those of the start.

Was a model trained long enough? What its recorded loss says: means over each percent of the training.

A model that is still learning is not the one that its owner will use, and what it makes of one group's absence changes
with every further step. Compared are the third last and the last tenth of the curve:

    fall = (mean of 0.7-0.8 - mean of 0.9-1.0) / mean of 0.9-1.0

Training ends with a small learning rate, which brings the loss down a little in every healthy training (5 % on the
digits recipe, less on CIFAR-10), so only a fall of more than 10 % that is also more than four standard errors counts.
No news is not good news: a flat curve does not show that the model is any good.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from guda.config import TrainingConfig
from guda.data.groups import Groups
from guda.diffusion.denoiser import Denoiser, Latents, encode_all
from guda.diffusion.distributed import Stepper, make_stepper
from guda.diffusion.families.base import Cond
from guda.diffusion.lora import adapted, adapter_weights, merged, restart, wrap
from guda.diffusion.low_memory import make_optimizer, recompute
from guda.diffusion.noise import generator, torch_seed
from guda.diffusion.preview import Preview
from guda.diffusion.stream import Batch, Stream
from guda.diffusion.validation import Validation
from guda.errors import GudaError
from guda.files import atomic_folder, read_json, read_tensors, remove_folder, vanished, write_json, write_tensors


@dataclass
class State:
    module: nn.Module
    parameters: list[nn.Parameter]  # the trained ones
    optimizer: torch.optim.Optimizer
    schedule: Any  # of the learning rate
    ema: Any  # diffusers' EMAModel, or None
    stream: Stream
    scaler: Any = None  # of fp16 losses
    step: int = 0
    seconds: float = 0.0  # spent before this process resumed it
    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, config: TrainingConfig, module: nn.Module, stream: Stream, scaler: Any = None) -> State:
        """AdamW, its learning rate and the EMA before the first step."""
        from diffusers.optimization import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
        from diffusers.training_utils import EMAModel

        parameters = [p for p in module.parameters() if p.requires_grad]
        optimizer = make_optimizer(config.optimizer, parameters, config.lr, config.weight_decay)
        schedule = (
            get_cosine_schedule_with_warmup(optimizer, config.warmup, config.steps)
            if config.schedule == "cosine"
            else get_constant_schedule_with_warmup(optimizer, config.warmup)
        )
        ema = None if config.ema is None else EMAModel(parameters, decay=config.ema, foreach=True)
        return cls(module, parameters, optimizer, schedule, ema, stream, scaler)

    def save(self, folder: Path, seconds: float) -> None:
        """The newest replaces the older ones; one that is ahead belongs to another process on the same training. If
        that one is done, it removes all checkpoints, and none is needed any more."""
        frozen = {k for k, p in self.module.named_parameters() if not p.requires_grad}
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items() if k not in frozen}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in moments.items()}
        if self.ema is not None:
            tensors |= {f"ema.{i}": v for i, v in enumerate(self.ema.shadow_params)}
        rest = {"step": self.step, "seconds": seconds, "losses": self.losses, "cursor": self.stream.cursor,
                "validation": self.validation,
                "schedule": {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"}}  # fmt: skip
        if self.scaler is not None:
            rest["scaler"] = self.scaler.state_dict()
        path = folder / f"step-{self.step:08d}"
        try:
            with atomic_folder(path) as tmp:
                write_tensors(tmp / "state.safetensors", tensors)
                write_json(tmp / "state.json", rest)
        except Exception as e:
            if not vanished(e):
                raise
        for old in folder.glob("step-*"):
            if old.name < path.name:
                remove_folder(old)

    def restore(self, path: Path) -> None:
        tensors, _ = read_tensors(path / "state.safetensors")
        rest = read_json(path / "state.json")
        trained = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        self.module.load_state_dict(self.module.state_dict() | trained)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                moments.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.schedule.load_state_dict(rest["schedule"] | {"lr_lambdas": [None]})
        for group, lr in zip(self.optimizer.param_groups, rest["schedule"]["_last_lr"], strict=True):
            group["lr"] = lr
        if self.ema is not None:
            shadow = self.ema.shadow_params
            self.ema.shadow_params = [tensors[f"ema.{i}"].to(p.device) for i, p in enumerate(shadow)]
            self.ema.optimization_step = rest["step"]
        if self.scaler is not None and "scaler" in rest:
            self.scaler.load_state_dict(rest["scaler"])
        self.stream.seek(*rest["cursor"])
        self.step, self.seconds, self.losses = rest["step"], rest["seconds"], rest["losses"]
        self.validation = rest.get("validation", [])


ATTEMPTS, PAUSE = 20, 0.1  # looks for a checkpoint that does not vanish, seconds between them


def newest(folder: Path) -> Path | None:
    return max(folder.glob("step-*"), default=None)


def _resume(state: State, folder: Path, stepper: Stepper) -> None:
    """From the newest checkpoint, if there is one. Another driver on the same training may remove it while it is read,
    because it has a newer one or is done: then look again."""
    for left in reversed(range(ATTEMPTS)):
        path = newest(folder)
        if (name := stepper.broadcast(None if path is None else path.name)) is None:
            return
        try:
            return state.restore(folder / name)
        except GudaError as e:
            if not vanished(e) or not left:
                raise
            time.sleep(PAUSE)


def stream_key(seed: int, leave_out: str | None, coupled: bool) -> tuple[str | int, ...]:
    """Coupled LOGO runs share the stream and the initial weights of the full model of that seed."""
    return (seed, "train") if coupled or leave_out is None else (seed, "train", leave_out)


def fresh(denoiser: Denoiser, key: tuple[str | int, ...], labels: int | None = None) -> Denoiser:
    """A newly initialised network of the same architecture, or of its twin with `labels` classes."""
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


def _warm(twin: nn.Module, start: nn.Module) -> None:
    """The twin of a fine-tuned model begins as the pretrained start, too, whatever the label: what it has in addition,
    the embedding of labels, is zero."""
    own, given = twin.state_dict(), start.state_dict()
    twin.load_state_dict(
        {k: given[k] if k in given and given[k].shape == v.shape else torch.zeros_like(v) for k, v in own.items()}
    )


def group_condition(
    groups: Groups, index: np.ndarray, dropout: float, key: tuple[str | int, ...], device: torch.device
) -> Cond:
    """Each image's group, or with probability `dropout` the null label, which comes after the last group."""
    dropped = generator(*key).random(len(index)) < dropout
    return Cond({"class_labels": torch.from_numpy(np.where(dropped, len(groups), groups.labels[index])).to(device)})


def prompt_condition(
    denoiser: Denoiser, prompts: Sequence[str], index: np.ndarray, dropout: float, key: tuple[str | int, ...]
) -> Cond | None:
    """Each image's prompt or class, or with probability `dropout` the empty one."""
    dropped = generator(*key).random(len(index)) < dropout
    cond = denoiser.condition([denoiser.empty if d else prompts[i] for i, d in zip(index, dropped, strict=True)])
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
    weights: dict[str, torch.Tensor]  # the scored ones: EMA or raw, by recipe; of a base with a LoRA, the LoRA's
    earlier: float  # seconds spent before this process resumed it
    losses: list[float]  # mean training loss per 1 % of the run
    validation: list[float] = field(default_factory=list)  # loss on the test split, every 5 %; last: of `weights`


def train(
    denoiser: Denoiser,
    images: np.ndarray,
    groups: Groups,
    config: TrainingConfig,
    *,
    seed: int,
    leave_out: str | None = None,
    coupled: bool = True,
    aligned: bool = False,
    checkpoint: Path | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
    label_dropout: float | None = None,
    prompts: Sequence[str] | None = None,
    fine_tune: bool = False,
    latents: Latents | None = None,
    validation: np.ndarray | None = None,
    preview: Preview | None = None,
) -> Trained:
    """Train a fresh network of `denoiser`'s architecture on all groups, or on all but `leave_out`.

    `aligned`: with the full model's batches, in which other images take the places of those left out (stream.py).
    `fine_tune`: start from `denoiser`'s own weights instead. `prompts`: one per image, for conditional models.
    `latents`: the images encoded before. `validation`: images of the test split, and `preview`: where sheets of samples
    go, for models without a condition. With `label_dropout` it is its class-conditional twin: conditioned on each
    image's group, or on a null label instead."""
    if denoiser.frozen is not None and prompts is None:
        raise GudaError(
            "training-prompts-missing",
            "a text-to-image model is trained with one prompt per image; build them with: guda prompts",
        )
    own = adapted(denoiser.module)  # a base with a LoRA, whose LoRA is trained anew
    fine_tune = fine_tune or own
    if denoiser.n_classes is not None and prompts is not None and config.prompt_dropout and denoiser.empty in prompts:
        raise GudaError(
            "null-label-missing",
            f"training.prompt_dropout needs a null label, and all {denoiser.n_classes} labels are classes; give the "
            "model one more (model.options.num_class_embeds)",
        )
    if config.lora is not None and not fine_tune:
        raise GudaError(
            "lora-start-missing", "training.lora adapts a pretrained model: give model.start, or remove training.lora"
        )
    key, x0 = stream_key(seed, leave_out, coupled), latents or encode_all(denoiser, images, config.flips)
    labels = None if label_dropout is None else len(groups) + 1
    with torch.random.fork_rng(devices=[]):  # dropout is seeded step by step; the caller's generator is left alone
        model = denoiser.clone() if fine_tune and labels is None else fresh(denoiser, key, labels)
        if fine_tune and labels is not None:
            _warm(model.module, denoiser.module)
        module = model.module.float()  # an EMA in fp16 would stand still
        if config.checkpointing:
            recompute(module)
        if own:
            restart(module, *key, "lora")
        if config.lora is not None:
            wrap(module, config.lora, *key, "lora")
        stream = Stream(
            key, groups, model.shape, model.schedule.T,
            leave_out=None if leave_out is None else groups.index(leave_out),
            exposure_matched=config.matched(fine_tune), aligned=aligned,
        )  # fmt: skip
        stepper = make_stepper(config.precision, model.device)
        state = State.start(config, module, stream, stepper.scaler)

        def condition(index: np.ndarray, step: int) -> Cond | None:
            if label_dropout is not None:
                return group_condition(groups, index, label_dropout, (*key, "labels", step), model.device)
            if prompts is not None:
                return prompt_condition(model, prompts, index, config.prompt_dropout, (*key, "prompts", step))
            return None

        held_out = None if validation is None else Validation(model, validation)
        _run(model, x0, config, state, stepper, key, condition, checkpoint, tick, held_out, preview)
        if state.ema is not None:
            state.ema.copy_to(state.parameters)
        model.check_finite("training", "it diverged: lower the learning rate")
        if held_out is not None:
            state.validation.append(held_out.loss(model))
        weights = adapter_weights(module) if own else merged(module) if config.lora is not None else _copied(module)
    return Trained(weights, state.seconds, state.losses, state.validation)


def _bare(model: Denoiser, module: nn.Module) -> Denoiser:
    """The model without what spreads it over processes, which would wait for the others."""
    bare = copy.copy(model)
    bare.module = module
    return bare


def _scored_copy(model: Denoiser, state: State) -> Denoiser:
    """A network of its own with the weights that would be scored if the training ended here."""
    found = _bare(model, copy.deepcopy(state.module).eval())
    if state.ema is not None:
        state.ema.copy_to([p for p in found.module.parameters() if p.requires_grad])
    return found


def _copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().cpu().clone() for k, v in module.state_dict().items()}


def _run(
    model: Denoiser, x0: Latents, config: TrainingConfig, state: State, stepper: Stepper, key: tuple[str | int, ...],
    condition: Callable[[np.ndarray, int], Cond | None], checkpoint: Path | None, tick: Callable[[int, int], None],
    held_out: Validation | None, preview: Preview | None,
) -> None:  # fmt: skip
    """Every step, from the newest checkpoint on."""
    if checkpoint is not None:
        _resume(state, checkpoint, stepper)
    started, every = time.monotonic(), max(1, config.steps // 100)
    mean_loss = torch.zeros(())  # over the last `every` steps
    pieces = stepper.pieces(config.batch, config.accumulate)
    model.module = stepper.prepare(state.module)
    state.module.train()
    while state.step < config.steps:
        drawn = state.stream.take(config.batch)
        x, t, eps, x_t = to_batch(model, x0, drawn, config.flips)
        cond, target = condition(drawn.index, state.step), model.target(x, eps, t)
        state.optimizer.zero_grad(set_to_none=True)
        for piece, share in pieces:
            # masks of a piece are its own, wherever it is computed; a whole batch starts at place 0
            place = () if piece.start == 0 else (piece.start,)
            _seed_dropout(model.device, torch_seed(*key, "dropout", state.step, *place))
            with nullcontext() if piece is pieces[-1][0] else stepper.no_sync(model.module):
                output = model.raw(x_t[piece], t[piece], None if cond is None else cond[piece])
                loss = torch.nn.functional.mse_loss(output, target[piece])
                stepper.backward(loss if share == 1.0 else loss * share)
            mean_loss += share * loss.detach().cpu() / every
        stepper.step(state.optimizer, state.parameters, config.clip)
        state.schedule.step()
        if state.ema is not None:
            state.ema.step(state.parameters)
        state.step = step = state.step + 1
        if step % every == 0:
            state.losses.append(float(stepper.mean(mean_loss)))
            mean_loss = torch.zeros(())
            if not np.isfinite(state.losses[-1]):
                raise GudaError(
                    "training-diverged",
                    f"training diverged before step {step} (loss {state.losses[-1]}); lower training.lr",
                )
        if held_out is not None and step < config.steps and held_out.due(step, config.steps):
            state.validation.append(held_out.loss(_bare(model, state.module)))
        if preview is not None and stepper.is_main and preview.due(step, config.steps):
            preview.draw(_scored_copy(model, state), step)
        tick(step, config.steps)
        # only where the running mean is empty, so that the loss curve resumes exactly too
        due = step // config.checkpoint_every > (step - every) // config.checkpoint_every
        if checkpoint is not None and stepper.is_main and step % every == 0 and due and step < config.steps:
            state.save(checkpoint, state.seconds + time.monotonic() - started)
    model.module = state.module.eval()


LEAST_FALL = 0.10

ERRORS = 4.0  # standard errors of the fall

FEWEST = 30  # points of the curve; below that a tenth is one or two of them


@dataclass(frozen=True)
class Falling:
    """The loss was still falling when training ended."""

    fall: float  # of the last loss, over the last fifth of the training

    @property
    def text(self) -> str:
        return (
            f"the model may not be trained enough: its loss still fell by {self.fall:.0%} in the last fifth of the "
            "training; train longer (training.steps) before you believe its scores"
        )


def still_falling(losses: Sequence[float]) -> Falling | None:
    """From mean losses in order; None: it is not, or they are too few to tell."""
    n = len(losses)
    if n < FEWEST:
        return None
    values = np.asarray(losses, np.float64)
    before, last = values[int(0.7 * n) : int(0.8 * n)], values[int(0.9 * n) :]
    if not np.isfinite(values).all() or last.mean() <= 0:
        return None
    fall = float((before.mean() - last.mean()) / last.mean())
    error = float(np.sqrt(before.var(ddof=1) / len(before) + last.var(ddof=1) / len(last)) / last.mean())
    return Falling(fall) if fall > LEAST_FALL and fall > ERRORS * error else None
