//! The gain that `planewise boost` measured, as a file: TOML, checked against this host.

use pw_alloc::gain::{GainCurve, Point};
use pw_alloc::settings::BenefitSettings;
use pw_error::{Error, Result};
use serde::Deserialize;

use crate::daemon::config;

/// The newest format that this daemon reads; the first one knew no price of a switch.
const FORMAT: u32 = 2;

/// The keys that files of all formats have.
#[derive(Deserialize)]
struct Head {
    format: u32,
    kind: String,
}

/// The whole file (docs/reference/gain-profile.md); other keys are ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Profile {
    run: String,
    slow: String,
    fast: String,
    #[serde(default)]
    emulated: String,
    host: Host,
    curve: Vec<Measured>,
    switch: Option<Switch>,
}

/// Measured cost of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// VFs given that were measured.
    pub gives: u64,
    /// VFs taken back that were measured.
    pub takes: u64,
    /// From the order to plug until the guest sends by its VF, mean [s].
    pub plug_s: f64,
    /// From the order to unplug until the VF is back in the pool, mean [s].
    pub unplug_s: f64,
}

impl Switch {
    /// Replaces the settings' cost of a switch.
    pub const fn apply(self, benefit: &mut BenefitSettings) {
        (benefit.plug_s, benefit.unplug_s) = (self.plug_s, self.unplug_s);
    }
}

/// The host it was measured on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Host {
    /// As in /proc/cpuinfo.
    pub cpu_model: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// Release of the kernel.
    pub kernel: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Measured {
    pps: f64,
    saved_us: f64,
}

/// A curve, with notes for the operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Gain {
    /// Time that a VF saves each packet, by packet rate.
    pub curve: GainCurve,
    /// Cost of a switch; none where it was not measured.
    pub switch: Option<Switch>,
    /// Where it comes from, one sentence; a second one where times are emulated or the kernel is another.
    pub notes: Vec<String>,
}

/// The labels that architectures give a CPU's name, in the order in which they are looked for.
const LABELS: [&str; 7] =
    ["model name", "Model", "cpu model", "Processor", "cpu", "uarch", "CPU part"];

impl Host {
    /// A host from the texts of /proc/cpuinfo, of the CPUs that are online, and of the kernel's release.
    /// The same as planewise's fingerprint has (procfs.py).
    pub fn from_texts(cpuinfo: &str, online: &str, kernel: &str) -> Self {
        let named = |label: &str| {
            cpuinfo.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim_end() == label && !value.trim().is_empty())
                    .then(|| value.trim().to_owned())
            })
        };
        let counted = online.trim().split(',').map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        });
        let processors =
            || cpuinfo.lines().filter(|line| line.starts_with("processor")).count() as u32;
        Self {
            cpu_model: LABELS.iter().find_map(|label| named(label)).unwrap_or("unknown".into()),
            cpus: counted.sum::<Option<u32>>().unwrap_or_else(processors),
            kernel: kernel.trim().to_owned(),
        }
    }

    /// This host.
    pub fn read() -> Result<Self> {
        let text = |path: &str| {
            std::fs::read_to_string(path).map_err(|error| {
                Error::failed(
                    format!("cannot tell whether the gain profile is this host's: {path}"),
                    "leave gain_profile out and write alloc.benefit.curve yourself",
                )
                .caused_by(error)
            })
        };
        Ok(Self::from_texts(
            &text("/proc/cpuinfo")?,
            &text("/sys/devices/system/cpu/online")?,
            &text("/proc/sys/kernel/osrelease")?,
        ))
    }
}

/// Reads a profile. `host` is the host that it must have been measured on; none: any.
///
/// # Errors
/// It is not a profile, of another format or host, or its curve is invalid.
pub fn parse(text: &str, name: &str, host: Option<&Host>) -> Result<Gain> {
    let remedy =
        "measure this host: `planewise run experiments/boost.yaml`, then `planewise boost`";
    let wrong = |what: String| Error::bad_input(format!("{name}: {what}"), remedy);
    let unread = |error: Error| Error::bad_input(error.what, remedy);
    let head: Head = config::read(text, name).map_err(unread)?;
    if head.kind != "gain" {
        return Err(wrong(format!("this is a profile of {:?}, not of the gain", head.kind)));
    }
    if !(1..=FORMAT).contains(&head.format) {
        return Err(wrong(format!(
            "its format is {}, and formats 1 to {FORMAT} are read",
            head.format
        )));
    }
    let profile: Profile = config::read(text, name).map_err(unread)?;
    let mut notes = vec![format!(
        "the gain of {} over {} was measured by {}",
        profile.fast, profile.slow, profile.run
    )];
    if let Some(host) = host {
        let measured = &profile.host;
        if (&measured.cpu_model, measured.cpus) != (&host.cpu_model, host.cpus) {
            return Err(wrong(format!(
                "it was measured on another host ({} × {}; this one has {} × {})",
                measured.cpus, measured.cpu_model, host.cpus, host.cpu_model
            )));
        }
        if measured.kernel != host.kernel {
            notes.push(format!(
                "{name} was measured on kernel {} and this is {}: measure again when you can",
                measured.kernel, host.kernel
            ));
        }
    }
    if !profile.emulated.is_empty() {
        notes.push(format!("times of {name} are no hardware's: {}", profile.emulated));
    }
    let points = profile.curve.iter().map(|&Measured { pps, saved_us }| Point { pps, saved_us });
    let curve = GainCurve::new(points.collect()).map_err(|error| wrong(error.what))?;
    let falls = profile.curve.windows(2).find(|pair| {
        pair[1].pps * pair[1].saved_us < pair[0].pps * pair[0].saved_us * (1.0 - ROUNDING)
    });
    if let Some(pair) = falls {
        return Err(wrong(format!(
            "its gain falls from {} to {} packets per second: a guest that sends more cannot gain less",
            pair[0].pps, pair[1].pps
        )));
    }
    if let Some(switch) = &profile.switch
        && ![switch.plug_s, switch.unplug_s].iter().all(|s| (0.0..=3600.0).contains(s))
    {
        return Err(wrong("its price of a switch is not from 0 to 3600 s".into()));
    }
    Ok(Gain { curve, switch: profile.switch, notes })
}

