//! Adopts a namespace as a guest, and restores it: its veth becomes a member of a bond that takes its name,
//! addresses and routes. Can be interrupted anywhere and repeated.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pw_alloc::model::{GuestId, Mac, VfId};
use pw_error::{Error, Result};
use pw_linux::netns::Netns;
use pw_sriov::link::Change;

use super::Spec;
use super::address::Addresses;
use super::groups::joined_group;
use super::record::{self, Record};
use crate::daemon::failpoint;
use crate::daemon::net::{Link, Net};
use crate::daemon::pool::PoolView;
use crate::daemon::route::Route;

/// Name of the veth in a guest while it is in the bond.
pub const VETH_NAME: &str = "pw-veth";
/// Name of the bond before it takes the veth's.
const BOND_NAME: &str = "pw-bond";

/// What is known of a guest whose paths a bond made here joins.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its namespace.
    pub netns: Netns,
    /// That namespace's inode.
    pub inode: u64,
    /// That namespace's number in the host's.
    pub netns_id: i32,
    /// Its state before.
    pub record: Record,
    /// The bond's index in the guest.
    pub bond: u32,
    /// The veth's index in the guest.
    pub veth: u32,
    /// The veth's index on the host.
    pub port: u32,
    /// Its VFs can only have the address that their PF sets.
    pub enforce_mac: bool,
    /// Its VFs, shared with its executors.
    pub paths: Arc<Mutex<Paths>>,
}

/// A guest whose paths a bond made here joins, with a socket in it.
#[derive(Debug)]
pub struct Adopted {
    facts: Facts,
    /// A socket in it.
    pub net: Net,
}

impl Deref for Adopted {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl DerefMut for Adopted {
    fn deref_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }
}

/// The VFs of a guest, as last seen.
#[derive(Debug, Default)]
pub struct Paths {
    /// The VF that it sends by, and its index in the guest.
    pub on_vf: Option<(VfId, u32)>,
    /// VFs whose interfaces are in its namespace, with their indices.
    pub has: BTreeMap<VfId, u32>,
}

impl Facts {
    /// Opens a socket in the guest, for another thread.
    pub fn open(self) -> Result<Adopted> {
        let net = Net::open_in(&self.netns)?;
        if !self.record.is_of(net.identity()) {
            return Err(gone("another one has its name"));
        }
        Ok(Adopted { facts: self, net })
    }

    /// Opens the guest's namespace.
    pub fn open_netns(&self) -> Result<File> {
        open_netns(&self.netns, self.inode)
    }

    /// Its VFs.
    pub fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host's end of its veth, as the pool was last sampled; none: it is gone, or not known yet.
    pub fn port_in<'a>(&self, pool: &'a PoolView) -> Option<&'a Link> {
        pool.links.get(&self.port).filter(|port| port.is_port_of(self.veth, self.netns_id))
    }

    /// The bridge that the host's end is a port of.
    pub fn bridge_in<'a>(&self, pool: &'a PoolView) -> Option<&'a str> {
        pool.bridge_of(self.port_in(pool)?).map(|bridge| bridge.name.as_str())
    }
}

impl Adopted {
    /// What is known of it, for another thread.
    pub fn facts(&self) -> Facts {
        self.facts.clone()
    }
}

fn gone(why: &str) -> Error {
    Error::failed(format!("the guest's namespace is gone: {why}"), "")
}

/// Opens a namespace, which must still have this inode.
fn open_netns(netns: &Netns, inode: u64) -> Result<File> {
    let file = File::open(netns.path()).map_err(|error| gone(&error.to_string()))?;
    let opened = file.metadata().map_err(|error| gone(&error.to_string()))?.ino();
    if opened == inode { Ok(file) } else { Err(gone("another one has its name")) }
}

/// Settings of adoption.
pub struct AdoptionSettings {
    /// Directory of guests' records.
    pub records: PathBuf,
    /// Only check whether a namespace could be a guest.
    pub dry_run: bool,
    /// VFs of guests can only have the address that their PF sets.
    pub enforce_mac: bool,
    /// The present guests, with their addresses.
    pub guests: Vec<(GuestId, Mac)>,
}

