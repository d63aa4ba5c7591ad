//! How close policies come to the optimum, by family of traffic: mean share over seeds with its 95 %
//! interval, VFs given an hour, and `benefit` less the better of the others, seed by seed. With `--bound` beside
//! them: `benefit` told the load of the second to come (`told`), the same without limits of residency and moves
//! (`freed`), the best that guests could hold from first to last (`static`), the bound of all policies that do
//! not know the future (`bound`), that of all who know it but keep to the settings' residency and moves an interval
//! (`limits`), and what `benefit` has of the latter (`of it`). Prints figures; never passes or fails.
//!
//! Run: cargo bench -p pw-alloc --bench policies --
//!     [--bound] [SEEDS [SECONDS [SWITCH_S [SETTINGS [FAMILY [FIRST]]]]]]
//! where SWITCH_S is how long a switch takes (FlexVF: 0.696 s), SETTINGS are the daemon's in JSON, as
//! '{"interval_s": 10}', an empty FAMILY stands for all, and FIRST is the first of the seeds.

mod bound;

use std::ops::Range;
use std::time::Instant;

use bound::limited::{Limits, bound_us};
use bound::{Family, WORTHS};
use pw_alloc::Settings;
use pw_alloc::settings::PolicyKind;
use pw_alloc::signal::Smoothing;
use pw_alloc::simulate::{
    BuiltIn, Feed, Host, Interval, MadeUp, Player, Record, Scenario, Shard, built_in, compare,
};

const BENEFIT: [Player; 1] = [Player::Policy(PolicyKind::Benefit)];
const POLICIES: [PolicyKind; 3] = [PolicyKind::Fair, PolicyKind::Activity, PolicyKind::Benefit];

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let (flags, words): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| word.starts_with("--"));
    let number = |at: usize, otherwise| {
        words.get(at).and_then(|word| word.parse().ok()).unwrap_or(otherwise)
    };
    let (seeds, seconds) = (number(0, 200_u32), number(1, 1_800_u32));
    let switch_s: f64 = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0.696);
    let settings: Settings = match words.get(3).map(|word| serde_json::from_str(word)) {
        None => Settings::default(),
        Some(Ok(settings)) => settings,
        Some(Err(error)) => return eprintln!("these settings cannot be read: {error}"),
    };
    let first = number(5, 1_u32);
    let with_bound = flags.iter().any(|flag| flag == "--bound");
    println!(
        "seeds {first} to {} of {seconds} s, {switch_s} s a switch; share of the optimum in %, VFs given an hour",
        first + seeds - 1
    );
    for BuiltIn { name, of: mut scenario, .. } in built_in().unwrap_or_default() {
        if words.get(4).is_some_and(|family| !family.is_empty() && *family != name) {
            continue;
        }
        (scenario.duration_s, scenario.switch_s) = (seconds, switch_s);
        let began = Instant::now();
        print!("{name:<16}");
        shares_of_policies(&mut scenario, &settings, first..first + seeds);
        if with_bound {
            bounds(&mut scenario, &settings, first..first + seeds);
        }
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// Prints each policy's share and moves, and how far the default is from the better of the two others.
fn shares_of_policies(scenario: &mut Scenario, settings: &Settings, seeds: Range<u32>) {
    let players = POLICIES.map(Player::Policy);
    let mut shares = POLICIES.map(|_| Vec::new());
    let mut moves = POLICIES.map(|_| 0.0);
    for seed in seeds.clone() {
        scenario.seed = u64::from(seed);
        let Ok(played) = compare(scenario, &players, settings, Shard::WHOLE) else { continue };
        for (at, outcome) in played.outcomes().iter().enumerate() {
            shares[at].extend(outcome.share_of_optimum.map(|share| share * 100.0));
            moves[at] += outcome.moves_per_h / f64::from(seeds.end - seeds.start);
        }
    }
    for ((player, shares), moves) in players.iter().zip(&shares).zip(moves) {
        let (mean, half) = mean_and_half_width(shares);
        print!("  {} {mean:6.2} ±{half:4.2} ({moves:5.0})", player.as_str());
    }
    let [fair, activity, benefit] = &shares;
    let better =
        if mean_and_half_width(fair).0 > mean_and_half_width(activity).0 { fair } else { activity };
    // On the same seeds, so that what a seed does to all of them counts for nothing.
    let pairs = benefit.iter().zip(better).map(|(mine, theirs)| mine - theirs);
    let (mean, half) = mean_and_half_width(&pairs.collect::<Vec<f64>>());
    print!("  benefit - better {mean:+6.2} ±{half:4.2}");
}

/// Prints what knowing a second of the future would bring, and the bound of those who do not.
fn bounds(scenario: &mut Scenario, settings: &Settings, seeds: Range<u32>) {
    let mut told = settings.clone();
    told.signal.smoothing = Smoothing::Ewma(0.1);
    let freed = Settings { min_residency_s: 0.0, max_moves: None, ..told.clone() };
    let family = Family::of(scenario);
    let mut shares = [const { Vec::new() }; 5];
    let (mut optima, mut bounds) = (Vec::new(), WORTHS.map(|_| Vec::new()));
    for seed in seeds {
        scenario.seed = u64::from(seed);
        let Ok(played) = compare(scenario, &BENEFIT, settings, Shard::WHOLE) else { continue };
        let (Some(best), Some(limited_us)) =
            (played.hindsight, limited(scenario, settings, played.tallies[0].saved_us))
        else {
            continue;
        };
        let saved_us = [&told, &freed].map(|settings| forecast(scenario, settings));
        let saved_us = saved_us.map(|us| us.unwrap_or(f64::NAN));
        // The bound need not be the best that could be had, which limits do not raise.
        let limited_us = limited_us.min(best.optimum_us);
        let saved_us = saved_us.into_iter().chain([best.static_us, limited_us]);
        let of_optimum = saved_us.map(|us| us / best.optimum_us);
        let of_limited = played.tallies[0].saved_us / limited_us;
        for (shares, share) in shares.iter_mut().zip(of_optimum.chain([of_limited])) {
            shares.push(100.0 * share);
        }
        optima.push(best.optimum_us);
        if let Some(family) = &family {
            for (bounds, bound) in bounds.iter_mut().zip(family.optima_us(scenario)) {
                bounds.push(bound);
            }
        }
    }
    for (name, shares) in ["told", "freed", "static", "limits", "of it"].iter().zip(&shares) {
        let (mean, half) = mean_and_half_width(shares);
        print!("  {name} {mean:6.2} ±{half:4.2}");
    }
    let bound = bounds.iter().filter(|bounds| !bounds.is_empty());
    let bound = bound.map(|bounds| ratio_and_half_width(bounds, &optima));
    match bound.min_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((ratio, half)) => print!("  bound {ratio:6.2} ±{half:4.2}"),
        None => print!("  bound 100, nothing comes by chance"),
    }
}

