//! `planewised simulate`: simulates the policies under given traffic. Changes nothing.

use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pw_alloc::replay;
use pw_alloc::settings::Settings;
use pw_alloc::simulate::trace::{FrameMix, Trace};
use pw_alloc::simulate::{self, Outcome, PLAYERS, Played, Player, Scenario, Shard};
use pw_error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::daemon::{config, profile};
use crate::output;

/// Play traffic against all policies, in a made-up host.
///
/// Latencies are a model: a constant on a VF, and the gain curve above it on the paravirtual path.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A built-in scenario: flexvf, flexvf-ftp-quiet, flexvf-ftp-busy, flapping, crossing, bursts,
    /// heavy-tail, diurnal or download.
    #[arg(default_value = "flexvf")]
    scenario: String,
    /// Read the scenario from this TOML file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "scenario")]
    file: Option<PathBuf>,
    /// Play this trace (CSV: time_s, guest, pps or bytes_per_s; `-`: from stdin) on a host of --vfs VFs.
    #[arg(long, value_name = "FILE", requires = "vfs", conflicts_with_all = ["scenario", "file", "shard"])]
    trace: Option<PathBuf>,
    /// Frame sizes of a trace whose rates are bytes, each with its share of the frames: 64:7,594:4,1518:1.
    #[arg(long, value_name = "SIZES", requires = "trace")]
    mix: Option<FrameMix>,
    /// VFs of the host.
    #[arg(long, value_name = "N")]
    vfs: Option<u16>,
    /// Take gain and price of a switch from this gain profile.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// How long to play [s].
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u32>,
    /// Seed of random draws.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of such hosts.
    #[arg(long, value_name = "N")]
    hosts: Option<u32>,
    #[arg(long = "policy", value_name = "NAME", value_parser = player,
        help = format!("Play only this policy (again for more): {}", names()))]
    players: Vec<Player>,
    /// As FlexVF decides: no limit to the moves of an interval, no residency.
    #[arg(long)]
    unbounded: bool,
    /// Play every N-th host only, from the I-th on, and print JSON for --merge.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Add up the output of all shards.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["scenario", "file", "trace", "shard"])]
    merge: Vec<PathBuf>,
    /// Decide again on a daemon's recording (`recording` in its configuration), and compare the plans.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "file", "trace", "shard", "merge"])]
    recording: Option<PathBuf>,
    /// Print JSON, of --merge too.
    #[arg(long)]
    json: bool,
}

fn player(name: &str) -> std::result::Result<Player, String> {
    let player = PLAYERS.into_iter().find(|player| player.as_str() == name);
    player.ok_or_else(|| format!("there is no policy of that name; choose one of {}", names()))
}

fn names() -> String {
    PLAYERS.map(Player::as_str).join(", ")
}

#[derive(Debug, Serialize)]
struct Body {
    scenario: Scenario,
    settings: Settings,
    /// Most that could have been saved, less switches [µs/s]; none where unknown.
    optimum_us_per_s: Option<f64>,
    /// Most that could have been saved without moves after the first second [µs/s].
    static_us_per_s: Option<f64>,
    outcomes: Vec<Outcome>,
}

impl Body {
    fn new(scenario: Scenario, settings: Settings, played: &Played) -> Self {
        let by_second = |us: f64| us / played.seconds;
        Self {
            scenario,
            settings,
            optimum_us_per_s: played.hindsight.map(|best| by_second(best.optimum_us)),
            static_us_per_s: played.hindsight.map(|best| by_second(best.static_us)),
            outcomes: played.outcomes(),
        }
    }
}

/// Output of a shard.
#[derive(Debug, Serialize, Deserialize)]
struct ShardBody {
    scenario: Scenario,
    settings: Settings,
    shard: Shard,
    played: Played,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if !args.merge.is_empty() {
        return output::print("simulate", &merge(&args.merge)?, args.json, text);
    }
    if let Some(path) = &args.recording {
        return play_recording(path, args.json);
    }
    let scenario = scenario(args)?;
    let mut settings = Settings::default();
    if args.unbounded {
        settings.max_moves = None;
        settings.min_residency_s = 0.0;
    }
    let players = if args.players.is_empty() { &PLAYERS[..] } else { &args.players };
    if let Some(path) = &args.trace {
        let played = play_trace(path, args.mix, &scenario, players, &settings)?;
        return output::print("simulate", &Body::new(scenario, settings, &played), args.json, text);
    }
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    let played = on_all_cpus(&scenario, players, &settings, shard)?;
    match args.shard {
        Some(shard) => {
            let body = ShardBody { scenario, settings, shard, played };
            output::print("simulate", &body, true, |_| String::new())
        }
        None => output::print("simulate", &Body::new(scenario, settings, &played), args.json, text),
    }
}