/// Makes a namespace a guest, unless it is one already.
pub fn adopt(
    id: &GuestId,
    spec: &Spec,
    settings: &AdoptionSettings,
    pool: &PoolView,
) -> Result<Adopted> {
    let (records, dry_run, host) = (&settings.records, settings.dry_run, &mut Net::open()?);
    let mut net = Net::open_in(&spec.netns)?;
    let namespace = net.identity();
    if namespace == host.identity() {
        return Err(Error::failed(
            "its network namespace is the host's",
            "give it one of its own: a VF is moved into it",
        ));
    }
    let file = open_netns(&spec.netns, namespace.inode)?;
    // A reading of the interfaces gives the namespaces of their peers their numbers.
    let host_links = host.all()?;
    let no_port = || {
        Error::failed(
            "the other end of its veth is not in the host's namespace",
            "the daemon must run where the bridge is",
        )
    };
    let netns_id = host.netns_id(file.as_fd())?.ok_or_else(no_port)?;
    let pair_of = |links: &[Link], port: u32| pair(&host_links, links, port, netns_id);
    let mut record = match record::read(records, id)? {
        Some(record) if record.is_of(namespace) => {
            Record { netns: spec.netns.to_string(), ..record }
        }
        other => {
            // The namespace that the guest had before may have had another address.
            if let Some(other) = other.filter(|_| !dry_run) {
                forget_address(other.mac, host, pool)?;
            }
            record_state(id, spec, &mut net, |veth| {
                let port = |link: &&Link| link.is_port_of(veth.index, netns_id);
                host_links.iter().find(port).map(|port| port.index).ok_or_else(no_port)
            })?
        }
    };
    record.container.clone_from(&spec.container);
    let (_, port) = pair_of(&net.all()?, record.port).ok_or_else(no_port)?;
    let bridge = host_links.iter().find(|link| Some(link.index) == port.controller);
    let bridge = bridge.map(|bridge| bridge.name.clone());
    if pool.pfs_of(bridge.as_deref()).next().is_none() {
        let name = bridge.as_deref().unwrap_or("none");
        return Err(Error::failed(
            format!(
                "no PF of the pool is a port of its bridge ({name}): a VF would lead elsewhere"
            ),
            "join the PF to the bridge: ip link set PF master BRIDGE",
        ));
    }
    let addresses = Addresses {
        links: &host_links,
        forwards: &host.fdb_entries()?,
        stations: &host.stations(&port.controller.into_iter().collect())?,
        guests: &settings.guests,
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
        let (veth, _) = pair_of(&links, record.port).ok_or_else(no_port)?;
        let bond = find_bond(&links, &record).map_or(veth.index, |bond| bond.index);
        (bond, veth.index)
    } else {
        record::write(records, &record)?;
        let veth = pair_of(&net.all()?, record.port).ok_or_else(no_port)?.0;
        let bond = join(&mut net, &record, &veth)?;
        if !record.taken_over {
            failpoint::reached(|| "adopt/taken-over".to_owned());
            record.taken_over = true;
            record::write(records, &record)?;
        }
        (bond, veth.index)
    };
    let facts = Facts {
        netns: spec.netns.clone(),
        inode: namespace.inode,
        netns_id,
        bond,
        veth,
        port: port.index,
        enforce_mac: settings.enforce_mac,
        paths: Arc::default(),
        record,
    };
    if !dry_run {
        settle(&facts, bridge.as_deref(), host, pool)?;
    }
    Ok(Adopted { facts, net })
}

/// Both ends of the veth whose end on the host has this index: the guest's, and the host's.
fn pair(host: &[Link], guest: &[Link], port: u32, netns_id: i32) -> Option<(Link, Link)> {
    let port = host.iter().find(|link| link.index == port)?;
    let veth = guest.iter().find(|veth| port.is_port_of(veth.index, netns_id))?;
    (veth.kind == "veth").then(|| (veth.clone(), port.clone()))
}

