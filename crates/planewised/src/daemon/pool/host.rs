//! This host's VFs as a pool.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pw_alloc::evidence::User;
use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{Mac, PfId, VfId};
use pw_alloc::signal::{Counters, Reading};
use pw_alloc::step::Step;
use pw_error::{Error, Result};
use pw_sriov::address::PciAddress;
use pw_sriov::apply::apply;
use pw_sriov::discover;
use pw_sriov::driver;
use pw_sriov::kernel::{Kernel, Linux, explain};
use pw_sriov::link::{Links, Setting};
use pw_sriov::model::{self, LinkState, NetNs, VfConfig, Vlan, VlanProtocol};
use pw_sriov::plan::{self, Driver};
use pw_sriov::state::State;
use pw_sriov::vfinfo::VfInfo;

use crate::daemon::filters::Filters;
use crate::daemon::forwarding::{Budget, Forwarding};
use crate::daemon::guests::containers::VF_NAME;
use crate::daemon::net::{Link, Net};
use crate::daemon::pool::usage::HostUse;
use crate::daemon::pool::{Addresses, Pool, PoolPf, PoolVf, PoolView};
use crate::daemon::tasks::{Executor, PoolReading};

/// How long a process that has released a VF may take to close it.
const CLOSING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Age at which the host's filters are read again.
const FILTERS_OLD: Duration = Duration::from_secs(5);
/// All that a sample shows of a user that came.
const CAME: &str = "it has just left the host";

/// The VFs of this host's PFs.
pub struct HostPool {
    /// The PFs by interface; none: all that have VFs.
    pfs: Vec<PfId>,
    kernel: Linux,
    state: State,
    forwarding: Forwarding,
    filters: Arc<Filters>,
    /// When the host's filters are read again.
    filters_due: Instant,
    /// A socket in the host's namespace, once it was opened.
    net: Option<Net>,
}

impl HostPool {
    /// The VFs of the PFs named, or of all that have VFs. The state of forwarding is kept in this directory.
    pub fn new(pfs: Vec<PfId>, state_directory: &Path, budget: Budget) -> Self {
        Self {
            pfs,
            kernel: Linux::new(Path::new("/sys")),
            state: State::new(State::default_directory()),
            forwarding: Forwarding::new(state_directory, budget),
            filters: Arc::default(),
            filters_due: Instant::now(),
            net: None,
        }
    }

    /// The host's filters: newer than all of these ports, and not older than `FILTERS_OLD`.
    fn read_filters(&mut self, net: &mut Net, links: &BTreeMap<u32, Link>) -> Arc<Filters> {
        let mut ports = links.values().filter(|link| link.controller.is_some());
        let is_new = ports.any(|port| !self.filters.read.contains(&port.index));
        if is_new || Instant::now() >= self.filters_due {
            let filters = Filters::read(net, links.values());
            // Unchanged filters stay the same value: guests are judged anew when it changes.
            if filters != *self.filters {
                self.filters = Arc::new(filters);
            }
            self.filters_due = Instant::now() + FILTERS_OLD;
        }
        Arc::clone(&self.filters)
    }

    /// Is a VF with the host, by a few files of sysfs? They show interfaces of this namespace, and whether
    /// vfio-pci has enabled the device for a process.
    fn is_home(&self, vf: PciAddress) -> bool {
        let tree = self.kernel.tree();
        match tree.link(vf, "driver").as_deref() {
            None => true,
            Some(driver::VFIO) => tree.number(vf, "enable") == Some(0),
            Some(_) => !tree.interfaces(vf).is_empty(),
        }
    }
}

