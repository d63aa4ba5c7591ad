//! The sending end of a trial, for ends on different machines.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde_json::json;

use super::counters::Places;
use super::ends::{Changes, SendingEnd, Surroundings, limits};
use super::options::{FrameOptions, LoadOptions};
use super::order::Refusals;
use crate::affinity;
use crate::clock;
use crate::error::Result;
use crate::netns::IfSpec;
use crate::output;
use crate::resolve;
use crate::stop::{self, Lifetime};

/// Sends UDP frames by one interface at a set rate, for `pw-probe receive` to account for.
///
/// The two ends may be on different machines. Give both the same --first number, wait until `receive`
/// is ready before you start this, and end it once frames have had time to arrive. Together both
/// results say what `pw-probe trial` says on one machine, except for one-way times: the clocks differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe receive --rx eth0 --first 7000 --count 100k                        on one machine\n  \
    pw-probe send --tx eth0 --dst 198.18.0.2 --rate 100k --first 7000           on the other")]
pub struct Args {
    /// Interface to send by
    #[arg(long, value_name = "IF[@NETNS]")]
    pub tx: IfSpec,
    /// Offered load [packets/s]: 1000, 10k, 1.5M
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub rate: f64,
    #[command(flatten)]
    pub load: LoadOptions,
    /// Number of the first frame; the same for `receive`, another for every trial
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 63))]
    pub first: u64,
    /// Destination address
    #[arg(long, value_name = "IP")]
    pub dst: IpAddr,
    /// MAC address of the next hop; without it the kernel resolves it
    #[arg(long, value_name = "MAC", value_parser = resolve::parse_mac_choice)]
    pub dst_mac: Option<resolve::MacChoice>,
    /// Whether a frame that the interface has no room for is lost, which measures what lies behind a
    /// virtual machine's NIC, or sent again, as by a real NIC at line rate [default: by the
    /// interface's kind]. Only af_packet sends again
    #[arg(long, value_name = "lost|again")]
    pub refused: Option<Refusals>,
    /// A further interface whose drop counters may explain loss (repeatable)
    #[arg(long, value_name = "IF[@NETNS]")]
    pub counter: Vec<IfSpec>,
    /// The generator's maximum [packets/s] from `trial --calibrate-only`; not measured again
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub max_pps: Option<f64>,
    #[command(flatten)]
    pub frames: FrameOptions,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    clock::tighten_timers();
    affinity::check_cpu(args.frames.tx_cpu)?;
    let (tx, order) = (&args.tx, args.load.order(args.rate, args.first)?);
    let to = (args.dst, args.dst_mac);
    let frames = args.frames.placed(None);
    let mut sending = SendingEnd::open(tx, None, to, &frames, order, args.max_pps)?;
    let warmup_sent = warm_up(&mut sending)?;

    let surroundings = Surroundings::begin(Places::new(Some(tx), None, &args.counter))?;
    let refusals = sending.treat_refused(args.refused.unwrap_or(surroundings.refusals()));
    let generated = sending.run(&AtomicU64::new(0));
    let Changes { report, drops, clock_stepped, error, .. } =
        surroundings.end(tx, &generated, refusals);
    let error = generated.error.as_ref().or(error.as_ref());
    let own = json!({
        "sent": generated.sent,
        // How much of the loss they explain depends on the frames received.
        "drops": drops,
        "limits": limits(&[("generator", sending.limits(&generated)), ("clock", clock_stepped)]),
        "warmup_sent": warmup_sent,
    });
    let parts = [sending.report(&generated), own, report, output::failure(error)];
    output::print("send", output::merged(parts))?;
    error.cloned().map_or(Ok(()), Err)
}

/// Sends frames that teach the path where to, whether or not they arrive.
fn warm_up(sending: &mut SendingEnd) -> Result<u64> {
    let mut sent = 0;
    for _ in 0..5 {
        sent += sending.warm_up()?;
        if stop::requested() {
            break;
        }
        clock::pause(Duration::from_millis(10));
    }
    Ok(sent)
}
