//! The controller's metrics and readiness, over HTTP. Knows only the sums.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::fleet::Fleet;
use super::lease::{self, Leads};

/// The state that the answers show.
#[derive(Clone)]
struct Sources {
    fleet: watch::Receiver<Option<Arc<Fleet>>>,
    leads: watch::Receiver<Leads>,
}

/// Answers `/metrics`, and `/readyz`: the sums are known. Ends with the listener.
pub async fn serve(
    listener: TcpListener,
    fleet: watch::Receiver<Option<Arc<Fleet>>>,
    leads: watch::Receiver<Leads>,
) -> std::io::Result<()> {
    let router = Router::new().route("/metrics", get(metrics)).route("/readyz", get(ready));
    axum::serve(listener, router.with_state(Sources { fleet, leads })).await
}

async fn ready(State(sources): State<Sources>) -> Response {
    match *sources.fleet.borrow() {
        Some(_) => (StatusCode::OK, "the VfPools are known\n").into_response(),
        None => {
            let what = "the API server has not listed the VfPools yet\n";
            (StatusCode::SERVICE_UNAVAILABLE, what).into_response()
        }
    }
}

async fn metrics(State(sources): State<Sources>) -> Response {
    let leads = lease::is_leading(&sources.leads);
    let fleet = sources.fleet.borrow().clone();
    let text = text(fleet.as_deref(), leads);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// The sums in Prometheus' text format, as far as they are known.
fn text(fleet: Option<&Fleet>, leads: bool) -> String {
    let mut text = String::new();
    let mut gauges = |name: &str, help: &str, rows: &[(String, f64)]| {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "# HELP planewise_fleet_{name} {help}\n# TYPE planewise_fleet_{name} gauge"
        );
        for (labels, value) in rows {
            let _ = writeln!(text, "planewise_fleet_{name}{labels} {value}");
        }
    };
    let plain = |value: f64| vec![(String::new(), value)];
    gauges("leads", "1 in the controller that writes, 0 in those that wait.", &plain(leads.into()));
    let Some(fleet) = fleet else { return text };
    let state = |state: &str, count: u32| (format!("{{state=\"{state}\"}}"), f64::from(count));
    let silent = u32::try_from(fleet.silent.len()).unwrap_or(u32::MAX);
    let not_ready = fleet.nodes.saturating_sub(fleet.ready).saturating_sub(silent);
    let nodes =
        [state("ready", fleet.ready), state("not_ready", not_ready), state("silent", silent)];
    gauges("nodes", "Nodes with a VfPool, by whether their VFs can be given.", &nodes);
    let vfs =
        [state("held", fleet.held), state("free", fleet.free), state("unusable", fleet.unusable)];
    gauges("vfs", "VFs of all nodes, by what they do.", &vfs);
    // Names of namespaces are DNS labels: nothing in them is to be escaped.
    let namespaces = |value: fn(&super::fleet::Namespace) -> f64| -> Vec<(String, f64)> {
        let namespaces = fleet.namespaces.iter();
        namespaces.map(|(name, sums)| (format!("{{namespace=\"{name}\"}}"), value(sums))).collect()
    };
    gauges("pods_holding", "Pods that hold a VF.", &namespaces(|sums| sums.held() as f64));
    gauges(
        "pods_waiting",
        "Managed pods without a VF that may have one.",
        &namespaces(|sums| sums.waiting.into()),
    );
    let help = "Waiting pods whose nodes have too few VFs.";
    gauges("pods_unmet", help, &namespaces(|sums| sums.unmet.pods.into()));
    let help = "Packets a second of the pods whose nodes have too few VFs.";
    gauges("unmet_packets_per_second", help, &namespaces(|sums| sums.unmet.pps));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fleet;

    #[test]
    fn what_is_not_known_yet_is_left_out() {
        assert!(!text(None, false).contains("nodes"));
        let empty = text(Some(&fleet::sum(&[])), true);
        assert!(empty.contains("planewise_fleet_leads 1\n"), "{empty}");
        assert!(empty.contains("planewise_fleet_nodes{state=\"ready\"} 0\n"), "{empty}");
    }
}
