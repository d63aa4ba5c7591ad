//! Adopts a namespace as a guest, and restores it: its veth becomes a member of a bond that takes its name,
//! addresses and routes. Can be interrupted anywhere and repeated.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pw_alloc::model::{GuestId, Mac, PfId, VfId};
use pw_error::{Error, Result};
use pw_linux::netns::Netns;
use pw_sriov::link::Change;

use super::address::{Addresses, gateways};
use super::record::{self, Record};
use super::{Spec, inode, pfs_of};
use crate::daemon::failpoint;
use crate::daemon::net::{Link, Net};
use crate::daemon::pool::PoolView;

/// Name of the veth in a guest while it is in the bond.
pub const VETH_NAME: &str = "pw-veth";
/// Name of the bond before it takes the veth's.
const BOND_NAME: &str = "pw-bond";

/// A guest whose paths a bond made here joins.
#[derive(Debug)]
pub struct Adopted {
    /// Its namespace.
    pub netns: Netns,
    /// That namespace's inode.
    pub inode: u64,
    /// A socket in it.
    pub net: Net,
    /// Its state before.
    pub record: Record,
    /// The bond's index in the guest.
    pub bond: u32,
    /// The veth's index in the guest.
    pub veth: u32,
    /// The veth's index on the host.
    pub port: u32,
    /// That interface's name.
    pub port_name: String,
    /// The bridge that the host's end is a port of.
    pub bridge: Option<String>,
    /// The PFs that are ports of the same bridge: only their VFs lead to the same network.
    pub pfs: Vec<PfId>,
    /// Its VFs can only have the address that their PF sets.
    pub enforce_mac: bool,
    /// Its VFs, shared with its executors.
    pub paths: Arc<Mutex<Paths>>,
}

/// The VFs of a guest, as last seen.
#[derive(Debug, Default)]
pub struct Paths {
    /// The VF that it sends by, and its index in the guest.
    pub on_vf: Option<(VfId, u32)>,
    /// VFs whose interfaces are in its namespace, with their indices.
    pub has: BTreeMap<VfId, u32>,
}

impl Adopted {
    /// A clone for another thread, with a socket of its own.
    pub fn try_clone(&self) -> Result<Self> {
        let net = Net::open_in(&self.netns)?;
        if net.identity() != self.net.identity() {
            return Err(Error::failed(
                "the guest's namespace is gone: another one has its name".to_owned(),
                "",
            ));
        }
        Ok(Self {
            netns: self.netns.clone(),
            inode: self.inode,
            net,
            record: self.record.clone(),
            bond: self.bond,
            veth: self.veth,
            port: self.port,
            port_name: self.port_name.clone(),
            bridge: self.bridge.clone(),
            pfs: self.pfs.clone(),
            enforce_mac: self.enforce_mac,
            paths: Arc::clone(&self.paths),
        })
    }

    /// Its VFs.
    pub fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings of adoption.
pub struct AdoptionSettings<'a> {
    /// Directory of guests' records.
    pub records: &'a Path,
    /// Only check whether a namespace could be a guest.
    pub dry_run: bool,
    /// VFs of guests can only have the address that their PF sets.
    pub enforce_mac: bool,
    /// The present guests, with their addresses.
    pub guests: &'a [(GuestId, Mac)],
}

