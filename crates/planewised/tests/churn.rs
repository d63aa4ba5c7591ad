//! A day of guests that come, go, fall silent and change what they send, in the core's own time: neither
//! memory, nor journal, nor what is published grows with it. A test of its own, as it counts all memory.
//!
//! `PLANEWISE_CHURN_HOURS` sets how long that day is (3).

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

#[path = "../../alloc/benches/counting/mod.rs"]
mod counting;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use planewised::daemon::config::{self, Config, Simulated};
use planewised::daemon::core::Core;
use planewised::daemon::journal::{Journal, Storage};
use planewised::daemon::request::ends;
use planewised::daemon::simulated::World;
use planewised::daemon::status::Status;
use pw_alloc::settings::PolicyKind;
use pw_alloc::traffic::Traffic;

use counting::BYTES;

/// Guests that are there at a time.
const GUESTS: u64 = 60;
const VFS: u16 = 7;
/// Somebody comes and somebody goes as often as this [s].
const TURN_S: u64 = 5;

/// A journal of which only the length is kept: so a day does not take as long as its disk.
#[derive(Clone, Default)]
struct Memory(Arc<AtomicU64>);

impl Storage for Memory {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn truncate(&mut self, length_bytes: u64) -> io::Result<()> {
        self.0.store(length_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.truncate(bytes.len() as u64)
    }
}

/// What was used at the end of an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Used {
    memory_bytes: isize,
    status_bytes: usize,
}

#[test]
fn a_day_of_churn_leaves_memory_journal_and_status_as_large_as_they_were() {
    let hours = std::env::var("PLANEWISE_CHURN_HOURS").ok().and_then(|text| text.parse().ok());
    let hours: u64 = hours.unwrap_or(3);
    let directory = tempfile::tempdir().expect("a directory");
    let settings = "[alloc]\npolicy = 'benefit'\nmin_residency_s = 5.0\nretry_most_s = 60.0";
    let mut config: Config = config::parse(settings, "churn").expect("valid");
    config.state_directory = directory.path().to_owned();
    let world = World::new(&Simulated { vfs: VFS, guests: BTreeMap::new(), pods: None });
    let kept = Memory::default();
    let length_bytes = || kept.0.load(Ordering::Relaxed);
    let storage = Box::new(kept.clone());
    let (journal, _) = Journal::with_storage("journal", Some(storage), b"").expect("a journal");
    let (core_ends, _http) = ends(Status::new(PolicyKind::Benefit, 1.0, 1.0));
    let never = Box::new(|| false);
    let core = Core::new(config, world.host(), journal, core_ends, false, never);
    let mut core = core.expect("starts");
    let name = |number: u64| format!("guest-{number}");
    let mut used: Vec<Used> = Vec::new();
    let mut largest_journal_bytes = 0;
    for second in 0..hours * 3600 {
        if second % TURN_S == 0 {
            let number = second / TURN_S;
            world.add(&name(number), Traffic::Constant(10.0 * ((number * 7919) % 1009) as f64));
            if number >= GUESTS {
                // Some leave the VF that they had behind in a namespace of nobody.
                world.destroy(&name(number - GUESTS), number.is_multiple_of(3));
            }
            let some = |apart: u64| name(number.saturating_sub(apart));
            match number % 11 {
                0 => world.restart(&some(20)),
                1 => world.guest(&some(30), |guest| guest.answers = false),
                2 => {
                    world.with(|host| host.refusing.insert(some(10).as_str().into()));
                }
                3 => world.with(|host| host.host.release(&some(40).as_str().into())),
                4 => world.with(|host| host.link_down = true),
                5 => world.with(|host| host.link_down = false),
                6 => world.silence(Some("Docker does not answer")),
                7 => world.silence(None),
                8 => world.reload_driver(number.is_multiple_of(2)),
                9 => world.reload_driver(false),
                _ => world.send(&some(5), Traffic::Constant(1.0)),
            }
        }
        core.tick(second * 1000);
        if second % 60 == 59 {
            largest_journal_bytes = largest_journal_bytes.max(length_bytes());
        }
        if second % 3600 == 3599 {
            used.push(Used {
                memory_bytes: BYTES.load(Ordering::Relaxed),
                status_bytes: serde_json::to_string(core.status()).expect("JSON").len(),
            });
        }
    }
    let counters = &core.status().counters;
    let (first, last) = (used[0], used[used.len() - 1]);
    println!(
        "{hours} h, {} guests, {} VFs given: memory {} byte after the first hour, {} after the last; \
         journal at most {largest_journal_bytes}; status {} and {}",
        hours * 3600 / TURN_S,
        counters.given.completed,
        first.memory_bytes,
        last.memory_bytes,
        first.status_bytes,
        last.status_bytes,
    );
    assert!(counters.given.completed > hours * 100, "it did what it is for: {counters:?}");
    // A journal is begun anew from 1 MiB on.
    assert!(largest_journal_bytes <= (1 << 20) + 4096);
    // In an hour 720 guests have gone: a dozen bytes kept of each would be seen.
    let hours = isize::try_from(used.len() - 1).unwrap_or(1).max(1);
    assert!((last.memory_bytes - first.memory_bytes) / hours < 8 << 10, "{used:?}");
    assert!(last.status_bytes < first.status_bytes * 5 / 4, "{used:?}");
}
