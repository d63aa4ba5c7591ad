//! The status, and the resources of this process, as OpenMetrics.

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use nix::unistd::{SysconfVar, sysconf};

use super::Shared;
use crate::daemon::status::{
    DURATION_BOUNDS_S, Durations, Endings, Guest, Pool, Rate, Source, Status, VfState, unix_ms,
};

/// The media type of OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A metric of each guest, or of each pool: its name, its help, its value.
type Column<T> = (&'static str, &'static str, fn(&T) -> f64);

const OF_GUESTS: [Column<Guest>; 4] = [
    ("guest_holds_vf", "1: the guest has a VF; 0: it sends by its paravirtual path", |guest| {
        u8::from(guest.vf.is_some()).into()
    }),
    ("guest_since_timestamp_seconds", "When the guest got what it has, VF or none", |guest| {
        guest.since_unix_ms as f64 / 1e3
    }),
    ("guest_marked", "1: the guest did not answer and is left alone", |guest| {
        u8::from(guest.marked.is_some()).into()
    }),
    ("guest_paravirtual_up", "1: the guest's paravirtual path works", |guest| {
        u8::from(guest.paravirtual_up).into()
    }),
];

const OF_POOLS: [Column<Pool>; 4] = [
    ("pool_vfs", "VFs that are managed", |pool| pool.vfs.into()),
    ("pool_free_vfs", "VFs that can be given", |pool| pool.free.into()),
    ("pool_quarantined_vfs", "VFs with which something is wrong", |pool| pool.quarantined.into()),
    ("pool_link_up", "1: the PF has a link", |pool| u8::from(pool.link_up).into()),
];

/// Metrics of guests, VFs, pools and the daemon, as OpenMetrics
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "OpenMetrics", body = String,
     content_type = "application/openmetrics-text"),
))]
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let status = shared.ends.status.borrow().clone();
    let mut text = Text::default();
    guests_and_pools(&mut text, &status);
    daemon(&mut text, &status);
    process(&mut text);
    text.0.push_str("# EOF\n");
    ([(CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS))], text.0).into_response()
}

/// Metrics in the form of OpenMetrics 1.0, family by family.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{value}\"", if at == 0 { "{" } else { "," });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        let total = if kind == "counter" { "_total" } else { "" };
        self.sample(&format!("{name}{total}"), &[], value);
    }

    fn histograms(&mut self, name: &str, help: &str, label: &str, all: [(&str, &Durations); 2]) {
        self.family(name, "histogram", help);
        for (value, durations) in all {
            self.sample(&format!("{name}_sum"), &[(label, value)], durations.sum_s);
            self.sample(&format!("{name}_count"), &[(label, value)], durations.count);
            let bounds = DURATION_BOUNDS_S.iter().map(|bound| format!("{bound:?}"));
            let mut counted = 0;
            for (bound, class) in bounds.chain(["+Inf".to_owned()]).zip(durations.classes) {
                counted += class;
                self.sample(&format!("{name}_bucket"), &[(label, value), ("le", &bound)], counted);
            }
        }
    }
}

fn guests_and_pools(text: &mut Text, status: &Status) {
    type Of = fn(&Rate) -> Option<f64>;
    let guests = &status.guests;
    text.single("planewise_guests", "gauge", "Guests that are managed", guests.len());
    let rates: [(&str, &str, Of); 2] = [
        ("planewise_guest_packets_per_second", "Packet rate", |rate| rate.pps),
        ("planewise_guest_bytes_per_second", "Byte rate", |rate| rate.bytes_per_s),
    ];
    for (name, what, of) in rates {
        let help = format!("{what}, both directions, smoothed; absent where nobody can tell");
        text.family(name, "gauge", &help);
        for guest in guests {
            let source = match guest.rate.source {
                Source::HostSide => "host-side",
                Source::GuestReported => "guest-reported",
                Source::Unsupported => continue,
            };
            if let Some(rate) = of(&guest.rate) {
                let labels = [("guest", guest.id.as_str()), ("source", source)];
                text.sample(name, &labels, format_args!("{rate:?}"));
            }
        }
    }
    columns(text, &OF_GUESTS, "guest", guests, |guest| guest.id.as_str());
    columns(text, &OF_POOLS, "pf", &status.pools, |pool| pool.pf.as_str());
    text.family("planewise_vf", "info", "Who has which VF");
    for vf in &status.vfs {
        let place = match vf.place {
            VfState::Pool => "pool",
            VfState::Held => "held",
            VfState::Quarantined => "quarantined",
        };
        let (id, holder) = (vf.id.to_string(), vf.holder.as_ref().map_or("", |id| id.as_str()));
        let pf = vf.id.pf.as_str();
        let labels = [("vf", &*id), ("pf", pf), ("place", place), ("guest", holder)];
        text.sample("planewise_vf_info", &labels, 1);
    }
}

