//! A made-up libvirt on a made-up host: domains with live XML, guests that behave and guests that do
//! not, a NIC whose VFs are handed round, and a libvirtd that can go away. For tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pw_alloc::evidence::User;
use pw_alloc::execute::Performed;
use pw_alloc::model::{Mac, PfId, VfId};
use pw_alloc::signal::Counters;
use pw_alloc::step::{Path, Step};
use pw_error::Result;
use pw_sriov::address::PciAddress;

use super::api::{Answer, Domain, Event, Libvirt, Refusal, Uuid, Why};
use super::domain::NAMESPACE;
use super::host::{Host, Tap};
use crate::daemon::filters::Filters;
use crate::daemon::pool::{PoolPf, PoolVf, PoolView};
use crate::daemon::tasks::Executor;

/// What a guest does when it is asked to release a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It does, after so many looks at its XML.
    Releases(u32),
    /// It never does, and says nothing.
    Silent,
    /// It says that it does not.
    Refuses,
}

/// A machine.
#[derive(Debug, Clone)]
pub struct Machine {
    pub name: String,
    pub mac: Mac,
    pub marked: bool,
    /// Its guest makes a bond itself: the NIC is no half of a pair.
    pub joins_itself: bool,
    pub runs: bool,
    /// How often it was started.
    pub starts: i32,
    pub tap_works: bool,
    pub manner: Manner,
    /// It brings a VF up after so many looks; none: never.
    pub drives_after: Option<u32>,
    /// It lets a VF go after so many looks though nobody asked; none: never.
    pub ejects_after: Option<u32>,
    pub vfs: Vec<Attached>,
    /// What its agent says that it counts; none: there is no agent.
    pub word: Option<u64>,
    pub tap_packets: u64,
    /// The host shows its tap, on this bridge.
    pub tap_seen: bool,
    pub bridge: Option<String>,
    /// A VF that its configuration has, by number.
    pub configured: Option<u16>,
}

/// A VF in a machine.
#[derive(Debug, Clone)]
pub struct Attached {
    pub address: PciAddress,
    pub alias: String,
    looks: u32,
    /// Asked to release it, and looked at so often since.
    asked: Option<u32>,
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub machines: BTreeMap<Uuid, Machine>,
    pub vfs: BTreeMap<VfId, PoolVf>,
    /// Whoever the bridge sends a machine's frames to.
    pub directed: BTreeMap<Mac, PfId>,
    /// Addresses whose frames the PF takes in for the bridge.
    pub taken_in: BTreeSet<Mac>,
    /// Devices that came or were to go while frames for their machine came by nothing else.
    pub cut_off: u32,
    /// VLANs that VFs were put into.
    pub tags: BTreeMap<VfId, u16>,
    /// There is a libvirtd, though it may not run.
    pub installed: bool,
    /// libvirtd runs.
    pub there: bool,
    /// It comes back at the next call but so many.
    pub back_after: Option<u32>,
    /// How often libvirtd was restarted.
    restarts: u32,
    events: Vec<Event>,
    /// Calls after which the daemon is dead.
    pub calls_left: Option<u32>,
    /// Attempts to release what was asked before.
    pub asked_again: u32,
    /// Attachments of VFs that somebody has: none may happen.
    pub given_twice: u32,
}

/// The world, shared by what plays libvirt, the host and the pool; and a connection to its libvirt.
#[derive(Debug, Clone, Default)]
pub struct Simulated {
    world: Arc<Mutex<World>>,
    /// Connected, since so many restarts of libvirtd.
    since: Option<u32>,
    /// Events told.
    told: usize,
}

/// Machine number `n`'s identity.
pub fn uuid(n: u16) -> Uuid {
    let mut uuid = [7; 16];
    uuid[..2].copy_from_slice(&n.to_be_bytes());
    uuid
}

/// Machine number `n`'s address.
pub fn mac(n: u16) -> Mac {
    let [high, low] = n.to_be_bytes();
    Mac([0x52, 0x54, 0, 0, high, low])
}

/// The VF `pf0/index`.
pub fn vf(index: u16) -> VfId {
    VfId::new("pf0", index)
}

fn address(index: u16) -> PciAddress {
    let first: PciAddress = "0000:01:10.0".parse().expect("an address");
    first.plus(u32::from(index)).expect("another one")
}

impl Simulated {
    /// So many machines that run and are marked, called `m0`, `m1`, …, and so many VFs.
    pub fn with(machines: u16, vfs: u16) -> Self {
        let mut world = World { installed: true, there: true, ..World::default() };
        for n in 0..machines {
            world.machines.insert(uuid(n), machine(n));
        }
        for index in 0..vfs {
            let driver = Some("igbvf".into());
            let pooled = PoolVf { driver, ..PoolVf::unused(address(index)) };
            world.vfs.insert(vf(index), pooled);
        }
        Self { world: Arc::new(Mutex::new(world)), ..Self::default() }
    }

