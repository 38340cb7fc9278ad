"""The straight path of flow matching: x_t = (1 - s) x_0 + s eps, and a network that predicts v = eps - x_0.

    eps_hat = x_t + (1 - s) v,   x0_hat = x_t - s v,   SNR = (1 - s)^2 / s^2         (SPEC section 2)

s_t = shift u / (1 + (shift - 1) u) at u = (t + 1)/T, t = 0..T-1 ascending in noise; the network is told s_t T. Scaling
x_t by 1/sqrt(a^2 + s^2) makes any Gaussian path variance-preserving without changing its SNR, hence without changing a
KL term: `betas` are those of that path, 1 - abar_t/abar_{t-1} with abar = SNR/(1 + SNR), so t_max means the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.runs.store import digest


def _log_snr(T: int, shift: float) -> np.ndarray:
    """2 log((1 - s)/s) = 2 (log(1 - u) - log u - log shift): the shift moves the log SNR as a whole; -inf at u = 1."""
    t = np.arange(1, T + 1)
    with np.errstate(divide="ignore"):
        return 2 * (np.log(T - t) - np.log(t) - np.log(shift))


@dataclass(frozen=True, eq=False)
class FlowSchedule(Schedule):
    shift: float = 1.0

    @classmethod
    def of(cls, T: int, shift: float = 1.0) -> FlowSchedule:
        if T < 2 or not shift > 0:
            raise GudaError(
                "flow-schedule-invalid",
                f"flow matching needs at least two timesteps and a positive shift, not {T} and {shift}",
            )
        log_abar = -np.logaddexp(0, -_log_snr(T, shift))
        steps = np.diff(log_abar, prepend=0.0)
        return cls(-np.expm1(steps), "flow", float(shift))

    @classmethod
    def from_scheduler(cls, scheduler: Any) -> FlowSchedule:
        name, config = type(scheduler).__name__, scheduler.config
        for field in ("use_dynamic_shifting", "invert_sigmas"):
            if config.get(field):
                raise GudaError(
                    "scheduler-shift-dynamic",
                    f"scheduler {name} has {field}, so its noise levels depend on more than t; set {field} to false "
                    "and a fixed shift in scheduler_config.json",
                )
        return cls.of(int(config["num_train_timesteps"]), float(config["shift"]))

    def __post_init__(self) -> None:
        if self.prediction != "flow":
            raise GudaError(
                "flow-prediction-mismatch",
                f"a flow-matching schedule goes with networks that predict velocities, not {self.prediction}",
            )

    @cached_property
    def log_snr(self) -> np.ndarray:
        return _log_snr(self.T, self.shift)

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
        """s_t T, as diffusers' transformers are told."""
        u = t.double() + 1  # by torch: torch.func may be batching over t
        return (self.shift * u / (self.T + (self.shift - 1) * u) * self.T).to(torch.float32)

    def _velocity(self, a: torch.Tensor, s: torch.Tensor) -> tuple[Any, Any]:
        return -1.0, 1.0
