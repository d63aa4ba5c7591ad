//! The status, and the resources of this process, as OpenMetrics.

use std::fmt::Error;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Shared;
use crate::daemon::request::{Fault, Refused};
use crate::daemon::status::{
    DURATION_BOUNDS_S, Durations, Endings, Source, Status, VfState, unix_ms,
};

/// The media type of OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics of guests, VFs, pools and the daemon, as OpenMetrics
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "OpenMetrics", body = String,
     content_type = "application/openmetrics-text"),
    (status = "default", description = "It could not be done", body = Refused),
))]
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let status = shared.ends.status.borrow().clone();
    match encoded(status) {
        Ok(text) => ([(CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS))], text).into_response(),
        Err(_) => {
            let what = "the metrics cannot be written";
            Refused::new(Fault::Failed, what, "ask for /status instead").into_response()
        }
    }
}

fn encoded(status: Arc<Status>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("planewise");
    registry.register_collector(Box::new(OfStatus(status)));
    let mut text = String::new();
    text::encode_registry(&mut text, &registry)?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(OfProcess::read()));
    text::encode_registry(&mut text, &registry)?;
    text::encode_eof(&mut text)?;
    Ok(text)
}

/// Metrics, one family after the other.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn gauges<'l, L: EncodeLabelSet + 'l>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (L, f64)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn infos<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = L>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        for labels in rows {
            family.encode_info(&labels)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (L, u64)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
        }
        Ok(())
    }

    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (L, Durations)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, durations) in rows {
            let bounds = DURATION_BOUNDS_S.into_iter().chain([f64::INFINITY]);
            let classes: Vec<(f64, u64)> = bounds.zip(durations.classes).collect();
            let mut metric = family.encode_family(&labels)?;
            let (sum_s, count) = (durations.sum_s, durations.count);
            metric.encode_histogram::<NoLabelSet>(sum_s, count, &classes, None)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct OfStatus(Arc<Status>);

impl Collector for OfStatus {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let status = &*self.0;
        let mut to = Families(encoder);
        self.guests(&mut to)?;
        self.pools(&mut to)?;
        let counters = &status.counters;
        let endings = |direction, ended: &Endings| {
            [
                ("completed", ended.completed),
                ("undone", ended.undone),
                ("stuck", ended.stuck),
                ("quarantined", ended.quarantined),
            ]
            .map(|(how, count)| ([("direction", direction), ("ending", how)], count))
        };
        to.counters(
            "moves",
            "VFs given and taken, by how it ended",
            [endings("give", &counters.given), endings("take", &counters.taken)].concat(),
        )?;
        to.histograms(
            "move_duration_seconds",
            "How long moves took that ended as planned",
            [
                ([("direction", "give")], counters.give_durations.clone()),
                ([("direction", "take")], counters.take_durations.clone()),
            ],
        )?;
        to.histograms(
            "daemon_duration_seconds",
            "How long decisions took, and readings of all counters",
            [
                ([("work", "decision")], counters.decision_durations.clone()),
                ([("work", "sample")], counters.sample_durations.clone()),
            ],
        )?;
        to.counter("errors", "What went wrong", counters.errors as f64)?;
        to.counter("requests", "Requests that changed something", counters.requests as f64)?;
        to.gauge(
            "draining",
            "1 while every VF is taken back",
            f64::from(u8::from(status.draining)),
        )?;
        let age_s = unix_ms().saturating_sub(status.at_unix_ms) as f64 / 1e3;
        to.gauge("status_age_seconds", "Since when the daemon has not looked", age_s)?;
        let policy = status.policy.as_str().to_owned();
        let version = status.version.clone();
        to.infos("build", "The daemon", [[("version", version), ("policy", policy)]])
    }
}

