//! What the daemon costs: share of one core, memory a guest and time of a decision, with made-up
//! counters and everything else real. Prints figures; never passes or fails.
//! Run: cargo bench -p planewised --bench daemon

#[path = "../../alloc/benches/counting/mod.rs"]
mod counting;

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use planewised::daemon::config::{self, Simulated};
use planewised::daemon::core::Core;
use planewised::daemon::journal::Journal;
use planewised::daemon::request::ends;
use planewised::daemon::simulated::World;
use planewised::daemon::status::Status;
use pw_alloc::settings::PolicyKind;
use pw_alloc::traffic::Traffic;

use counting::BYTES;

/// Seconds of the guests' time that are played.
const SECONDS: u64 = 120;

fn main() {
    for guests in [100, 1000, 10_000] {
        measure(guests);
    }
}

fn cpu() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds()
    });
    Duration::from_micros(u64::try_from(used).unwrap_or(0))
}

fn measure(guests: usize) {
    let Ok(directory) = tempfile::tempdir() else { return };
    let world = World::new(&Simulated { vfs: 63, guests: [].into(), pods: None });
    for at in 0..guests {
        let low_pps = 1.0 + (at % 97) as f64;
        let traffic =
            Traffic::Bursts { low_pps, high_pps: 50.0 * low_pps, apart_s: 60.0, burst_s: 20.0 };
        world.add(&format!("guest-{at:05}"), traffic);
    }
    let before = BYTES.load(Ordering::Relaxed);
    // The window remembers most.
    let Ok(mut config) = config::parse("alloc.signal.smoothing = { window = 300.0 }", "") else {
        return;
    };
    config.state_directory = directory.path().to_owned();
    let Ok((journal, _)) = Journal::open(directory.path()) else { return };
    let (core_ends, _http) = ends(Status::new(PolicyKind::Benefit, 10.0, 1.0));
    let host = world.host();
    let never = Box::new(|| false);
    let Ok(mut core) = Core::new(config, host, journal, core_ends, false, never) else { return };
    let begun = cpu();
    for second in 0..SECONDS {
        core.tick(second * 1000);
    }
    let share = (cpu() - begun).as_secs_f64() / SECONDS as f64;
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    let counters = &core.status().counters;
    let decisions = &counters.decision_durations;
    let samples = &counters.sample_durations;
    println!(
        "{guests:>6} guests at 1 Hz, 63 VFs: {:.2} % of one core, {} byte a guest, a decision {:.2} \
         ms, a reading {:.2} ms (means); {} VFs given",
        share * 100.0,
        bytes / isize::try_from(guests).unwrap_or(1),
        decisions.sum_s / decisions.count.max(1) as f64 * 1e3,
        samples.sum_s / samples.count.max(1) as f64 * 1e3,
        counters.given.completed,
    );
}
