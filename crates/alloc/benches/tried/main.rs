//! Online policies that were tried beside `benefit` (`pw_alloc::patience`): what share of the optimum simple versions
//! of them collect, switches paid, on the same families and seeds, mean and half of its 95 % interval, VFs given an
//! hour, and the points by which each differs from `benefit` on the same seeds. `smoothed` is `benefit` with
//! rates over a second and more, where its own and those of all others are those of the last second. Prints figures; never passes or fails.
//!
//! Run: cargo bench -p pw-alloc --bench tried -- [SEEDS [SECONDS [SWITCH_S [FAMILY [ROUGH [POLICY]]]]]]
//! where SWITCH_S is how long a switch takes (FlexVF: 0.696 s), an empty FAMILY stands for all, ROUGH is the share by
//! which chance changes rates and periods (0), and of the policies those are played whose names begin with POLICY.

mod forecast;
mod game;
mod landlord;
mod rental;
mod rough;

use std::time::Instant;

use forecast::{Forecast, Predictive};
use game::{Game, Policy};
use landlord::{Landlord, Rent};
use pw_alloc::Settings;
use pw_alloc::optimum::Gains;
use pw_alloc::settings::PolicyKind;
use pw_alloc::signal::Smoothing;
use pw_alloc::simulate::{Feed, Interval, Played, Player, Record, Scenario, built_in, play};
use rental::{SkiRental, Thresholds};
use rough::Rough;

const BENEFIT: [Player; 1] = [Player::Policy(PolicyKind::Benefit)];
const HORIZONS_S: [usize; 3] = [5, 10, 20];
const SEASONED_HORIZONS_S: [usize; 3] = [20, 60, 120];

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let seeds: u32 = word(0).parse().unwrap_or(200);
    let seconds: u32 = word(1).parse().unwrap_or(1_800);
    let switch_s: f64 = word(2).parse().unwrap_or(0.696);
    let rough: f64 = word(4).parse().unwrap_or(0.0);
    println!(
        "seeds 1 to {seeds} of {seconds} s, {switch_s} s a switch; share of the optimum in %, VFs given an hour, \
         points more than benefit"
    );
    for shipped in built_in().unwrap_or_default() {
        // In FlexVF's other families nothing moves, either.
        let alike = shipped.name.starts_with("flexvf-");
        if if word(3).is_empty() { alike } else { word(3) != shipped.name } {
            continue;
        }
        let (began, mut scenario) = (Instant::now(), shipped.of);
        (scenario.duration_s, scenario.switch_s) = (seconds, switch_s);
        let mut table: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
        for seed in 1..=seeds {
            scenario.seed = u64::from(seed);
            let Some(fared) = shares(&scenario, rough, word(5)) else { continue };
            table.resize(fared.len(), Default::default());
            for (row, (name, share)) in table.iter_mut().zip(fared) {
                row.0 = name;
                row.1.push(share);
            }
        }
        println!("{} ({:.1} s)", shipped.name, began.elapsed().as_secs_f64());
        for (name, fared) in &table {
            let (mean, half) = mean_and_half_width(fared.iter().map(|[share, _]| *share));
            let moves = fared.iter().map(|[_, moves]| moves).sum::<f64>() / fared.len() as f64;
            // On the same seeds, so that what a seed does to all of them counts for nothing.
            let pairs = fared.iter().zip(&table[0].1).map(|(mine, benefit)| mine[0] - benefit[0]);
            let (more, of) = mean_and_half_width(pairs);
            println!("  {name:<24} {mean:6.2} ±{half:4.2} ({moves:5.0})  {more:+6.2} ±{of:4.2}");
        }
    }
}

