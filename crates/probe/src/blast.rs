//! Background network load: bursts of UDP datagrams from an unprivileged socket.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::errno::Errno;
use serde_json::json;

use crate::clock::{self, NANOS_PER_SECOND};
use crate::error::{Error, Result};
use crate::output;
use crate::stop::{self, Lifetime};
use crate::wire;

/// Makes background network load: bursts of UDP datagrams at a set mean rate.
///
/// Needs no privileges, one thread and some kilobytes. What the network does not take is counted
/// and not sent again: a load generator that insists would measure itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe blast --to 198.18.0.2:5000 --rate 1000 --burst 100 --size 1024\n  \
    pw-probe blast --to [2001:2::2]:5000 --rate 10k --duration 30 --with-parent")]
pub struct Args {
    /// Where to send
    #[arg(long, value_name = "ADDR:PORT", required = true)]
    pub to: Vec<SocketAddr>,
    /// Mean rate over all destinations [datagrams/s]: 1000, 10k
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub rate: f64,
    /// Datagrams a burst, sent back to back
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub burst: u32,
    /// UDP payload [bytes]
    #[arg(long, value_name = "BYTES", default_value = "1024",
        value_parser = clap::value_parser!(u16).range(0..=65_507))]
    pub size: u16,
    /// How long to send [s]; without it until SIGINT or SIGTERM
    #[arg(long, value_name = "S", value_parser = crate::units::seconds)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let ipv6 = args.to.iter().any(SocketAddr::is_ipv6);
    if ipv6 && args.to.iter().any(SocketAddr::is_ipv4) {
        return Err(Error::bad_input(
            "the addresses of --to are of two IP versions",
            "run one blast for IPv4 and one for IPv6",
        ));
    }
    let socket = UdpSocket::bind((wire::unspecified(ipv6), 0))
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(|error| Error::failed("cannot open a UDP socket", "").caused_by(error))?;
    let payload = vec![0; usize::from(args.size)];
    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    let end_ns = clock::end_ns(start_ns, args.duration);
    let period_ns = f64::from(args.burst) * NANOS_PER_SECOND as f64 / args.rate;
    let (mut sent, mut refused, mut bursts) = (0_u64, 0_u64, 0_u64);
    let mut targets = args.to.iter().cycle();
    while !stop::requested() {
        let due_ns = start_ns.saturating_add((bursts as f64 * period_ns) as i64);
        let now = clock::monotonic_ns();
        if now >= end_ns || due_ns >= end_ns && now < due_ns && due_ns - now > end_ns - now {
            clock::sleep_until(end_ns.min(due_ns));
            break;
        }
        if now < due_ns {
            // Load need not be exact to the microsecond: sleep, never spin.
            clock::sleep_until(due_ns.min(end_ns).min(now + NANOS_PER_SECOND));
            continue;
        }
        let Some(&to) = targets.next() else { break };
        for _ in 0..args.burst {
            match socket.send_to(&payload, to) {
                Ok(_) => sent += 1,
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN | Errno::ENOBUFS | Errno::ECONNREFUSED) => refused += 1,
                    Some(Errno::EINTR) => break,
                    _ => return Err(cannot_send(to, error)),
                },
            }
        }
        bursts += 1;
        // Far behind (the machine was busy): skip what is overdue rather than flood.
        let behind = (now - due_ns) as f64 / period_ns;
        if behind > 1.0 && (now - due_ns) > NANOS_PER_SECOND / 10 {
            bursts += behind as u64;
        }
    }
    let elapsed_ns = (clock::monotonic_ns() - start_ns).max(1);
    let duration_s = elapsed_ns as f64 / 1e9;
    let due_bursts = bursts_due(elapsed_ns.min(end_ns - start_ns), period_ns);
    let due = due_bursts.saturating_mul(u64::from(args.burst));
    let body = json!({
        "to": args.to,
        "payload_bytes": args.size,
        "burst": args.burst,
        "started_ns": started_ns,
        "duration_s": duration_s,
        "intended_pps": args.rate,
        "achieved_pps": sent as f64 / duration_s,
        "sent": sent,
        "refused": refused,
        "skipped": due.saturating_sub(sent + refused),
        "interrupted": args.duration.is_some() && stop::requested(),
    });
    output::print("blast", body)
}

/// Bursts that are due before `elapsed_ns` (above 0) is over, the first at 0 [ns].
fn bursts_due(elapsed_ns: i64, period_ns: f64) -> u64 {
    ((elapsed_ns - 1) as f64 / period_ns) as u64 + 1
}

fn cannot_send(to: SocketAddr, error: std::io::Error) -> Error {
    let remedy = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN) => {
            "is the interface up, and is there a route (ip route get ADDR)?"
        }
        Some(Errno::EMSGSIZE) => "give a smaller --size",
        _ => "",
    };
    Error::failed(format!("cannot send to {to}"), remedy).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::bursts_due;

    #[test]
    fn a_burst_is_due_once_its_time_came_and_the_end_is_nobodys_time() {
        assert_eq!(bursts_due(1, 5e6), 1);
        assert_eq!(bursts_due(5_000_000, 5e6), 1);
        assert_eq!(bursts_due(5_000_001, 5e6), 2);
        assert_eq!(bursts_due(500_000_000, 5e6), 100);
        assert_eq!(bursts_due(500_000_000, 1e10 / 3000.0), 150);
    }
}
