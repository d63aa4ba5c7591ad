"""The report's section of the allocator's policies."""

from __future__ import annotations

from collections.abc import Iterator

from planewise.judge.policies import policy_families
from planewise.report import allocation as allocations
from planewise.report import inference
from planewise.report.data import RunData
from planewise.report.figures import allocation, base, comparison, downloads, switching
from planewise.report.predicted import GroupPredictions, predictions
from planewise.report.section import Section
from planewise.store.allocations import DOWNLOAD_METRIC
from planewise.units import percent_text


def sections(data: RunData) -> Iterator[Section]:
    """The sections of policies, downloads and switches that the run has data for."""
    switches = [trial for trial in data.done if trial.alloc is not None and trial.alloc.switch]
    if switches:
        packets = data.run.packets(switches[0])
        yield Section(
            "switch",
            "Latency while a VF is given and taken",
            "One guest is given a VF in the middle of the run and loses it again; the other guests "
            "show what the hosts themselves did meanwhile.",
            () if packets is None else (switching.figure(switches[0], packets),),
            (
                (
                    f"Before, during and after, over {len(switches)} "
                    f"trial{'s' if len(switches) != 1 else ''}",
                    switching.table(switches),
                ),
            ),
        )
    trials = allocations.first_trials(data)
    if not trials:
        return
    yield from _downloads(data)
    cells = allocations.cells(data)
    compared = [
        comparison.figure(pair, name=base.slug(f"policies-{pair.family.metric.title}"))
        for pair in inference.compare_policies(data)
    ]
    predicted = predictions(data.done)
    missed = allocations.missed_groups(data)
    first_result = trials[0][1]
    yield Section(
        "policies",
        "What guests feel of who holds the VFs",
        f"{len(first_result.guests)} guests and {first_result.vfs} VFs: planewised gives them by a "
        "policy while every guest is sent requests at the rate of its group. Less is better; each "
        "policy helps the guests that it gives VFs to.",
        (
            *(allocation.latency(data, cells) if cells else ()),
            allocation.timeline(trials),
            *compared,
        ),
        (
            (
                "How much of the time guests held a VF",
                allocation.shares(allocations.group_shares(data)),
            ),
            ("Costs of the daemon, and its delay", allocation.costs(data)),
            *(
                (
                    (
                        f"Latency predicted from who held a VF, which {_saving(predicted)}, "
                        "against what was measured",
                        allocation.predicted(predicted),
                    ),
                )
                if predicted is not None
                else ()
            ),
        ),
        open_figures=3,
        folded="Other groups and the 99th percentile",
        note=(
            f"In {missed} cases the rate of a group was not kept within 1 %: these do not count "
            "in figures of latency."
            if missed
            else ""
        ),
    )


def _downloads(data: RunData) -> Iterator[Section]:
    """The section of a download beside the requests, where the run has one."""
    by_policy = {
        policy: with_download
        for policy, results in allocations.results(data).items()
        if (with_download := [result for result in results if result.download is not None])
    }
    if not by_policy:
        return
    compared = [
        comparison.figure(inference.Compared(family, ""), name="download-compared")
        for family in policy_families(data.trials, data.info, DOWNLOAD_METRIC)
    ]
    download = next(iter(by_policy.values()))[0].download
    assert download is not None
    yield Section(
        "download",
        "How long a download takes",
        f"Beside the requests, one guest sends {download.bytes / (1 << 20):.0f} MiB by one TCP "
        "stream, from the end of the warm-up on, and planewised gives it a VF or not.",
        (downloads.figure(by_policy), *compared),
        (("How long downloads took", downloads.table(by_policy)),),
    )


def _saving(predicted: GroupPredictions) -> str:
    """A clause on the RTT that a VF saved, and on how many guests that rests."""
    share = percent_text(round(abs(predicted.saved), 3))
    does = f"saves {share} of a mean" if predicted.saved >= 0 else f"adds {share} to a mean"
    return f"{does} (median of {predicted.guests} guests that kept one)"