/// Plays the hosts on all CPUs that this process may use. Prints the time left on a terminal.
fn on_all_cpus(
    scenario: &Scenario,
    players: &[Player],
    settings: &Settings,
    shard: Shard,
) -> Result<Played> {
    let hosts = shard.hosts(scenario.hosts);
    let cpus =
        thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32).min(hosts.max(1));
    let done = AtomicU32::new(0);
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        if std::io::stderr().is_terminal() {
            scope.spawn(|| print_progress(&done, hosts, ended));
        }
        let played = simulate::compare(cpus, scenario, players, settings, shard, &done);
        drop(end);
        played
    })
}

/// Prints the progress each second, until the other end of `ended` is dropped.
fn print_progress(done: &AtomicU32, hosts: u32, ended: mpsc::Receiver<()>) {
    const CLEAR_LINE: &str = "\r\x1b[K";
    let began = Instant::now();
    while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        let share = f64::from(done.load(Ordering::Relaxed)) / f64::from(hosts);
        if share > 0.0 && began.elapsed().as_secs() >= 2 {
            let left_s = began.elapsed().as_secs_f64() * (1.0 / share - 1.0);
            eprint!("{CLEAR_LINE}{:.0} % played, {left_s:.0} s left", share * 100.0);
        }
    }
    eprint!("{CLEAR_LINE}");
}

/// Replays a recording. Fails where a plan differs.
fn play_recording(path: &Path, json: bool) -> Result<()> {
    let file = File::open(path).map_err(|error| {
        Error::bad_input(
            format!("cannot read {}", path.display()),
            "give the file that `recording` in planewised's configuration names",
        )
        .caused_by(error)
    })?;
    let replayed = replay::replay(&shown(path), BufReader::new(file))?;
    if let Some((line, recorded, anew)) = &replayed.difference {
        return Err(Error::failed(
            format!("{}:{line}: recorded was {recorded}, decided anew is {anew}", path.display()),
            "another version of planewised recorded this, or this one has a fault: report it",
        ));
    }
    output::print("replay", &replayed, json, |done| {
        format!(
            "{} readings, {} decisions, {} of them with moves: decided anew, every plan is the same.",
            done.readings, done.decisions, done.plans
        )
    })
}

fn scenario(args: &Args) -> Result<Scenario> {
    let mut scenario = match &args.file {
        Some(path) => config::read(&read(path, "a scenario in TOML")?, &shown(path))?,
        None => Scenario::named(&args.scenario)?,
    };
    if args.trace.is_some() {
        // Guests and times are the trace's.
        (scenario.groups, scenario.duration_s) = (Vec::new(), 0);
    }
    scenario.vfs = args.vfs.unwrap_or(scenario.vfs);
    scenario.hosts = args.hosts.unwrap_or(scenario.hosts);
    scenario.duration_s = args.duration.unwrap_or(scenario.duration_s);
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if let Some(path) = &args.profile {
        let gain = profile::parse(&read(path, "a gain profile")?, &shown(path), None)?;
        scenario.curve = gain.curve;
        if let Some(switch) = gain.switch {
            scenario.switch_s = switch.plug_s + switch.unplug_s;
        }
    }
    Ok(scenario)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn read(path: &Path, what: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::bad_input(
            format!("cannot read {}: {error}", path.display()),
            format!("give the path of {what} (docs/reference/alloc.md)"),
        )
    })
}

fn play_trace(
    path: &Path,
    mix: Option<FrameMix>,
    scenario: &Scenario,
    players: &[Player],
    settings: &Settings,
) -> Result<Played> {
    scenario.check_host()?;
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(path).map_err(|error| {
            Error::bad_input(
                format!("cannot read {}", path.display()),
                "give the path of a trace in CSV (docs/reference/alloc.md)",
            )
            .caused_by(error)
        })?)
    };
    let mut trace = Trace::new(&shown(path), input, mix)?;
    let mut played = simulate::play(&mut trace, scenario, 0, players, settings, &|_| 0, true)?;
    played.groups = vec!["trace".into()];
    Ok(played)
}

