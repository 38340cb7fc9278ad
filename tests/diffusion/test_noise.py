"""Keyed noise: every number is a function of its name and of nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from guda.diffusion.noise import KeyedNoise, generator, key_bytes, torch_seed

parts = st.one_of(st.integers(-5, 10**9), st.text(max_size=4))
keys = st.lists(parts, max_size=4).map(tuple)


def numbers(g: np.random.Generator) -> tuple[float, list[float], int]:
    return g.random(), g.standard_normal(5, dtype=np.float32).tolist(), int(g.integers(0, 1000))


@given(st.lists(keys, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_rekeyed_generator_equals_a_fresh_one_in_any_order(some: list[tuple[str | int, ...]]) -> None:
    fresh = {key: numbers(generator(*key)) for key in some}
    noise = KeyedNoise()
    for key in (*some, *reversed(some)):
        g = noise.at(*key)
        assert numbers(g) == fresh[key]
        g.integers(0, 2**32, dtype=np.uint32)  # leaves half a word in the buffer: must not reach the next key


@given(keys, keys)
@settings(max_examples=200, deadline=None)
def test_different_keys_have_different_streams(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert (key_bytes(one) == key_bytes(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "b"), ("ab",)), ((1,), ("1",)), ((1, 2), (12,)), ((1, 2), (2, 1)), (("",), ()), (("a", ""), ("", "a")),
     (("int:1",), (1,))],
)  # fmt: skip
def test_keys_that_read_alike_are_still_different(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert numbers(generator(*one)) != numbers(generator(*other))
    assert torch_seed(*one) != torch_seed(*other)


def test_numpy_integers_and_strings_name_the_same_stream() -> None:
    assert key_bytes((np.int64(3), np.str_("q"))) == key_bytes((3, "q"))
    with pytest.raises(TypeError):
        key_bytes((0.5,))  # type: ignore[arg-type]


def test_pinned_values() -> None:
    """Any change here changes every score ever published: it needs a new version of the noise, said out loud."""
    assert key_bytes((0, "score", "query-000000", 0, 0)).hex() == "d63b38721db0bcbd310953a99eb419c9"
    g = generator(0, "score", "query-000000", 0, 0)
    assert g.random() == 0.2275424868340311
    assert g.standard_normal(3, dtype=np.float32).tolist() == [
        0.28270116448402405,
        -1.4877984523773193,
        -1.378637671470642,
    ]
    assert generator(7, "train", "order", 0).permutation(8).tolist() == [2, 5, 0, 7, 1, 6, 4, 3]
    assert generator(7, "train").integers(0, 1000, 4).tolist() == [291, 250, 599, 570]
    assert torch_seed(0, "sample", 3) == 5119383774788790


def test_first_numbers_of_consecutive_keys_are_independent_and_normal() -> None:
    noise = KeyedNoise()
    first = np.array([noise.at(0, "score", f"q{i}", 0, 0).standard_normal(2) for i in range(4000)])
    assert stats.kstest(first[:, 0], "norm").pvalue > 1e-3
    assert abs(np.corrcoef(first[:-1, 0], first[1:, 0])[0, 1]) < 0.06
    assert abs(np.corrcoef(first.T)[0, 1]) < 0.06
    uniform = np.array([noise.at(i).random() for i in range(4000)])
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