/// The state of a guest before it is managed; `port` finds the host's end of a veth.
fn record_state(
    id: &GuestId,
    spec: &Spec,
    net: &mut Net,
    port: impl FnOnce(&Link) -> Result<u32>,
) -> Result<Record> {
    let namespace = net.identity();
    let links = net.all()?;
    let veths = || links.iter().filter(|link| link.kind == "veth");
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
    let ("veth", Some(mac)) = (&*link.kind, link.mac) else {
        let kind = if link.kind.is_empty() { "a device" } else { &link.kind };
        return Err(Error::failed(
            format!("its interface {} is no veth but {kind}", link.name),
            "only an end of a veth pair can be joined with a VF",
        ));
    };
    if link.controller.is_some() {
        return Err(Error::failed(
            format!("its interface {} is a member of a bond or bridge already", link.name),
            "take it out: it can be a member of one only",
        ));
    }
    // What a bond in its place would cut off.
    let redirects = |(index, kind): &(u32, String)| {
        *index == link.index && matches!(kind.as_str(), "ingress" | "clsact")
    };
    if net.disciplines()?.iter().any(redirects) {
        return Err(Error::failed(
            format!("tc redirects the frames of its interface {}, as in a Kata pod", link.name),
            "only guests that send by that interface themselves can be managed",
        ));
    }
    if let Some(group) = joined_group(&spec.netns, &link.name)? {
        return Err(Error::failed(
            format!("a process has joined the multicast group {group} on {}", link.name),
            "manage the guest before it starts such processes: they would no longer receive",
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
        routes: net.routes(link.index)?.into_iter().collect::<Result<Vec<Route>>>()?,
        port: port(link)?,
    })
}

fn find_bond<'a>(links: &'a [Link], record: &Record) -> Option<&'a Link> {
    let bond = |name: &str| links.iter().find(|link| link.name == name && link.kind == "bond");
    bond(BOND_NAME).or_else(|| bond(&record.interface))
}

