"""A run while it goes on: what is read, kept, drawn and served."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from planewise.errors import PlanewiseError
from planewise.live.server import LiveServer, listen
from planewise.live.state import KEPT, LiveState
from planewise.live.terminal import line, render
from planewise.measure.runs.meter import Meter, sample
from planewise.measure.runs.stations import gauge_of
from planewise.measure.station import Place, Station
from planewise.store.models import KpiSample, Throughput
from planewise.testbed.hosts import gauges
from planewise.testbed.hosts.gauges import Gauge, GaugeReading, busy, cpu_ticks, throughput
from planewise.testbed.model import make_guest

START = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
SOON_S = 60.0
"""Far more than anything here takes, on any machine."""


def kpi(second: int, names: tuple[str, ...] = ("vnf1", "vnf2"), pps: float = 1e6) -> KpiSample:
    vnfs = {
        name: Throughput(tx_pps=pps * (n + 1), tx_bps=480 * pps * (n + 1))
        for n, name in enumerate(names)
    }
    return KpiSample(
        at=START + timedelta(seconds=second),
        trial="t",
        cell={"plane": "vhost-user"},
        interval_s=1.0,
        vnfs=vnfs,
        total=Throughput(
            tx_pps=sum(one.tx_pps for one in vnfs.values()),
            tx_bps=sum(one.tx_bps for one in vnfs.values()),
        ),
        cpu={"0": 1.0, "1": 0.25},
    )


# --- reading ------------------------------------------------------------------------------------


def test_throughput_is_what_counters_grew_by_and_a_guest_made_anew_is_left_out() -> None:
    before = GaugeReading(10.0, {"a": (100, 6000), "b": (500, 1)}, {"0": (10, 100), "1": (7, 7)})
    after = GaugeReading(12.0, {"a": (300, 18000), "b": (2, 120), "c": (9, 9)}, {"0": (60, 200)})
    assert throughput(before, after) == {"a": (100.0, 48_000.0)}
    assert busy(before, after) == {"0": 0.5}


def test_a_sample_adds_guests_up_and_names_the_trial_that_ran() -> None:
    before = GaugeReading(10.0, {"a": (0, 0), "b": (0, 0)}, {"0": (0, 0)})
    after = GaugeReading(11.0, {"b": (5, 500), "a": (10, 600)}, {"0": (3, 4)})
    place = Place("rtt:x#r0", {"plane": "veth"}, 0, 0)
    told = sample(before, after, place, ("a", "b"))
    assert list(told.vnfs) == ["a", "b"]
    assert (told.total.tx_pps, told.total.tx_bps) == (15, 8800)
    assert (told.trial, told.cell) == ("rtt:x#r0", {"plane": "veth"})
    assert told.cpu == {"0": 0.75}
    assert sample(before, after, None).trial == ""


def test_ticks_are_read_by_cpu_and_idle_ones_do_not_count() -> None:
    stat = "cpu  9 9 9 9 9\ncpu0 1 2 3 40 50 6 7 8 9 9\ncpu1 1 0 0 0 0\nintr 5\ncpux\n"
    assert cpu_ticks(stat) == {"0": (27, 117), "1": (1, 1)}


@given(st.text(max_size=200))
def test_no_text_of_proc_ends_in_an_error(text: str) -> None:
    for word in (text, f"cpu0 {text}"):
        assert all(0 <= used <= total for used, total in cpu_ticks(word).values())


@pytest.mark.parametrize(
    ("plane", "read"),
    [
        ("virtio-bridge", [("pw00000000000", "rx")]),
        ("macvtap-bridge", [("pw00000000000", "tx")]),
        ("vf-passthrough", []),
    ],
)
def test_what_a_virtual_machine_sends_is_read_at_the_hosts_side_of_it(
    plane: str, read: list[tuple[str, str]]
) -> None:
    guest = make_guest("0" * 8, "sender", "main", 0, plane)
    pair = SimpleNamespace(machines={"sender": SimpleNamespace(netns="pw-host")})
    one = gauge_of(guest, "sender", cast("Any", pair), vm=True)
    assert ([] if one is None else [(one.interface, one.counts)]) == read
    assert one is None or (one.netns, one.guest) == ("pw-host", "sender-main")


def test_the_meter_tells_of_a_visible_station_while_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = iter(range(1, 1_000_000))

    def read(_: object) -> GaugeReading:
        n = next(count)
        return GaugeReading(float(n), {"guest": (1000 * n, 64_000 * n)}, {"0": (n, 2 * n)})

    monkeypatch.setattr(gauges.Gauges, "read", read)
    told: list[KpiSample] = []
    enough = threading.Event()

    def tell(one: KpiSample) -> None:
        told.append(one)
        if sum(bool(seen.trial) for seen in told) >= 3:
            enough.set()

    with Meter(tell, pytest.fail, interval_s=0.001) as meter:
        with meter.watching(Station({}, {})):
            assert told == []
        with (
            meter.watching(Station({}, {}, gauges=[Gauge("guest", "sender", "nowhere", "eth0")])),
            meter.trial(Place("t#r0", {"plane": "veth"}, 0, 0)),
        ):
            assert enough.wait(SOON_S)
        after = len(told)
    assert after == len(told)
    assert all(one.vnfs["guest"].tx_pps == 1000 for one in told)
    assert {one.trial for one in told} <= {"t#r0", ""}


class _Waits:
    """Stands for the event that ends a meter: keeps how long was to be waited, waits never."""

    def __init__(self, count: int) -> None:
        self.asked_s: list[float] = []
        self._count = count
        self.all = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        self.asked_s.append(timeout_s)
        if len(self.asked_s) < self._count:
            return False
        self.all.set()
        return True

    def set(self) -> None:
        """The meter ends by its count."""


def test_a_slow_host_is_read_twice_before_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 0.0

    def read(_: object) -> GaugeReading:
        nonlocal clock_s
        clock_s += 3.0
        return GaugeReading(clock_s, {}, {})

    monkeypatch.setattr(gauges.Gauges, "read", read)
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)
    told: list[KpiSample] = []
    waits = _Waits(count=4)
    meter = Meter(told.append, pytest.fail)
    monkeypatch.setattr(meter, "_ended", waits)
    with (
        meter.watching(
            Station({}, {}, gauges=[Gauge("guest", "sender", "nowhere", "eth0")], gauge_hosts={})
        ),
        meter,
    ):
        assert waits.all.wait(SOON_S)
    # The second reading comes at once and makes a sample; both together are a tenth of the time.
    assert waits.asked_s == pytest.approx([0.0, 0.0, 54.0, 27.0])
    assert len(told) == 2


def test_a_host_that_cannot_be_read_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Semaphore(0)

    def fail(_: object) -> GaugeReading:
        tried.release()
        raise PlanewiseError("the host is gone")

    monkeypatch.setattr(gauges.Gauges, "read", fail)
    said: list[str] = []
    with (
        Meter(lambda _: None, said.append, interval_s=0.001) as meter,
        meter.watching(Station({}, {}, gauges=[Gauge("guest", "sender", "nowhere", "eth0")])),
    ):
        for _ in range(3):
            assert tried.acquire(timeout=SOON_S)
    assert len(said) == 1
    assert "the host is gone" in said[0]


# --- keeping ------------------------------------------------------------------------------------


def test_the_time_left_follows_the_pace() -> None:
    now = [100.0]
    state = LiveState("a run", clock=lambda: now[0])
    state.begin("measuring", 100.0)
    assert state.now().left_s == 100.0
    state.step("cell 2", 25.0)
    now[0] += 50.0
    seen = state.now()
    assert seen.left_s == pytest.approx(150.0)  # twice as slow as thought
    assert seen.share == 0.25
    assert seen.stale
    state.add(kpi(1))
    assert not state.now().stale
    now[0] += 6.0
    assert state.now().stale
    state.end("done")
    assert state.now().left_s == 0.0


def test_only_so_many_seconds_are_kept_and_they_are_told_once() -> None:
    state = LiveState("a run")
    for second in range(KEPT + 10):
        state.add(kpi(second))
    numbers = [one.number for one in state.now().samples]
    assert numbers == list(range(11, KEPT + 11))
    assert [one.number for one in state.now(KEPT + 8).samples] == [KEPT + 9, KEPT + 10]


# --- drawing ------------------------------------------------------------------------------------


def drawn(state: LiveState, width: int = 100, height: int = 30) -> str:
    out = StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(render(state.now(), width, height, "http://127.0.0.1:1/"))
    return out.getvalue()


def test_the_terminal_shows_every_guest_their_sum_the_cpus_and_the_time_left() -> None:
    state = LiveState("a run")
    state.begin("measuring", 90.0)
    assert "nothing was measured yet" in drawn(state)
    state.add(kpi(1, ("vnf1", "vnf2", "[bold]odd[/bold]")))
    text = drawn(state)
    for word in (
        *("vnf1", "1 Mpps", "480 Mbit/s", "vnf2", "2 Mpps", "[bold]odd[/bold]"),
        *("6 Mpps", "2.88 Gbit/s", "CPU  0", "100%", "25%"),
        *("about 1 min 30 s left", "http://127.0.0.1:1/"),
    ):
        assert word in text, text
    assert "3 guests send 6 Mpps, 2.88 Gbit/s; CPU 0 100 %, 1 25 %" in line(state.now())


def test_too_many_guests_for_the_terminal_leave_the_busiest() -> None:
    state = LiveState("a run")
    names = tuple(f"guest{n}" for n in range(200))
    state.add(kpi(1, names))
    text = drawn(state, width=60, height=24)
    assert len(text.splitlines()) <= 24
    assert "guest199" in text
    assert "guest3 " not in text
    assert re.search(r"and 1\d\d more", text)


# --- serving ------------------------------------------------------------------------------------


@contextmanager
def served(state: LiveState) -> Iterator[str]:
    server = LiveServer(state, listen())
    try:
        yield server.url
    finally:
        server.close()


def ask(url: str, path: str = "/", host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    place = urlsplit(url).netloc
    connection = http.client.HTTPConnection(place, timeout=SOON_S)
    connection.request("GET", path, headers={"Host": host or place})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): one for name, one in answer.getheaders()}, body


def test_the_page_is_there_for_this_machine_alone_until_the_run_ends() -> None:
    state = LiveState("a run")
    with served(state) as url:
        assert url.startswith("http://127.0.0.1:")
        status, headers, body = ask(url)
        assert status == 200
        assert b"<script>" in body
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert ask(url, "/elsewhere")[0] == 404
        assert ask(url, "/../../etc/passwd")[0] == 404
        # A name of another site that was made to point here.
        assert ask(url, "/state.json", host="evil.example")[0] == 403
    with pytest.raises(OSError):
        ask(url)


def test_the_page_asks_for_what_is_new_and_learns_of_the_end() -> None:
    state = LiveState("a run")
    state.begin("measuring", 10.0)
    for second in range(3):
        state.add(kpi(second))
    state.note("left out: <script>alert(1)</script>")
    with served(state) as url:
        first = json.loads(ask(url, "/state.json")[2])
        assert [one["number"] for one in first["samples"]] == [1, 2, 3]
        assert first["samples"][0]["vnfs"]["vnf1"]["tx_pps"] == 1e6
        assert first["notes"] == ["left out: <script>alert(1)</script>"]
        state.add(kpi(3))
        later = json.loads(ask(url, "/state.json?since=3")[2])
        assert [one["number"] for one in later["samples"]] == [4]
        for odd in ("since=-1", "since=x", "since=9999999999999999999", "since=%00", "nothing"):
            assert ask(url, f"/state.json?{odd}")[0] == 200
        state.end("done")
        assert json.loads(ask(url, "/state.json")[2])["ended"] == "done"


def test_a_port_that_cannot_be_had_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PlanewiseError, match=f"cannot listen at 127.0.0.1:{port}"):
            listen(port)
