"""Each operator's loss and cost against a direct computation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import guda
from guda.config import parse_config
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.loading import make_scheduler
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.unlearning.unlearn import OPERATORS, Batch, Operator, make_operator, unlearn_group
from refusals import refused

SCHEDULER = "squaredcos_cap_v2:100"
PLAIN = ("retrack", "retrack-zero", "shift", "siss", "erasediff", "ascent", "retain")


@pytest.fixture(scope="module")
def model(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp(SCHEDULER)


@pytest.fixture(scope="module")
def student(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp(SCHEDULER, seed=1)


@pytest.fixture(scope="module")
def conditional(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp(SCHEDULER, seed=2, num_class_embeds=4)


@pytest.fixture(scope="module")
def data(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 6, "b": 12, "c": 9})


def rule(name: str, model: Denoiser, data: ImageData, conditional: Denoiser | None = None, **values: Any) -> Any:
    return make_operator(name, model, data, "b", parse_config(OPERATORS[name].Config, values, name), conditional)


def half(model: Denoiser, data: ImageData, members: np.ndarray, seed: int, n: int = 8) -> Batch:
    g = torch.Generator().manual_seed(seed)
    x0 = model.encode(data.images[members[:n]])
    t = torch.randint(2, 98, (n,), generator=g)
    eps = torch.randn(x0.shape, generator=g)
    return Batch(x0, t, eps, model.schedule.add_noise(x0, eps, t), (seed, "test"))


@pytest.fixture(scope="module")
def halves(model: Denoiser, data: ImageData) -> tuple[Batch, Batch]:
    return half(model, data, data.groups.members(1), 0), half(model, data, data.groups.without(1), 1)


def mse(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).square().mean())


def total(operator: Operator, student: Denoiser, halves: tuple[Batch, Batch]) -> float:
    with torch.no_grad():
        return float(operator.loss(student, *halves))


@torch.no_grad()
def test_retrack_zero_is_the_size_of_the_prediction(model, student, data, halves) -> None:
    f, r = halves
    expected = 3 * mse(student.eps(f.x_t, f.t), torch.zeros_like(f.x_t)) + 0.5 * mse(
        student.eps(r.x_t, r.t), model.eps(r.x_t, r.t)
    )
    found = total(rule("retrack-zero", model, data, lambda_forget=3.0, lambda_preserve=0.5), student, halves)
    assert found == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_retain_is_the_ordinary_denoising_loss_of_the_other_groups(model, student, data, halves) -> None:
    _, r = halves
    expected = mse(student.eps(r.x_t, r.t), r.eps)
    operator = rule("retain", model, data, lambda_preserve=2.0, lambda_forget=7.0)
    assert total(operator, student, halves) == pytest.approx(2 * expected, rel=1e-5)
    assert not np.isin(operator.members("retain"), data.groups.members(1)).any()


@torch.no_grad()
def test_retain_trains_a_v_network_on_v(make_mlp, data) -> None:
    model = make_mlp(SCHEDULER + ":v_prediction")
    h = half(model, data, data.groups.without(1), 3)
    a, s = model.schedule.coefficients(h.t, h.x0)
    expected = mse(model.raw(h.x_t, h.t), a * h.eps - s * h.x0)
    assert total(rule("retain", model, data), model, (h, h)) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_ascent_climbs_up_to_its_margin(model, student, data, halves) -> None:
    f, _ = halves
    errors = (student.eps(f.x_t, f.t) - f.eps).double().square().flatten(1).mean(1).numpy()
    margin = float(np.median(errors))
    found = total(rule("ascent", model, data, margin=margin, lambda_preserve=0.0), student, halves)
    assert found == pytest.approx(np.maximum(margin - errors, 0).mean(), rel=1e-4)
    assert total(rule("ascent", model, data, margin=0.01, lambda_preserve=0.0), student, halves) == 0


def test_ascent_pushes_the_error_up_while_it_is_below_the_margin_and_stays_finite(model, data) -> None:
    def error(settings: dict[str, Any]) -> float:
        config = parse_config(OPERATORS["ascent"].Config, {"batch_forget": 8, "batch_retain": 8} | settings, "ascent")
        made = unlearn_group(model, data, "b", "ascent", config).apply(model)
        h = half(model, data, data.groups.members(1), 5)
        with torch.no_grad():
            return mse(made.eps(h.x_t, h.t), h.eps)

    start = error({"steps": 1, "lr": 1e-12})
    high = error({"steps": 80, "lr": 5e-3, "margin": 3 * start})
    higher = error({"steps": 150, "lr": 5e-3, "margin": 3 * start, "lambda_preserve": 0.0})
    assert 1.3 * start < high < 10 * start
    assert 2 * start < higher < 20 * start


@torch.no_grad()
def test_erasediff_teaches_uniform_noise_of_its_own(model, student, data, halves) -> None:
    f, r = halves
    u = torch.from_numpy(generator(0, "test", "uniform").random(tuple(f.eps.shape), dtype=np.float32))
    assert 0 <= float(u.min()) < float(u.max()) < 1
    expected = 2 * mse(student.eps(f.x_t, f.t), u) + mse(student.eps(r.x_t, r.t), r.eps)
    assert total(rule("erasediff", model, data, lambda_forget=2.0), student, halves) == pytest.approx(
        expected, rel=1e-5
    )
    # independent of the noise that made x_t, and another at every step
    many = half(model, data, np.arange(27), 4, 27)
    target = rule("erasediff", model, data).target(many)
    assert abs(float(torch.corrcoef(torch.stack([target.flatten(), many.eps.flatten()]))[0, 1])) < 0.15
    assert abs(float(target.mean()) - 0.5) < 0.06


# ---- siss ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("mixture", [0.5, 0.25, 0.0, 1.0])
def test_siss_is_both_weighted_errors_at_one_noisy_point(model, student, data, halves, mixture: float) -> None:
    f, r = halves
    # images that nearly coincide, or one of the two weights would be 0 wherever it is looked at
    r = Batch(f.x0 + 0.05 * torch.randn(f.x0.shape, generator=torch.Generator().manual_seed(2)), r.t, r.eps, r.x_t)
    n, k, loss = 27, 12, 0.0
    for i in range(8):
        at_a = i >= 8 - round(8 * mixture)
        a, s = model.schedule.a[int(f.t[i])], model.schedule.s[int(f.t[i])]
        x, y, e = (v[i].double() for v in (r.x0, f.x0, f.eps))
        m = a * (y if at_a else x) + s * e
        noise_x, noise_y = (m - a * x) / s, (m - a * y) / s
        q_x, q_y = torch.exp(-(noise_x**2).sum() / 2), torch.exp(-(noise_y**2).sum() / 2)
        mixed = (1 - mixture) * q_x + mixture * q_y
        found = student.eps(m[None].float(), f.t[i : i + 1])[0].double()
        loss += float(
            1.5 * n / (n - k) * q_x / mixed * (found - noise_x).square().mean()
            - 1.2 * k / (n - k) * q_y / mixed * (found - noise_y).square().mean()
        )  # fmt: skip
    operator = rule("siss", model, data, mixture=mixture, lambda_preserve=1.5, lambda_forget=1.2)
    assert total(operator, student, (f, r)) == pytest.approx(loss / 8, rel=2e-3)


def test_siss_is_in_expectation_the_denoising_loss_without_the_group() -> None:
    """By quadrature on the line: all pairs (x, a), both components of the mixture, every node of the noise."""
    pixels = np.array([100, 150, 210, 40, 120, 170, 230], np.uint8).reshape(7, 1, 1, 1)
    data = ImageData.from_arrays(pixels, ["b"] * 3 + ["r"] * 4, layout="NCHW")
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)

    class Wave(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return torch.sin(2 * x) + 0.3 * x

    model = Denoiser.from_module(Wave(), make_scheduler(SCHEDULER), (1, 1, 1))
    x0 = model.encode(data.images)
    t = torch.tensor([60])

    def denoising(members: list[int]) -> float:
        every = []
        for i in members:
            x_t = model.schedule.add_noise(x0[i], torch.tensor(nodes).float()[:, None, None, None], t)
            noise = torch.tensor(nodes).reshape(-1, 1, 1, 1)
            every.append(float(mass / mass.sum() @ (model.eps(x_t, t) - noise).square().numpy().ravel()))
        return float(np.mean(every))

    def expected(**values: Any) -> float:
        operator, found = rule("siss", model, data, mixture=0.5, **values), []
        assert operator.members("retain").tolist() == list(range(7))
        for x in range(7):
            for a in range(3):
                for node, m in zip(nodes, mass / mass.sum(), strict=True):
                    eps = torch.full((2, 1, 1, 1), float(node))  # the first pair is noised at x, the second at a
                    forget = Batch(x0[[a, a]], t.repeat(2), eps, eps)
                    found.append(m * float(operator.loss(model, forget, Batch(x0[[x, x]], t.repeat(2), eps, eps))))
        return float(np.sum(found)) / 21

    assert expected() == pytest.approx(denoising([3, 4, 5, 6]), rel=1e-4)
    superfactor = denoising([3, 4, 5, 6]) - 0.4 * 3 / 4 * denoising([0, 1, 2])
    assert expected(lambda_forget=1.4) == pytest.approx(superfactor, rel=1e-4)


def test_siss_needs_as_many_of_each() -> None:
    with refused("setting-invalid"):
        parse_config(OPERATORS["siss"].Config, {"batch_forget": 8}, "siss")


# ---- esd ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_esd_is_negative_guidance_of_the_conditional_model(model, student, conditional, data, halves) -> None:
    f, r = halves

    def eps(label: int) -> torch.Tensor:
        return conditional.eps(f.x_t, f.t, Cond({"class_labels": torch.full((8,), label)}))

    for values, g in (({}, 5.0), ({"guidance": 0.5}, 0.5)):
        target = eps(3) - g * (eps(1) - eps(3))  # group b is the second of three
        assert not torch.allclose(eps(1), eps(3))
        operator = rule("esd", model, data, conditional, **values)
        torch.testing.assert_close(operator.target(f), target, rtol=1e-5, atol=1e-6)
        expected = mse(student.eps(f.x_t, f.t), target) + mse(student.eps(r.x_t, r.t), model.eps(r.x_t, r.t))
        assert total(operator, student, halves) == pytest.approx(expected, rel=1e-5)


def test_the_interface_takes_the_conditional_model_and_refuses_what_does_not_fit(
    make_mlp, model, conditional, data
) -> None:
    settings: dict[str, Any] = {"steps": 2, "batch_forget": 4, "batch_retain": 4}
    before = conditional.digest()
    bank = guda.unlearn(model, data, operator="esd", conditional=conditional, **settings)
    assert list(bank) == ["a", "b", "c"]
    assert len({bank[g].apply(model).digest() for g in bank} | {model.digest()}) == 4
    assert conditional.digest() == before
    assert all(p.grad is None for p in conditional.module.parameters())
    for given, message in (
        (None, "esd needs a group-conditional model of 3 groups"),
        (make_mlp(SCHEDULER, num_class_embeds=3), "4 labels.*this one has 3"),
        (make_mlp(SCHEDULER), "this one has none"),
        (make_mlp("linear:100", num_class_embeds=4), "noise schedule"),
    ):
        with pytest.raises(GudaError, match=message):
            guda.unlearn(model, data, operator="esd", conditional=given, **settings)
    with refused("conditional-model-unused"):
        guda.unlearn(model, data, operator="retrack", conditional=conditional, **settings)


# ---- all ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("retrack", 3 * 5 + 4 * 5),
        ("retrack-zero", 3 * 5 + 4 * 5),
        ("ascent", 3 * 5 + 4 * 5),
        ("siss", 3 * 5),
        ("erasediff", 3 * 5 + 3 * 5),
        ("retain", 3 * 5),
        ("esd", 5 * 5 + 4 * 5),
    ],
)
def test_costs_are_what_the_networks_are_asked(
    model, conditional, data, name: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: samples through the student times three, through the teachers times one, in one real step."""
    cls = OPERATORS[name]
    config = parse_config(cls.Config, {"steps": 1, "batch_forget": 5, "batch_retain": 5}, name)
    assert cls.fit_evals(config) == units
    assert cls.fit_evals(config.model_copy(update={"steps": 7})) == 7 * units
    seen = 0
    frozen = {id(model.module), id(conditional.module)}
    raw = Denoiser.raw

    def counting(self: Denoiser, x_t: torch.Tensor, t: torch.Tensor, cond: Cond | None = None) -> torch.Tensor:
        nonlocal seen
        seen += len(x_t) * (1 if id(self.module) in frozen else 3)
        return raw(self, x_t, t, cond)

    monkeypatch.setattr(Denoiser, "raw", counting)
    unlearn_group(model, data, "b", name, config, conditional=conditional if cls.needs_conditional else None)
    assert seen == units


@pytest.mark.parametrize("name", [*PLAIN, "esd"])
def test_every_operator_is_keyed_and_most_refuse_whole_classes(name: str, model, conditional, data) -> None:
    given = conditional if OPERATORS[name].needs_conditional else None

    def run(**values: Any) -> str:
        settings = {"steps": 3, "batch_forget": 6, "batch_retain": 6, "lr": 1e-3} | values
        config = parse_config(OPERATORS[name].Config, settings, name)
        return unlearn_group(model, data, "b", name, config, conditional=given).apply(model).digest()

    assert run() == run() != run(seed=1)
    assert run() != model.digest()
    config = parse_config(OPERATORS[name].Config, {}, name)
    if OPERATORS[name].conditional is None:
        return
    with refused("operator-model-unsupported"):  # the groups are its classes
        unlearn_group(conditional, data, "b", name, config, conditional=given)
