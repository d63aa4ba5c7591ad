//! CPU time by mode, in mpstat's columns, and the softirq layer's own drops.
//!
//! Source: /proc/stat (proc(5)) in ticks, and /proc/net/softnet_stat (one hexadecimal line a CPU).
//! The kernel counts guest time within `user` and `nice` too; as in mpstat it is taken out there,
//! so that the shares add up to 1.
//!
//! A kernel that stops its tick on idle CPUs (NO_HZ) times idleness by the clock and counts ticks of
//! the other modes; the transition between the two, microseconds in a virtual machine, is in
//! neither. mpstat divides by the sum of the modes, which makes all of them larger; here shares are
//! of the time that passed, and the time that no counter has is `unaccounted`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use crate::clock;
use crate::error::{Error, Result};
use crate::output;
use crate::stop::{self, Lifetime};

/// Modes of CPU time: mpstat's columns.
const MODES: [&str; 10] =
    ["usr", "nice", "sys", "iowait", "irq", "soft", "steal", "guest", "gnice", "idle"];

/// Ticks by mode, as the kernel has counted them since boot.
type Ticks = [u64; MODES.len()];

/// Shares of the time by mode and `unaccounted` (in no mode), each from 0 to 1, together 1.
pub type Shares = BTreeMap<&'static str, f64>;

/// One CPU's shares.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuShares {
    /// Number of the CPU.
    pub cpu: usize,
    /// Its shares.
    #[serde(flatten)]
    pub shares: Shares,
}

/// What the softirq layer did in the interval, over all CPUs and all namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    /// Frames dropped because a CPU's backlog (net.core.netdev_max_backlog) was full.
    pub dropped: u64,
    /// Times that polling stopped with work left (net.core.netdev_budget).
    pub squeezed: u64,
}

/// The field `cpu` beside every trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuUsage {
    /// Shares of the time of all CPUs together.
    pub all: Shares,
    /// Shares of each CPU that was online at both ends.
    pub per_cpu: Vec<CpuShares>,
    /// The softirq layer's drops; none where the kernel does not report them.
    pub softnet: Option<Softnet>,
}

/// A reading of the counters; two of them give a [`CpuUsage`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// When it was taken [ns of the monotonic clock].
    at_ns: i64,
    all: Ticks,
    per_cpu: BTreeMap<usize, Ticks>,
    softnet: Option<Softnet>,
}

impl CpuSample {
    /// Reads the counters now.
    ///
    /// # Errors
    /// /proc is not mounted, or is not Linux's.
    pub fn now() -> Result<Self> {
        let (at_ns, text) = (clock::monotonic_ns(), read("/proc/stat")?);
        let mut sample = parse_stat(&text).ok_or_else(|| {
            Error::failed("/proc/stat has no line 'cpu' with numbers", "is /proc Linux's own?")
        })?;
        sample.at_ns = at_ns;
        sample.softnet =
            std::fs::read_to_string("/proc/net/softnet_stat").ok().and_then(|s| parse_softnet(&s));
        Ok(sample)
    }

    /// The usage since this reading.
    ///
    /// # Errors
    /// As [`now`](Self::now).
    pub fn usage(&self) -> Result<CpuUsage> {
        Ok(Self::now()?.since(self))
    }

    /// The usage between `earlier` and this reading.
    ///
    /// iowait may fall on its own (proc(5)); a counter that fell counts as unchanged.
    fn since(&self, earlier: &Self) -> CpuUsage {
        let ticks = (self.at_ns - earlier.at_ns).max(0) as f64 / 1e9 * ticks_per_second();
        let per_cpu = self.per_cpu.iter().filter_map(|(&cpu, now)| {
            let shares = shares(earlier.per_cpu.get(&cpu)?, now, ticks);
            Some(CpuShares { cpu, shares })
        });
        let per_cpu: Vec<_> = per_cpu.collect();
        CpuUsage {
            all: shares(&earlier.all, &self.all, ticks * per_cpu.len() as f64),
            per_cpu,
            softnet: self.softnet.zip(earlier.softnet).map(|(now, before)| Softnet {
                dropped: now.dropped.wrapping_sub(before.dropped),
                squeezed: now.squeezed.wrapping_sub(before.squeezed),
            }),
        }
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::failed(format!("cannot read {path}"), "mount /proc: mount -t proc proc /proc")
            .caused_by(error)
    })
}

