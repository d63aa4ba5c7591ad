"""Writes planewise.json, the dashboard of planewised for Grafana 10 and newer.

    python packaging/grafana/dashboard.py

Built by Grafana's own SDK, so that the file keeps to Grafana's schema.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

FILE = Path(__file__).with_name("planewise.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HOST = 'instance=~"$instance"'


def query(expression: str, legend: str, letter: str = "A") -> prometheus.Dataquery:
    asked = prometheus.Dataquery().expr(expression).legend_format(legend)
    return asked.datasource(SOURCE).ref_id(letter)


def number(title: str, expression: str, description: str, unit: str = "short") -> stat.Panel:
    """The value of now."""
    panel = stat.Panel().title(title).description(description).datasource(SOURCE)
    latest = common.ReduceDataOptions().calcs(["lastNotNull"])
    panel = panel.unit(unit).span(4).height(4).reduce_options(latest)
    return panel.with_target(query(expression, "{{instance}}"))


def course(
    title: str, description: str, unit: str, *targets: tuple[str, str], stacked: bool = False
) -> timeseries.Panel:
    """Values over time."""
    panel = timeseries.Panel().title(title).description(description).datasource(SOURCE)
    panel = panel.unit(unit).span(12).height(8).min(0)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode("normal")).fill_opacity(40)
    for letter, (expression, legend) in zip("ABCD", targets, strict=False):
        panel = panel.with_target(query(expression, legend, letter))
    return panel.legend(common.VizLegendOptions().display_mode("list").placement("bottom"))


def quantile(metric: str, by: str, share: float) -> str:
    buckets = f"sum by ({by}, le) (rate({metric}_bucket{{{HOST}}}[$__rate_interval]))"
    return f"histogram_quantile({share}, {buckets})"


def dashboard() -> Dashboard:
    board = (
        Dashboard("Planewise: who holds which VF")
        .uid("planewise")
        .description("planewised: guests, their traffic and VFs, moves, pools, the daemon itself.")
        .tags(["planewise", "sr-iov"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            QueryVariable("instance")
            .label("Host")
            .datasource(SOURCE)
            .query("label_values(planewise_build_info, instance)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )
    )
    for panel in now():
        board = board.with_panel(panel)
    for title, panels in (("Guests", guests()), ("Moves", moves()), ("Pools and daemon", daemon())):
        board = board.with_row(Row(title))
        for panel in panels:
            board = board.with_panel(panel)
    return board


def now() -> list[stat.Panel]:
    return [
        number("Guests", f"planewise_guests{{{HOST}}}", "Guests that are managed"),
        number("VFs held", f"sum(planewise_guest_holds_vf{{{HOST}}})", "Guests that have a VF"),
        number("VFs free", f"sum(planewise_pool_free_vfs{{{HOST}}})", "VFs that can be given"),
        number(
            "Quarantined",
            f"sum(planewise_pool_quarantined_vfs{{{HOST}}})",
            "VFs with which something is wrong: planewise alloc status says what",
        ),
        number(
            "Marked guests",
            f"sum(planewise_guest_marked{{{HOST}}})",
            "Guests that did not answer and are left alone",
        ),
        number(
            "Last look",
            f"max(planewise_status_age_seconds{{{HOST}}})",
            "Since when the daemon has not looked; beyond a few sample_s it is busy or hangs",
            unit="s",
        ),
    ]


def guests() -> list[timeseries.Panel | table.Panel]:
    holders = table.Panel().title("Who has which VF").datasource(SOURCE).span(24).height(8)
    holders = holders.show_header(True)
    holders = holders.description("Now; place is pool, held or quarantined")
    infos = query(f"planewise_vf_info{{{HOST}}}", "").instant().format("table")
    return [
        course(
            "Packet rates",
            "Both directions, smoothed; a guest that nobody can count is absent, not zero",
            "pps",
            (f"planewise_guest_packets_per_second{{{HOST}}}", "{{guest}}"),
        ),
        course(
            "Who holds a VF",
            "One step a guest that holds one",
            "short",
            (f"planewise_guest_holds_vf{{{HOST}}}", "{{guest}}"),
            stacked=True,
        ),
        holders.with_target(infos),
    ]


def moves() -> list[timeseries.Panel]:
    rate = (
        f"sum by (direction, ending) (increase(planewise_moves_total{{{HOST}}}[$__rate_interval]))"
    )
    metric = "planewise_move_duration_seconds"
    return [
        course(
            "Moves", "By direction and how they ended", "short", (rate, "{{direction}} {{ending}}")
        ),
        course(
            "How long a move takes",
            "Of moves that were completed",
            "s",
            (quantile(metric, "direction", 0.5), "{{direction}} median"),
            (quantile(metric, "direction", 0.99), "{{direction}} 99 %"),
        ),
    ]


def daemon() -> list[timeseries.Panel]:
    cpu = f'rate(process_cpu_seconds_total{{job="planewise", {HOST}}}[$__rate_interval])'
    memory = f'process_resident_memory_bytes{{job="planewise", {HOST}}}'
    wrong = f"increase(planewise_errors_total{{{HOST}}}[$__rate_interval])"
    work = quantile("planewise_daemon_duration_seconds", "work", 0.99)
    return [
        course(
            "VFs that can be given",
            "By PF",
            "short",
            (f"planewise_pool_free_vfs{{{HOST}}}", "{{pf}}"),
        ),
        course("Errors", "What went wrong: the log says what", "short", (wrong, "{{instance}}")),
        course("Decisions and readings", "99 % of them take at most", "s", (work, "{{work}}")),
        course("CPU of the daemon", "Share of one CPU", "percentunit", (cpu, "{{instance}}")),
        course("Memory of the daemon", "Resident", "bytes", (memory, "{{instance}}")),
    ]


def written() -> str:
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard().build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
