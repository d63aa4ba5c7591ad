//! Background CPU load: busy a set share of the time.

use std::hint::black_box;
use std::time::Duration;

use serde_json::json;

use crate::clock::{self, NANOS_PER_SECOND};
use crate::cpu;
use crate::error::{Error, Result};
use crate::output;
use crate::stop::{self, Lifetime};

/// Makes background CPU load: each thread is busy a set share of the time, and ends by itself.
///
/// The share is of wall time. Where other load keeps a thread from its CPU, it catches up for a
/// tenth of a second; `achieved_load` reports what it got.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe burn --load 0.5 --duration 30\n  \
    pw-probe burn --load 1 --threads 4 --duration 60 --with-parent")]
pub struct Args {
    /// Share of the time to be busy, from 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub load: f64,
    /// How long [s]
    #[arg(long, value_name = "S", value_parser = crate::units::seconds)]
    pub duration: Duration,
    /// Threads, each with this load
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

fn share(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("give a share of the time from 0 to 1, for example 0.5".into()),
    }
}

/// Shortest cycle of work and rest [ns]: below what people notice, above a time slice.
const CYCLE_NS: i64 = 10_000_000;
/// Least work in a cycle [ns]. A wake-up takes an emulated guest 0.3 ms of its CPU, which is more
/// than a share of 2 % in cycles of 10 ms.
const LEAST_WORK_NS: f64 = 2_000_000.0;
/// Most CPU time that a thread catches up [ns].
const MOST_DEBT_NS: i64 = 100_000_000;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    eprintln!("ready");
    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    let end_ns = start_ns.saturating_add_unsigned(args.duration.as_nanos() as u64);
    let busy_ns: i64 = std::thread::scope(|scope| {
        let spawn = |index: u16| {
            // No thread needs a stack of megabytes: 128 guests may burn at once.
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || burn(args.load, start_ns, end_ns))
                .map_err(|error| {
                    Error::failed(format!("cannot start thread {index}"), "give fewer --threads")
                        .caused_by(error)
                })
        };
        let threads = (1..args.threads).map(spawn).collect::<Result<Vec<_>>>()?;
        let busy_ns = burn(args.load, start_ns, end_ns);
        Ok(busy_ns + threads.into_iter().map(|t| t.join().unwrap_or(0)).sum::<i64>())
    })?;
    let duration_ns = clock::monotonic_ns() - start_ns;
    let body = json!({
        "threads": args.threads,
        "started_ns": started_ns,
        "duration_s": duration_ns as f64 / NANOS_PER_SECOND as f64,
        "intended_load": args.load,
        "achieved_load": busy_ns as f64 / duration_ns.max(1) as f64 / f64::from(args.threads),
        "interrupted": stop::requested(),
    });
    output::print("burn", body)
}