/// What nobody can exceed who keeps to the settings' residency and moves, whatever he knows [µs].
fn limited(scenario: &Scenario, settings: &Settings, had_us: f64) -> Option<f64> {
    let (mut feed, mut interval) = (MadeUp::new(scenario, 0), Interval::default());
    let mut record = Record::default();
    while feed.next(&mut interval).ok()? {
        interval.set_gains(&scenario.curve);
        record.push(&interval.gain);
    }
    // A second is an interval; what a policy pays for lost packets it pays here.
    let fixed_us = scenario.lost_packets * settings.benefit.loss_us;
    let gains = record.gains(1.0, scenario.switch_s, fixed_us)?;
    let limits = Limits {
        vfs: usize::from(scenario.vfs),
        residency: settings.min_residency_s.ceil() as usize,
        gives: settings.max_moves.map(|most| most as usize),
    };
    Some(bound_us(&gains, limits, had_us))
}

/// What `benefit` collects when each decision knows the rates of the second that it is for [µs]: packets are
/// counted a second before they count.
fn forecast(scenario: &Scenario, settings: &Settings) -> Option<f64> {
    let (mut now, mut next) = (MadeUp::new(scenario, 0), MadeUp::new(scenario, 0));
    let mut host = Host::new(scenario, 0, BENEFIT[0], settings).ok()?;
    let (mut interval, mut ahead) = (Interval::default(), Interval::default());
    next.next(&mut ahead).ok()?;
    while now.next(&mut interval).ok()? {
        interval.set_gains(&scenario.curve);
        next.next(&mut ahead).ok()?;
        interval.pps.clone_from(&ahead.pps);
        host.live(&interval, &|guest| now.name(guest)).ok()?;
    }
    Some(host.tally(&|_| 0).saved_us)
}

/// The ratio of two means [%] and half of its 95 % interval, by its residuals.
fn ratio_and_half_width(values: &[f64], of: &[f64]) -> (f64, f64) {
    let ratio = values.iter().sum::<f64>() / of.iter().sum::<f64>();
    let residuals: Vec<f64> = values.iter().zip(of).map(|(value, of)| value - ratio * of).collect();
    let mean_of = of.iter().sum::<f64>() / of.len() as f64;
    (100.0 * ratio, 100.0 * mean_and_half_width(&residuals).1 / mean_of)
}

/// The mean and half of its 95 % interval, by the normal distribution: seeds are many.
fn mean_and_half_width(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 1.96 * (variance / count).sqrt())
}