impl OfStatus {
    fn guests(&self, to: &mut Families<'_>) -> Result<(), Error> {
        let guests = &self.0.guests;
        let rates = |of: fn(&crate::daemon::status::Rate) -> Option<f64>| {
            guests.iter().filter_map(move |guest| {
                let source = match guest.rate.source {
                    Source::HostSide => "host-side",
                    Source::GuestReported => "guest-reported",
                    Source::Unsupported => return None,
                };
                Some(([("guest", guest.id.as_str()), ("source", source)], of(&guest.rate)?))
            })
        };
        let rows = |of: fn(&crate::daemon::status::Guest) -> f64| {
            guests.iter().map(move |guest| ([("guest", guest.id.as_str())], of(guest)))
        };
        to.gauge("guests", "Guests that are managed", guests.len() as f64)?;
        to.gauges(
            "guest_packets_per_second",
            "Packet rate, both directions, smoothed; absent where nobody can tell",
            rates(|rate| rate.pps),
        )?;
        to.gauges(
            "guest_bytes_per_second",
            "Byte rate, both directions, smoothed; absent where nobody can tell",
            rates(|rate| rate.bytes_per_s),
        )?;
        to.gauges(
            "guest_holds_vf",
            "1: the guest has a VF; 0: it sends by its paravirtual path",
            rows(|guest| u8::from(guest.vf.is_some()).into()),
        )?;
        to.gauges(
            "guest_since_timestamp_seconds",
            "When the guest got what it has, VF or none",
            rows(|guest| guest.since_unix_ms as f64 / 1e3),
        )?;
        to.gauges(
            "guest_marked",
            "1: the guest did not answer and is left alone",
            rows(|guest| u8::from(guest.marked.is_some()).into()),
        )?;
        to.gauges(
            "guest_paravirtual_up",
            "1: the guest's paravirtual path works",
            rows(|guest| u8::from(guest.paravirtual_up).into()),
        )
    }

    fn pools(&self, to: &mut Families<'_>) -> Result<(), Error> {
        let pools = &self.0.pools;
        let rows = |of: fn(&crate::daemon::status::Pool) -> f64| {
            pools.iter().map(move |pool| ([("pf", pool.pf.as_str())], of(pool)))
        };
        to.gauges("pool_vfs", "VFs that are managed", rows(|pool| pool.vfs.into()))?;
        to.gauges("pool_free_vfs", "VFs that can be given", rows(|pool| pool.free.into()))?;
        to.gauges(
            "pool_quarantined_vfs",
            "VFs with which something is wrong",
            rows(|pool| pool.quarantined.into()),
        )?;
        to.gauges(
            "pool_link_up",
            "1: the PF has a link",
            rows(|pool| u8::from(pool.link_up).into()),
        )?;
        to.infos(
            "vf",
            "Who has which VF",
            self.0.vfs.iter().map(|vf| {
                let place = match vf.place {
                    VfState::Pool => "pool",
                    VfState::Held => "held",
                    VfState::Quarantined => "quarantined",
                };
                let holder = vf.holder.as_ref().map_or("", |guest| guest.as_str());
                [
                    ("vf", vf.id.to_string()),
                    ("pf", vf.id.pf.to_string()),
                    ("place", place.to_owned()),
                    ("guest", holder.to_owned()),
                ]
            }),
        )
    }
}

/// This process' resources, by the usual names of exporters.
#[derive(Debug)]
struct OfProcess {
    cpu_s: Option<f64>,
    resident_bytes: Option<f64>,
}

impl OfProcess {
    fn read() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let constant = |name| nix::unistd::sysconf(name).ok().flatten().map(|value| value as f64);
        // Fields 14 and 15 of proc_pid_stat(5), counted after the name, which may hold anything.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        let ticks = |at| fields.split_whitespace().nth(at)?.parse::<f64>().ok();
        let per_s = constant(nix::unistd::SysconfVar::CLK_TCK);
        let cpu_s = (|| Some((ticks(11)? + ticks(12)?) / per_s?))();
        let page = constant(nix::unistd::SysconfVar::PAGE_SIZE);
        let pages = statm.split_whitespace().nth(1).and_then(|text| text.parse::<f64>().ok());
        Self { cpu_s, resident_bytes: pages.zip(page).map(|(pages, page)| pages * page) }
    }
}

impl Collector for OfProcess {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut to = Families(encoder);
        if let Some(cpu_s) = self.cpu_s {
            to.counter("process_cpu_seconds", "CPU time of the daemon", cpu_s)?;
        }
        if let Some(bytes) = self.resident_bytes {
            to.gauge("process_resident_memory_bytes", "Memory of the daemon", bytes)?;
        }
        Ok(())
    }
}
