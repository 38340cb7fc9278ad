"""Per-sample gradients: what every gradient method is made of.

For each of B samples, each seen at S noise levels (x_t [B, S, C, H, W]), the gradient with respect to the weights of

    loss           mean over levels and pixels of (output - target)^2      TRAK: the training loss
    squared_norm   mean over levels and pixels of output^2                 D-TRAK: the same with a target of zero
    mean_output    mean over levels and pixels of output                   DAS

`output` is the network's own (eps, v, x_0 or velocity), as is the target. One backward pass of the mean over levels
writes p numbers once, not S times. `vmap` batches the samples through torch.func; `loop` takes them one by one, for
networks that torch.func cannot batch. Both give the same gradients up to rounding.

Their mean square is the diagonal of the empirical Fisher information, how firmly the training data holds each weight:

    F = mean over images, timesteps and noise of (d loss / d theta)^2

The square is of each single sample's gradient: squaring the mean gradient of a batch of B would give about F / B. One
pass sees every image once, at one timestep and one noise that (seed, image id, pass) decide; several passes are
averaged. Squares of gradients are far below what half precision can hold: sums are kept in float64.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from guda.blocks import blocks
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.lora import adapted, is_adapter
from guda.diffusion.noise import KeyedNoise
from guda.errors import GudaError, NotFinite

Output = Literal["loss", "squared_norm", "mean_output"]

Mode = Literal["vmap", "loop"]

KEYS_AND_VALUES = r"attn2\.to_[kv]"  # cross-attention of Stable Diffusion: what listens to the prompt


def chosen_weights(denoiser: Denoiser, pattern: str = "all") -> dict[str, nn.Parameter]:
    """The weights that gradients are taken of: all, or those whose name a regular expression finds. Of a base with a
    LoRA those of the LoRA, which alone learned from the images."""
    own = adapted(denoiser.module)
    found = {
        name: value
        for name, value in denoiser.module.named_parameters()
        if (pattern == "all" or re.search(pattern, name)) and (is_adapter(name) or not own)
    }
    if not found:
        first = next(name for name, _ in denoiser.module.named_parameters())
        raise GudaError(
            "weights-pattern-unmatched",
            f"weights {pattern!r} names none of the network's weights (such as {first!r}); give another",
        )
    return found


def regular_expression(value: str) -> str:
    """For settings: a text that `re` reads."""
    try:
        re.compile(value)
    except re.error as e:
        raise ValueError(f"{value!r} is not a regular expression ({e})") from None
    return value


class _Raw(nn.Module):
    """`denoiser.raw` as a module, so that torch.func can put other weights in."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__()
        self.network = denoiser.module
        self._denoiser = [denoiser]  # in a list: its module must not be registered twice

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, told: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._denoiser[0].raw(x_t, t, Cond(told) if told else None)


def value(output: torch.Tensor, target: torch.Tensor, what: Output) -> torch.Tensor:
    """The function that is differentiated; output and target are [S, C, H, W] of one sample."""
    if what == "mean_output":
        return output.mean()
    return (output - (target if what == "loss" else torch.zeros_like(target))).square().mean()