/// Burns until `end_ns`; returns the CPU time it got [ns].
///
/// CPU time that other load took is caught up in later cycles, up to [`MOST_DEBT_NS`], as by a
/// program that needs this share of a CPU.
fn burn(load: f64, start_ns: i64, end_ns: i64) -> i64 {
    let before_ns = cpu::thread_cpu_ns();
    let used_ns = || cpu::thread_cpu_ns() - before_ns;
    let length_ns = cycle_length_ns(load);
    let mut forgiven_ns = 0;
    let mut cycle_ns = start_ns;
    let (mut state, mut random) = (1_u64, start_ns.unsigned_abs().max(1));
    while cycle_ns < end_ns && !stop::requested() {
        let next_ns = (cycle_ns + varied_ns(length_ns, &mut random)).min(end_ns);
        let owed_ns = ((next_ns - start_ns) as f64 * load) as i64;
        forgiven_ns = forgiven_ns.max(owed_ns - used_ns() - MOST_DEBT_NS);
        while used_ns() + forgiven_ns < owed_ns
            && clock::monotonic_ns() < end_ns
            && !stop::requested()
        {
            for _ in 0..10_000 {
                state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
        let spent_ns = used_ns() + forgiven_ns;
        clock::sleep_until(rest_until_ns(start_ns, spent_ns, load, next_ns).min(end_ns));
        // Skip the cycles that passed meanwhile.
        let passed = (clock::monotonic_ns() - next_ns).max(0) / length_ns;
        cycle_ns = next_ns + passed * length_ns;
    }
    used_ns()
}

/// Mean length of a cycle of work and rest at a load [ns], at most a second. Pure.
fn cycle_length_ns(load: f64) -> i64 {
    let enough_ns = LEAST_WORK_NS / load.max(LEAST_WORK_NS / NANOS_PER_SECOND as f64);
    CYCLE_NS.max(enough_ns.round() as i64)
}

/// When a thread that used `spent_ns` since `start_ns` works again [ns]: at the end of its cycle, or
/// when its share falls to `load`, whichever is later. Pure.
///
/// On emulated CPUs a wake-up alone may take more than a cycle's work.
fn rest_until_ns(start_ns: i64, spent_ns: i64, load: f64, next_ns: i64) -> i64 {
    if load <= 0.0 {
        return next_ns;
    }
    next_ns.max(start_ns.saturating_add((spent_ns as f64 / load) as i64))
}

/// The length of one cycle [ns], within a quarter of `length_ns`; steps `random`.
///
/// Cycles of one length would stay in step with the tick by which /proc/stat counts: a tick of 4 ms
/// finds cycles of 10 ms, half of them busy, 40 or 60 % busy for good. The random numbers are
/// Marsaglia's xorshift64 (13, 7, 17).
fn varied_ns(length_ns: i64, random: &mut u64) -> i64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let share = (*random >> 32) as f64 / f64::from(u32::MAX);
    length_ns + (length_ns as f64 * 0.5 * (share - 0.5)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_from_0_to_1() {
        assert_eq!(share("0.25"), Ok(0.25));
        for text in ["", "-0.1", "1.1", "nan", "inf", "half"] {
            assert!(share(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_small_share_is_burnt_in_longer_cycles_so_that_waking_is_little_of_it() {
        for (load, cycle_ms) in [(0.0, 1000), (0.001, 1000), (0.02, 100), (0.2, 10), (1.0, 10)] {
            assert_eq!(cycle_length_ns(load), cycle_ms * 1_000_000, "at {load}");
        }
    }

    #[test]
    fn where_waking_costs_more_than_a_cycle_allows_the_share_is_kept_by_longer_rests() {
        const MS: i64 = 1_000_000;
        for (load, waking_ns) in [(0.1, 6 * MS), (0.02, 3 * MS), (0.5, 20 * MS), (0.9, MS / 10)] {
            let (length_ns, start_ns) = (cycle_length_ns(load), 5 * MS);
            let (mut now_ns, mut spent_ns) = (start_ns, 0);
            while now_ns < start_ns + 100_000 * MS {
                let next_ns = now_ns + length_ns;
                spent_ns += waking_ns;
                spent_ns = spent_ns.max(((next_ns - start_ns) as f64 * load) as i64);
                now_ns = rest_until_ns(start_ns, spent_ns, load, next_ns);
            }
            let share = spent_ns as f64 / (now_ns - start_ns) as f64;
            assert!((share / load - 1.0).abs() < 0.01, "{share} for {load}");
        }
        assert_eq!(rest_until_ns(0, 5, 0.0, 7), 7, "no load allows nothing, ever");
    }

    #[test]
    fn cycles_stay_in_step_with_no_tick_and_are_as_long_as_asked_on_average() {
        let (mut at_ns, mut random, mut phases) = (0, 1, [0; 4]);
        for _ in 0..1000 {
            let length_ns = varied_ns(10_000_000, &mut random);
            assert!((7_500_000..=12_500_000).contains(&length_ns));
            at_ns += length_ns;
            phases[(at_ns % 4_000_000 / 1_000_000) as usize] += 1;
        }
        assert!((9_800_000_000..=10_200_000_000).contains(&at_ns), "{at_ns}");
        assert!(phases.iter().all(|count| (200..=300).contains(count)), "{phases:?}");
    }

    #[test]
    fn no_load_burns_no_time_and_ends() {
        let start_ns = clock::monotonic_ns();
        let end_ns = start_ns + 30_000_000;
        let busy_ns = burn(0.0, start_ns, end_ns);
        assert!(clock::monotonic_ns() >= end_ns);
        assert!(busy_ns < 15_000_000, "{busy_ns} ns");
    }
}
