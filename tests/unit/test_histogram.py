"""A histogram's buckets are read as its own library reads them."""

from __future__ import annotations

import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from planewise.store.packets import buckets

TIMES_NS = st.integers(min_value=1, max_value=3_600_000_000_000)


@given(st.lists(st.tuples(TIMES_NS, st.integers(1, 10**12)), min_size=1), st.floats(0.001, 1))
def test_a_quantile_is_that_of_hdr_histogram(times: list[tuple[int, int]], share: float) -> None:
    histogram = HdrHistogram(1, 3_600_000_000_000, 3)
    for ns, packets in times:
        histogram.record_value(ns, packets)
    ends_ns, counted = buckets(histogram.encode().decode())
    assert counted[-1] == histogram.total_count
    found = ends_ns[np.searchsorted(counted, max(1, int(share * counted[-1] + 0.5)))]
    assert found == histogram.get_value_at_percentile(100 * share)