    /// What is.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test panics with it")
    }

    /// Machine number `n`.
    pub fn change(&self, n: u16, change: impl FnOnce(&mut Machine)) {
        let mut world = self.world();
        change(world.machines.get_mut(&uuid(n)).expect("a machine"));
        world.events.push(changed(uuid(n)));
    }

    /// Machine number `n` ends, as if its power were cut; libvirt gives back what it held.
    pub fn destroy(&self, n: u16) {
        self.change(n, |machine| {
            machine.runs = false;
            machine.vfs.clear();
        });
    }

    /// libvirtd ends and, if so, is back after so many calls.
    pub fn restart_libvirtd(&self, back_after: Option<u32>) {
        let mut world = self.world();
        world.there = false;
        world.restarts += 1;
        world.back_after = back_after;
    }

    fn call(&self) -> Answer<MutexGuard<'_, World>> {
        let mut world = self.world();
        if let Some(left) = world.calls_left.as_mut() {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => return Err(Refusal::new(Why::Refused, "the daemon is dead")),
            }
        }
        if !world.there {
            match world.back_after.map(|left| left.checked_sub(1)) {
                Some(Some(left)) => world.back_after = Some(left),
                Some(None) => {
                    world.there = true;
                    world.back_after = None;
                }
                None => {}
            }
        }
        if !world.there {
            return Err(Refusal::new(Why::Gone, "libvirt does not answer"));
        }
        Ok(world)
    }
}

fn changed(uuid: Uuid) -> Event {
    Event { uuid, refused: None }
}

/// A machine that behaves.
pub fn machine(n: u16) -> Machine {
    Machine {
        name: format!("m{n}"),
        mac: mac(n),
        marked: true,
        joins_itself: false,
        runs: true,
        starts: 1,
        tap_works: true,
        manner: Manner::Releases(0),
        drives_after: Some(1),
        ejects_after: None,
        vfs: Vec::new(),
        word: None,
        tap_packets: 0,
        tap_seen: true,
        bridge: Some("br0".into()),
        configured: None,
    }
}

impl Machine {
    fn xml(&self) -> String {
        let mark = if self.marked {
            let join = if self.joins_itself { "guest" } else { "host" };
            format!("<metadata><p:managed xmlns:p='{NAMESPACE}' join='{join}'/></metadata>")
        } else {
            String::new()
        };
        let pair = if self.joins_itself { "" } else { "<teaming type='persistent'/>" };
        let mut devices = format!(
            "<interface type='bridge'><mac address='{}'/><target dev='{}-tap'/>\
             <model type='virtio'/><vlan><tag id='42'/></vlan>{pair}<alias name='ua-net'/></interface>",
            self.mac, self.name
        );
        let configured = self.configured.filter(|_| !self.runs).map(address);
        let configured = configured.map(|address| (address, "hostdev0"));
        let plugged = self.vfs.iter().map(|vf| (vf.address, vf.alias.as_str()));
        for (address, alias) in plugged.chain(configured) {
            let text = address.to_string();
            let parts: Vec<&str> = text.split([':', '.']).collect();
            let _ = write!(
                devices,
                "<hostdev type='pci'><source><address domain='0x{}' bus='0x{}' slot='0x{}' \
                 function='0x{}'/></source><alias name='{alias}'/></hostdev>",
                parts[0], parts[1], parts[2], parts[3]
            );
        }
        if self.word.is_some() {
            devices +=
                "<channel><target name='org.qemu.guest_agent.0' state='connected'/></channel>";
        }
        format!("<domain><name>{}</name>{mark}<devices>{devices}</devices></domain>", self.name)
    }

    /// The guest does what it is asked to; true: something has left it.
    fn look(&mut self) -> bool {
        let manner = self.manner;
        for vf in &mut self.vfs {
            vf.looks += 1;
            if let Some(looks) = vf.asked.as_mut() {
                *looks += 1;
            }
        }
        let ejects_after = self.ejects_after;
        let leaves = |vf: &Attached| {
            let releases = match manner {
                Manner::Releases(after) => vf.asked.is_some_and(|looks| looks > after),
                Manner::Silent | Manner::Refuses => false,
            };
            releases || ejects_after.is_some_and(|after| vf.looks > after)
        };
        let before = self.vfs.len();
        self.vfs.retain(|vf| !leaves(vf));
        self.vfs.len() < before
    }

