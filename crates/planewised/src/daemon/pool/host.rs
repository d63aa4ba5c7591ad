//! This host's VFs as a pool. Knows nothing of guests.

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
use pw_sriov::kernel::{Kernel, Linux, explain, vital_interfaces};
use pw_sriov::link::{Links, Setting};
use pw_sriov::model::{self, LinkState, NetNs, VfConfig, Vlan, VlanProtocol};
use pw_sriov::plan::{self, Driver};
use pw_sriov::state::{Before, Record, State};

use crate::daemon::filters::Filters;
use crate::daemon::forwarding::{Budget, Forwarding};
use crate::daemon::guests::containers::VF_NAME;
use crate::daemon::net::Net;
use crate::daemon::pool::{Addresses, Pool, PoolPf, PoolVf, PoolView};
use crate::daemon::tasks::Executor;

/// How long a process that has released a VF may take to close it.
const CLOSING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Age at which the host's filters are read again.
const FILTERS_OLD: Duration = Duration::from_secs(5);

/// The VFs of this host's PFs.
#[derive(Debug)]
pub struct HostPool {
    /// The PFs by interface; none: all that have VFs.
    pfs: Vec<PfId>,
    kernel: Linux,
    state: State,
    forwarding: Forwarding,
    filters: Arc<Filters>,
    /// When the host's filters are read again.
    filters_due: Instant,
}

impl HostPool {
    /// The VFs of the PFs named, or of all that have VFs. The state of forwarding is kept in this directory.
    pub fn new(pfs: Vec<PfId>, state_directory: &Path, budget: Budget) -> Self {
        let kernel = Linux::new(Path::new("/sys"));
        let state = State::new(State::default_directory());
        let forwarding = Forwarding::new(state_directory, budget);
        let filters_due = Instant::now();
        Self { pfs, kernel, state, forwarding, filters: Arc::default(), filters_due }
    }

    /// The host's filters, not older than `FILTERS_OLD`.
    fn filters(&mut self, net: &mut Net) -> Result<Arc<Filters>> {
        if Instant::now() >= self.filters_due {
            self.filters = Arc::new(Filters::read(&net.all()?));
            self.filters_due = Instant::now() + FILTERS_OLD;
        }
        Ok(Arc::clone(&self.filters))
    }

    /// A VF's user by a few files of sysfs: they show interfaces of this namespace, and whether vfio-pci has
    /// enabled the device for a process.
    fn quick_user(&self, vf: PciAddress) -> User {
        let tree = self.kernel.tree();
        match tree.link(vf, "driver").as_deref() {
            None => User::Nobody,
            Some(driver::VFIO) => match tree.number(vf, "enable") {
                Some(0) => User::Nobody,
                Some(_) => User::Guest("a process has opened it".to_owned()),
                None => User::Unknown("sysfs does not say whether it is enabled".to_owned()),
            },
            Some(_) if tree.interfaces(vf).is_empty() => {
                User::Guest("its interface is not in this namespace".to_owned())
            }
            Some(_) => User::Nobody,
        }
    }
}

/// Performs steps on this host's VFs.
struct PoolExecutor {
    kernel: Linux,
    state: State,
}