/// Reads /proc/stat; none when the line of all CPUs is missing or has no numbers.
fn parse_stat(text: &str) -> Option<CpuSample> {
    let mut sample = CpuSample::default();
    let mut has_all = false;
    for line in text.lines() {
        let Some(line) = line.strip_prefix("cpu") else { continue };
        let Some((name, fields)) = line.split_once(' ') else { continue };
        let Some(ticks) = parse_ticks(fields) else { continue };
        if name.is_empty() {
            sample.all = ticks;
            has_all = true;
        } else if let Ok(cpu) = name.parse() {
            sample.per_cpu.insert(cpu, ticks);
        }
    }
    has_all.then_some(sample)
}

/// The columns of proc(5): user nice system idle iowait irq softirq steal guest guest_nice. Old
/// kernels lack the last ones.
fn parse_ticks(fields: &str) -> Option<Ticks> {
    let mut columns = [0_u64; 10];
    let mut count = 0;
    for (column, field) in columns.iter_mut().zip(fields.split_ascii_whitespace()) {
        *column = field.parse().ok()?;
        count += 1;
    }
    if count < 4 {
        return None;
    }
    let [user, nice, sys, idle, iowait, irq, soft, steal, guest, gnice] = columns;
    let (usr, nice) = (user.saturating_sub(guest), nice.saturating_sub(gnice));
    Some([usr, nice, sys, iowait, irq, soft, steal, guest, gnice, idle])
}

/// Reads /proc/net/softnet_stat: the second and third column of every CPU, summed up. Each is a
/// 32-bit counter; the sum is kept to 32 bits too, so that differences survive a wrap.
fn parse_softnet(text: &str) -> Option<Softnet> {
    let mut sum = Softnet::default();
    for line in text.lines() {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let mut next = || u64::from_str_radix(columns.next()?, 16).ok();
        sum.dropped = sum.dropped.wrapping_add(next()?);
        sum.squeezed = sum.squeezed.wrapping_add(next()?);
    }
    Some(sum)
}

/// The shares of a CPU, or of all together, in an interval of `ticks`. Pure.
///
/// Where the counters, each rounded by itself, add up to more than the interval, their sum counts.
fn shares(before: &Ticks, after: &Ticks, ticks: f64) -> Shares {
    let spent: [f64; 10] = std::array::from_fn(|i| after[i].saturating_sub(before[i]) as f64);
    let accounted: f64 = spent.iter().sum();
    let total = accounted.max(ticks);
    let share = |ticks: f64| if total > 0.0 { ticks / total } else { 0.0 };
    let unaccounted = [("unaccounted", share(total - accounted))];
    MODES.into_iter().zip(spent.map(share)).chain(unaccounted).collect()
}

/// USER_HZ, in which /proc/stat counts.
fn ticks_per_second() -> f64 {
    match nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK) {
        Ok(Some(ticks)) if ticks > 0 => ticks as f64,
        _ => 100.0,
    }
}

/// CPU time that the calling thread has used so far [ns].
pub fn thread_cpu_ns() -> i64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, clock::timespec_ns)
}

/// CPU time by mode over an interval, of this host, in mpstat's columns.
///
/// Shares run from 0 to 1; steal (time that the hypervisor gave to others) and softirq (most of the
/// kernel's network path) are among them. The kernel counts in ticks of 10 ms or so: below a second
/// the figures are coarse.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe cpu --duration 5\n  \
    pw-probe cpu                  until Ctrl-C")]