/// Each policy's share of the optimum [%] and VFs given an hour, `benefit` first. None where it cannot be told.
fn shares(scenario: &Scenario, rough: f64, begins: &str) -> Option<Vec<(String, [f64; 2])>> {
    let settings = Settings::default();
    let mut smoothed = settings.clone();
    smoothed.signal.smoothing = Smoothing::Ewma(1.0);
    let with_benefit = product(scenario, &settings, rough, true)?;
    let optimum_us = with_benefit.hindsight?.optimum_us;
    let hours = f64::from(scenario.duration_s) / 3600.0;
    let fared = |us: f64, gives: usize| [100.0 * us / optimum_us, gives as f64 / hours];
    let mut all = Vec::new();
    for (name, played) in
        [("benefit", with_benefit), ("smoothed", product(scenario, &smoothed, rough, false)?)]
    {
        all.push((name.to_owned(), fared(played.tallies[0].saved_us, played.tallies[0].moves)));
    }
    let gains = gains(scenario, rough)?;
    let game = Game {
        vfs: usize::from(scenario.vfs),
        residency: settings.min_residency_s.ceil() as usize,
        gives: settings.max_moves.map_or(usize::MAX, |most| most as usize),
    };
    for (name, mut policy) in policies(scenario, &game) {
        if name.starts_with(begins) {
            let (us, gives) = game.play(&gains, policy.as_mut());
            all.push((name, fared(us, gives)));
        }
    }
    Some(all)
}

/// What the product makes of this host.
fn product(
    scenario: &Scenario,
    settings: &Settings,
    rough: f64,
    look_back: bool,
) -> Option<Played> {
    let mut feed = Rough::new(scenario, rough);
    play(&mut feed, scenario, 0, &BENEFIT, settings, &|_| 0, look_back).ok()
}

fn gains(scenario: &Scenario, rough: f64) -> Option<Gains> {
    let (mut feed, mut interval) = (Rough::new(scenario, rough), Interval::default());
    let mut record = Record::default();
    while feed.next(&mut interval).ok()? {
        interval.set_gains(&scenario.curve);
        record.push(&interval.gain);
    }
    record.gains(1.0, scenario.switch_s, 0.0)
}

fn policies(scenario: &Scenario, game: &Game) -> Vec<(String, Box<dyn Policy>)> {
    let (guests, switch_s) = (scenario.guests(), scenario.switch_s);
    let mut all: Vec<(String, Box<dyn Policy>)> = Vec::new();
    let forecasts = [
        ("persistence", Forecast::Persistence),
        ("half-life 1 s", Forecast::HalfLife(1.0)),
        ("half-life 3 s", Forecast::HalfLife(3.0)),
        ("half-life 10 s", Forecast::HalfLife(10.0)),
        ("seasonal", Forecast::Seasonal),
    ];
    for (name, forecast) in forecasts {
        for horizon in HORIZONS_S {
            let policy = Predictive::new(forecast, horizon, guests, switch_s, game.residency);
            all.push((format!("{name}, {horizon} s"), Box::new(policy)));
        }
    }
    for horizon in SEASONED_HORIZONS_S {
        let learned = Thresholds::learned((0..guests).collect(), true);
        let seasonal =
            Predictive::new(Forecast::Seasonal, horizon, guests, switch_s, game.residency);
        let policy = seasonal.or(SkiRental::new(learned, guests, switch_s));
        all.push((format!("season or rental, {horizon} s"), Box::new(policy)));
    }
    let groups = scenario.group_of_guests();
    let rules = [
        ("rental, 1 price", Thresholds::Fixed(1.0)),
        ("rental, 2 prices", Thresholds::Fixed(2.0)),
        ("rental, dice to 1 price", Thresholds::drawn(1.0, scenario.seed)),
        ("rental, dice to 2 prices", Thresholds::drawn(2.0, scenario.seed)),
        ("rental, learned by guest", Thresholds::learned((0..guests).collect(), true)),
        ("rental, learned by class", Thresholds::learned(groups, false)),
        ("rental, learned for all", Thresholds::learned(vec![0; guests], false)),
    ];
    for (name, thresholds) in rules {
        all.push((name.to_owned(), Box::new(SkiRental::new(thresholds, guests, switch_s))));
    }
    for (name, rent) in [("landlord, by request", Rent::Request), ("landlord, by cut", Rent::Cut)] {
        all.push((name.to_owned(), Box::new(Landlord::new(rent, guests, game.vfs, switch_s))));
    }
    all
}

/// The mean and half of its 95 % interval, by the normal distribution: seeds are many.
fn mean_and_half_width(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 1.96 * (variance / count).sqrt())
}
