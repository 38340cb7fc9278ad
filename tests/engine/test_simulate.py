"""The simulated schedule against closed forms, brute force and Graham's bounds."""

from itertools import permutations
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.engine.simulate import Cluster, Work, busy, simulate, staged
from guda.errors import GudaError
from refusals import refused


def equal(n: int, seconds: float, **more) -> list[Work]:
    return [Work(f"task {i}", seconds, **more) for i in range(n)]


@pytest.mark.parametrize(("n", "workers"), [(1, 1), (10, 3), (12, 4), (5, 100), (1000, 7)])
def test_equal_tasks_take_whole_waves(n, workers):
    found = simulate(equal(n, 2.5), Cluster(workers))
    assert found.makespan == pytest.approx(ceil(n / workers) * 2.5)
    assert found.utilisation == pytest.approx(n * 2.5 / (found.makespan * workers))


def test_a_chain_takes_its_sum_whatever_the_workers():
    works = [Work(str(i), i + 1.0, (str(i - 1),) if i else ()) for i in range(6)]
    for workers in (1, 2, 50):
        found = simulate(works[::-1], Cluster(workers))  # the order of the list changes nothing
        assert found.makespan == pytest.approx(21.0) == pytest.approx(found.path)
    assert found.chain == tuple(map(str, range(6)))
    assert found.bottleneck == "chain"


def test_one_long_task_dominates():
    found = simulate([*equal(40, 1.0), Work("long", 100.0)], Cluster(20))
    assert found.makespan == pytest.approx(102.0)  # the last of the list starts after two waves
    assert (found.bottleneck, found.chain) == ("chain", ("long",))
    first = simulate([Work("long", 100.0), *equal(40, 1.0)], Cluster(20))
    assert first.makespan == pytest.approx(100.0)


def test_train_then_fit_then_score():
    """One model, then a wave of groups, then shards that need all of them, by a milestone instead of n x m edges."""
    fits = [Work(f"fit {k}", 10.0, ("train",), "fit") for k in range(8)]
    fitted = Work("fitted", None, ("train", *(w.name for w in fits)))
    shards = [Work(f"score {k}", 3.0, ("fitted",), "score") for k in range(6)]
    works = [Work("train", 60.0, stage="train"), *fits, fitted, *shards]
    assert works == staged(60.0, 8, 10.0, 6, 3.0)
    assert simulate(works, Cluster(4)).makespan == pytest.approx(60 + 2 * 10 + 2 * 3)
    assert simulate(works, Cluster(1000)).makespan == pytest.approx(73.0)
    direct = [w for w in works if w.name != "fitted"]
    direct = [Work(w.name, w.seconds, fitted.needs if w.stage == "score" else w.needs) for w in direct]
    assert simulate(direct, Cluster(3)).makespan == simulate(works, Cluster(3)).makespan


def test_costs_of_the_cluster_by_hand():
    found = simulate(equal(6, 2.0), Cluster(2, overhead=0.5, start=7.0))
    assert found.makespan == pytest.approx(7 + 3 * 2.5)
    assert found.work == pytest.approx(6 * 2.5)
    slow = simulate(equal(100, 1.0), Cluster(1000, submit=0.5))  # handed out one by one, the last runs for a second
    assert slow.makespan == pytest.approx(100 * 0.5 + 1.0)
    assert slow.bottleneck == "driver"


def test_what_holds_a_schedule_up():
    assert simulate(equal(1000, 1.0), Cluster(10)).bottleneck == "workers"
    assert simulate(equal(11, 1.0), Cluster(10)).bottleneck == "grain"  # the second wave has one task
    assert simulate(equal(5, 1.0), Cluster(10)).bottleneck == "chain"  # no more workers than tasks help
    held = simulate(staged(40.0, 300, 10.0, 100, 3.0), Cluster(100))  # nobody works while the model is trained
    assert held.makespan == pytest.approx(40 + 3 * 10 + 3)
    assert held.waited == pytest.approx(40.0 * 99)
    assert (max(held.bounds.values()) < 0.85 * held.makespan, held.bottleneck) == (True, "chain")