pub struct Args {
    /// How long to measure [s]; without it until SIGINT or SIGTERM
    #[arg(long, value_name = "S", value_parser = crate::units::seconds)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    let before = CpuSample::now()?;
    let end_ns = clock::end_ns(start_ns, args.duration);
    while !stop::requested() && clock::monotonic_ns() < end_ns {
        clock::sleep_until(end_ns.min(clock::monotonic_ns() + clock::NANOS_PER_SECOND));
    }
    let duration_s = (clock::monotonic_ns() - start_ns) as f64 / 1e9;
    let body = json!({
        "started_ns": started_ns,
        "duration_s": duration_s,
        "interrupted": args.duration.is_some() && stop::requested(),
        "cpu": before.usage()?,
    });
    output::print("cpu", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  100 0 50 800 10 0 5 20 40 0\ncpu0 50 0 25 400 5 0 2 10 20 0\n\
        cpu3 50 0 25 400 5 0 3 10 20 0\nintr 1 2 3\nctxt 5\n";
    const AFTER: &str = "cpu  200 0 100 1500 5 0 105 70 90 0\ncpu0 100 0 50 700 5 0 52 60 45 0\n\
        cpu3 100 0 50 800 0 0 53 10 45 0\nintr 1 2 3\nctxt 5\n";

    #[test]
    fn shares_are_mpstats_columns_and_add_up() {
        let (before, after) = (parse_stat(BEFORE), parse_stat(AFTER));
        let usage = after.expect("valid").since(&before.expect("valid"));
        // usr 100−50 guest, sys 50, idle 700, iowait fell, soft 100, steal 50, guest 50.
        for (mode, share) in [
            ("usr", 0.05),
            ("soft", 0.1),
            ("steal", 0.05),
            ("guest", 0.05),
            ("iowait", 0.0),
            ("idle", 0.7),
        ] {
            assert_eq!(usage.all[mode], share, "{mode}");
        }
        assert_eq!(usage.per_cpu.iter().map(|c| c.cpu).collect::<Vec<_>>(), [0, 3]);
    }

    #[test]
    fn shares_are_of_the_time_that_passed_and_what_no_counter_tells_of_is_of_no_mode() {
        let before = parse_ticks("0 0 0 0 0 0 0 0").expect("valid");
        let after = parse_ticks("500 0 20 360 0 0 20 30").expect("valid");
        let usage = shares(&before, &after, 1000.0);
        let shares_of = ["usr", "sys", "soft", "steal", "idle"].map(|mode| usage[mode]);
        assert_eq!(shares_of, [0.5, 0.02, 0.02, 0.03, 0.36]);
        assert!((usage["unaccounted"] - 0.07).abs() < 1e-12, "{usage:?}");
        // Counters are rounded up and down, each by itself.
        let usage = shares(&before, &after, 900.0);
        assert_eq!((usage["usr"], usage["unaccounted"]), (500.0 / 930.0, 0.0));
    }

    #[test]
    fn softnet_columns_are_hexadecimal_and_summed_over_cpus() {
        let text = "0000ff00 0000000a 00000001 0\n00000001 00000010 00000000 0\n";
        assert_eq!(parse_softnet(text), Some(Softnet { dropped: 26, squeezed: 1 }));
        assert_eq!(parse_softnet("1 x 2\n"), None);
    }

    #[test]
    fn the_line_of_all_cpus_must_be_there() {
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("cpu0 1 2 3 4\n"), None);
        assert_eq!(parse_stat("cpu  1 2 x 4\n"), None);
        assert!(parse_stat("cpu  1 2 3 4\n").is_some(), "a kernel of old has four columns");
    }

    #[test]
    fn this_machines_shares_add_up_to_one() {
        let before = CpuSample::now().expect("Linux");
        std::thread::sleep(Duration::from_millis(50));
        let usage = CpuSample::now().expect("Linux").since(&before);
        let sum: f64 = usage.all.values().sum();
        assert!((sum - 1.0).abs() < 1e-9, "{usage:?}");
        assert!(!usage.per_cpu.is_empty());
    }

    #[test]
    fn whatever_the_text_shares_stay_between_0_and_1() {
        pw_cases::check!().with_type::<(String, Vec<[u64; 10]>)>().for_each(|(text, rows)| {
            let _ = parse_softnet(text);
            let mut samples: Vec<_> = rows
                .iter()
                .map(|row| format!("cpu  {}\n", row.map(|v| v.to_string()).join(" ")))
                .filter_map(|line| parse_stat(&line))
                .collect();
            samples.extend(parse_stat(text));
            samples.extend(parse_stat(&format!("cpu {text}")));
            for pair in samples.windows(2) {
                let shares = pair[1].since(&pair[0]).all;
                assert!(shares.values().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
            }
        });
    }
}
