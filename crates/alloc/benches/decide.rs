//! What a decision costs: time for 1000 and 10 000 guests, and memory a guest. Prints figures; never
//! passes or fails. Run: cargo bench -p pw-alloc

mod counting;

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pw_alloc::model::{GuestView, Origin, Snapshot, VfId, VfState, VfView};
use pw_alloc::settings::PolicyKind;
use pw_alloc::signal::{Counters, Reading, Sample, Smoothing, Tracker};
use pw_alloc::{Allocator, Settings};

use counting::BYTES;

fn main() {
    for count in [1_000_usize, 10_000] {
        for policy in PolicyKind::ALL {
            measure(count, policy);
        }
    }
}

fn measure(count: usize, policy: PolicyKind) {
    let before = BYTES.load(Ordering::Relaxed);
    let mut settings = Settings { policy, min_residency_s: 0.0, ..Settings::default() };
    // The window of samples is what needs most memory.
    settings.signal.smoothing = Smoothing::Window(300.0);
    let Ok(mut allocator) = Allocator::new(settings) else { return };
    let signal = allocator.settings().signal;
    let mut trackers = vec![Tracker::default(); count];
    let mut now = Snapshot {
        now_ms: 0,
        guests: (0..count).map(|at| GuestView::new(format!("guest-{at}"))).collect(),
        vfs: (0..126)
            .map(|index| VfView {
                id: VfId::new(if index < 63 { "pf0" } else { "pf1" }, index % 63),
                numa: None,
                state: VfState::Usable,
            })
            .collect(),
    };
    let (mut sampled_s, mut observed_s, mut slowest_s, mut decided_s) = (0.0, 0.0, 0.0_f64, 0.0);
    let rounds: u64 = if count > 1_000 { 60 } else { 300 };
    for second in 0..rounds {
        now.now_ms = second * 1000;
        let started = Instant::now();
        for (at, (guest, tracker)) in now.guests.iter_mut().zip(&mut trackers).enumerate() {
            let packets = second * (100 + (at as u64 * 7919 + second / 60 * 104_729) % 100_000);
            let sample = Sample {
                at_ms: now.now_ms,
                source: 1,
                origin: Origin::HostSide,
                reading: Reading::Counted(Counters { rx_packets: packets, ..Counters::default() }),
            };
            tracker.feed(&sample, &signal);
            guest.rate = tracker.rate(now.now_ms, &signal);
        }
        sampled_s += started.elapsed().as_secs_f64();
        let started = Instant::now();
        allocator.observe(&now);
        observed_s += started.elapsed().as_secs_f64();
        let started = Instant::now();
        let decision = black_box(allocator.decide(&now));
        let took_s = started.elapsed().as_secs_f64();
        slowest_s = slowest_s.max(took_s);
        decided_s += took_s;
        if let Ok(after) = decision.plan.try_on(&now) {
            now = after;
            allocator.commit(&decision.plan, now.now_ms);
        }
    }
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    let ms = |total_s: f64| total_s * 1e3 / rounds as f64;
    println!(
        "{count:>6} guests, {:<8}: decision {:.2} ms (slowest {:.2}), observation {:.2} ms, rates {:.2} ms, {:.1} KiB a guest",
        policy.as_str(),
        ms(decided_s),
        slowest_s * 1e3,
        ms(observed_s),
        ms(sampled_s),
        bytes as f64 / 1024.0 / count as f64
    );
}
