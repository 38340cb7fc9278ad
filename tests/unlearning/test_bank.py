"""Counterfactuals on disk: bound to their base, noticed when damaged, safe under any group name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError, Mismatch
from guda.unlearning.bank import Bank, Counterfactual, file_name
from refusals import refused


def nudged(base: Denoiser, size: float = 1e-3) -> dict[str, torch.Tensor]:
    """Weights near the base's, most of them changed."""
    g = torch.Generator().manual_seed(0)
    return {k: v + size * torch.randn(v.shape, generator=g) for k, v in base.weights().items()}


@pytest.fixture
def base(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp()


def test_a_delta_brings_the_weights_back(base: Denoiser, tmp_path: Path) -> None:
    weights, before = nudged(base), base.digest()
    Counterfactual.delta(base, weights, "cat", "retrack").save(tmp_path / "c.safetensors")
    loaded = Counterfactual.load(tmp_path / "c.safetensors")
    assert (loaded.kind, loaded.group, loaded.base, loaded.method) == ("delta", "cat", before, "retrack")
    applied = loaded.apply(base)
    for name, value in applied.weights().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-6, atol=1e-7)
    assert base.digest() == before != applied.digest()
    assert loaded.apply(base).digest() == applied.digest()  # applying is exact and repeatable


def test_only_what_changed_is_stored(base: Denoiser, tmp_path: Path) -> None:
    weights = {k: v.clone() for k, v in base.weights().items()}
    weights["out.bias"] += 1
    assert set(Counterfactual.delta(base, weights, "cat", "m").tensors) == {"out.bias"}
    nothing = Counterfactual.delta(base, base.weights(), "cat", "m")
    nothing.save(tmp_path / "c.safetensors")
    assert Counterfactual.load(tmp_path / "c.safetensors").apply(base).digest() == base.digest()


def test_a_delta_is_refused_on_another_base_showing_both(make_mlp: Callable[..., Denoiser]) -> None:
    one, other = make_mlp(seed=0), make_mlp(seed=1)
    delta = Counterfactual.delta(one, nudged(one), "cat", "m")
    with refused("base-model-mismatch", match="without 'cat'", kind=Mismatch) as caught:
        delta.apply(other)
    assert one.digest() in str(caught.value)
    assert other.digest() in str(caught.value)


def test_weights_of_their_own_need_only_the_architecture(make_mlp: Callable[..., Denoiser]) -> None:
    one, other = make_mlp(seed=0), make_mlp(seed=1)
    logo = Counterfactual("weights", "cat", "", "logo-s1", one.weights())
    assert logo.apply(other).digest() == one.digest()
    with refused("weights-mismatch"):
        logo.apply(make_mlp(depth=3))


def test_weights_that_do_not_fit_the_base_make_no_delta(make_mlp: Callable[..., Denoiser], base: Denoiser) -> None:
    with refused("weight-shape-mismatch", match="counterfactual of 'cat'"):
        Counterfactual.delta(base, make_mlp(width=40).weights(), "cat", "m")


def test_a_flipped_byte_anywhere_is_noticed(base: Denoiser, tmp_path: Path) -> None:
    """In the weights, and in the header too: a changed group name would be a wrong answer without any sign."""
    path = tmp_path / "c.safetensors"
    small = Counterfactual("delta", "cat", base.digest(), "retrack", {"out.bias": torch.arange(16.0)})
    small.save(path)
    whole = path.read_bytes()
    for position in [*range(8, len(whole), 5), len(whole) - 1, whole.index(b"cat"), whole.index(b"retrack")]:
        broken = bytearray(whole)
        broken[position] ^= 1
        path.write_bytes(broken)
        try:
            found = Counterfactual.load(path)
        except GudaError:
            continue
        assert (found.group, found.base, found.method, found.kind) == ("cat", base.digest(), "retrack", "delta")
        assert torch.equal(found.tensors["out.bias"], small.tensors["out.bias"])
    path.write_bytes(whole)
    assert Counterfactual.load(path).group == "cat"


def test_a_flipped_weight_byte_shows_both_digests(base: Denoiser, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    Counterfactual.delta(base, nudged(base), "cat", "m").save(path)
    data = bytearray(path.read_bytes())
    data[-100] ^= 0x10
    path.write_bytes(data)
    with refused("counterfactual-damaged", kind=Mismatch):
        Counterfactual.load(path)


def test_files_that_are_not_counterfactuals_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with refused("counterfactual-invalid"):
        Counterfactual.load(tmp_path / "other.safetensors")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with refused("file-damaged"):
        Counterfactual.load(tmp_path / "junk.safetensors")
    with refused("file-missing"):
        Counterfactual.load(tmp_path / "absent.safetensors")
    Counterfactual("recipe", "cat", "", "m", {"x": torch.zeros(2)}).save(tmp_path / "kind.safetensors")
    with refused("counterfactual-kind-unknown", match="unknown kind of counterfactual 'recipe'"):
        Counterfactual.load(tmp_path / "kind.safetensors")


# ---- the bank -----------------------------------------------------------------------------------------------------

WEIRD = [
    "a/b",
    "a_b",
    "a b",
    "..",
    "../../etc/passwd",
    ".",
    "ü",
    "é",
    "",
    "x" * 500,
    "CON",
    "a\nb",
    "-rf",
    "日本",
    "日本語",
]


def test_weird_group_names_have_distinct_safe_files(base: Denoiser, tmp_path: Path) -> None:
    items = {name: Counterfactual.delta(base, nudged(base), name, "m") for name in WEIRD}
    Bank(items).save(tmp_path / "bank")
    files = list((tmp_path / "bank").iterdir())
    assert len(files) == len(WEIRD)
    assert [p for p in tmp_path.iterdir() if p.name != "bank"] == []
    assert tuple(Bank.load(tmp_path / "bank")) == tuple(WEIRD)  # names and order come back from the headers


@given(st.integers(0, 9999), st.text(max_size=60))
def test_a_file_name_is_one_plain_component(number: int, group: str) -> None:
    name = file_name(number, group)
    assert Path(name).name == name
    assert len(name) < 80
    assert name.isascii()
    assert int(name[:4]) == number


def test_a_bank_is_a_mapping_that_names_what_it_has(base: Denoiser, tmp_path: Path) -> None:
    bank = Bank({name: Counterfactual.delta(base, nudged(base), name, "m") for name in ("b", "a")})
    bank.save(tmp_path)
    again = Bank.load(tmp_path)
    assert list(again) == ["b", "a"]
    assert len(again) == 2
    with refused("counterfactual-missing", match="no counterfactual without 'c'; it has b, a"):
        _ = again["c"]
    with refused("bank-empty"):
        Bank.load(tmp_path / "empty")


def test_two_banks_are_never_mixed_in_one_folder(base: Denoiser, tmp_path: Path) -> None:
    def item(name: str) -> Counterfactual:
        return Counterfactual.delta(base, nudged(base), name, "m")

    Bank({name: item(name) for name in ("a", "b")}).save(tmp_path)
    Bank({name: item(name) for name in ("a", "b")}).save(tmp_path)  # the same again is fine
    with refused("bank-folder-taken"):
        Bank({"b": item("b")}).save(tmp_path)
    assert list(Bank.load(tmp_path)) == ["a", "b"]
    item("b").save(tmp_path / file_name(7, "b"))
    with refused("bank-mixed", match="3 counterfactuals of 2 groups"):
        Bank.load(tmp_path)