impl PoolExecutor {
    fn vf(&mut self, id: &VfId, pf: PciAddress) -> Result<(model::Pf, model::Vf)> {
        let pf = discover::settled_pf(&mut self.kernel, pf)?;
        let index = u32::from(id.index);
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
            let user = HostUse::of(&mut self.kernel, &self.state)?.user(&vf);
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
        let set_mac = |mac: Mac| set(Setting::Mac(pw_sriov::mac::Mac(mac.0)));
        if let Step::Recall { .. } = step {
            let (_, vf) = self.vf(id, address)?;
            return Ok(match &vf.netdev {
                Some(netdev) if !netdev.netns.is_host() => {
                    plan::return_to_host(&vf, &self.names()?)
                }
                _ => Vec::new(),
            });
        }
        let (pf, vf) = self.unused_vf(id, address, deadline)?;
        Ok(match step {
            // From its first frame on a guest's VF sends by its own address only, and can take no other.
            Step::Reserve { .. } => confinement(vf.config.as_ref()).into_iter().map(set).collect(),
            Step::SetMac { mac, .. } => vec![set_mac(*mac)],
            Step::ClearMac { .. } => vec![set_mac(Mac::ZERO)],
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
        plan.push(set(Setting::Mac(pw_sriov::mac::Mac::NONE)));
        if let Some(driver) = Driver::Network.name(pf)? {
            plan::bind(vf.address, &driver, None, &mut plan);
        }
        Ok(plan)
    }
}

impl Pool for HostPool {
    fn read(&mut self) -> Result<PoolView> {
        let machine = discover::machine(&mut self.kernel)?;
        let mut net = Net::open()?;
        let links = net.all()?;
        let host_use = HostUse::of(&mut self.kernel, &self.state)?;
        let mut view = PoolView { filters: self.filters(&mut net)?, ..PoolView::default() };
        for pf in machine.pfs {
            let Some(netdev) = &pf.netdev else { continue };
            let name = PfId::from(netdev.name.as_str());
            let in_pool =
                if self.pfs.is_empty() { pf.num_vfs > 0 } else { self.pfs.contains(&name) };
            if !in_pool {
                continue;
            }
            let link = links.iter().find(|link| link.index == netdev.index);
            let master = link.and_then(|link| link.master);
            let bridge = links
                .iter()
                .find(|link| Some(link.index) == master && link.kind.as_deref() == Some("bridge"));
            for vf in &pf.vfs {
                let Ok(index) = u16::try_from(vf.index) else { continue };
                let pool_vf = PoolVf {
                    address: vf.address,
                    mac: mac_of(vf),
                    driver: vf.driver.clone(),
                    user: host_use.user(vf),
                    strayed: strayed(vf),
                    counters: reading(&vf.counters),
                };
                view.vfs.insert(VfId::new(name.clone(), index), pool_vf);
            }
            let pool_pf = PoolPf {
                index: netdev.index,
                address: pf.address,
                numa: pf.numa_node.and_then(|node| u16::try_from(node).ok()),
                link_up: link.is_some_and(|link| link.up && link.carrier),
                bridge: bridge.map(|link| link.name.clone()),
            };
            view.pfs.insert(name, pool_pf);
        }
        view.missing = self.pfs.iter().filter(|pf| !view.pfs.contains_key(*pf)).cloned().collect();
        Ok(view)
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let mut net = Net::open()?;
        view.filters = self.filters(&mut net)?;
        let mut links = Links::open()?;
        for (name, pf) in &mut view.pfs {
            let link = net.indexed(pf.index)?.filter(|link| link.name == name.as_str());
            if link.is_none() {
                // Its driver was rebound, or it was renamed: the view is out of date.
                return Err(Error::failed(format!("the PF {name} has changed"), ""));
            }
            pf.link_up = link.is_some_and(|link| link.up && link.carrier);
            let counts = |(id, vf): (&VfId, &PoolVf)| {
                id.pf == *name && matches!(vf.counters, Reading::Counted(_))
            };
            if !view.vfs.iter().any(counts) {
                continue;
            }
            for info in links.vfs(name.as_str())?.unwrap_or_default() {
                let Ok(index) = u16::try_from(info.index) else { continue };
                if let (Some(vf), Some(count)) =
                    (view.vfs.get_mut(&VfId::new(name.clone(), index)), info.counters)
                {
                    vf.counters = reading(&model::Counters::Supported(count));
                }
            }
        }
        for (id, vf) in &mut view.vfs {
            let user = self.quick_user(vf.address);
            // This shows that a user came or went; its identity, and the host's own use, take `read`.
            let with_host = matches!(vf.user, User::Nobody | User::Host(_));
            if user.is_nobody() != with_host {
                tracing::debug!("{id}: {user:?} was {:?}", vf.user);
                vf.user = user;
            }
        }
        Ok(())
    }

    fn settle(&mut self, view: &PoolView, managed: &Addresses) -> Result<()> {
        self.forwarding.settle(view, managed)
    }

    fn executor(&self) -> Box<dyn Executor> {
        Box::new(PoolExecutor { kernel: Linux::new(Path::new("/sys")), state: self.state.clone() })
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

/// The host's own use of VFs.
struct HostUse {
    /// Interfaces that carry the default route or an SSH session, with the reason.
    vital: BTreeMap<String, String>,
    /// Records of `planewised vf`.
    records: Vec<Record>,
}

impl HostUse {
    /// Reads the vital interfaces and the records.
    fn of(kernel: &mut Linux, state: &State) -> Result<Self> {
        Ok(Self { vital: vital_interfaces(kernel)?, records: state.all()? })
    }

    fn user(&self, vf: &model::Vf) -> User {
        let used_by = || vf.used_by.clone().unwrap_or_default();
        if vf.use_is_unknown {
            return User::Unknown(used_by());
        }
        if vf.driver.as_deref() == Some(driver::VFIO) {
            return match &vf.used_by {
                Some(process) => User::Guest(process.clone()),
                None => self.recorded(vf),
            };
        }
        match &vf.netdev {
            None if vf.driver.is_some() => {
                User::Unknown("its interface is in no namespace that can be seen".to_owned())
            }
            Some(netdev) if !netdev.netns.is_host() => User::Guest(used_by()),
            Some(netdev) => match self.vital.get(&netdev.name) {
                Some(reason) => {
                    User::Host(format!("its interface {} carries {reason}", netdev.name))
                }
                None if vf.used_by.is_some() => User::Host(used_by()),
                None => self.recorded(vf),
            },
            None => self.recorded(vf),
        }
    }

    /// A VF that `planewised vf` moved, or changed for an owner, is used by the owner until it is restored.
    fn recorded(&self, vf: &model::Vf) -> User {
        let record = self.records.iter().find(|record| record.address() == vf.address);
        match record {
            Some(Record { owner, before: Before::Vf { before_move, .. }, .. })
                if owner.is_some() || before_move.is_some() =>
            {
                let owner = owner.as_deref().unwrap_or("nobody by name");
                User::Host(format!("`planewised vf` keeps it for {owner}"))
            }
            _ => User::Nobody,
        }
    }
}

/// Applies a setting of a VF by its PF; `what` describes it in errors, as `set the VLAN of`.
pub fn apply_setting(vf: &VfId, pool: &PoolView, setting: Setting, what: &str) -> Result<()> {
    let Some(pf) = pool.pfs.get(&vf.pf) else { return Ok(()) };
    let answer = Links::open()?.set_vf(pf.index, u32::from(vf.index), setting)?;
    answer.map_err(|code| Error::failed(format!("cannot {what} {vf}: {}", explain(code)), ""))
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

/// The address whose frames the NIC delivers to the VF: the PF's setting, else its interface's.
fn mac_of(vf: &model::Vf) -> Mac {
    let by_pf = vf.config.as_ref().and_then(|config| config.mac).map(|mac| Mac(mac.0));
    let by_interface = vf.netdev.as_ref().and_then(|netdev| netdev.mac).map(|mac| Mac(mac.0));
    by_pf.filter(|mac| *mac != Mac::ZERO).or(by_interface).unwrap_or(Mac::ZERO)
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
    use pw_sriov::model::{Namespace, Netdev};

    use super::*;

    /// A VF at home that nobody uses.
    fn vf() -> model::Vf {
        let netdev =
            Netdev { name: "pf0v0".into(), index: 7, mtu_bytes: 1500, ..Netdev::default() };
        model::Vf {
            index: 0,
            address: "0000:01:10.0".parse().expect("valid"),
            driver: Some("igbvf".into()),
            driver_override: None,
            numa_node: None,
            iommu_group: None,
            config: None,
            netdev: Some(netdev),
            counters: model::Counters::Unsupported { reason: "igb counts none".into() },
            used_by: None,
            use_is_unknown: false,
            owner: None,
        }
    }

    fn user(host_use: &HostUse, change: impl FnOnce(&mut model::Vf)) -> User {
        let mut vf = vf();
        change(&mut vf);
        host_use.user(&vf)
    }

    #[test]
    fn whoever_uses_a_vf_is_told_and_only_one_that_is_seen_to_be_unused_is_nobodys() {
        let none = HostUse { vital: BTreeMap::new(), records: Vec::new() };
        assert_eq!(user(&none, |_| ()), User::Nobody);
        assert_eq!(
            user(&none, |vf| vf.used_by = Some("it has the address 198.18.0.1/24".into())),
            User::Host("it has the address 198.18.0.1/24".into())
        );
        let away = NetNs::Other(Namespace { inode: 9, path: "/run/netns/web".into() });
        let moved = user(&none, |vf| {
            vf.netdev.as_mut().expect("it has one").netns = away;
            vf.used_by = Some("the namespace web has it".into());
        });
        assert_eq!(moved, User::Guest("the namespace web has it".into()));
        let nowhere = user(&none, |vf| vf.netdev = None);
        assert!(matches!(nowhere, User::Unknown(_)), "{nowhere:?}");
        let opened = user(&none, |vf| {
            (vf.netdev, vf.driver) = (None, Some(driver::VFIO.into()));
            vf.used_by = Some("process 7 (qemu) has it open".into());
        });
        assert_eq!(opened, User::Guest("process 7 (qemu) has it open".into()));
        let unread = user(&none, |vf| {
            (vf.netdev, vf.driver) = (None, Some(driver::VFIO.into()));
            (vf.used_by, vf.use_is_unknown) = (Some("process 7 cannot be read".into()), true);
        });
        assert_eq!(unread, User::Unknown("process 7 cannot be read".into()));
        let unbound = user(&none, |vf| (vf.netdev, vf.driver) = (None, None));
        assert_eq!(unbound, User::Nobody);
    }

    #[test]
    fn the_hosts_own_way_out_and_what_planewised_vf_keeps_are_the_hosts() {
        let vital = [("pf0v0".to_owned(), "the default route".to_owned())].into();
        let vital = HostUse { vital, records: Vec::new() };
        let host = "its interface pf0v0 carries the default route";
        assert_eq!(user(&vital, |_| ()), User::Host(host.into()));
        let before = || Before::Vf {
            pf: "0000:01:00.0".parse().expect("valid"),
            first: Box::new(vf()),
            before_move: None,
        };
        let kept = |owner: Option<&str>| {
            let records = vec![Record::new(before(), owner.map(Into::into), false)];
            user(&HostUse { vital: BTreeMap::new(), records }, |_| ())
        };
        assert_eq!(kept(Some("ci")), User::Host("`planewised vf` keeps it for ci".into()));
        // A setting that somebody changed and nobody keeps is no use of the VF.
        assert_eq!(kept(None), User::Nobody);
    }

    #[test]
    fn a_pf_whose_index_is_nobodys_or_anothers_by_now_is_not_sampled_as_if_it_were_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let budget = Budget { per_port: 1, per_pf: 1 };
        let mut machine = HostPool::new(Vec::new(), directory.path(), budget);
        let loopback = Net::open().and_then(|mut net| net.named("lo")).expect("Linux");
        let loopback = loopback.expect("everywhere").index;
        let mut sampled = |name: &str, index| {
            let address = "0000:01:00.0".parse().expect("valid");
            let pf = PoolPf { index, address, numa: None, link_up: false, bridge: None };
            let pfs = [(PfId::from(name), pf)].into();
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
        let (pf, vf_id) = ("0000:01:00.0".parse().expect("valid"), VfId::new("pf0", 0));
        let seen = PoolVf {
            address: vf().address,
            mac: Mac::ZERO,
            driver: None,
            user: User::Nobody,
            strayed: false,
            counters: Reading::Unsupported,
        };
        let seen_pf = PoolPf { index: 1, address: pf, numa: None, link_up: true, bridge: None };
        let view = PoolView {
            pfs: [("pf0".into(), seen_pf)].into(),
            vfs: [(vf_id.clone(), seen)].into(),
            ..PoolView::default()
        };
        for (locked, shared) in [(pf, false), (vf().address, false), (pf, true)] {
            let _theirs = state.lock(locked, shared, Duration::ZERO).expect("free");
            let kernel = Linux::new(Path::new("/nowhere"));
            let mut executors = PoolExecutor { kernel, state: state.clone() };
            let step = Step::Reset { vf: vf_id.clone() };
            let failure = executors.perform(&step, &view, Instant::now()).expect_err("no such VF");
            // Who works on another VF of that PF shares its lock.
            let waits = failure.why == format!("another planewised works on {locked}");
            assert_eq!(waits, !shared, "{}", failure.why);
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