/// Makes a namespace a guest, unless it is one already.
pub fn adopt(
    id: &GuestId,
    spec: &Spec,
    settings: &AdoptionSettings<'_>,
    host: &mut Net,
    pool: &PoolView,
) -> Result<Adopted> {
    let AdoptionSettings { records, dry_run, .. } = *settings;
    if inode(&spec.netns).is_none() {
        return Err(Error::failed(format!("there is no namespace {}", spec.netns), ""));
    }
    let mut net = Net::open_in(&spec.netns)?;
    let namespace = net.identity();
    if namespace == host.identity() {
        return Err(Error::failed(
            "its network namespace is the host's",
            "give it one of its own: a VF is moved into it",
        ));
    }
    let mut record = match record::read(records, id)? {
        Some(record) if record.is_of(namespace) => {
            Record { netns: spec.netns.to_string(), ..record }
        }
        other => {
            // The namespace that the guest had before may have had another address.
            if let Some(other) = other.filter(|_| !dry_run) {
                forget_address(other.mac, host, pool)?;
            }
            record_state(id, spec, &mut net)?
        }
    };
    record.container.clone_from(&spec.container);
    let port = host.indexed(record.port)?.ok_or_else(|| {
        Error::failed(
            "the other end of its veth is not in the host's namespace",
            "the daemon must run where the bridge is",
        )
    })?;
    let bridge = match port.master {
        Some(master) => host.indexed(master)?.map(|link| link.name),
        None => None,
    };
    let pfs: Vec<PfId> = pfs_of(pool, bridge.as_deref()).map(|(name, _)| name.clone()).collect();
    if pfs.is_empty() {
        let name = bridge.as_deref().unwrap_or("none");
        return Err(Error::failed(
            format!(
                "no PF of the pool is a port of its bridge ({name}): a VF would lead elsewhere"
            ),
            "join the PF to the bridge: ip link set PF master BRIDGE",
        ));
    }
    let addresses = Addresses {
        links: &host.all()?,
        forwards: &host.fdb_entries()?,
        gateways: &gateways()?,
        guests: settings.guests,
        pool,
    };
    if let Some(conflict) = addresses.conflict(id, record.mac, &spec.macs, &port) {
        return Err(Error::failed(
            format!("its address {} is not its own: {conflict}", record.mac),
            "give it a unique one: the entries in bridge and PF do not age",
        ));
    }
    let (bond, veth) = if dry_run {
        let links = net.all()?;
        let veth = find_veth(&links, &record)?;
        let bond = find_bond(&links, &record).map_or(veth.index, |bond| bond.index);
        (bond, veth.index)
    } else {
        record::write(records, &record)?;
        let joined = join(&mut net, &record)?;
        if !record.taken_over {
            failpoint::reached(|| "adopt/taken-over".to_owned());
            record.taken_over = true;
            record::write(records, &record)?;
        }
        joined
    };
    let adopted = Adopted {
        netns: spec.netns.clone(),
        inode: namespace.inode,
        net,
        bond,
        veth,
        port: port.index,
        port_name: port.name,
        bridge,
        pfs,
        enforce_mac: settings.enforce_mac,
        paths: Arc::default(),
        record,
    };
    if !dry_run {
        settle(&adopted, host, pool)?;
    }
    Ok(adopted)
}

/// The state of a guest before it is managed.
fn record_state(id: &GuestId, spec: &Spec, net: &mut Net) -> Result<Record> {
    let namespace = net.identity();
    let links = net.all()?;
    let veths = || links.iter().filter(|link| link.kind.as_deref() == Some("veth"));
    let link = match &spec.interface {
        Some(name) => links.iter().find(|link| link.name == *name).ok_or_else(|| {
            Error::failed(format!("it has no interface {name}"), "name the one that it has")
        })?,
        None => match veths().collect::<Vec<_>>()[..] {
            [veth] => veth,
            [] => {
                return Err(Error::failed(
                    "it has no veth to the host's bridge",
                    "make one before it is managed: ip link add … type veth peer …",
                ));
            }
            _ => {
                return Err(Error::failed(
                    "it has several veths, and it is not known which leads to the bridge",
                    "name it: interface = \"eth0\", or the label planewise.interface",
                ));
            }
        },
    };
    let (Some("veth"), Some(port), Some(mac)) = (link.kind.as_deref(), link.peer, link.mac) else {
        let kind = link.kind.as_deref().unwrap_or("a device");
        return Err(Error::failed(
            format!("its interface {} is no veth but {kind}", link.name),
            "only an end of a veth pair can be joined with a VF",
        ));
    };
    if link.master.is_some() {
        return Err(Error::failed(
            format!("its interface {} is a member of a bond or bridge already", link.name),
            "take it out: it can be a member of one only",
        ));
    }
    Ok(Record {
        guest: id.clone(),
        netns: spec.netns.to_string(),
        inode: namespace.inode,
        cookie: namespace.cookie,
        container: None,
        taken_over: false,
        boot: record::boot(),
        interface: link.name.clone(),
        mac,
        mtu_bytes: link.mtu_bytes,
        up: link.up,
        addresses: net.addresses(&link.name)?,
        routes: net.routes(link.index)?,
        port,
    })
}

fn find_bond<'a>(links: &'a [Link], record: &Record) -> Option<&'a Link> {
    let bond = |name: &str| {
        links.iter().find(|link| link.name == name && link.kind.as_deref() == Some("bond"))
    };
    bond(BOND_NAME).or_else(|| bond(&record.interface))
}

fn find_veth<'a>(links: &'a [Link], record: &Record) -> Result<&'a Link> {
    links
        .iter()
        .find(|link| link.peer == Some(record.port) && link.kind.as_deref() == Some("veth"))
        .ok_or_else(|| Error::failed(format!("its veth {} is gone", record.interface), ""))
}