/// Reads the pool of these PFs; none: of all that have VFs. Nobody enrolled the VFs of those.
fn read(kernel: &mut Linux, state: &State, pfs: &[PfId]) -> Result<PoolView> {
    let machine = discover::machine(kernel)?;
    let host_use = HostUse::of(kernel, state, !pfs.is_empty())?;
    let mut view = PoolView::default();
    for pf in machine.pfs {
        let Some(netdev) = &pf.netdev else { continue };
        let name = PfId::from(netdev.name.as_str());
        let in_pool = if pfs.is_empty() { pf.num_vfs > 0 } else { pfs.contains(&name) };
        if !in_pool {
            continue;
        }
        for vf in &pf.vfs {
            let Ok(index) = u16::try_from(vf.index) else { continue };
            let switchdev = "its PF is in switchdev mode, in which VFs have ports of their own";
            let pool_vf = PoolVf {
                address: vf.address,
                mac: {
                    let by_pf = vf.config.as_ref().and_then(|config| config.mac);
                    let by_interface = vf.netdev.as_ref().and_then(|netdev| netdev.mac);
                    delivered(by_pf, by_interface).unwrap_or(Mac::NONE)
                },
                driver: vf.driver.clone(),
                user: match host_use.user(vf) {
                    User::Nobody if pf.switchdev => User::Host(switchdev.to_owned()),
                    user => user,
                },
                changed: vf.config.as_ref().and_then(changed),
                link_up: false,
                strayed: strayed(vf),
                counters: reading(&vf.counters),
            };
            view.vfs.insert(VfId::new(name.clone(), index), pool_vf);
        }
        let numa = pf.numa_node.and_then(|node| u16::try_from(node).ok());
        let (index, address) = (netdev.index, pf.address);
        let pool_pf = PoolPf { index, address, numa, link_up: false, bridge: None };
        view.pfs.insert(name, pool_pf);
    }
    view.missing = pfs.iter().filter(|pf| !view.pfs.contains_key(*pf)).cloned().collect();
    Ok(view)
}

/// Performs steps on this host's VFs.
struct PoolExecutor {
    kernel: Linux,
    state: State,
    /// The operator enrolled the VFs, by the names of their PFs.
    enrolled: bool,
}

impl PoolExecutor {
    fn vf(&mut self, id: &VfId, pf: PciAddress) -> Result<(model::Pf, model::Vf)> {
        let index = u32::from(id.index);
        let address = self.kernel.tree().vfs(pf).into_iter().find(|(number, _)| *number == index);
        let pf = discover::settled_pf(&mut self.kernel, pf, address.map(|(_, vf)| vf))?;
        let vf = pf.vfs.iter().find(|vf| vf.index == index).cloned().ok_or_else(|| {
            Error::failed(format!("the VF {id} is gone"), "`planewised vf list` shows the VFs")
        })?;
        Ok((pf, vf))
    }

