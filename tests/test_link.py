"""Links: what moving bytes costs, and fits of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import fitting, link
from kvarray.link import LINKS, Link, fit_link
from tests.data import published_cases
from tests.reference import link as twin

SIZES = st.integers(0, 2**40)
AMOUNTS = st.floats(1.0, 1e6)


def links():
    return st.builds(
        Link,
        st.floats(1e3, 1e13),
        latency_s=st.floats(0.0, 1.0),
        alpha_s=st.floats(0.0, 1e-3),
        fragment_bytes=st.none() | st.integers(1, 2**24),
    )


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"bytes_per_second": 0.0}, "bytes_per_second must be more than 0: got 0.0"),
        ({"bytes_per_second": -1.0}, "bytes_per_second must be more than 0: got -1.0"),
        ({"bytes_per_second": math.nan}, "bytes_per_second must not be NaN"),
        ({"latency_s": -1.0}, "latency_s must be 0 or more"),
        ({"latency_s": math.inf}, "latency_s must be finite"),
        ({"alpha_s": math.nan}, "alpha_s must be finite"),
        ({"fragment_bytes": 0}, "fragment_bytes must be 1 or more: got 0"),
    ],
)
def test_a_link_refuses(figures, message):
    with pytest.raises(ValueError, match=message):
        Link(**{"bytes_per_second": 1e9, **figures})


def test_a_link_refuses_what_is_no_number():
    with pytest.raises(TypeError, match="bytes_per_second must be real numbers"):
        Link("25GB/s")
    with pytest.raises(TypeError, match=r"fragment_bytes must be an integer: got 1\.5"):
        Link(1e9, fragment_bytes=1.5)


def test_seconds_refuses():
    with pytest.raises(ValueError, match=r"num_bytes must be 0 or more: num_bytes\[1\] = -1"):
        Link(1e9).seconds([1, -1])
    with pytest.raises(ValueError, match=r"must broadcast: got \(2,\) and \(3,\)"):
        Link(1e9).seconds([1, 2], num_fragments=[1, 2, 3])
    with pytest.raises(ValueError, match="num_bytes must be more than 0"):
        Link(1e9).bandwidth(0)


@given(st.floats(1e-300, 1e300), st.floats(0.0, 1e300), st.floats(0.0, 1e300), st.floats(0.0, 1e300))
def test_extreme_figures_are_refused_or_served(rate, latency, alpha, size):
    try:
        pipe = Link(rate, latency_s=latency, alpha_s=alpha)
        assert pipe.seconds(size) >= 0.0
        assert pipe.bandwidth(size) > 0.0
    except ValueError as error:
        assert "must be" in str(error)  # noqa: PT017


def test_an_empty_batch_takes_no_time():
    assert Link(1e9).seconds([]).shape == (0,)


def test_a_block_of_the_transfer_scenario():
    assert round(float(Link(25e9).seconds(2**20)) * 1e3, 4) == 0.0419


def test_fragments_pay_each():
    spread = Link(1e9, latency_s=1.0, alpha_s=0.25, fragment_bytes=10)
    assert spread.seconds([0, 10, 11]).tolist() == [0.0, 1.0 + 0.25 + 1e-8, 1.0 + 0.5 + 1.1e-8]
    assert spread.seconds(10, num_fragments=[1, 8]).tolist() == [1.25 + 1e-8, 3.0 + 1e-8]


@given(links(), st.lists(SIZES))
def test_seconds_agree_with_the_twin(pipe, sizes):
    np.testing.assert_allclose(pipe.seconds(sizes), [twin.seconds(size, pipe) for size in sizes], rtol=1e-12)


@given(links(), SIZES, SIZES)
def test_more_bytes_never_take_less(pipe, one, other):
    assert pipe.seconds(min(one, other)) <= pipe.seconds(max(one, other))


@given(links(), st.integers(1, 2**30))
def test_scaling_bytes_and_bandwidth_changes_nothing(pipe, size):
    contiguous = replace(pipe, fragment_bytes=None)
    double = replace(contiguous, bytes_per_second=2 * contiguous.bytes_per_second)
    assert double.seconds(2 * size) == contiguous.seconds(size)


@pytest.mark.parametrize("name", LINKS)
def test_every_preset_says_where_it_is_from(name):
    assert LINKS[name].source
    assert 0.0 < LINKS[name].bandwidth(2**40) <= LINKS[name].bytes_per_second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1.0]), "needs 2 points or more: got 1"),
        (([], []), "needs 2 points or more: got 0"),
        (([5.0, 5.0, 5.0], [1.0, 2.0, 3.0]), "must tell latency, num_bytes apart"),
        (([0.0, 0.0], [1.0, 2.0]), "must tell latency, num_bytes apart"),
        (([1.0, 2.0], [1.0, 0.0]), r"seconds must be more than 0: seconds\[1\] = 0.0"),
        (([1.0, 2.0], [1.0, math.nan]), r"seconds must be finite: seconds\[1\] = nan"),
        (([1.0, 2.0], [1.0, 2.0, 3.0]), "must be of one length"),
    ],
)
def test_a_fit_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_link(*arguments)


def test_a_fit_of_fragments_needs_transfers_that_differ_in_them():
    with pytest.raises(ValueError, match="must tell latency, num_bytes, num_fragments apart"):
        fit_link([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], num_fragments=[2, 2, 2, 2])


def test_times_that_fall_with_size_leave_the_bytes_free():
    found = fit_link([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]).link
    assert found.bytes_per_second == math.inf
    assert found.seconds(10) == found.latency_s > 0.0


@given(links().filter(lambda pipe: pipe.latency_s > 1e-3 and pipe.alpha_s > 1e-5))
def test_a_fit_finds_the_link_that_made_the_rows(pipe):
    unit = pipe.bytes_per_second * 1e-2
    size = unit * np.array([1.0, 2.0, 5.0, 9.0, 12.0, 30.0])
    count = np.array([1.0, 700.0, 3.0, 150.0, 10.0, 90.0])
    found = fit_link(size, pipe.seconds(size, num_fragments=count), num_fragments=count)
    assert found.fit.max_relative_error < 1e-6
    assert found.link.latency_s == pytest.approx(pipe.latency_s, rel=1e-4)
    assert found.link.alpha_s == pytest.approx(pipe.alpha_s, rel=1e-4)
    assert found.link.bytes_per_second == pytest.approx(pipe.bytes_per_second, rel=1e-4)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), min_size=3, max_size=8, unique=True), st.data())
def test_no_other_costs_fit_better(rows, data):
    measured = data.draw(st.lists(AMOUNTS, min_size=len(rows), max_size=len(rows)))
    names = ("start", "token", "pair")
    try:
        fit = fitting.fit_costs(measured, **dict(zip(names, np.array(rows).T, strict=True)))
    except ValueError:
        return
    best = twin.relative_error(fit.costs, rows, measured)
    assert fit.costs.min() >= 0.0
    for nudge in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0], [0, 1, -1], [-1, 0, 0], [0, -1, 0], [0, 0, -1]):
        for step in (1e-3, 1e-1):
            other = np.maximum(fit.costs * (1.0 + step * np.array(nudge)) + step * 1e-6 * np.array(nudge), 0.0)
            assert best <= twin.relative_error(other, rows, measured) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("case", published_cases("fit_link"))
def test_published_transfers(case):
    found = fit_link(case["bytes"], np.array(case["milliseconds"]) * 1e-3)
    assert found.fit.max_relative_error <= case["tolerance"]


@pytest.mark.parametrize("case", published_cases("fragment_curve"))
def test_published_fragment_curves(case):
    size = np.array(case["copy_kib"]) * 1024
    seconds = size / (np.array(case["gb_per_s"]["dma_h2d"]) * 1e9)
    found = fit_link(size, seconds)
    assert found.fit.max_relative_error <= case["tolerance"]
    per_fragment = replace(found.link, alpha_s=found.link.latency_s, latency_s=0.0)
    np.testing.assert_allclose(per_fragment.seconds(size), seconds, rtol=case["tolerance"])


def test_a_module_of_presets_is_read_only():
    with pytest.raises(TypeError):
        link.LINKS["mine"] = Link(1.0)