/// Makes the bond, puts the veth into it, and moves name, addresses and routes. Returns both indices.
fn join(net: &mut Net, record: &Record) -> Result<(u32, u32)> {
    let links = net.all()?;
    let veth = find_veth(&links, record)?.clone();
    let bond = match find_bond(&links, record) {
        Some(bond) => bond.clone(),
        None => {
            net.make_bond(BOND_NAME)?;
            net.named(BOND_NAME)?.ok_or_else(|| Error::failed("the bond is gone at once", ""))?
        }
    };
    failpoint::reached(|| "adopt/bond".to_owned());
    if veth.master != Some(bond.index) {
        net.change(&veth, &Change::Up(false))?;
        for address in &record.addresses {
            net.change(&veth, &Change::DeleteAddress(address.parse()?))?;
        }
        if veth.name != VETH_NAME {
            net.change(&veth, &Change::Name(VETH_NAME.into()))?;
        }
        net.enslave(&veth, Some(bond.index))?;
        failpoint::reached(|| "adopt/veth".to_owned());
    }
    let mut bond = net.indexed(bond.index)?.unwrap_or(bond);
    if bond.name != record.interface {
        net.change(&bond, &Change::Name(record.interface.clone()))?;
        bond.name.clone_from(&record.interface);
    }
    if bond.mtu_bytes != record.mtu_bytes {
        net.change(&bond, &Change::MtuBytes(record.mtu_bytes))?;
    }
    if record.up && !bond.up {
        net.change(&bond, &Change::Up(true))?;
    }
    // Until all were added once, those that a crash or a refusal left out are added; later changes are the
    // guest's own.
    if !record.taken_over {
        for address in &record.addresses {
            net.change(&bond, &Change::AddAddress(address.parse()?))?;
            failpoint::reached(|| "adopt/address".to_owned());
        }
        for route in &record.routes {
            net.add_route(bond.index, route)?;
            failpoint::reached(|| "adopt/route".to_owned());
        }
    }
    // A kill during a switch may have left it on.
    net.set_all_ports_active(&bond, false)?;
    Ok((bond.index, veth.index))
}

/// Removes an address from NICs' filters and bridges.
pub fn forget_address(mac: Mac, host: &mut Net, pool: &PoolView) -> Result<()> {
    for pf in pool.pfs.values() {
        host.set_nic_filter(mac, pf.index, false)?;
        host.delete_bridge_fdb(mac, pf.index)?;
    }
    Ok(())
}

/// Adds a guest on its paravirtual path to the NICs' filters, by which guests on VFs reach it.
fn settle(adopted: &Adopted, host: &mut Net, pool: &PoolView) -> Result<()> {
    let mac = adopted.record.mac;
    if pool.vfs.values().any(|vf| vf.mac == mac) {
        return Ok(());
    }
    for (_, pf) in pfs_of(pool, adopted.bridge.as_deref()) {
        host.set_nic_filter(mac, pf.index, true)?;
    }
    host.set_bridge_fdb(mac, adopted.port, true)
}

/// Restores the guest to its state before it was managed.
pub fn restore(adopted: &mut Adopted, host: &mut Net, records: &Path) -> Result<()> {
    // If this is interrupted and the guest adopted again, its addresses are added again.
    adopted.record.taken_over = false;
    record::write(records, &adopted.record)?;
    let record = adopted.record.clone();
    let net = &mut adopted.net;
    let links = net.all()?;
    let veth = find_veth(&links, &record)?.clone();
    if let Some(bond) = find_bond(&links, &record) {
        net.change(bond, &Change::Up(false))?;
        if veth.master.is_some() {
            net.enslave(&veth, None)?;
        }
        net.remove(bond)?;
    }
    net.change(&veth, &Change::Up(false))?;
    if veth.mac != Some(record.mac) {
        net.change(&veth, &Change::Mac(pw_sriov::mac::Mac(record.mac.0)))?;
    }
    if veth.name != record.interface {
        net.change(&veth, &Change::Name(record.interface.clone()))?;
    }
    if veth.mtu_bytes != record.mtu_bytes {
        net.change(&veth, &Change::MtuBytes(record.mtu_bytes))?;
    }
    if record.up {
        net.change(&veth, &Change::Up(true))?;
    }
    for address in &record.addresses {
        net.change(&veth, &Change::AddAddress(address.parse()?))?;
    }
    for route in &record.routes {
        net.add_route(veth.index, route)?;
    }
    for entry in host.fdb_entries()? {
        if entry.mac == record.mac && entry.is_self {
            host.set_nic_filter(record.mac, entry.index, false)?;
        }
    }
    if adopted.bridge.is_some() {
        // From now on the bridge learns by itself.
        host.delete_bridge_fdb(record.mac, adopted.port)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_namespace_is_never_taken_in() {
        let Ok(mut host) = Net::open() else { return };
        let pid = std::process::id();
        if Net::open_in(&Netns::Pid(pid)).is_err() {
            eprintln!("not as root: no namespace can be entered");
            return;
        }
        let records = tempfile::tempdir().expect("a directory");
        let spec = Spec {
            netns: Netns::Pid(pid),
            interface: None,
            container: None,
            macs: Vec::new(),
            wish: pw_alloc::model::Wish::default(),
        };
        let settings = AdoptionSettings {
            records: records.path(),
            dry_run: true,
            enforce_mac: true,
            guests: &[],
        };
        let refused = adopt(&GuestId::from("a"), &spec, &settings, &mut host, &PoolView::default());
        assert_eq!(refused.expect_err("it is refused").what, "its network namespace is the host's");
    }
}