    /// Waits until the VF is unused: a process that has just released it may take a moment to close it.
    fn unused_vf(
        &mut self,
        id: &VfId,
        pf: PciAddress,
        deadline: Instant,
    ) -> Result<(model::Pf, model::Vf)> {
        let deadline = deadline.min(Instant::now() + CLOSING);
        loop {
            let (pf, vf) = self.vf(id, pf)?;
            let user = HostUse::of(&mut self.kernel, &self.state, self.enrolled)?.user(&vf);
            match user.unavailable_reason() {
                None => return Ok((pf, vf)),
                Some(why) if Instant::now() >= deadline => {
                    return Err(Error::failed(
                        format!("the VF {id} is left alone: {why}"),
                        "end that use first: the kernel would wait for it without end",
                    ));
                }
                Some(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    fn steps(
        &mut self,
        id: &VfId,
        address: PciAddress,
        step: &Step,
        deadline: Instant,
    ) -> Result<plan::Plan> {
        let set = |setting| plan::Step::Set { pf: address, vf: u32::from(id.index), setting };
        let set_mac = |mac: Mac| set(Setting::Mac(mac));
        if let Step::Recall { .. } = step {
            let (_, vf) = self.vf(id, address)?;
            return recall(id, &vf, &self.names()?);
        }
        let (pf, vf) = self.unused_vf(id, address, deadline)?;
        Ok(match step {
            // The guest would inherit it, and the reset would remove it.
            Step::Reserve { .. } if vf.config.as_ref().and_then(changed).is_some() => {
                let what = vf.config.as_ref().and_then(changed).unwrap_or_default();
                return Err(Error::failed(format!("the VF {id} is left alone: {what}"), DEFAULTS));
            }
            // From its first frame on a guest's VF sends by its own address only, and can take no other.
            Step::Reserve { .. } => confinement(vf.config.as_ref()).into_iter().map(set).collect(),
            Step::SetMac { mac, .. } => vec![set_mac(*mac)],
            Step::ClearMac { .. } => vec![set_mac(Mac::NONE)],
            Step::Reset { .. } => Self::reset(&pf, &vf, &set)?,
            _ => Vec::new(),
        })
    }

    fn names(&mut self) -> Result<Vec<String>> {
        Ok(self.kernel.links(&NetNs::Host)?.into_iter().map(|link| link.netdev.name).collect())
    }

    /// Rebinds the driver, and resets all settings that the PF has for the VF to their defaults.
    fn reset(
        pf: &model::Pf,
        vf: &model::Vf,
        set: &dyn Fn(Setting) -> plan::Step,
    ) -> Result<plan::Plan> {
        let mut plan = plan::Plan::new();
        if vf.driver.is_some() {
            plan.push(plan::unbind(vf.address));
        }
        let config = vf.config.clone().unwrap_or_default();
        let untagged = Vlan { id: 0, qos: 0, protocol: VlanProtocol::Dot1q };
        if config.vlan.is_some_and(|vlan| vlan != untagged) {
            plan.push(set(Setting::Vlan(untagged)));
        }
        let limited = |rate: Option<u32>| rate.is_some_and(|rate| rate != 0);
        if limited(config.min_tx_mbps) || limited(config.max_tx_mbps) {
            plan.push(set(Setting::Rate { min_tx_mbps: 0, max_tx_mbps: 0 }));
        }
        plan.extend(confinement(Some(&config)).into_iter().map(set));
        if config.link_state.is_some_and(|state| state != LinkState::Auto) {
            plan.push(set(Setting::LinkState(LinkState::Auto)));
        }
        plan.push(set(Setting::Mac(Mac::NONE)));
        if let Some(driver) = Driver::Network.name(pf)? {
            plan::bind(vf.address, &driver, None, &mut plan);
        }
        Ok(plan)
    }
}

impl Pool for HostPool {
    fn reading(&mut self) -> PoolReading {
        let (mut kernel, state, pfs) = (self.kernel.clone(), self.state.clone(), self.pfs.clone());
        Box::new(move || read(&mut kernel, &state, &pfs))
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let mut net = match self.net.take() {
            Some(net) => net,
            None => Net::open()?,
        };
        let links: BTreeMap<u32, Link> =
            net.all()?.into_iter().map(|link| (link.index, link)).collect();
        let at_home = |link: &Link| Some((link.pci.clone()?, link.mac?));
        let at_home: BTreeMap<String, Mac> = links.values().filter_map(at_home).collect();
        let mut vfs_of = Links::open()?;
        for (name, pf) in &mut view.pfs {
            let Some(link) = links.get(&pf.index).filter(|link| link.name == name.as_str()) else {
                // Its driver was rebound, or it was renamed: the view is out of date.
                return Err(Error::failed(format!("the PF {name} has changed"), ""));
            };
            pf.link_up = link.works();
            let bridge = link.controller.and_then(|master| links.get(&master));
            let bridge = bridge.filter(|bridge| bridge.kind == "bridge");
            pf.bridge = bridge.map(|bridge| bridge.name.clone());
            let mut infos: BTreeMap<u16, VfInfo> = vfs_of
                .vfs(name.as_str())?
                .unwrap_or_default()
                .into_iter()
                .filter_map(|info| Some((u16::try_from(info.index).ok()?, info)))
                .collect();
            for (id, vf) in view.vfs.iter_mut().filter(|(id, _)| id.pf == *name) {
                let info = infos.remove(&id.index).unwrap_or_default();
                vf.link_up = match info.config.link_state {
                    Some(LinkState::Disable) => false,
                    Some(LinkState::Enable) => true,
                    _ => pf.link_up,
                };
                vf.changed = changed(&info.config);
                let is_home = self.is_home(vf.address);
                let by_interface = at_home.get(&vf.address.to_string()).copied();
                let nowhere = if is_home { Mac::NONE } else { vf.mac };
                vf.mac = delivered(info.config.mac, by_interface).unwrap_or(nowhere);
                // This shows that a user came or went; its identity, and the host's own use, take a reading.
                if is_home != matches!(vf.user, User::Nobody | User::Host(_)) {
                    tracing::debug!("{id}: with the host: {is_home}; it was {:?}", vf.user);
                    vf.user = if is_home { User::Nobody } else { User::Guest(CAME.into()) };
                    vf.strayed = false;
                }
                if let (Reading::Counted(_), Some(count)) = (vf.counters, info.counters) {
                    vf.counters = reading(&model::Counters::Supported(count));
                }
            }
        }
        view.filters = self.read_filters(&mut net, &links);
        view.links = Arc::new(links);
        self.net = Some(net);
        Ok(())
    }

    fn settle(&mut self, view: &PoolView, managed: &Addresses) -> Result<()> {
        self.forwarding.settle(view, managed)
    }

    fn executor(&self) -> Box<dyn Executor> {
        let (kernel, state) = (self.kernel.clone(), self.state.clone());
        Box::new(PoolExecutor { kernel, state, enrolled: !self.pfs.is_empty() })
    }
}

impl Executor for PoolExecutor {
    fn perform(&mut self, step: &Step, view: &PoolView, deadline: Instant) -> Performed {
        let (Step::Reserve { vf, .. }
        | Step::SetMac { vf, .. }
        | Step::ClearMac { vf }
        | Step::Recall { vf }
        | Step::Reset { vf }) = step
        else {
            return Ok(());
        };
        let unknown = || Failure::new(format!("the VF {vf} is not known"));
        let address = view.vfs.get(vf).map(|vf| vf.address).ok_or_else(unknown)?;
        let pf = view.pfs.get(&vf.pf).map(|pf| pf.address).ok_or_else(unknown)?;
        // The locks of `planewised vf`, so that it changes neither PF nor VF meanwhile.
        let wait = || deadline.saturating_duration_since(Instant::now());
        self.state.make()?;
        let _pf_lock = self.state.lock(pf, true, wait())?;
        let _lock = self.state.lock(address, false, wait())?;
        let steps = self.steps(vf, pf, step, deadline)?;
        Ok(apply(&mut self.kernel, &steps, &[])?)
    }
}

/// Applies a setting of a VF by its PF; `what` describes it in errors, as `set the VLAN of`.
pub fn apply_setting(vf: &VfId, pool: &PoolView, setting: Setting, what: &str) -> Result<()> {
    let Some(pf) = pool.pfs.get(&vf.pf) else { return Ok(()) };
    let answer = Links::open()?.set_vf(pf.index, u32::from(vf.index), setting)?;
    answer.map_err(|code| Error::failed(format!("cannot {what} {vf}: {}", explain(code)), ""))
}

const DEFAULTS: &str =
    "set it back: ip link set PF vf N vlan 0 max_tx_rate 0 min_tx_rate 0 state auto";

/// A setting of a VF that is not the default, as a guest that is given it expects it to be; for a sentence.
fn changed(config: &VfConfig) -> Option<String> {
    let set = |rate: Option<u32>| rate.filter(|mbps| *mbps != 0);
    let what = match config {
        VfConfig { vlan: Some(vlan), .. } if vlan.id != 0 => format!("VLAN {}", vlan.id),
        VfConfig { max_tx_mbps: rate, .. } if set(*rate).is_some() => "a largest rate".to_owned(),
        VfConfig { min_tx_mbps: rate, .. } if set(*rate).is_some() => "a least rate".to_owned(),
        VfConfig { link_state: Some(LinkState::Disable), .. } => "its link down".to_owned(),
        VfConfig { link_state: Some(LinkState::Enable), .. } => "its link always up".to_owned(),
        _ => return None,
    };
    Some(format!("its PF sets {what} for it"))
}

/// Settings by which a VF's user can neither send by another address nor take one.
fn confinement(config: Option<&VfConfig>) -> Vec<Setting> {
    let unchecked = config.and_then(|config| config.spoof_check) == Some(false);
    let trusted = config.and_then(|config| config.trust) == Some(true);
    let check = unchecked.then_some(Setting::SpoofCheck(true));
    check.into_iter().chain(trusted.then_some(Setting::Trust(false))).collect()
}

/// May a managed guest have left this VF behind?
fn strayed(vf: &model::Vf) -> bool {
    match &vf.netdev {
        Some(netdev) => !netdev.netns.is_host() && netdev.name == VF_NAME,
        None => vf.driver.as_deref().is_some_and(|driver| driver != driver::VFIO),
    }
}

/// Brings a VF home that a managed guest left behind: by now another may have taken it.
fn recall(id: &VfId, vf: &model::Vf, taken: &[String]) -> Result<plan::Plan> {
    let away = vf.netdev.as_ref().filter(|netdev| !netdev.netns.is_host());
    match away.filter(|_| !strayed(vf)) {
        Some(netdev) => Err(Error::failed(
            format!("the VF {id} is left alone: another namespace has it as {}", netdev.name),
            "it is looked at again once it is unused",
        )),
        None => Ok(plan::return_to_host(vf, taken)),
    }
}

/// The address whose frames the NIC delivers to the VF: the PF's setting, else its interface's; none: neither
/// shows one.
fn delivered(by_pf: Option<Mac>, by_interface: Option<Mac>) -> Option<Mac> {
    by_pf.filter(|mac| *mac != Mac::NONE).or(by_interface)
}

fn reading(counters: &model::Counters) -> Reading {
    match counters {
        // The PF counts from the VF's point of view: rx is what the guest received.
        model::Counters::Supported(count) => Reading::Counted(Counters {
            rx_packets: count.rx_packets,
            tx_packets: count.tx_packets,
            rx_bytes: count.rx_bytes,
            tx_bytes: count.tx_bytes,
        }),
        model::Counters::Unsupported { .. } => Reading::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::pool::usage::tests::vf;
    use crate::daemon::testing::{link, pf};

    fn this_machine() -> HostPool {
        HostPool::new(Vec::new(), Path::new("/nowhere"), Budget { per_port: 1, per_pf: 1 })
    }

    #[test]
    fn no_port_is_judged_by_filters_that_were_read_before_it_appeared() {
        let (mut machine, mut net) = (this_machine(), Net::open().expect("Linux"));
        for index in [7, 8] {
            let links = [(index, link(index, "pwport", "veth", Some(1)))].into();
            assert!(machine.read_filters(&mut net, &links).read.contains(&index), "{index}");
        }
    }

    #[test]
    fn a_vf_is_recalled_from_where_a_guest_left_it_and_not_from_who_took_it_since_it_was_read() {
        let (id, mut vf) = (VfId::new("pf0", 0), vf());
        assert_eq!(recall(&id, &vf, &[]).expect("it is at home"), []);
        let netdev = vf.netdev.as_mut().expect("it has one");
        netdev.netns = NetNs::Other(model::Namespace { inode: 9, path: "/run/netns/web".into() });
        let error = recall(&id, &vf, &[]).expect_err("another's");
        assert!(error.what.contains("another namespace has it as pf0v0"), "{}", error.what);
        vf.netdev.as_mut().expect("it has one").name = VF_NAME.into();
        assert_eq!(recall(&id, &vf, &[]).expect("left behind").len(), 1);
    }

    #[test]
    fn a_pf_whose_index_is_nobodys_or_anothers_by_now_is_not_sampled_as_if_it_were_there() {
        let mut machine = this_machine();
        let loopback = Net::open().and_then(|mut net| net.named("lo")).expect("Linux");
        let loopback = loopback.expect("everywhere").index;
        let mut sampled = |name: &str, index| {
            let pfs = [(PfId::from(name), pf(index, None))].into();
            machine.sample(&mut PoolView { pfs, ..PoolView::default() })
        };
        sampled("lo", loopback).expect("it is what has that index");
        // Its driver was bound anew: it has another index, and its own may be another interface's.
        for index in [i32::MAX as u32, loopback] {
            let error = sampled("pw-pf", index).expect_err("nothing of the view holds any more");
            assert!(error.what.contains("pw-pf has changed"), "{}", error.what);
        }
    }

    #[test]
    fn no_step_touches_a_vf_while_planewised_vf_works_on_it_or_on_its_pf() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = State::new(directory.path());
        let (seen_pf, vf_id) = (pf(1, None), VfId::new("pf0", 0));
        let pf = seen_pf.address;
        let seen = PoolVf::unused("0000:01:10.0".parse().expect("valid"));
        let view = PoolView {
            pfs: [("pf0".into(), seen_pf)].into(),
            vfs: [(vf_id.clone(), seen)].into(),
            ..PoolView::default()
        };
        for (locked, shared) in
            [(pf, false), ("0000:01:10.0".parse::<PciAddress>().expect("valid"), false), (pf, true)]
        {
            let _theirs = state.lock(locked, shared, Duration::ZERO).expect("free");
            let kernel = Linux::new(Path::new("/nowhere"));
            let mut executors = PoolExecutor { kernel, state: state.clone(), enrolled: true };
            let step = Step::Reset { vf: vf_id.clone() };
            let failure = executors.perform(&step, &view, Instant::now()).expect_err("no such VF");
            // Who works on another VF of that PF shares its lock.
            let waits = failure.why == format!("another planewised works on {locked}");
            assert_eq!(waits, !shared, "{}", failure.why);
        }
    }

    #[test]
    fn a_vf_that_came_home_has_its_own_address_at_the_next_sample_and_not_its_last_guests() {
        let (guests, own) = (Mac([6, 0, 0, 0, 0, 1]), Mac([6, 0, 0, 0, 0, 2]));
        assert_eq!(delivered(Some(guests), Some(own)), Some(guests));
        assert_eq!(delivered(Some(Mac::NONE), Some(own)), Some(own));
    }

    #[test]
    fn a_vf_with_a_vlan_a_rate_or_a_link_state_of_the_operators_is_left_to_him() {
        let default = VfConfig {
            vlan: Some(Vlan { id: 0, qos: 0, protocol: VlanProtocol::Dot1q }),
            min_tx_mbps: Some(0),
            max_tx_mbps: Some(0),
            link_state: Some(LinkState::Auto),
            ..VfConfig::default()
        };
        assert_eq!((changed(&default), changed(&VfConfig::default())), (None, None));
        let vlan = Some(Vlan { id: 7, qos: 0, protocol: VlanProtocol::Dot1q });
        for config in [
            VfConfig { vlan, ..default.clone() },
            VfConfig { max_tx_mbps: Some(100), ..default.clone() },
            VfConfig { min_tx_mbps: Some(100), ..default.clone() },
            VfConfig { link_state: Some(LinkState::Disable), ..default.clone() },
            VfConfig { link_state: Some(LinkState::Enable), ..default },
        ] {
            assert!(changed(&config).is_some(), "{config:?}");
        }
    }

    #[test]
    fn a_vf_that_is_given_is_checked_and_not_trusted_and_nothing_is_said_twice() {
        let by_pf = |spoof_check, trust| {
            confinement(Some(&VfConfig { spoof_check, trust, ..VfConfig::default() }))
        };
        assert_eq!(
            by_pf(Some(false), Some(true)),
            [Setting::SpoofCheck(true), Setting::Trust(false)]
        );
        assert_eq!(by_pf(Some(true), Some(false)), []);
        // A driver that does not report a setting needs none reset.
        assert_eq!(by_pf(None, None), []);
    }
}