    /// Does it drive this VF?
    pub fn drives(&self, address: PciAddress) -> bool {
        let attached = self.vfs.iter().find(|vf| vf.address == address);
        attached.is_some_and(|vf| self.drives_after.is_some_and(|after| vf.looks >= after))
    }
}

impl Libvirt for Simulated {
    fn another(&self) -> Box<dyn Libvirt> {
        Box::new(Self { world: Arc::clone(&self.world), ..Self::default() })
    }

    fn connect(&mut self) -> Answer<bool> {
        let world = self.call()?;
        let (restarts, told) = (world.restarts, world.events.len());
        drop(world);
        if self.since.replace(restarts) == Some(restarts) {
            return Ok(false);
        }
        self.told = told;
        Ok(true)
    }

    fn domains(&mut self, _: Instant) -> Answer<Vec<Domain>> {
        let world = self.call()?;
        let running = world.machines.iter().filter(|(_, machine)| machine.runs);
        Ok(running
            .map(|(uuid, machine)| Domain {
                uuid: *uuid,
                name: machine.name.clone(),
                id: machine.starts,
            })
            .collect())
    }

    fn xml(&mut self, domain: &Domain, _: Instant) -> Answer<String> {
        let mut world = self.call()?;
        match world.machines.get_mut(&domain.uuid) {
            Some(machine) if machine.runs => {
                let left = machine.look();
                let text = machine.xml();
                world.events.extend(left.then(|| changed(domain.uuid)));
                Ok(text)
            }
            _ => Err(Refusal::new(Why::NoDomain, "Domain not found")),
        }
    }

    fn configured(&mut self, _: Instant) -> Answer<Vec<(String, String)>> {
        let world = self.call()?;
        let idle = world.machines.values().filter(|machine| !machine.runs);
        Ok(idle.map(|machine| (machine.name.clone(), machine.xml())).collect())
    }

    fn attach(&mut self, domain: &Domain, device: &str, _: Instant) -> Answer<()> {
        let mut world = self.call()?;
        let wrapped = format!("<domain><devices>{device}</devices></domain>");
        let read = super::domain::read(&wrapped).map_err(|why| Refusal::new(Why::Refused, why))?;
        let function = read.functions.into_iter().next().expect("a PCI function");
        let held = |machine: &Machine| machine.vfs.iter().any(|vf| vf.address == function.address);
        if world.machines.values().any(held) {
            world.given_twice += 1;
            return Err(Refusal::new(Why::Refused, "PCI device is in use by driver QEMU"));
        }
        match world.machines.get_mut(&domain.uuid).filter(|machine| machine.runs) {
            None => Err(Refusal::new(Why::NoDomain, "Domain not found")),
            // As libvirt has it: a VF is paired with a lasting NIC, or with none.
            Some(machine) if machine.joins_itself == device.contains("<teaming") => {
                Err(Refusal::new(Why::Refused, "teaming information is not right"))
            }
            Some(machine) => {
                machine.vfs.push(Attached {
                    address: function.address,
                    alias: function.alias.expect("an alias"),
                    looks: 0,
                    asked: None,
                });
                let mac = machine.mac;
                world.cut_off += u32::from(!world.taken_in.contains(&mac));
                world.events.push(changed(domain.uuid));
                Ok(())
            }
        }
    }

    fn detach(&mut self, domain: &Domain, alias: &str, _: Instant) -> Answer<()> {
        let mut world = self.call()?;
        let Some(machine) = world.machines.get_mut(&domain.uuid).filter(|machine| machine.runs)
        else {
            return Err(Refusal::new(Why::NoDomain, "Domain not found"));
        };
        let (manner, mac) = (machine.manner, machine.mac);
        let Some(vf) = machine.vfs.iter_mut().find(|vf| vf.alias == alias) else {
            return Err(Refusal::new(Why::NoDevice, "no device found with that alias"));
        };
        if vf.asked.is_some() {
            world.asked_again += 1;
            return Err(Refusal::new(Why::Unplugging, "is already in the process of unplug"));
        }
        match manner {
            Manner::Releases(_) | Manner::Silent => {
                vf.asked = Some(0);
                world.cut_off += u32::from(!world.taken_in.contains(&mac));
            }
            Manner::Refuses => {
                let refused = Some(alias.to_owned());
                world.events.push(Event { uuid: domain.uuid, refused });
                return Err(Refusal::new(Why::Unplugging, "rejected by the guest"));
            }
        }
        Ok(())
    }