def test_failures_repeat_tasks_and_are_keyed():
    cluster = Cluster(5, start=1.0, failures=360.0)  # one in ten seconds of work
    one, two = simulate(equal(200, 3.0), cluster), simulate(equal(200, 3.0), cluster)
    assert one == two
    clean = simulate(equal(200, 3.0), Cluster(5, start=1.0))
    assert one.failed > 0
    assert one.lost > 0
    assert one.makespan > clean.makespan
    # exponential lives of mean m: a task of s seconds ends with probability exp(-s/m), so exp(s/m) - 1 fail before it
    assert one.failed / 200 == pytest.approx(2.718281828**0.3 - 1, rel=0.3)
    assert simulate(equal(200, 3.0), Cluster(5, start=1.0, failures=360.0, seed=1)).failed != one.failed
    with refused("task-too-long"):
        simulate(equal(1, 1e5), Cluster(1, failures=3600.0))


@pytest.mark.parametrize(
    ("works", "message"),
    [
        ([Work("a", 1.0, ("b",))], "needs b, which nothing makes"),
        ([Work("a", 1.0, ("b",)), Work("b", 1.0, ("a",))], "in a circle"),
        ([Work("a", 1.0), Work("a", 2.0)], "same name"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(works, message):
    with pytest.raises(GudaError, match=message):
        simulate(works, Cluster(2))
    with refused("cluster-without-workers"):
        simulate([], Cluster(0))


def test_nothing_to_do():
    found = simulate([], Cluster(3))
    assert (found.makespan, found.tasks, found.utilisation) == (0.0, 0, 1.0)


@st.composite
def graphs(draw, most=12, seconds=st.integers(0, 9)):
    n = draw(st.integers(1, most))
    works = []
    for i in range(n):
        needs = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        time = draw(seconds)
        works.append(Work(str(i), float(time), tuple(map(str, needs))))
    return draw(st.permutations(works))


@settings(max_examples=80, deadline=None)
@given(graphs(), st.integers(1, 6))
def test_between_the_bounds(works, workers):
    found = simulate(works, Cluster(workers))
    total = sum(w.seconds for w in works)
    assert max(found.path, total / workers) <= found.makespan + 1e-9
    assert found.makespan <= total / workers + (1 - 1 / workers) * found.path + 1e-9
    ends = [(start, 1) for _, start, end in found.spans if end > start]
    ends += [(end, -1) for _, start, end in found.spans if end > start]
    running = most = 0
    for _, change in sorted(ends):  # an end sorts before a start at the same moment
        running += change
        most = max(most, running)
    assert most <= workers


def by_hand(works, workers):
    """The same rule in unit steps of time, with no heaps: whoever is free takes the first ready task of the list."""
    left, running, done, now = list(works), [], set(), 0
    while left or running:
        done |= {name for end, name in running if end <= now}
        running = [(end, name) for end, name in running if end > now]
        for work in [w for w in left if set(w.needs) <= done][: workers - len(running)]:
            left.remove(work)
            running.append((now + int(work.seconds), work.name))
        now += 1
    return now - 1


@settings(max_examples=60, deadline=None)
@given(graphs(most=7, seconds=st.integers(1, 5)), st.integers(1, 3))
def test_same_as_stepping_through_time(works, workers):
    assert simulate(works, Cluster(workers)).makespan == by_hand(works, workers)


@settings(max_examples=25, deadline=None)
@given(graphs(most=5, seconds=st.integers(1, 5)), st.integers(2, 3))
def test_best_order_of_the_list_is_an_optimum_between_the_lower_bound_and_ours(works, workers):
    best = min(simulate(order, Cluster(workers)).makespan for order in permutations(works))
    found = simulate(works, Cluster(workers))
    assert max(found.path, sum(w.seconds for w in works) / workers) <= best + 1e-9
    assert best <= found.makespan <= (2 - 1 / workers) * best + 1e-9  # Graham: never twice the best


def test_busy_workers_over_time():
    found = simulate([Work("a", 2.0, stage="x"), Work("b", 4.0, stage="x"), Work("c", 2.0, ("a",), "y")], Cluster(2))
    assert busy(found.spans, 4, found.makespan) == {"x": [2.0, 2.0, 1.0, 1.0], "y": [0.0, 0.0, 1.0, 1.0]}