fn columns<T>(
    text: &mut Text,
    columns: &[Column<T>],
    label: &str,
    rows: &[T],
    name_of: fn(&T) -> &str,
) {
    for (name, help, value) in columns {
        let name = format!("planewise_{name}");
        text.family(&name, "gauge", help);
        for row in rows {
            text.sample(&name, &[(label, name_of(row))], format_args!("{:?}", value(row)));
        }
    }
}

fn daemon(text: &mut Text, status: &Status) {
    let counters = &status.counters;
    text.family("planewise_moves", "counter", "VFs given and taken, by how it ended");
    for (direction, ended) in [("give", &counters.given), ("take", &counters.taken)] {
        let Endings { completed, undone, stuck, quarantined } = *ended;
        let counts = [
            ("completed", completed),
            ("undone", undone),
            ("stuck", stuck),
            ("quarantined", quarantined),
        ];
        for (ending, count) in counts {
            let labels = [("direction", direction), ("ending", ending)];
            text.sample("planewise_moves_total", &labels, count);
        }
    }
    let moves = [("give", &counters.give_durations), ("take", &counters.take_durations)];
    let help = "How long moves took that ended as planned";
    text.histograms("planewise_move_duration_seconds", help, "direction", moves);
    let work = [("decision", &counters.decision_durations), ("sample", &counters.sample_durations)];
    let help = "How long decisions took, and readings of all counters";
    text.histograms("planewise_daemon_duration_seconds", help, "work", work);
    text.single("planewise_errors", "counter", "What went wrong", counters.errors);
    let help = "Requests that changed something";
    text.single("planewise_requests", "counter", help, counters.requests);
    let draining = u8::from(status.draining);
    text.single("planewise_draining", "gauge", "1 while every VF is taken back", draining);
    let age_s = unix_ms().saturating_sub(status.at_unix_ms) as f64 / 1e3;
    let help = "Since when the daemon has not looked";
    text.single("planewise_status_age_seconds", "gauge", help, age_s);
    text.family("planewise_build", "info", "The daemon");
    let labels = [("version", &*status.version), ("policy", status.policy.as_str())];
    text.sample("planewise_build_info", &labels, 1);
}

/// This process' resources, by the usual names of exporters.
fn process(text: &mut Text) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let constant = |name| sysconf(name).ok().flatten().map(|value| value as f64);
    // Fields 14 and 15 of proc_pid_stat(5), counted after the name, which may hold anything.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks = |at| fields.split_whitespace().nth(at)?.parse::<f64>().ok();
    let cpu_s = (|| Some((ticks(11)? + ticks(12)?) / constant(SysconfVar::CLK_TCK)?))();
    if let Some(cpu_s) = cpu_s {
        text.single("process_cpu_seconds", "counter", "CPU time of the daemon", cpu_s);
    }
    let pages = statm.split_whitespace().nth(1).and_then(|text| text.parse::<f64>().ok());
    if let Some((pages, bytes)) = pages.zip(constant(SysconfVar::PAGE_SIZE)) {
        let help = "Memory of the daemon";
        text.single("process_resident_memory_bytes", "gauge", help, pages * bytes);
    }
}
