//! Resolves a user's name of a PF, a VF or a namespace.

use pw_error::{Error, Result};
use pw_linux::netns::Netns;

use crate::address::PciAddress;
use crate::kernel::Kernel;
use crate::model::NetNs;
use crate::namespaces;

/// The PF that `text` names: an interface or a PCI address.
pub fn pf(kernel: &mut dyn Kernel, text: &str) -> Result<PciAddress> {
    let pfs = kernel.tree().pfs()?;
    let links = kernel.links(&NetNs::Host)?;
    let link = links.iter().find(|link| link.netdev.name == text && !link.representor);
    let address = match link {
        Some(link) => link.device,
        None => text.parse().ok().filter(|address| kernel.tree().has(*address)),
    };
    if let Some(address) = address.filter(|address| pfs.contains(address)) {
        return Ok(address);
    }
    let names: Vec<String> = pfs
        .iter()
        .map(|pf| {
            let link = links.iter().find(|link| link.device == Some(*pf) && !link.representor);
            link.map_or_else(|| pf.to_string(), |link| link.netdev.name.clone())
        })
        .collect();
    let remedy = if names.is_empty() {
        "no device of this machine has it; `planewise lab up` gives you two hosts that do".into()
    } else {
        format!("these have it: {}", names.join(", "))
    };
    if let Some(pf) = address.and_then(|address| kernel.tree().pf_of(address)) {
        return Err(Error::bad_input(format!("{text} is a VF of {pf}, no PF"), remedy));
    }
    let what = if link.is_some() || address.is_some() {
        format!("{text} has no SR-IOV")
    } else {
        format!("there is no interface or PCI device {text}")
    };
    Err(Error::bad_input(what, remedy))
}

/// The VF that `text` names, and its PF: a PCI address, `PF/INDEX`, or an interface.
pub fn vf(kernel: &mut dyn Kernel, text: &str) -> Result<(PciAddress, PciAddress)> {
    if let Some((pf_name, index)) = text.rsplit_once('/') {
        let pf = pf(kernel, pf_name)?;
        let index: u32 = index.parse().map_err(|_| {
            Error::bad_input(format!("'{text}' names no VF"), "write PF/INDEX, for example pf0/3")
        })?;
        let vfs = kernel.tree().vfs(pf);
        return match vfs.iter().find(|(number, _)| *number == index) {
            Some((_, vf)) => Ok((pf, *vf)),
            None => Err(Error::bad_input(
                format!("{pf_name} has no VF {index}: it has {}", vfs.len()),
                "`planewised vf setup` makes VFs, `planewised vf list` shows them",
            )),
        };
    }
    let links = kernel.links(&NetNs::Host)?;
    let link = links.iter().find(|link| link.netdev.name == text);
    let address = link.map_or_else(|| text.parse().ok(), |link| link.device);
    let address = address.filter(|address| kernel.tree().has(*address));
    match address.and_then(|vf| Some((kernel.tree().pf_of(vf)?, vf))) {
        Some(pf_and_vf) => Ok(pf_and_vf),
        None => Err(Error::bad_input(
            match address {
                Some(_) => format!("{text} is not a VF"),
                None => format!("there is no VF {text} here"),
            },
            "write a PCI address, PF/INDEX, or an interface of this namespace; \
             `planewised vf list` shows all",
        )),
    }
}

/// The namespace that `text` names: `home`, `pid:N`, a name or a path.
pub fn netns(text: &str) -> Result<NetNs> {
    if text == "home" {
        return Ok(NetNs::Host);
    }
    let spec: Netns = text.parse()?;
    namespaces::open(&spec.path().to_string_lossy(), text)
}

/// Checks a name for an interface by the kernel's own rule (dev_valid_name).
pub fn interface_name(text: &str) -> Result<String> {
    let spec: pw_linux::netns::IfSpec = text.parse()?;
    if spec.netns.is_none() && !text.contains('%') {
        return Ok(text.into());
    }
    Err(Error::bad_input(format!("'{text}' cannot be the name of an interface"), ""))
}
