//! Counters from agents in machines (guest-network-get-interfaces of the QEMU guest agent). They are the
//! guests' own claims. Asks in a thread of its own, one after the other, and agents
//! that do not answer at growing intervals.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pw_alloc::model::Mac;
use pw_alloc::signal::Counters;
use serde::Deserialize;

use super::api::{Domain, Libvirt, Uuid};

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
pub struct Word {
    /// The guest has a NIC beside the paravirtual one (and what joins the two) under its address.
    pub drives: bool,
    /// That NIC's counters, if the agent has them.
    pub counters: Option<Counters>,
}

#[derive(Debug)]
struct Asked {
    domain: Domain,
    mac: Mac,
    next: Instant,
    pause: Duration,
    word: Option<(Word, Instant)>,
}

/// The agents.
pub struct Agents {
    libvirt: Arc<dyn Libvirt>,
    asked: Mutex<BTreeMap<Uuid, Asked>>,
    threaded: bool,
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agents").finish_non_exhaustive()
    }
}

impl Agents {
    /// Asks in a thread, which ends with the last owner.
    pub fn start(libvirt: Arc<dyn Libvirt>) -> Arc<Self> {
        let agents = Arc::new(Self { libvirt, asked: Mutex::default(), threaded: true });
        let weak: Weak<Self> = Arc::downgrade(&agents);
        let run = move || {
            while let Some(agents) = weak.upgrade() {
                agents.turn();
                drop(agents);
                std::thread::sleep(LOOK);
            }
        };
        // Without it no claims are known, which does no harm.
        drop(std::thread::Builder::new().name("libvirt-agents".into()).spawn(run));
        agents
    }

    /// Asks only when [`Agents::turn`] is called.
    #[cfg(test)]
    pub fn idle(libvirt: Arc<dyn Libvirt>) -> Arc<Self> {
        Arc::new(Self { libvirt, asked: Mutex::default(), threaded: false })
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<Uuid, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the agents to ask.
    pub fn want(&self, wanted: impl Iterator<Item = (Domain, Mac)>) {
        let mut asked = self.asked();
        let mut before = std::mem::take(&mut *asked);
        for (domain, mac) in wanted {
            let kept =
                before.remove(&domain.uuid).filter(|one| one.domain == domain && one.mac == mac);
            let fresh = || Asked {
                domain: domain.clone(),
                mac,
                next: Instant::now(),
                pause: EVERY,
                word: None,
            };
            asked.insert(domain.uuid, kept.unwrap_or_else(fresh));
        }
    }

    /// Counters of the NIC beside the paravirtual one, and their age.
    pub fn counters(&self, uuid: &Uuid) -> Option<(Counters, Duration)> {
        let (word, at) = self.asked().get(uuid)?.word?;
        Some((word.counters?, at.elapsed()))
    }

    /// Does the guest claim to drive a NIC beside the paravirtual one? Waits for its agent.
    pub fn drives(&self, domain: &Domain, mac: Mac) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let answer = self.libvirt.agent(domain, QUESTION, deadline);
        answer.ok().and_then(|answer| read(&answer, mac)).is_some_and(|word| word.drives)
    }

    /// Asks all agents that are due.
    pub fn turn(&self) {
        let now = Instant::now();
        let due: Vec<(Domain, Mac)> = self
            .asked()
            .values()
            .filter(|one| one.next <= now || !self.threaded)
            .map(|one| (one.domain.clone(), one.mac))
            .collect();
        for (domain, mac) in due {
            let answer = self.libvirt.agent(&domain, QUESTION, Instant::now() + PATIENCE);
            let word = answer.ok().and_then(|answer| read(&answer, mac));
            let mut asked = self.asked();
            let Some(one) = asked.get_mut(&domain.uuid) else { continue };
            let now = Instant::now();
            one.pause = if word.is_some() { EVERY } else { (one.pause * 2).min(LONGEST) };
            one.next = now + one.pause;
            // The former answer stays, and ages.
            if let Some(word) = word {
                one.word = Some((word, now));
            }
        }
    }
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

/// Parses an agent's answer. With the VF a guest has three interfaces under its address: what
/// joins the pair and its two halves. The joint counts the traffic of both, which is the largest.
fn read(answer: &str, mac: Mac) -> Option<Word> {
    let answer: Answer = serde_json::from_str(answer).ok()?;
    let ours: Vec<Interface> = answer
        .interfaces
        .into_iter()
        .filter(|one| {
            one.hardware_address.as_deref().and_then(|text| text.parse().ok()) == Some(mac)
        })
        .collect();
    let counters = ours
        .iter()
        .filter_map(|one| one.statistics)
        .max_by_key(|one| one.rx_packets.saturating_add(one.tx_packets))
        .map(|one| Counters {
            rx_packets: one.rx_packets,
            tx_packets: one.tx_packets,
            rx_bytes: one.rx_bytes,
            tx_bytes: one.tx_bytes,
        });
    Some(Word { drives: ours.len() >= 3, counters })
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
        assert_eq!(read(silent, mac), Some(Word { drives: false, counters: None }));
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