/// The file has four significant digits.
const ROUNDING: f64 = 1e-3;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        format = 2
        kind = "gain"
        planewise = "0.1"
        run = "20261122-a"
        slow = "bridge"
        fast = "vf"
        size_matters = "no"
        emulated = ""
        curve = [{ pps = 200.0, saved_us = 5.0, low_us = 4.0 }, { pps = 2000.0, saved_us = 9.0 }]
        [host]
        cpu_model = "A CPU"
        cpus = 4
        kernel = "6.1"
        virtualisation = "none"
        [switch]
        gives = 9
        takes = 8
        plug_s = 0.5
        unplug_s = 0.1
        [[measured]]
        round_trips_pps = 100.0
    "#;

    fn host(cpu_model: &str, cpus: u32, kernel: &str) -> Host {
        Host { cpu_model: cpu_model.into(), cpus, kernel: kernel.into() }
    }

    fn fault(text: &str) -> Error {
        parse(text, "gain.toml", Some(&host("A CPU", 4, "6.1"))).expect_err("refused")
    }

    #[test]
    fn a_profile_of_this_host_gives_its_curve() {
        let gain = parse(TEXT, "gain.toml", Some(&host("A CPU", 4, "6.1"))).expect("read");
        assert_eq!(gain.curve.saved_us(200.0), 5.0);
        assert_eq!(gain.curve.saved_us(1e9), 9.0);
        assert_eq!(gain.notes.len(), 1, "{:?}", gain.notes);
        let mut benefit = BenefitSettings::default();
        gain.switch.expect("measured").apply(&mut benefit);
        assert_eq!((benefit.plug_s, benefit.unplug_s), (0.5, 0.1));
    }

    #[test]
    fn another_kernel_and_emulated_times_are_told_of() {
        let text = TEXT.replace("emulated = \"\"", "emulated = \"a lab's NIC\"");
        let gain = parse(&text, "gain.toml", Some(&host("A CPU", 4, "6.2"))).expect("read");
        assert!(gain.notes.iter().any(|note| note.contains("6.2")));
        assert!(gain.notes.iter().any(|note| note.contains("a lab's NIC")));
    }

    #[test]
    fn a_profile_of_another_host_is_refused_and_a_made_up_host_takes_any() {
        for other in [host("Another CPU", 4, "6.1"), host("A CPU", 8, "6.1")] {
            let error = parse(TEXT, "gain.toml", Some(&other)).expect_err("refused");
            assert!(error.to_string().contains("another host"), "{error}");
        }
        assert!(parse(TEXT, "gain.toml", None).is_ok());
    }

    #[test]
    fn what_is_no_profile_is_said_in_a_sentence() {
        let bad = [
            ("format = 2", "format = 3", "its format is 3, and formats 1 to 2 are read"),
            ("kind = \"gain\"", "kind = \"chains\"", "not of the gain"),
            ("pps = 2000.0", "pps = 100.0", "not above the one before"),
            ("saved_us = 9.0", "saved_us = 0.1", "falls from 200 to 2000"),
            ("saved_us = 9.0", "saved_us = -1.0", "out of range"),
            ("saved_us = 9.0", "saved_us = nan", "out of range"),
            ("cpus = 4", "", "missing field"),
            ("format = 2", "format", "gain.toml:"),
            ("unplug_s = 0.1", "unplug_s = -1.0", "price of a switch"),
            ("unplug_s = 0.1", "", "missing field"),
        ];
        for (from, to, said) in bad {
            let error = fault(&TEXT.replacen(from, to, 1));
            assert!(error.to_string().contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn any_text_is_read_or_refused() {
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = parse(text, "gain.toml", None);
        });
    }

    #[test]
    fn a_host_is_named_as_in_planewises_fingerprint() {
        let x86 = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nprocessor\t: 1\n";
        assert_eq!(Host::from_texts(x86, "0-1,4\n", "6.1\n"), host("A CPU @ 2 GHz", 3, "6.1"));
        let arm = "processor\t: 0\nCPU part\t: 0xd0c\nprocessor\t: 1\nCPU part\t: 0xd0c\n";
        assert_eq!(Host::from_texts(arm, "", "6.1"), host("0xd0c", 2, "6.1"));
        assert_eq!(Host::from_texts("", "x", ""), host("unknown", 0, ""));
    }
}
