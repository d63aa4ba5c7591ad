//! Options that `trial` and `send` have in common, and the frame template that follows from them.

use std::net::IpAddr;
use std::time::Duration;

use super::DEFAULT_PORT;
use super::order::{Order, Refusals};
use crate::affinity;
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::frame::{self, Template};
use crate::netns::IfSpec;
use crate::resolve::Route;

/// Which generator sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum GeneratorChoice {
    /// The fastest that can
    #[default]
    Auto,
    /// User space, by sendmmsg: any interface, any user in a namespace of his own
    #[value(name = "af_packet")]
    AfPacket,
    /// The kernel, by the interface's function for XDP frames (needs root)
    Live,
    /// The kernel, by the interface's ordinary way out (needs root)
    LiveSkb,
}

/// Which sink counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum SinkChoice {
    /// The fastest that can
    #[default]
    Auto,
    /// User space, by a capture ring
    #[value(name = "af_packet")]
    AfPacket,
    /// The kernel, by XDP in the driver (needs root; resets the links of most NICs)
    XdpNative,
    /// The kernel, at the interface's ingress hook (needs root)
    TcIngress,
}

/// Options of the sink.
#[derive(Debug, Clone, clap::Args)]
pub struct SinkOptions {
    /// CPU for the sink
    #[arg(long, value_name = "CPU")]
    pub rx_cpu: Option<usize>,
    /// Which sink counts; the result names it
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub sink: SinkChoice,
    /// Size of the sink's ring [MiB], where it has one
    #[arg(long, value_name = "MIB", default_value = "32",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mib: u32,
}

/// Options of frames and their generator.
#[derive(Debug, Clone, clap::Args)]
pub struct FrameOptions {
    /// Frame size with FCS [bytes]; at least 64 with IPv4, 84 with IPv6
    #[arg(long, value_name = "BYTES")]
    pub size: Option<usize>,
    /// Number of flows (UDP source ports), taking turns
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=16_384))]
    pub flows: u16,
    /// Source address; without it the one the kernel would choose
    #[arg(long, value_name = "IP")]
    pub src: Option<IpAddr>,
    /// UDP destination port
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub dst_port: u16,
    /// CPU for the generator; without it the last one that the sink does not use
    #[arg(long, value_name = "CPU")]
    pub tx_cpu: Option<usize>,
    /// CPU that takes the frames of the backend live-skb to the interface: the generator's then does
    /// nothing but make them, and what has no room before this CPU is lost
    #[arg(long, value_name = "CPU")]
    pub carrier_cpu: Option<usize>,
    /// Most frames that leave together; only frames that are due do. Without it 64 by af_packet,
    /// and by the kernel as few as carry the rate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: Option<u16>,
    /// Which generator sends; the result names it
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub backend: GeneratorChoice,
}

impl FrameOptions {
    /// These options with a CPU for the generator, other than the sink's `rx_cpu`, if there are two.
    #[must_use]
    pub fn placed(&self, rx_cpu: Option<usize>) -> Self {
        let tx_cpu = affinity::for_generator(self.tx_cpu, rx_cpu);
        Self { tx_cpu, ..self.clone() }
    }

    /// Frame size with FCS, as requested or the smallest [bytes].
    pub fn size_bytes(&self, ipv6: bool) -> usize {
        self.size.unwrap_or_else(|| frame::smallest_bytes(ipv6))
    }

    /// The template for frames that leave by `tx` along `route`.
    ///
    /// # Errors
    /// They are too large for `tx`, or too small for the payload.
    pub fn template(&self, tx: &IfSpec, route: &Route, dst: IpAddr) -> Result<Template> {
        let size_bytes = self.size_bytes(dst.is_ipv6());
        if size_bytes > route.mtu as usize + 18 {
            return Err(Error::bad_input(
                format!(
                    "frames of {size_bytes} bytes exceed what {tx} takes: its MTU is {}",
                    route.mtu
                ),
                format!(
                    "give --size {} or less, or raise the MTU: ip link set {} mtu N",
                    route.mtu + 18,
                    tx.interface
                ),
            ));
        }
        let mut template =
            Template::of_trial(route.source, dst, self.dst_port, size_bytes, self.flows)?;
        template.set_macs(route.source_mac, route.destination_mac);
        Ok(template)
    }
}

/// Most frames of a trial: each takes a bit of memory, all of them 2 GiB.
pub const MOST_FRAMES: f64 = (1_u64 << 34) as f64;

/// Options of the schedule.
#[derive(Debug, clap::Args)]
pub struct LoadOptions {
    /// How long to send [s]
    #[arg(long, value_name = "S", value_parser = crate::units::seconds, default_value = "1")]
    pub duration: Duration,
    /// Send bursts of N frames, each at --rate
    #[arg(long, value_name = "N", requires = "interval",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,
    /// Time from one burst to the next [s]
    #[arg(long, value_name = "S", requires = "burst", value_parser = crate::units::seconds)]
    pub interval: Option<Duration>,
}

impl LoadOptions {
    /// The frames at this rate [packets/s], from the number `first_sequence` on.
    ///
    /// # Errors
    /// More frames than can be accounted for, or bursts longer than the time between them.
    pub fn order(&self, rate_pps: f64, first_sequence: u64) -> Result<Order> {
        let bursts = self.burst.map(u64::from).zip(self.interval);
        let schedule = Schedule::of(rate_pps, bursts, "--interval")?;
        let count = frames(schedule.mean_pps(), self.duration)?;
        Ok(Order { first_sequence, count, schedule, refusals: Refusals::Lost })
    }
}

/// The number of frames of a trial.
///
/// # Errors
/// More than can be accounted for.
fn frames(rate_pps: f64, duration: Duration) -> Result<u64> {
    let frames = rate_pps * duration.as_secs_f64();
    if frames > MOST_FRAMES {
        return Err(Error::bad_input(
            format!(
                "--rate and --duration come to {frames:.1e} frames, more than one trial counts"
            ),
            format!("measure for {:.0} s or less at that rate", (MOST_FRAMES / rate_pps).floor()),
        ));
    }
    Ok((frames.round() as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_of_more_frames_than_memory_can_count_is_refused_with_a_duration_that_fits() {
        let day = Duration::from_secs(86_400);
        assert_eq!(frames(1e5, day).ok(), Some(8_640_000_000));
        let refused = frames(1e7, day).expect_err("a day at 10 Mpps is too much");
        assert!(refused.what.contains("8.6e11 frames"), "{}", refused.what);
        assert!(refused.remedy.contains("1717 s"), "{}", refused.remedy);
        assert_eq!(frames(1e7, Duration::from_secs(1717)).ok(), Some(17_170_000_000));
    }
}
