//! Counters from agents in machines (guest-network-get-interfaces of the QEMU guest agent). They are the
//! guests' own claims. Queries them in a thread of its own, one after the other; agents that do not answer,
//! at growing intervals.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pw_alloc::model::Mac;
use pw_alloc::signal::Counters;
use serde::Deserialize;

use super::api::{Domain, Libvirt, Uuid};
use super::watch::lock;

/// Time limit of an agent's answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two requests to one agent, doubled after each failure up to [`LONGEST`].
const EVERY: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// Between two rounds.
const LOOK: Duration = Duration::from_millis(200);

const QUESTION: &str = r#"{"execute":"guest-network-get-interfaces"}"#;

/// An agent's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Under its address the guest has the VF beside its paravirtual NIC (and the device that joins them).
    pub drives: bool,
    /// That NIC's counters, if the agent has them.
    pub counters: Option<Counters>,
}

#[derive(Debug)]
struct Agent {
    domain: Domain,
    mac: Mac,
    next: Instant,
    pause: Duration,
    report: Option<(Report, Instant)>,
}

/// The agents to query, and their answers.
#[derive(Debug, Default)]
pub struct Agents(Mutex<BTreeMap<Uuid, Agent>>);

impl Agents {
    /// Queries agents in a thread, which ends with the last owner.
    pub fn start(mut libvirt: Box<dyn Libvirt>) -> Arc<Self> {
        let agents = Arc::new(Self::default());
        let weak = Arc::downgrade(&agents);
        let run = move || {
            while let Some(agents) = weak.upgrade() {
                agents.poll(&mut *libvirt, Instant::now());
                drop(agents);
                std::thread::sleep(LOOK);
            }
        };
        // Without it no claims are known, which does no harm.
        drop(std::thread::Builder::new().name("libvirt-agents".into()).spawn(run));
        agents
    }

    /// Sets the agents to query.
    pub fn set_agents(&self, machines: impl Iterator<Item = (Domain, Mac)>) {
        let mut agents = lock(&self.0);
        let mut previous = std::mem::take(&mut *agents);
        for (domain, mac) in machines {
            let same = |agent: &Agent| agent.domain == domain && agent.mac == mac;
            let kept = previous.remove(&domain.uuid).filter(same);
            let (uuid, next) = (domain.uuid, Instant::now());
            let fresh = || Agent { domain, mac, next, pause: EVERY, report: None };
            agents.insert(uuid, kept.unwrap_or_else(fresh));
        }
    }

    /// Counters of the NIC beside the paravirtual one, and their age.
    pub fn counters(&self, uuid: &Uuid) -> Option<(Counters, Duration)> {
        let (report, at) = lock(&self.0).get(uuid)?.report?;
        Some((report.counters?, at.elapsed()))
    }

    /// Queries all agents that are due at this moment.
    pub fn poll(&self, libvirt: &mut dyn Libvirt, at: Instant) {
        let agents = lock(&self.0);
        let due = agents.values().filter(|agent| agent.next <= at);
        let due: Vec<(Domain, Mac)> = due.map(|agent| (agent.domain.clone(), agent.mac)).collect();
        drop(agents);
        for (domain, mac) in due {
            let report = ask(libvirt, &domain, mac);
            let mut agents = lock(&self.0);
            let Some(agent) = agents.get_mut(&domain.uuid) else { continue };
            let now = Instant::now();
            agent.pause = if report.is_some() { EVERY } else { (agent.pause * 2).min(LONGEST) };
            agent.next = now + agent.pause;
            // The former report stays, and ages.
            agent.report = report.map(|report| (report, now)).or(agent.report);
        }
    }
}

fn ask(libvirt: &mut dyn Libvirt, domain: &Domain, mac: Mac) -> Option<Report> {
    let answer = libvirt.agent(domain, QUESTION, Instant::now() + PATIENCE);
    read(&answer.ok()?, mac)
}

/// Does the guest claim to drive a NIC beside the paravirtual one? Waits for its agent.
pub fn drives(libvirt: &mut dyn Libvirt, domain: &Domain, mac: Mac) -> bool {
    ask(libvirt, domain, mac).is_some_and(|report| report.drives)
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "return")]
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Interface {
    hardware_address: Option<String>,
    statistics: Option<Statistics>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
struct Statistics {
    rx_bytes: u64,
    rx_packets: u64,
    tx_bytes: u64,
    tx_packets: u64,
}

/// Parses an agent's answer. With the VF a guest has three interfaces under its address: the VF, the
/// paravirtual NIC, and the bond or failover device, which counts the traffic of both.
fn read(answer: &str, mac: Mac) -> Option<Report> {
    let answer: Answer = serde_json::from_str(answer).ok()?;
    let interfaces: Vec<Interface> = answer
        .interfaces
        .into_iter()
        .filter(|interface| {
            interface.hardware_address.as_deref().and_then(|text| text.parse().ok()) == Some(mac)
        })
        .collect();
    let counters = interfaces
        .iter()
        .filter_map(|interface| interface.statistics)
        .max_by_key(|statistics| statistics.rx_packets.saturating_add(statistics.tx_packets))
        .map(|statistics| Counters {
            rx_packets: statistics.rx_packets,
            tx_packets: statistics.tx_packets,
            rx_bytes: statistics.rx_bytes,
            tx_bytes: statistics.tx_bytes,
        });
    Some(Report { drives: interfaces.len() >= 3, counters })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_interfaces_under_one_address_are_a_vf_that_is_driven() {
        let mac: Mac = "52:54:00:00:00:01".parse().expect("an address");
        let interface = |address: &str, packets: u64| {
            format!(
                "{{\"name\":\"e\",\"hardware-address\":\"{address}\",\"statistics\":{{\"rx-bytes\":\
                 10,\"rx-packets\":{packets},\"rx-errs\":0,\"rx-dropped\":0,\"tx-bytes\":1,\
                 \"tx-packets\":2,\"tx-errs\":0,\"tx-dropped\":0}}}}"
            )
        };
        let other = interface("00:00:00:00:00:00", 999);
        let one = interface("52:54:00:00:00:01", 5);
        let most = interface("52:54:00:00:00:01", 7);
        let answer = |parts: &[&str]| format!("{{\"return\":[{}]}}", parts.join(","));
        let word = read(&answer(&[&other, &one, &most, &one]), mac).expect("a word");
        assert!(word.drives);
        assert_eq!(word.counters.map(|counters| counters.rx_packets), Some(7));
        assert!(!read(&answer(&[&other, &one, &most]), mac).expect("a word").drives);
        let silent = "{\"return\":[{\"name\":\"lo\"}]}";
        assert_eq!(read(silent, mac), Some(Report { drives: false, counters: None }));
        assert_eq!(read("{\"error\":{}}", mac), None);
    }

    #[test]
    fn no_word_of_a_guest_stops_the_reader() {
        pw_cases::check!().with_type::<(String, [u8; 6])>().for_each(|(text, mac)| {
            let _ = read(text, Mac(*mac));
            let _ = read(&format!("{{\"return\":[{{\"statistics\":{text}}}]}}"), Mac(*mac));
        });
    }
}
