//! `planewised vf setup|set|bind|move|release|restore`: options, one call each, what is printed.

use clap::ValueEnum;
use pw_error::{Error, Result};
use pw_sriov::kernel::Linux;
use pw_sriov::link::Cidr;
use pw_sriov::lookup;
use pw_sriov::mac::Mac;
use pw_sriov::model::{LinkState, Pf, Vf, Vlan, VlanProtocol};
use pw_sriov::operate::{Operator, Restored};
use pw_sriov::plan::{Driver, Move, Settings, Setup, Step};
use serde::Serialize;

use super::ChangeArgs;
use crate::daemon::guests::containers;
use crate::output;

/// Give a PF its VFs: number, MAC addresses, driver.
#[derive(Debug, clap::Args)]
pub struct SetupArgs {
    /// Interface or PCI address
    pf: String,

    /// VFs; 0 removes them all
    #[arg(long, value_name = "N")]
    count: u32,

    /// MAC of VF 0, the others count up from it [default: one that follows from the PF's]
    #[arg(long, value_name = "MAC", value_parser = Mac::station)]
    mac_base: Option<Mac>,

    /// netdev, vfio-pci, none, or a driver's name
    #[arg(long, default_value = "netdev")]
    driver: Driver,

    #[command(flatten)]
    pub(super) how: ChangeArgs,
}

/// Change what the PF does for a VF: MAC, VLAN, rate, spoof check, trust, link state.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// PCI address, PF/INDEX or interface
    vf: String,

    /// Its MAC address
    #[arg(long, value_parser = Mac::station)]
    mac: Option<Mac>,

    /// Put all its frames into a VLAN; 0: into none
    #[arg(long, value_name = "ID[:QOS[:PROTOCOL]]", value_parser = vlan)]
    vlan: Option<Vlan>,

    /// Least transmit rate [Mbit/s]; 0: none
    #[arg(long, value_name = "MBPS")]
    min_rate: Option<u32>,

    /// Largest transmit rate [Mbit/s]; 0: no limit
    #[arg(long, value_name = "MBPS")]
    max_rate: Option<u32>,

    /// Drop frames with another source MAC
    #[arg(long, value_name = "on|off", value_parser = switch)]
    spoof_check: Option<bool>,

    /// Allow what only trusted VFs may
    #[arg(long, value_name = "on|off", value_parser = switch)]
    trust: Option<bool>,

    /// How its link follows the PF's
    #[arg(long)]
    link_state: Option<LinkStateArg>,

    #[command(flatten)]
    pub(super) how: ChangeArgs,
}

/// Give a VF another driver.
#[derive(Debug, clap::Args)]
pub struct BindArgs {
    /// PCI address, PF/INDEX or interface
    vf: String,

    /// netdev, vfio-pci, none, or a driver's name
    driver: Driver,

    #[command(flatten)]
    pub(super) how: ChangeArgs,
}

/// Move a VF's interface into a namespace, with name, MAC, MTU and addresses.
#[derive(Debug, clap::Args)]
pub struct MoveArgs {
    /// PCI address, PF/INDEX or interface
    vf: String,

    /// A name of `ip netns list`, a path, pid:N, container:NAME, or home
    #[arg(long, value_name = "NETNS")]
    to: String,

    /// What the interface is called there [default: as it is]
    #[arg(long, value_parser = lookup::interface_name)]
    name: Option<String>,

    /// Its MAC address [default: as it is]
    #[arg(long, value_parser = Mac::station)]
    mac: Option<Mac>,

    /// Largest IP packet [bytes; default: as it is]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,

    /// An address with its prefix length; may be repeated
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    address: Vec<Cidr>,

    /// Leave it down
    #[arg(long)]
    down: bool,

    #[command(flatten)]
    pub(super) how: ChangeArgs,
}

/// Return VFs' interfaces to the host, as they were before they were moved.
#[derive(Debug, clap::Args)]
pub struct ReleaseArgs {
    /// PCI addresses, PF/INDEX or interfaces
    #[arg(required = true)]
    vfs: Vec<String>,

    #[command(flatten)]
    pub(super) how: ChangeArgs,
}

/// Restore the state before the first change.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// PFs (with their VFs) and VFs [default: all that were changed]
    functions: Vec<String>,

    #[command(flatten)]
    pub(super) how: ChangeArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LinkStateArg {
    Auto,
    Enable,
    Disable,
}

fn switch(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off".into()),
    }
}

fn vlan(text: &str) -> Result<Vlan> {
    let wrong = || {
        Error::bad_input(
            format!("'{text}' is not a VLAN"),
            "ID (0 to 4094), ID:QOS (0 to 7), or ID:QOS:PROTOCOL (802.1Q or 802.1ad)",
        )
    };
    let mut parts = text.split(':');
    let number = |part: Option<&str>, most: u32| match part {
        None => Ok(0),
        Some(part) => part.parse().ok().filter(|value| *value <= most).ok_or_else(wrong),
    };
    let (id, qos) = (number(parts.next(), 4094)?, number(parts.next(), 7)?);
    let protocol = match parts.next() {
        None => VlanProtocol::Dot1q,
        Some(name) if name.eq_ignore_ascii_case("802.1q") => VlanProtocol::Dot1q,
        Some(name) if name.eq_ignore_ascii_case("802.1ad") => VlanProtocol::Dot1ad,
        Some(_) => return Err(wrong()),
    };
    if parts.next().is_some() { Err(wrong()) } else { Ok(Vlan { id, qos, protocol }) }
}