    fn agent(&mut self, domain: &Domain, _: &str, _: Instant) -> Answer<String> {
        let world = self.call()?;
        let machine = &world.machines[&domain.uuid];
        let Some(word) = machine.word else {
            return Err(Refusal::new(Why::Late, "QEMU guest agent is not connected"));
        };
        let interface = format!(
            "{{\"hardware-address\":\"{}\",\"statistics\":{{\"rx-packets\":{word},\"rx-bytes\":{word},\
             \"tx-packets\":0,\"tx-bytes\":0}}}}",
            machine.mac
        );
        Ok(format!("{{\"return\":[{interface}]}}"))
    }

    fn events(&mut self, _: Duration) -> Answer<Vec<Event>> {
        let events = self.world().events[self.told..].to_vec();
        self.told += events.len();
        Ok(events)
    }

    fn installed(&self) -> bool {
        self.world().installed
    }
}

impl Host for Simulated {
    fn try_clone(&self) -> Result<Box<dyn Host>> {
        Ok(Box::new(self.clone()))
    }

    fn taps(&mut self) -> Result<BTreeMap<String, Tap>> {
        let world = self.world();
        let machines = world.machines.values().filter(|machine| machine.runs && machine.tap_seen);
        let tap = |(number, machine): (usize, &Machine)| {
            let packets = machine.tap_packets;
            let tap = Tap {
                index: 100 + u32::try_from(number).expect("few"),
                works: machine.tap_works,
                bridge: machine.bridge.clone(),
                counters: Counters {
                    rx_packets: packets,
                    rx_bytes: 64 * packets,
                    ..Counters::default()
                },
            };
            (format!("{}-tap", machine.name), tap)
        };
        Ok(machines.enumerate().map(tap).collect())
    }

    fn in_use(&self, vf: PciAddress) -> Option<bool> {
        Some(self.world().machines.values().any(|machine| machine.drives(vf)))
    }

    fn prepare(&mut self, vf: PciAddress) -> Result<()> {
        let mut world = self.world();
        if let Some(vf) = world.vfs.values_mut().find(|pool_vf| pool_vf.address == vf) {
            vf.driver = Some("vfio-pci".into());
        }
        Ok(())
    }

    fn direct_both(&mut self, mac: Mac, _: &Tap, _: &VfId, _: &PoolView) -> Result<()> {
        let mut world = self.world();
        world.directed.remove(&mac);
        world.taken_in.insert(mac);
        Ok(())
    }

    fn tag(&mut self, vf: &VfId, vlan: u16, _: &PoolView) -> Result<()> {
        self.world().tags.insert(vf.clone(), vlan);
        Ok(())
    }

    fn silence(&mut self, vf: &VfId, _: &PoolView) -> Result<()> {
        if let Some(vf) = self.world().vfs.get_mut(vf) {
            vf.mac = Mac::NONE;
        }
        Ok(())
    }

    fn direct(&mut self, mac: Mac, _: &Tap, path: &Path, _: &PoolView) -> Result<()> {
        let mut world = self.world();
        match path {
            Path::Vf(vf) => {
                world.directed.insert(mac, vf.pf.clone());
                world.taken_in.remove(&mac);
            }
            Path::Paravirtual => {
                world.directed.remove(&mac);
                world.taken_in.insert(mac);
            }
        }
        Ok(())
    }

    fn directed(&mut self, _: &PoolView) -> Result<BTreeMap<Mac, PfId>> {
        Ok(self.world().directed.clone())
    }
}

impl Simulated {
    /// The pool.
    pub fn read(&mut self) -> Result<PoolView> {
        let world = self.world();
        let mut vfs = world.vfs.clone();
        for vf in vfs.values_mut() {
            let held = |machine: &Machine| {
                machine.vfs.iter().any(|attached| attached.address == vf.address)
            };
            if let Some(machine) = world.machines.values().find(|machine| held(machine)) {
                vf.user = User::Guest(format!("the process of {} holds it", machine.name));
            }
        }
        let pf = PoolPf {
            index: 3,
            address: "0000:01:00.0".parse().expect("an address"),
            numa: None,
            link_up: true,
            bridge: Some("br0".into()),
        };
        let taps = (0..world.machines.len()).map(|number| 100 + number as u32);
        let mut filters = Filters::default();
        filters.read = taps.collect();
        let filters = Arc::new(filters);
        Ok(PoolView { pfs: [("pf0".into(), pf)].into(), vfs, filters, ..PoolView::default() })
    }
}

impl Executor for Simulated {
    fn perform(&mut self, step: &Step, _: &PoolView, _: Instant) -> Performed {
        let mut world = self.world();
        match step {
            Step::SetMac { vf, mac } => world.vfs.get_mut(vf).expect("a VF").mac = *mac,
            Step::ClearMac { vf } => world.vfs.get_mut(vf).expect("a VF").mac = Mac::NONE,
            _ => {}
        }
        Ok(())
    }
}
