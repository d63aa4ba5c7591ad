//! `planewised simulate`: what the policies would do with given traffic. Touches nothing.

use std::path::PathBuf;

use pw_alloc::settings::Settings;
use pw_alloc::simulate::{Outcome, PLAYERS, SCENARIOS, Scenario, compare};
use pw_linux::error::{Error, Result};
use serde::Serialize;

use crate::output;

/// Play traffic against all policies, in a made-up host.
///
/// Latencies are a model: a constant on a VF, and the gain curve above it on the paravirtual path.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A built-in scenario: flexvf, flexvf-ftp-quiet, flexvf-ftp-busy, flapping, bursts,
    /// heavy-tail or diurnal.
    #[arg(default_value = "flexvf")]
    scenario: String,
    /// Read the scenario from this TOML file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "scenario")]
    file: Option<PathBuf>,
    /// How long to play [s].
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u32>,
    /// For what is random.
    #[arg(long)]
    seed: Option<u64>,
    /// As FlexVF decides: no limit to the moves of an interval, no residency.
    #[arg(long)]
    unbounded: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Body {
    scenario: Scenario,
    settings: Settings,
    /// The most that could have been saved, switches paid [µs/s]; none where it is not known.
    optimum_us_per_s: Option<f64>,
    outcomes: Vec<Outcome>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let mut scenario = match &args.file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Error::bad_input(
                    format!("cannot read {}: {error}", path.display()),
                    "give the path of a scenario in TOML (docs/reference/alloc.md)",
                )
            })?;
            crate::daemon::config::read(&text, &path.display().to_string())?
        }
        None => Scenario::named(&args.scenario).map_err(bad_input)?,
    };
    scenario.duration_s = args.duration.unwrap_or(scenario.duration_s);
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let mut settings = Settings::default();
    if args.unbounded {
        settings.max_moves = None;
        settings.min_residency_s = 0.0;
    }
    let (outcomes, optimum) = compare(&scenario, &PLAYERS, &settings).map_err(bad_input)?;
    let optimum_us_per_s = optimum.map(|best| best.gain_us / f64::from(scenario.duration_s));
    let body = Body { scenario, settings, optimum_us_per_s, outcomes };
    output::print("simulate", &body, args.json, text)
}

/// An error of the pure crate, as one about the user's input.
pub fn bad_input(error: pw_alloc::Error) -> Error {
    Error::bad_input(error.what, error.remedy)
}

fn text(body: &Body) -> String {
    let mut lines = vec![format!(
        "{:<12} {:>9} {:>10} {:>9} {:>9}   median latency by group [µs] (share of time on a VF)",
        "", "mean µs", "of optimum", "moves/h", "longest s"
    )];
    for outcome in &body.outcomes {
        let groups: Vec<String> = outcome
            .groups
            .iter()
            .filter_map(|group| {
                let (latency, share) = (group.latency_us?, group.vf_share?);
                let name = &group.name;
                Some(format!("{name} {:.1} ({:.0} %)", latency.median, share.median * 100.0))
            })
            .collect();
        let share = outcome
            .share_of_optimum
            .map_or_else(|| "not known".into(), |share| format!("{:.1} %", share * 100.0));
        lines.push(format!(
            "{:<12} {:>9.1} {:>10} {:>9.1} {:>9}   {}",
            outcome.player,
            outcome.mean_latency_us,
            share,
            outcome.moves_per_h,
            outcome.longest_wait_s,
            groups.join(", ")
        ));
    }
    if let Some((_, what)) = SCENARIOS.iter().find(|(name, _)| {
        Scenario::named(name).is_ok_and(|named| named.groups == body.scenario.groups)
    }) {
        lines.push(format!("{what}. Latencies are a model, moves and shares are the real code's."));
    }
    lines.join("\n")
}
