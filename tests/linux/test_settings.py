"""Every setting on every plane: it takes effect and is restored, or it refuses with a sentence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planewise.errors import UnsupportedError
from planewise.measure.designs.cells import Cell
from planewise.testbed import settings
from planewise.testbed.planes import planes_of
from planewise.testbed.setting import Arrangement
from planewise.testbed.testbed import local_testbed

pytestmark = [pytest.mark.linux, pytest.mark.timeout(120)]

LEVELS = {
    "mtu": "2000",
    "tx_queue_length": "10",
    "qdisc": "pfifo limit 100",
    "ip_version": "6",
}
"""A level of each setting that differs from what the testbed has; of others, the opposite."""
PLANES = [name for name in planes_of("namespace") if name != "vf"]


def state(plane: str, arrangement: Arrangement) -> Iterator[tuple[str, str]]:
    """All that settings read, and all features of their interfaces."""
    for setting in settings.SETTINGS.values():
        if setting.refusal(plane, "namespace"):
            continue
        for spot in setting.spots(arrangement):
            yield f"{setting.name} of {spot}", setting.read(spot)
            yield f"features of {spot}", spot.run("ethtool", "-k", spot.interface)


@pytest.mark.parametrize("plane", PLANES)
def test_every_setting_takes_effect_and_is_restored_or_refuses(plane: str) -> None:
    refused = []
    try:
        with local_testbed(Cell(plane).testbed) as arrangement:
            before = dict(state(plane, arrangement))
            for name, setting in settings.SETTINGS.items():
                if reason := setting.refusal(plane, "namespace"):
                    assert reason.startswith(name)
                    refused.append(name)
                    continue
                spots = list(setting.spots(arrangement))
                on = spots and setting.read(spots[-1]) == "on"
                level = LEVELS.get(name, "off" if on else "on")
                with settings.applied(f"{name}={level}", arrangement):
                    if name != "qdisc":
                        assert {setting.read(spot) for spot in spots} <= {level}
                    else:
                        assert {setting.read(spot) for spot in spots} == {"pfifo"}
                assert dict(state(plane, arrangement)) == before, name
    except UnsupportedError as error:
        pytest.skip(error.what)
    assert len(refused) < len(settings.SETTINGS)
