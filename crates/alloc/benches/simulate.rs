//! How fast the simulator plays: guest-intervals a second, by family of traffic and policy, with 100 guests
//! of each, by the time that this process was on a CPU. Prints figures; never passes or fails.
//!
//! Run: cargo bench -p pw-alloc --bench simulate -- [SECONDS [FAMILY]]

use pw_alloc::Settings;
use pw_alloc::settings::PolicyKind;
use pw_alloc::simulate::{BuiltIn, Feed, Host, Interval, MadeUp, Player, Scenario, built_in};

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let seconds = words.first().and_then(|word| word.parse().ok()).unwrap_or(20_000_u32);
    println!("million guest-intervals a second, 100 guests, {seconds} s of simulated time");
    for BuiltIn { name, of: mut scenario, .. } in built_in().unwrap_or_default() {
        if words.get(1).is_some_and(|family| *family != name) {
            continue;
        }
        let guests = scenario.guests();
        for group in &mut scenario.groups {
            group.guests = (group.guests * 100).div_ceil(guests);
        }
        scenario.vfs = (usize::from(scenario.vfs) * 100 / guests) as u16;
        scenario.duration_s = seconds;
        print!("{name:<17}");
        for policy in [PolicyKind::Fair, PolicyKind::Activity, PolicyKind::Benefit] {
            let began_s = cpu_s();
            let Some(played) = play(&scenario, policy) else { continue };
            print!("  {} {:6.2}", policy.as_str(), played as f64 / (cpu_s() - began_s) / 1e6);
        }
        println!();
    }
}

fn play(scenario: &Scenario, policy: PolicyKind) -> Option<usize> {
    let mut feed = MadeUp::new(scenario, 0);
    let mut host = Host::new(scenario, 0, Player::Policy(policy), &Settings::default()).ok()?;
    let (mut interval, mut played) = (Interval::default(), 0);
    while feed.next(&mut interval).ok()? {
        interval.set_gains(&scenario.curve);
        host.live(&interval, &|guest| feed.name(guest)).ok()?;
        played += interval.pps.len();
    }
    Some(played)
}

/// How long this process was on a CPU [s]: proc(5), `/proc/pid/schedstat`.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns / 1e9)
}