/// Adds shards up.
fn merge(paths: &[PathBuf]) -> Result<Body> {
    let remedy = "give what each `planewised simulate … --shard I/N` of one simulation printed";
    let mut sum: Option<ShardBody> = None;
    let mut numbers = Vec::new();
    for path in paths {
        let wrong = |what: &str| Error::bad_input(format!("{}: {what}", path.display()), remedy);
        let text = read(path, "a shard's output")?;
        let part: ShardBody = serde_json::from_str(&text)
            .map_err(|error| wrong(&format!("this is not a shard's output: {error}")))?;
        if numbers.contains(&part.shard.number) {
            return Err(wrong(&format!("shard {} is there twice", part.shard.number)));
        }
        numbers.push(part.shard.number);
        match &mut sum {
            None => sum = Some(part),
            Some(sum) => {
                let players = |body: &ShardBody| {
                    body.played.tallies.iter().map(|tally| tally.player).collect::<Vec<_>>()
                };
                if (&sum.scenario, &sum.settings, sum.shard.of)
                    != (&part.scenario, &part.settings, part.shard.of)
                    || players(sum) != players(&part)
                {
                    return Err(wrong("it is a shard of another simulation"));
                }
                sum.played.add(part.played);
            }
        }
    }
    let Some(sum) = sum else { return Err(Error::bad_input("there are no shards", remedy)) };
    if numbers.len() < sum.shard.of as usize {
        let missing: Vec<String> = (1..=sum.shard.of)
            .filter(|number| !numbers.contains(number))
            .map(|number| number.to_string())
            .collect();
        let what = format!("shards {} of {} are missing", missing.join(", "), sum.shard.of);
        return Err(Error::bad_input(what, remedy));
    }
    Ok(Body::new(sum.scenario, sum.settings, &sum.played))
}

/// Groups beside each other in 80 columns.
const GROUPS_A_LINE: usize = 4;

fn text(body: &Body) -> String {
    let mut lines = vec![format!(
        "{:<12} {:>9} {:>10} {:>9} {:>9} {:>9} {:>8}",
        "", "mean µs", "of optimum", "of static", "moves/h", "longest s", "fairness"
    )];
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "not known".into(), |share| format!("{:.1} %", share * 100.0))
    };
    for outcome in &body.outcomes {
        lines.push(format!(
            "{:<12} {:>9.1} {:>10} {:>9} {:>9.1} {:>9} {:>8}",
            outcome.player.as_str(),
            outcome.mean_latency_us,
            percent(outcome.share_of_optimum),
            percent(outcome.share_of_static),
            outcome.moves_per_h,
            outcome.longest_wait_s,
            outcome.fairness.map_or_else(String::new, |index| format!("{index:.2}")),
        ));
    }
    lines.push(String::new());
    lines.push("median latency by group [µs] (share of time on a VF)".into());
    let groups = body.outcomes.first().map_or(0, |outcome| outcome.groups.len());
    for first in (0..groups).step_by(GROUPS_A_LINE) {
        let last = groups.min(first + GROUPS_A_LINE);
        let cells = |words: Vec<String>| -> Vec<String> {
            words.iter().map(|word| format!(" {word:>16}")).collect()
        };
        let names = body.outcomes[0].groups[first..last].iter().map(|group| group.name.clone());
        lines.push(format!("{:<12}{}", "", cells(names.collect()).concat()));
        for outcome in &body.outcomes {
            let values = outcome.groups[first..last].iter().map(|group| {
                match (group.latency_us, group.vf_share) {
                    (Some(latency), Some(share)) => {
                        format!("{:.1} ({:.0} %)", latency.median, share.median * 100.0)
                    }
                    _ => "-".into(),
                }
            });
            lines.push(format!(
                "{:<12}{}",
                outcome.player.as_str(),
                cells(values.collect()).concat()
            ));
        }
    }
    let shipped = simulate::built_in().unwrap_or_default();
    if let Some(built_in) = shipped.iter().find(|shipped| shipped.of.groups == body.scenario.groups)
    {
        lines.push(format!(
            "{}. Latencies are a model, moves and shares are the real code's.",
            built_in.about
        ));
    }
    lines.join("\n")
}