class Gradients:
    """Gradients of `what` with respect to `weights` of one network."""

    def __init__(self, denoiser: Denoiser, what: Output = "loss", weights: str = "all", mode: Mode = "vmap") -> None:
        self.denoiser, self.what, self.mode = denoiser, what, mode
        self.names = list(chosen_weights(denoiser, weights))
        self._raw = _Raw(denoiser)
        state = {**dict(self._raw.named_parameters()), **dict(self._raw.named_buffers())}
        state = {name: v.detach() for name, v in state.items()}
        self._weights = {name: state.pop(f"network.{name}") for name in self.names}
        self._rest = state

    @property
    def sizes(self) -> dict[str, int]:
        return {name: w.numel() for name, w in self._weights.items()}

    def __call__(
        self, x_t: torch.Tensor, t: torch.Tensor, target: torch.Tensor, cond: Cond | None = None
    ) -> dict[str, torch.Tensor]:
        """{weight: [B, size]} for x_t and target [B, S, C, H, W], t [S] or of each sample [B, S], cond of the B."""
        told = {} if cond is None else cond.tensors

        def f(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, t: Any, told: Any) -> torch.Tensor:
            inside = {f"network.{name}": w for name, w in weights.items()} | self._rest
            repeated = {k: v.expand(len(t), *v.shape) for k, v in told.items()}
            return value(torch.func.functional_call(self._raw, inside, (x, t, repeated)), y, self.what)

        # the fused attention kernels have no batching rule
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found = (self._vmap if self.mode == "vmap" else self._loop)(f, x_t, target, t, told)
        return {name: g.flatten(1) for name, g in found.items()}

    def _vmap(self, f: Callable[..., torch.Tensor], *given: Any) -> dict[str, torch.Tensor]:
        try:
            own = 0 if given[2].ndim == 2 else None  # timesteps of each sample, or of all
            return torch.func.vmap(torch.func.grad(f), in_dims=(None, 0, 0, own, 0))(self._weights, *given)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as e:
            if "can't allocate memory" in str(e):
                raise
            first = str(e).splitlines()[0]
            raise GudaError(
                "network-not-batchable",
                f"torch.func cannot batch this network ({first}); set per_sample: loop in the method's settings",
            ) from e

    def _loop(self, f: Callable[..., torch.Tensor], *given: Any) -> dict[str, torch.Tensor]:
        weights = {name: w.clone().requires_grad_() for name, w in self._weights.items()}
        rows = []
        x_t, target, t, told = given
        for i in range(len(x_t)):
            out = f(weights, x_t[i], target[i], t[i] if t.ndim == 2 else t, {k: v[i] for k, v in told.items()})
            rows.append(torch.autograd.grad(out, list(weights.values()), allow_unused=True, materialize_grads=True))
        return {name: torch.stack(parts) for name, parts in zip(weights, zip(*rows, strict=True), strict=True)}


FLOATS = 2**26  # numbers of per-sample gradients held at once

MOST = 64  # samples at once; more would not be faster

Fisher = dict[str, torch.Tensor]  # float64 [size] by weight


def per_sample_block(sizes: Mapping[str, int], levels: int = 1, block: int = MOST) -> int:
    """How many samples' gradients are taken together: a function of the network and of what the run allows, so that
    no last bit depends on anything else. `block`: images that the network may see at once."""
    return max(1, min(MOST, FLOATS // sum(sizes.values()), block // levels))


def fisher_pass(
    gradients: Gradients,
    x0: torch.Tensor,
    ids: Sequence[str],
    cond: Cond | None = None,
    *,
    seed: int = 0,
    number: int = 0,
    block: int | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Fisher:
    """Mean of the squared gradients over x0 [n, C, H, W], whose noise `ids` name, in pass `number`."""
    denoiser = gradients.denoiser
    schedule, device = denoiser.schedule, denoiser.device
    block = block or per_sample_block(gradients.sizes)
    total = {name: torch.zeros(size, dtype=torch.float64, device=device) for name, size in gradients.sizes.items()}
    noise = KeyedNoise()
    for rows in blocks(len(x0), block):
        x = rows.take(x0)
        t, eps = torch.empty(block, dtype=torch.int64), torch.empty_like(x)
        for row, i in enumerate(rows.index):
            rng = noise.at("fisher", seed, ids[i], number)
            t[row] = int(rng.integers(schedule.T))
            eps[row] = torch.from_numpy(rng.standard_normal(x.shape[1:], dtype="float32"))
        x_t, target = (v[:, None].to(device) for v in (schedule.add_noise(x, eps, t), schedule.target(x, eps, t)))
        told = None if cond is None else rows.take(cond).to(device)
        for name, g in gradients(x_t, t[:, None].to(device), target, told).items():
            total[name] += g[: rows.n].square().sum(0, dtype=torch.float64)
        tick(rows.stop, len(x0))
    return {name: value / len(x0) for name, value in total.items()}


def mean_of(passes: Sequence[Fisher]) -> Fisher:
    return {name: torch.stack([f[name] for f in passes]).mean(0) for name in passes[0]}


def inverse(fisher: Fisher, damping: float) -> dict[str, torch.Tensor]:
    """1 / (F + damping x mean F). The damping is relative: weights that no sample moves (F = 0) would else be moved
    without bound, and the scale of F is that of the loss."""
    mean = float(sum(f.sum() for f in fisher.values())) / sum(f.numel() for f in fisher.values())
    if not 0 < mean < float("inf"):
        raise NotFinite(
            "fisher-not-finite",
            f"the mean Fisher information of the chosen weights is {mean}; are the model's weights sound?",
        )
    return {name: (f + damping * mean).reciprocal() for name, f in fisher.items()}
