"""Unlearning one group by a short fine-tune of theta_full: the one loop that every operator shares.

    L = lambda_forget L_forget + lambda_preserve L_preserve,   L_preserve = E_retain || eps_theta - eps_full ||^2

(losses are means over dims). The student runs in eval mode, so dropout neither adds noise nor makes it
differ from its frozen teacher at step 0. All randomness is keyed by (seed, group, side, step).

Drift is the enemy: `average` keeps a running mean of the weights along the way, and with a `holdout` the operator's own
loss on images it does not train on says when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from guda.config import Config, TrainingConfig
from guda.data.classes import Classes, class_numbers
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.diffusion.denoiser import Denoiser, Latents, encode_all
from guda.diffusion.families.base import Cond
from guda.diffusion.low_memory import make_optimizer, recompute
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.registry import Registry
from guda.unlearning.bank import Counterfactual, Store
from guda.unlearning.student import BATCHES, Patience, Student, split


class UnlearnConfig(Config):
    """Settings that every operator has."""

    omitted: ClassVar = {"seeds": ((), []), "checkpointing": (False,), "optimizer": ("adamw",)}

    steps: int = Field(100, gt=0, description="Optimiser steps per group.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate (AdamW).")
    decay: bool = Field(False, description="Decay the learning rate to zero along a cosine.")
    warmup: int = Field(0, ge=0, description="Steps of linear warm-up; must be short against `steps`.")
    clip: float = Field(1.0, gt=0, description="Gradient norm is clipped to this.")
    batch_forget: int = Field(64, gt=0, description="Images of the group per step.")
    batch_retain: int = Field(64, gt=0, description="Images of the other groups per step.")
    lambda_forget: float = Field(1.0, ge=0, description="Weight of the forget loss.")
    lambda_preserve: float = Field(1.0, ge=0, description="Weight of the preservation loss.")
    window: tuple[float, float] = Field(
        (0.0, 1.0), description="Timesteps of the forget loss, as fractions of T: [from, to)."
    )
    average: float | None = Field(
        None, gt=0, lt=1, description="Keep an exponential average of the weights with this decay; null: the last ones."
    )
    holdout: float = Field(
        0.0, ge=0, lt=1, description="Share of forget and of retain images held out to decide when to stop; 0: no stop."
    )
    check_every: int = Field(10, gt=0, description="Steps between measurements on the held-out images.")
    patience: int = Field(3, gt=0, description="Stop after this many measurements without a better one; keep the best.")
    seed: int = Field(0, ge=0, description="Seed of batches, timesteps and noise.")
    seeds: tuple[int, ...] = Field(
        (),
        description="Unlearn every group once for each of these seeds; scores are the mean, and its error includes "
        "their spread. Default: `seed` alone.",
    )
    checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass in place of keeping them: less memory."
    )
    optimizer: Literal["adamw", "adamw8bit"] = Field(
        "adamw", description="adamw8bit keeps the moments in 8 bits (needs the package bitsandbytes, and a GPU)."
    )
    store: Store = Field(
        "fp32",
        description="How a counterfactual is kept: fp32, bf16, lowrank:RANK, lora:RANK (only adapters are trained); "
        "factors may be rounded: lora:4:bf16.",
    )

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds) or min(seeds, default=0) < 0:  # one twice would pass for no randomness
            raise ValueError("seeds must be different whole numbers, 0 or more")
        return seeds

    @model_validator(mode="after")
    def _reaches_its_rate(self) -> UnlearnConfig:
        if self.warmup >= self.steps:
            raise ValueError(f"warmup = {self.warmup} must be shorter than steps = {self.steps}")
        return self


class FlipsConfig(UnlearnConfig):
    """For operators that mean the same by "the images" when mirrored ones are drawn too."""

    flips: bool = Field(False, description="Random horizontal flips; posteriors then hold mirrored copies as well.")


def flips(config: Any) -> bool:
    return bool(getattr(config, "flips", False))


@dataclass(frozen=True)
class Batch:
    """Noised images of one step, all of the group or all of the others."""

    x0: torch.Tensor
    t: torch.Tensor
    eps: torch.Tensor
    x_t: torch.Tensor
    key: tuple[str | int, ...] = ()  # of its noise, for an operator that needs more of it
    cond: Cond | None = None  # the conditioning of these images, for a conditional model
    prompts: tuple[str, ...] = ()  # the same as text
    index: np.ndarray | None = None  # which images


@dataclass(frozen=True)
class Inputs:
    """The training images as the model sees them, and their prompts."""

    latents: Latents
    prompts: Sequence[str] | None = None  # one per image


@dataclass(frozen=True)
class BatchSampler:
    """Draws the batches of one side, "forget" or "retain"."""

    name: str
    members: np.ndarray  # indices of images
    size: int
    times: tuple[int, int]

    def key(self, config: Any, group: str, *when: str | int) -> tuple[str | int, ...]:
        return (config.seed, "unlearn", group, self.name, *when)

    def draw(self, teacher: Denoiser, inputs: Inputs, config: Any, group: str, *when: str | int) -> Batch:
        key = self.key(config, group, *when)
        g = generator(*key)
        index = g.choice(self.members, self.size, replace=self.size > len(self.members))
        t = torch.from_numpy(g.integers(*self.times, self.size))
        eps = torch.from_numpy(g.standard_normal((self.size, *teacher.shape), dtype=np.float32)).to(teacher.device)
        x = inputs.latents.take(index, g.random(self.size) < 0.5 if flips(config) else None).to(teacher.device)
        x_t = teacher.schedule.add_noise(x, eps, t)
        prompts = () if inputs.prompts is None else tuple(inputs.prompts[i] for i in index)
        if prompts and (share := getattr(config, "prompt_dropout", 0.0)):
            dropped = generator(*key, "prompts").random(self.size) < share
            prompts = tuple(teacher.empty if d else p for p, d in zip(prompts, dropped, strict=True))
        cond = teacher.condition(prompts) if prompts else None
        cond = None if cond is None else cond.to(teacher.device)
        return Batch(x, t.to(teacher.device), eps, x_t, key, cond, prompts, index)


class Operator:
    """How a group is forgotten. A new one is a small file with a Config and `forget`, registered by `@operator`."""

    id: ClassVar[str]
    summary: ClassVar[str] = ""  # one line: what it does
    Config: ClassVar[type[UnlearnConfig]] = UnlearnConfig
    conditional: ClassVar[bool | None] = False  # False: unconditional models only; True: conditional only; None: any
    within_class: ClassVar[bool] = False  # class-conditional models: it removes part of a class; made with the Classes
    by_label: ClassVar[bool] = False  # class-conditional models: it removes whole classes
    needs_conditional: ClassVar[bool] = False  # made with a fifth argument: a group-conditional Denoiser, null label
    needs_prompts: ClassVar[bool] = False  # made with a fifth argument: the Prompts of the data
    regroupable: ClassVar[bool] = True  # False: it needs the data's own groups, so random ones cannot be unlearned
    coupled: ClassVar[bool] = False  # all groups take the same steps, and are compared with a control that has all
    together: ClassVar[bool] = False  # one pass makes the counterfactuals of all groups (operators/tangent.py)
    from_start: ClassVar[bool] = False  # it changes the pretrained start instead of the full model

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any) -> None:
        self.teacher, self.data, self.group, self.config = teacher, data, group, config

    @classmethod
    def regroups(cls, config: Any) -> bool:
        """`regroupable`, with these settings."""
        return cls.regroupable

    @classmethod
    def settle(cls, config: Any, training: TrainingConfig | None) -> Any:
        """The settings with what the recipe's training decides where they leave it open."""
        return config

    @classmethod
    def check_classes(cls, config: Any, classes: Classes) -> None:
        """Refuse settings that a class-conditional model with these labels cannot be unlearned by."""

    def samplers(self) -> list[BatchSampler]:
        """What a step's batches are drawn by, in the order in which `loss` receives them."""
        T, config = self.teacher.schedule.T, self.config
        return [
            BatchSampler("forget", self.members("forget"), config.batch_forget, window_range(config.window, T)),
            BatchSampler("retain", self.members("retain"), config.batch_retain, (0, T)),
        ]

    def members(self, side: str) -> np.ndarray:
        """Indices of the images that the "forget" or the "retain" batches are drawn from."""
        groups = self.data.groups
        k = groups.index(self.group)
        return groups.members(k) if side == "forget" else groups.without(k)

    def encoded(self, members: np.ndarray) -> torch.Tensor:
        """Those images as the model sees them, with their mirror images where flips are drawn."""
        x = self.teacher.encode(self.data.images[members]).to(self.teacher.device)
        return torch.cat([x, x.flip(-1)]) if flips(self.config) else x

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        """The forget loss, a scalar. Every operator has one, or a `loss` of its own where its terms share points."""
        raise NotImplementedError

    def preserve(self, student: Denoiser, retain: Batch) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher.eps(retain.x_t, retain.t, retain.cond)
        return torch.nn.functional.mse_loss(student.eps(retain.x_t, retain.t, retain.cond), target)

    def loss(self, student: Denoiser, forget: Batch, retain: Batch) -> torch.Tensor:
        return self.config.lambda_forget * self.forget(student, forget) + self.config.lambda_preserve * self.preserve(
            student, retain
        )

    @classmethod
    def make_together(
        cls, teacher: Denoiser, data: ImageData, members: dict[str, np.ndarray], config: Any,
        tick: Callable[[int, int], None], prompts: Prompts | Classes | None, latents: Latents | None,
    ) -> dict[str, Counterfactual]:  # fmt: skip
        """Where `together`: the counterfactual of every group in `members`, which says what images are in it."""
        raise NotImplementedError

    def notes(self) -> dict[str, Any]:
        """What is worth knowing of the fit afterwards, as plain JSON; kept beside the counterfactual."""
        return {}

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        """Evaluation units of one step: `student` per sample it sees, 3 with its backward; a teacher 1."""
        return int(student * config.batch_forget + (student + 1) * config.batch_retain)

    @classmethod
    def fit_evals(cls, config: Any) -> int:
        """Evaluation units per group; an upper bound where a holdout may stop it early, checks included."""
        checks = -(-config.steps // config.check_every) if config.holdout else 0
        return int(config.steps * cls.step_evals(config) + checks * BATCHES * cls.step_evals(config, 1))


OPERATORS = Registry[type[Operator]](
    "operator",
    "guda.operators",
    [
        f"guda.unlearning.operators.{name}"
        for name in (
            "anchors",
            "ascent",
            "continuation",
            "erasediff",
            "esd",
            "retain",
            "retrack",
            "shift",
            "siss",
            "tangent",
        )
    ],
)
operator = OPERATORS.register  # decorator: an unlearning operator under its method id

CONTROL = "(nothing)"  # in the place of a group: what a coupled operator makes of the model without leaving any out


def window_range(window: tuple[float, float], T: int) -> tuple[int, int]:
    low, high = round(window[0] * T), round(window[1] * T)
    if not 0 <= low < high <= T:
        raise GudaError(
            "window-invalid", f"window {window}: needs 0 <= from < to <= 1 and at least one timestep of {T}"
        )
    return low, high


def applies(cls: type[Operator], kind: str, whole_classes: bool = False) -> bool:
    """Whether an operator is defined for a kind of model (`Denoiser.kind`); `whole_classes`: of a class-conditional
    one, whether groups hold all images of a class, of which nothing is left within the class."""
    if cls.conditional is None:
        return True
    if kind == "class-conditional":
        return cls.by_label if whole_classes else cls.within_class
    return cls.conditional == (kind == "text-to-image")


def check_kind(operator_id: str, kind: str, whole_classes: bool = False) -> None:
    """Refuse an operator on the kind of model that it is not defined for, naming those that are."""
    if not applies(OPERATORS[operator_id], kind, whole_classes):
        if kind == "class-conditional":
            which = f"class-conditional models with groups that {'are' if whole_classes else 'are not'} whole classes"
        else:
            which = f"{kind} models"
        known = [i for i, o in OPERATORS.items() if applies(o, kind, whole_classes)]
        raise GudaError(
            "operator-model-unsupported", f"{operator_id} is not defined for {which}, use {' or '.join(known)}"
        )


def check_groups(operator_id: str, groups: Groups, names: Sequence[str]) -> None:
    """Refuse groups that an operator cannot tell apart: one that asks by label or prompt knows one of every image."""
    if OPERATORS[operator_id].regroupable:
        return
    inner = [name for name in names if name not in groups.leaf_names]
    if inner or not groups.disjoint:
        why = f"{inner[0]!r} holds other groups" if inner else "some images are in several groups"
        known = [i for i, o in OPERATORS.items() if o.regroupable]
        raise GudaError(
            "operator-groups-overlap",
            f"{operator_id} knows one group of every image, and {why}; use {' or '.join(known)}",
        )


def refuse_unused(operator_id: str, conditional: Denoiser | None) -> None:
    if conditional is not None:
        raise GudaError(
            "conditional-model-unused", f"{operator_id} has no use for a conditional model; leave `conditional` out"
        )


def make_operator(
    operator_id: str,
    teacher: Denoiser,
    data: ImageData,
    group: str,
    config: Any,
    conditional: Denoiser | None = None,
    prompts: Prompts | Classes | None = None,
) -> Operator:
    """The operator for one group, refused where it is not defined."""
    cls: Any = OPERATORS.find(operator_id)
    classes = None
    if teacher.n_classes is not None:
        classes = prompts if isinstance(prompts, Classes) else class_numbers(data, teacher.n_classes)
    empty = classes is not None and group != CONTROL and bool(classes.emptied(data.groups, group))
    check_kind(operator_id, teacher.kind, empty)
    if classes is not None:
        prompts = classes
    if cls.conditional is None and teacher.conditional and prompts is None:
        raise GudaError(
            "training-prompts-missing",
            f"{operator_id} is not defined for conditional models without prompts of the training images",
        )
    if cls.needs_prompts and prompts is None:
        raise GudaError(
            "operator-needs-text", f"{operator_id} redirects prompts: it needs a text-to-image model and prompts=..."
        )
    if cls.needs_conditional and conditional is None:
        raise GudaError(
            "conditional-model-missing",
            f"{operator_id} needs a group-conditional model of {len(data.groups)} groups and a null label: "
            "give conditional=...",
        )
    if not cls.needs_conditional:
        refuse_unused(operator_id, conditional)
    extra: list[Any] = [prompts] if cls.needs_prompts else [conditional] if cls.needs_conditional else []
    if cls.within_class and classes is not None:
        extra = [classes]
    made: Operator = cls(teacher, data, group, config, *extra)
    return made


def unlearn_group(
    teacher: Denoiser,
    data: ImageData,
    group: str,
    operator_id: str,
    config: Any,
    tick: Callable[[int, int], None] = lambda done, total: None,
    conditional: Denoiser | None = None,
    notes: dict[str, Any] | None = None,
    prompts: Prompts | Classes | None = None,
    latents: Latents | None = None,
) -> Counterfactual:
    """theta_full with `group` unlearned; of a coupled operator also its control (CONTROL). `notes` is filled with what
    is worth knowing of the fit: steps taken, ..."""
    from diffusers.training_utils import EMAModel

    if OPERATORS.find(operator_id).together and group != CONTROL:
        refuse_unused(operator_id, conditional)
        return unlearn_together(teacher, data, [group], operator_id, config, tick, prompts, latents)[group]
    config = OPERATORS.find(operator_id).settle(config, None)
    operator = make_operator(operator_id, teacher, data, group, config, conditional, prompts)
    if teacher.n_classes is not None and prompts is None:
        prompts = class_numbers(data, teacher.n_classes)
    student = Student(teacher, config, "" if operator.coupled else group)
    optimizer = make_optimizer(config.optimizer, student.parameters, config.lr, getattr(config, "weight_decay", 0.0))
    if config.checkpointing:
        recompute(student.denoiser.module)
    schedule = learning_rate(optimizer, config)
    ema = None if config.average is None else EMAModel(student.parameters, decay=config.average, foreach=True)
    inputs = Inputs(
        latents or encode_all(teacher, data.images, flips(config)), None if prompts is None else prompts.training
    )
    samplers, held = make_samplers(operator, config)

    def loss_at(samplers: list[BatchSampler], *when: str | int) -> torch.Tensor:
        batches = [sampler.draw(teacher, inputs, config, group, *when) for sampler in samplers]
        return operator.loss(student.denoiser, *batches)

    def current() -> list[torch.Tensor]:
        """What would be kept if this step were the last."""
        return student.state() if ema is None else [p.clone() for p in ema.shadow_params]

    @torch.no_grad()
    def held_out_loss() -> float:
        raw = student.state()
        student.restore(current())
        losses = [loss_at(held, "check", i) for i in range(BATCHES)]
        student.restore(raw)
        return float(torch.stack(losses).mean())

    best = Patience(config.patience)
    step = 0
    for step in range(1, config.steps + 1):
        loss = loss_at(samplers, step - 1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters, config.clip)
        optimizer.step()
        schedule.step()
        if ema is not None:
            ema.step(student.parameters)
        tick(step, config.steps)
        due = step % config.check_every == 0 or step == config.steps
        if held and due and best.stop(step, held_out_loss(), current):
            break
    notes = {} if notes is None else notes
    notes |= operator.notes()
    if held:
        notes |= {"steps": step, "kept_step": best.step, "held_out_loss": best.loss}
        # without one finite loss there is no best; what the student became is refused below if it is broken
        student.restore(best.state or current())
    elif ema is not None:
        student.restore(current())
    return student.counterfactual(group, operator_id)


def learning_rate(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    """Warm-up, then the peak rate or a cosine down to zero."""
    from diffusers.optimization import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

    if config.decay:
        return get_cosine_schedule_with_warmup(optimizer, config.warmup, config.steps)
    return get_constant_schedule_with_warmup(optimizer, config.warmup)


def unlearn_together(
    teacher: Denoiser,
    data: ImageData,
    groups: Sequence[str],
    operator_id: str,
    config: Any,
    tick: Callable[[int, int], None] = lambda done, total: None,
    prompts: Prompts | Classes | None = None,
    latents: Latents | None = None,
) -> dict[str, Counterfactual]:
    """theta_full with each of `groups` unlearned, by an operator that makes them in one pass."""
    known = data.groups
    inside = {g: known.membership[:, known.index(g)] for g in groups}
    return OPERATORS.find(operator_id).make_together(teacher, data, inside, config, tick, prompts, latents)


def make_samplers(operator: Operator, config: Any) -> tuple[list[BatchSampler], list[BatchSampler]]:
    """Those of the training steps, and those of the held-out checks (none without a holdout)."""
    samplers = operator.samplers()
    if not config.holdout:
        return samplers, []
    key = (config.seed, "unlearn", operator.group)
    held = [replace(s, members=split(s.members, config.holdout, s.name, *key, s.name)[1]) for s in samplers]
    # by image, not by side: an operator's forget and retain images may overlap
    out = np.concatenate([s.members for s in held])
    return [replace(s, members=np.setdiff1d(s.members, out)) for s in samplers], held