/// Makes the bond, puts the veth into it, and moves name, addresses and routes. Returns the bond's index.
fn join(net: &mut Net, record: &Record, veth: &Link) -> Result<u32> {
    let bond = match find_bond(&net.all()?, record) {
        Some(bond) => bond.clone(),
        None => {
            net.make_bond(BOND_NAME)?;
            net.named(BOND_NAME)?.ok_or_else(|| Error::failed("the bond is gone at once", ""))?
        }
    };
    failpoint::reached(|| "adopt/bond".to_owned());
    if veth.controller != Some(bond.index) {
        net.change(veth, &Change::Up(false))?;
        for address in &record.addresses {
            net.change(veth, &Change::DeleteAddress(address.parse()?))?;
        }
        if veth.name != VETH_NAME {
            net.change(veth, &Change::Name(VETH_NAME.into()))?;
        }
        net.enslave(veth, Some(bond.index))?;
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
    Ok(bond.index)
}

/// Removes the record of a guest that is gone with its namespace, and its entries in NICs and bridges.
pub fn forget(id: &GuestId, records: &Path, pool: &PoolView) -> Result<()> {
    if let Some(record) = record::read(records, id)? {
        forget_address(record.mac, &mut Net::open()?, pool)?;
        record::remove(records, id)?;
    }
    Ok(())
}

/// Removes an address from NICs' filters and bridges.
fn forget_address(mac: Mac, host: &mut Net, pool: &PoolView) -> Result<()> {
    for pf in pool.pfs.values() {
        host.set_nic_filter(mac, pf.index, false)?;
        host.delete_bridge_fdb(mac, pf.index)?;
    }
    Ok(())
}

/// Adds a guest on its paravirtual path to the NICs' filters, by which guests on VFs reach it.
fn settle(facts: &Facts, bridge: Option<&str>, host: &mut Net, pool: &PoolView) -> Result<()> {
    let mac = facts.record.mac;
    if pool.vfs.values().any(|vf| vf.mac == mac) {
        return Ok(());
    }
    for (_, pf) in pool.pfs_of(bridge) {
        host.set_nic_filter(mac, pf.index, true)?;
    }
    host.set_bridge_fdb(mac, facts.port, true)
}

/// Restores the guest to its state before it was managed, with the addresses and routes that it has now.
pub fn restore(adopted: Adopted, records: &Path) -> Result<()> {
    let (Adopted { mut facts, mut net }, mut host) = (adopted, Net::open()?);
    if facts.record.taken_over {
        facts.record.addresses = net.addresses(&facts.record.interface)?;
        facts.record.routes = net.routes(facts.bond)?.into_iter().flatten().collect();
    }
    // If this is interrupted and the guest adopted again, its addresses are added again.
    facts.record.taken_over = false;
    record::write(records, &facts.record)?;
    let record = facts.record.clone();
    let links = net.all()?;
    let veth = links.iter().find(|link| link.index == facts.veth).cloned();
    let veth =
        veth.ok_or_else(|| Error::failed(format!("its veth {} is gone", record.interface), ""))?;
    if let Some(bond) = find_bond(&links, &record) {
        net.change(bond, &Change::Up(false))?;
        if veth.controller.is_some() {
            net.enslave(&veth, None)?;
        }
        net.remove(bond)?;
    }
    net.change(&veth, &Change::Up(false))?;
    if veth.mac != Some(record.mac) {
        net.change(&veth, &Change::Mac(record.mac))?;
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
    // From now on the bridge learns by itself.
    host.delete_bridge_fdb(record.mac, facts.port)?;
    record::remove(records, &record.guest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::testing::{in_namespace, shell};

    fn spec(netns: Netns, interface: Option<&str>) -> Spec {
        let (container, wish) = (None, pw_alloc::model::Wish::default());
        Spec { netns, interface: interface.map(str::to_owned), container, macs: Vec::new(), wish }
    }

    #[test]
    fn the_hosts_own_namespace_is_never_taken_in() {
        let pid = std::process::id();
        if Net::open_in(&Netns::Pid(pid)).is_err() {
            eprintln!("not as root: no namespace can be entered");
            return;
        }
        let records = tempfile::tempdir().expect("a directory");
        let spec = spec(Netns::Pid(pid), None);
        let settings = AdoptionSettings {
            records: records.path().to_owned(),
            dry_run: true,
            enforce_mac: true,
            guests: Vec::new(),
        };
        let refused = adopt(&GuestId::from("a"), &spec, &settings, &PoolView::default());
        assert_eq!(refused.expect_err("it is refused").what, "its network namespace is the host's");
    }

    #[test]
    fn a_guest_whose_frames_tc_redirects_or_whose_interface_is_a_member_already_is_refused() {
        let refusal = |script: &str| {
            let set_up = "ip link add eth0 type veth peer far; ip link add br0 type bridge";
            in_namespace(&format!("{set_up}; {script}"), || {
                let spec = spec(Netns::Path("/proc/thread-self/ns/net".into()), Some("eth0"));
                let mut net = Net::open().expect("Linux");
                let recorded = record_state(&"kata".into(), &spec, &mut net, |_| Ok(7));
                recorded.err().map(|error| error.what)
            })
        };
        let Some(plain) = refusal("true") else { return };
        assert_eq!(plain, None);
        let kata = refusal("tc qdisc add dev eth0 ingress").flatten();
        assert!(kata.is_some_and(|why| why.contains("tc redirects the frames")));
        let member = refusal("ip link set eth0 master br0").flatten();
        assert!(member.is_some_and(|why| why.contains("is a member of a bond or bridge")));
    }

    /// Two namespaces, and a guest that makes an interface whose peer has the index of another's port.
    #[test]
    fn a_guest_cannot_claim_the_port_of_another_by_choosing_an_index() {
        let done = in_namespace("true", || {
            let guest = |script: &'static str| {
                let (send, receive) = std::sync::mpsc::channel();
                let (end, ended) = std::sync::mpsc::channel::<()>();
                std::thread::spawn(move || {
                    in_namespace("true", move || {
                        let tid = nix::unistd::gettid().as_raw() as u32;
                        let _ = (send.send(tid), ended.recv());
                        let _ = shell(script).map(|_| send.send(tid));
                        let _ = ended.recv();
                    });
                });
                Some((receive.recv().ok()?, end, receive))
            };
            let (victim, _victim_ends, _) = guest("true")?;
            let (thief, thief_ends, thief_done) =
                guest("ip link add name x index 70 type veth peer name eth0")?;
            shell(&format!(
                "ip link add name port index 70 type veth peer name eth0; ip link set eth0 netns {victim}"
            ))?;
            thief_ends.send(()).ok()?;
            thief_done.recv().ok()?;
            let mut host = Net::open().expect("Linux");
            let host_links = host.all().expect("answered");
            let mut pair_of = |tid: u32| {
                let netns = Netns::Path(format!("/proc/{tid}/ns/net").into());
                let file = File::open(netns.path()).expect("there");
                let mut net = Net::open_in(&netns).expect("entered");
                let links = net.all().expect("answered");
                let id = host.netns_id(file.as_fd()).expect("answered");
                let eth0 = links.iter().find(|link| link.name == "eth0").expect("made");
                // Both say that their peer is number 70.
                assert_eq!(eth0.lower, Some(70));
                id.and_then(|id| pair(&host_links, &links, 70, id)).map(|(veth, _)| veth.name)
            };
            assert_eq!(pair_of(victim).as_deref(), Some("eth0"));
            assert_eq!(pair_of(thief), None, "it is another guest's port");
            Some(())
        });
        if done.flatten().is_none() {
            eprintln!("skipped: needs root and ip");
        }
    }
}
