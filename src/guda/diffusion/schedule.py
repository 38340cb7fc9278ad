"""Noise schedules: x_t = a_t x_0 + s_t eps, and what an error at t costs in nats.

With SNR_t = a_t^2 / s_t^2 the KL term of the bound at t >= 1 (0-based scheduler index) is

    KL_t = w_t ||eps - eps_hat||^2,  w_t = (SNR_{t-1}/SNR_t - 1)/2 = beta_t / (2 alpha_t (1 - abar_{t-1}))
         = (SNR_{t-1} - SNR_t)/2 ||x_0 - x0_hat||^2                (the form used where SNR_t = 0)

All coefficients are float64, from the scheduler's betas through cumsum(log1p(-beta)) and expm1: float32 abar is
0.3 % off in 1 - abar at t = 1. `Schedule` is the variance-preserving path a^2 + s^2 = 1;
`FlowSchedule` is the straight path of flow matching, a + s = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from guda.errors import GudaError
from guda.files import digest, digest_arrays

PREDICTIONS = ("epsilon", "v_prediction", "sample")

SUPPORTED = "guda scores DDPM-like schedulers (DDPM, DDIM, PNDM, DPM-Solver, Euler, ...) and FlowMatchEulerDiscrete"

DISTILLED = ("LCMScheduler", "TCDScheduler")  # they have betas, but their networks jump: no prediction of eps at x_t


@dataclass(frozen=True, eq=False)
class Schedule:
    """The variance-preserving path of some betas."""

    betas: np.ndarray  # float64 [T]
    prediction: str  # what the network predicts: one of PREDICTIONS

    def __post_init__(self) -> None:
        if self.prediction not in PREDICTIONS:
            raise GudaError(
                "prediction-unknown",
                f"unknown prediction type {self.prediction!r}; guda converts {', '.join(PREDICTIONS)} to eps",
            )
        b = self.betas
        if b.ndim != 1 or len(b) < 2 or not np.isfinite(b).all() or (b <= 0).any() or (b > 1).any():
            raise GudaError("betas-invalid", "the schedule's betas must be at least two finite numbers in (0, 1]")

    @classmethod
    def from_scheduler(cls, scheduler: Any, tokens: int | None = None) -> Schedule:
        """From any diffusers scheduler with the betas of a variance-preserving path, or of flow matching. `tokens` of
        a picture: see `dynamic_shift`."""
        name, config = type(scheduler).__name__, scheduler.config
        flow = config.get("use_flow_sigmas") and config.get("prediction_type") == "flow_prediction"
        if name == "FlowMatchEulerDiscreteScheduler" or (name == "DPMSolverMultistepScheduler" and flow):
            return FlowSchedule.from_scheduler(scheduler, tokens)
        betas = getattr(scheduler, "betas", None)
        if betas is None or name in DISTILLED:
            why = "has no betas" if betas is None else "belongs to a distilled few-step model, which has no bound"
            raise GudaError("scheduler-unsupported", f"scheduler {name} {why}; {SUPPORTED}")
        if str(config.get("variance_type") or "").startswith("learned"):
            raise GudaError(
                "scheduler-variance-learned",
                f"scheduler {name} has a learned variance; guda scores fixed-variance models only",
            )
        if config.get("use_flow_sigmas") or config.get("timestep_type", "discrete") != "discrete":
            raise GudaError(
                "scheduler-unsupported", f"scheduler {name} is set to flow sigmas or continuous timesteps; {SUPPORTED}"
            )
        schedule = cls(np.asarray(betas, dtype=np.float64), config.get("prediction_type", "epsilon"))
        theirs = getattr(scheduler, "alphas_cumprod", None)
        if theirs is not None and not np.allclose(schedule.abar, np.asarray(theirs), atol=1e-4):
            raise GudaError(
                "scheduler-betas-mismatch",
                f"scheduler {name} does not follow its own betas (a shifted SNR?); {SUPPORTED}",
            )
        return schedule

    @property
    def T(self) -> int:
        return len(self.betas)

    @cached_property
    def log_abar(self) -> np.ndarray:
        with np.errstate(divide="ignore"):  # a terminal beta of 1 means SNR = 0, log abar = -inf: intended
            return np.cumsum(np.log1p(-self.betas))

    @cached_property
    def abar(self) -> np.ndarray:
        return np.exp(self.log_abar)

    @cached_property
    def a(self) -> np.ndarray:
        """Signal scale sqrt(abar)."""
        return np.exp(0.5 * self.log_abar)

    @cached_property
    def s(self) -> np.ndarray:
        """Noise scale sqrt(1 - abar)."""
        return np.sqrt(-np.expm1(self.log_abar))

    @cached_property
    def log_snr(self) -> np.ndarray:
        return self.log_abar - np.log(-np.expm1(self.log_abar))

    @cached_property
    def zero_snr(self) -> np.ndarray:
        """Timesteps at which x_t holds no signal; there the error is measured in x_0 instead of eps."""
        return np.isneginf(self.log_snr)

    @cached_property
    def weights(self) -> np.ndarray:
        """w_t in nats per unit of squared error (eps form, or x_0 form where SNR_t = 0); w_0 = 0: no t = 0 term."""
        w = np.zeros(self.T)
        previous, here = self.log_snr[:-1], self.log_snr[1:]
        with np.errstate(over="ignore"):
            w[1:] = np.where(self.zero_snr[1:], np.exp(previous) / 2, np.expm1(previous - here) / 2)
        return w

    @cached_property
    def t_max(self) -> int:
        """Largest t with beta_t < 0.5: squared-cosine schedules end in one step that would hold 97 % of all weight."""
        small = np.flatnonzero(self.betas < 0.5)
        if not small.size:
            raise GudaError(
                "schedule-too-short",
                f"every beta of this {self.T}-step schedule is 0.5 or more; use one with more steps",
            )
        return int(small.max())

    @cached_property
    def digest(self) -> str:
        return digest([digest_arrays(self.betas), self.prediction])

    def at(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(a_t, s_t), float64; t may be fractional: between two timesteps log abar is linear in t."""
        if np.issubdtype(t.dtype, np.integer):
            return self.a[t], self.s[t]
        log_abar = np.interp(t, np.arange(self.T), self.log_abar)
        return np.exp(0.5 * log_abar), np.sqrt(-np.expm1(log_abar))

    def time_of(self, log_snr: np.ndarray) -> np.ndarray:
        """The fractional t in [0, t_max] at which x_t has this log SNR."""
        known = np.arange(self.t_max + 1.0)
        return np.interp(np.logaddexp(0, -log_snr), -self.log_abar[: self.t_max + 1], known)

    def coefficients(self, t: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(a_t, s_t) shaped to broadcast over `like`, in its dtype; rounded from float64 once. Floating t are points
        between timesteps, see `at`."""
        a, s = self.at(t.detach().cpu().numpy())
        shape = (-1,) + (1,) * (like.ndim - 1)
        return torch.from_numpy(a).to(like).reshape(shape), torch.from_numpy(s).to(like).reshape(shape)

    def add_noise(self, x0: torch.Tensor, eps: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a, s = self.coefficients(t, x0)
        return a * x0 + s * eps

    def network_time(self, t: torch.Tensor) -> torch.Tensor:
        """The time that the network takes instead of the index t; a fractional t in single precision."""
        return t.float() if t.is_floating_point() else t

    def _velocity(self, a: torch.Tensor, s: torch.Tensor) -> tuple[Any, Any]:
        """(p, q) of a predicted velocity p x_0 + q eps; a q - s p = 1, so both conversions are free of divisions."""
        return -s, a

    def to_eps(self, output: torch.Tensor, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The network's native output as a prediction of eps."""
        if self.prediction == "epsilon":
            return output
        a, s = self.coefficients(t, x_t)
        if self.prediction == "sample":
            return (x_t - a * output) / s
        return a * output - self._velocity(a, s)[0] * x_t

    def to_x0(self, output: torch.Tensor, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The network's native output as a prediction of x_0."""
        if self.prediction == "sample":
            return output
        a, s = self.coefficients(t, x_t)
        if self.prediction != "epsilon":
            return self._velocity(a, s)[1] * x_t - s * output
        if bool(self.zero_snr[t.cpu().numpy()].any()):
            raise GudaError(
                "timestep-without-signal",
                "an eps-predicting network says nothing about x_0 where SNR = 0; leave that timestep out",
            )
        return (x_t - s * output) / a

    def target(self, x0: torch.Tensor, eps: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """What the network should output at x_t: the training target in its native parametrisation."""
        if self.prediction == "epsilon":
            return eps
        if self.prediction == "sample":
            return x0
        p, q = self._velocity(*self.coefficients(t, x0))
        return q * eps + p * x0

    def output_change(self, x0_change: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """By how much the network's native output moves when its prediction of x_0 moves by `x0_change`."""
        if self.prediction == "sample":
            return x0_change
        a, s = self.coefficients(t, x0_change)
        return -(a / s) * x0_change if self.prediction == "epsilon" else -x0_change / s

    def describe(self) -> str:
        snr = math.exp(min(self.log_snr[0], 700))
        return f"T={self.T}, predicts {self.prediction}, t_max={self.t_max}, SNR_0={snr:.3g}"


def _flow_log_snr(T: int, shift: float) -> np.ndarray:
    """2 log((1 - s)/s) = 2 (log(1 - u) - log u - log shift): the shift moves the log SNR as a whole; -inf at u = 1."""
    t = np.arange(1, T + 1)
    with np.errstate(divide="ignore"):
        return 2 * (np.log(T - t) - np.log(t) - np.log(shift))


def dynamic_shift(config: Any, tokens: int) -> float:
    """The shift of a picture of so many tokens, where the scheduler has `use_dynamic_shifting`:

        mu = base_shift + (max_shift - base_shift) (tokens - base_image_seq_len)
                                                   / (max_image_seq_len - base_image_seq_len)
        s = e^mu u / (1 + (e^mu - 1) u)            (time_shift_type `linear`: mu in place of e^mu)

    which is a fixed shift, since all pictures of a run have one size. Other sizes have other shifts, and so another
    range of SNRs: their scores are not compared."""
    low, high = (float(config.get(key, value)) for key, value in (("base_shift", 0.5), ("max_shift", 1.15)))
    first, last = (int(config.get(key, n)) for key, n in (("base_image_seq_len", 256), ("max_image_seq_len", 4096)))
    kind = config.get("time_shift_type", "exponential")
    if kind not in ("exponential", "linear") or first == last:
        raise GudaError(
            "scheduler-shift-dynamic",
            f"time_shift_type {kind!r} from {first} to {last} tokens is not a shift that guda knows; set "
            "use_dynamic_shifting to false and a fixed shift in scheduler_config.json",
        )
    mu = low + (high - low) / (last - first) * (tokens - first)
    return math.exp(min(mu, 700.0)) if kind == "exponential" else mu


@dataclass(frozen=True, eq=False)
class FlowSchedule(Schedule):
    """x_t = (1 - s) x_0 + s eps with s = shift u / (1 + (shift - 1) u), u = (t + 1)/T; the network predicts
    v = eps - x_0. The betas are those of a variance-preserving path with the same SNRs."""

    shift: float = 1.0

    @classmethod
    def of(cls, T: int, shift: float = 1.0) -> FlowSchedule:
        if T < 2 or not shift > 0:
            raise GudaError(
                "flow-schedule-invalid",
                f"flow matching needs at least two timesteps and a positive shift, not {T} and {shift}",
            )
        log_abar = -np.logaddexp(0, -_flow_log_snr(T, shift))
        steps = np.diff(log_abar, prepend=0.0)
        return cls(-np.expm1(steps), "flow", float(shift))

    @classmethod
    def from_scheduler(cls, scheduler: Any, tokens: int | None = None) -> FlowSchedule:
        name, config = type(scheduler).__name__, scheduler.config
        dynamic = bool(config.get("use_dynamic_shifting"))
        for field in ("use_dynamic_shifting", "invert_sigmas"):
            if config.get(field) and not (dynamic and tokens is not None and field == "use_dynamic_shifting"):
                raise GudaError(
                    "scheduler-shift-dynamic",
                    f"scheduler {name} has {field}, so its noise levels depend on more than t; set {field} to false "
                    "and a fixed shift in scheduler_config.json",
                )
        shift = config.get("flow_shift", 1.0) if config.get("use_flow_sigmas") else config.get("shift", 1.0)
        if dynamic and tokens is not None:
            shift = dynamic_shift(config, tokens)
        return cls.of(int(config["num_train_timesteps"]), float(shift))

    def __post_init__(self) -> None:
        if self.prediction != "flow":
            raise GudaError(
                "flow-prediction-mismatch",
                f"a flow-matching schedule goes with networks that predict velocities, not {self.prediction}",
            )

    @cached_property
    def log_snr(self) -> np.ndarray:
        return _flow_log_snr(self.T, self.shift)

    @cached_property
    def a(self) -> np.ndarray:
        return self.at(np.arange(self.T))[0]

    @cached_property
    def s(self) -> np.ndarray:
        return self.at(np.arange(self.T))[1]

    def at(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(1 - s, s), the first not by subtraction: (1 - u)/(1 + (shift - 1) u); any t."""
        u = np.asarray(t, np.float64) + 1  # times T
        below = self.T + (self.shift - 1) * u
        return (self.T - u) / below, self.shift * u / below

    def time_of(self, log_snr: np.ndarray) -> np.ndarray:
        return self.T / (1 + self.shift * np.exp(log_snr / 2)) - 1

    @cached_property
    def digest(self) -> str:
        return digest(["flow", self.T, self.shift])

    def network_time(self, t: torch.Tensor) -> torch.Tensor:
        """s_t T, as diffusers' transformers take it."""
        u = t.double() + 1  # by torch: torch.func may be batching over t
        return (self.shift * u / (self.T + (self.shift - 1) * u) * self.T).to(torch.float32)

    def _velocity(self, a: torch.Tensor, s: torch.Tensor) -> tuple[Any, Any]:
        return -1.0, 1.0
