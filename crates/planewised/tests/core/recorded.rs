//! What the daemon records is decided anew to the same plans.

use pw_alloc::replay::{Replayed, replay};
use pw_alloc::traffic::Random;

use super::*;

/// A daemon whose guests do what chance says, for so many rounds; what its recording comes to.
fn recorded(seed: u64, policy: &str, rounds: usize) -> Replayed {
    let mut lots = Random::new(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("recording");
    let settings = format!(
        "recording = '{}'\n[alloc]\npolicy = '{policy}'\nmin_residency_s = 2.0\nfair_turn_s = 7.0",
        path.display()
    );
    let names: Vec<String> = (0..7).map(|number| format!("guest{number}")).collect();
    let guests: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 100.0)).collect();
    let mut daemon = daemon(&settings, 3, &guests);
    for _ in 0..rounds {
        let name = &names[(lots.draw() % 7) as usize];
        let burst = Traffic::Bursts { low_pps: 5.0, high_pps: 5e4, apart_s: 20.0, burst_s: 6.0 };
        match lots.draw() % 10 {
            0 => drop(daemon.ask(Request::Stance { guest: id(name), stance: Stance::Pinned })),
            1 => drop(daemon.ask(Request::Stance { guest: id(name), stance: Stance::Excluded })),
            2 | 3 => drop(daemon.ask(Request::Stance { guest: id(name), stance: Stance::Free })),
            4 => daemon.world.destroy(name, false),
            5 => daemon.world.add(name, burst),
            6 => drop(daemon.ask(Request::Rebalance)),
            7 => drop(daemon.ask(Request::Policy { policy: PolicyKind::Activity })),
            _ => daemon.world.send(name, burst),
        }
        daemon.pass(1 + lots.draw() % 20);
    }
    let text = std::fs::read(&path).expect("a recording");
    replay("recording", &text[..]).expect("a sound recording")
}

#[test]
fn every_plan_of_a_recorded_daemon_is_decided_anew_to_the_byte() {
    let mut plans = 0;
    for seed in 0..5 {
        for policy in PolicyKind::ALL.map(PolicyKind::as_str) {
            let replayed = recorded(seed, policy, 25);
            assert_eq!(replayed.difference, None, "seed {seed}, {policy}");
            assert!(replayed.decisions > 100 && replayed.readings > 500, "{replayed:?}");
            plans += replayed.plans;
        }
    }
    assert!(plans > 100, "{plans} plans");
}
