//! `planewised vf list`: the PFs and VFs of this machine.

use std::fmt::Write;

use pw_error::{Error, Result};
use pw_sriov::discover;
use pw_sriov::kernel::Kernel;
use pw_sriov::model::{Counters, Machine, Pf, Vf};
use pw_sriov::state::{NOBODY, State};

use crate::output;

/// List PFs and VFs: driver, capacity, settings, where their interfaces are, who uses them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these PFs: interface or PCI address
    #[arg(value_name = "PF")]
    pfs: Vec<String>,
}

/// Prints the list.
pub fn run(args: &Args, kernel: &mut dyn Kernel, state: &State, json: bool) -> Result<()> {
    let mut machine = discover::machine(kernel)?;
    state.annotate(&mut machine.pfs)?;
    for name in &args.pfs {
        if !machine.pfs.iter().any(|pf| is_named(pf, name)) {
            return Err(Error::bad_input(
                format!("there is no PF {name}"),
                "list all with `planewised vf list`",
            ));
        }
    }
    if !args.pfs.is_empty() {
        machine.pfs.retain(|pf| args.pfs.iter().any(|name| is_named(pf, name)));
    }
    output::print("vf list", &machine, json, text)
}

fn is_named(pf: &Pf, name: &str) -> bool {
    pf.address.to_string() == name || pf.netdev.as_ref().is_some_and(|netdev| netdev.name == name)
}

fn text(machine: &Machine) -> String {
    if machine.pfs.is_empty() {
        return "No device of this machine has SR-IOV. `planewise lab up` gives you two hosts \
                that have it."
            .into();
    }
    let mut out = String::new();
    for pf in &machine.pfs {
        let driver = pf.driver.as_deref().unwrap_or("no driver");
        let _ = writeln!(
            out,
            "{} ({}, {driver}): {} of {} VFs",
            pf.label(),
            pf.address,
            pf.num_vfs,
            pf.total_vfs
        );
        for vf in &pf.vfs {
            let _ = writeln!(out, "  {}", line(vf));
        }
    }
    out
}

/// One VF in one line.
pub fn line(vf: &Vf) -> String {
    let mut parts = vec![format!("{} {}", vf.index, vf.address)];
    parts.push(vf.driver.clone().unwrap_or_else(|| "no driver".into()));
    if let Some(netdev) = &vf.netdev {
        parts.push(netdev.name.clone());
    }
    if let Some(mac) = vf.config.as_ref().and_then(|config| config.mac) {
        parts.push(mac.to_string());
    }
    match &vf.counters {
        Counters::Supported(count) => {
            parts.push(format!("rx {} tx {} packets", count.rx_packets, count.tx_packets));
        }
        Counters::Unsupported { .. } => parts.push("counters unsupported".into()),
    }
    if let Some(used) = &vf.used_by {
        parts.push(used.clone());
    }
    if let Some(owner) = vf.owner.as_ref().filter(|owner| *owner != NOBODY) {
        parts.push(format!("owned by {owner}"));
    }
    parts.join(", ")
}