type LinuxOperator<'a> = Operator<'a, Linux>;

/// `vf setup`
pub fn setup(args: &SetupArgs, operator: &mut LinuxOperator<'_>, json: bool) -> Result<()> {
    let setup = Setup {
        count: args.count,
        first_mac: args.mac_base,
        driver: args.driver.clone(),
        force: args.how.force,
    };
    let done = operator.setup(&args.pf, &setup)?;
    print("vf setup", &args.how, &done.steps, Now::Pf(&done.now), json)
}

/// `vf set`
pub fn set(args: &SetArgs, operator: &mut LinuxOperator<'_>, json: bool) -> Result<()> {
    let settings = Settings {
        mac: args.mac,
        vlan: args.vlan,
        min_tx_mbps: args.min_rate,
        max_tx_mbps: args.max_rate,
        spoof_check: args.spoof_check,
        trust: args.trust,
        link_state: args.link_state.map(|state| match state {
            LinkStateArg::Auto => LinkState::Auto,
            LinkStateArg::Enable => LinkState::Enable,
            LinkStateArg::Disable => LinkState::Disable,
        }),
    };
    if settings == Settings::default() {
        return Err(Error::bad_input(
            "nothing is to be set",
            "name at least one of --mac, --vlan, --min-rate, --max-rate, --spoof-check, --trust, \
             --link-state",
        ));
    }
    let done = operator.set(&args.vf, &settings)?;
    print("vf set", &args.how, &done.steps, Now::Vf(&done.now), json)
}

/// `vf bind`
pub fn bind(args: &BindArgs, operator: &mut LinuxOperator<'_>, json: bool) -> Result<()> {
    let done = operator.bind(&args.vf, &args.driver)?;
    print("vf bind", &args.how, &done.steps, Now::Vf(&done.now), json)
}

/// `vf move`
pub fn move_vf(args: &MoveArgs, operator: &mut LinuxOperator<'_>, json: bool) -> Result<()> {
    let change = Move {
        to: match args.to.strip_prefix("container:") {
            Some(name) => lookup::netns(&format!("pid:{}", containers::process(name)?))?,
            None => lookup::netns(&args.to)?,
        },
        name: args.name.clone(),
        mac: args.mac,
        mtu_bytes: args.mtu,
        addresses: args.address.clone(),
        up: !args.down,
        force: args.how.force,
    };
    let done = operator.move_to_netns(&args.vf, &change)?;
    print("vf move", &args.how, &done.steps, Now::Vf(&done.now), json)
}

/// `vf release`
pub fn release(args: &ReleaseArgs, operator: &mut LinuxOperator<'_>, json: bool) -> Result<()> {
    let done = operator.release(&args.vfs)?;
    print("vf release", &args.how, &done.steps, Now::Restored(&done), json)
}

/// `vf restore`
pub fn restore(args: &RestoreArgs, operator: &mut LinuxOperator<'_>, json: bool) -> Result<()> {
    let done = operator.restore(&args.functions)?;
    print("vf restore", &args.how, &done.steps, Now::Restored(&done), json)
}

/// A step in JSON: its text beside its fields.
#[derive(Debug, Serialize)]
struct Line<'a> {
    text: String,
    #[serde(flatten)]
    step: &'a Step,
}

/// What a command prints in JSON: what it acted on stands under its own name.
#[derive(Debug, Serialize)]
struct Body<'a> {
    dry_run: bool,
    steps: Vec<Line<'a>>,
    #[serde(flatten)]
    now: Now<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Now<'a> {
    Pf(&'a Pf),
    Vf(&'a Vf),
    #[serde(untagged)]
    Restored(&'a Restored),
}

impl Now<'_> {
    fn text(&self) -> String {
        match self {
            Self::Pf(pf) => format!("{} has {} of {} VFs", pf.label(), pf.num_vfs, pf.total_vfs),
            Self::Vf(vf) => super::list::line(vf),
            Self::Restored(all) if all.restored.is_empty() => "nothing to restore".into(),
            Self::Restored(all) => {
                let names: Vec<String> = all.restored.iter().map(ToString::to_string).collect();
                format!("as before: {}", names.join(", "))
            }
        }
    }
}

fn print(command: &str, how: &ChangeArgs, steps: &[Step], now: Now<'_>, json: bool) -> Result<()> {
    let lines = steps.iter().map(|step| Line { text: step.to_string(), step }).collect();
    let body = Body { dry_run: how.dry_run, steps: lines, now };
    output::print(command, &body, json, |body| {
        if !how.dry_run {
            return body.now.text();
        }
        if steps.is_empty() {
            return "nothing to do".into();
        }
        steps.iter().map(|step| format!("would {step}\n")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_has_an_id_and_may_have_a_priority_and_a_protocol() {
        let of = |id, qos, protocol| Vlan { id, qos, protocol };
        assert_eq!(vlan("7").expect("valid"), of(7, 0, VlanProtocol::Dot1q));
        assert_eq!(vlan("4094:7:802.1AD").expect("valid"), of(4094, 7, VlanProtocol::Dot1ad));
        for text in ["", "4095", "7:8", "7:1:vlan", "7:1:802.1Q:1", "-1", "7:"] {
            assert_eq!(
                vlan(text).map_err(|error| error.kind),
                Err(pw_error::Kind::BadInput),
                "{text:?}"
            );
        }
    }
}
