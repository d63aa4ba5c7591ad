//! This machine's VFs as a pool. Knows nothing of guests.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use pw_alloc::execute::Failure;
use pw_alloc::model::{Mac, PfId, VfId};
use pw_alloc::signal::{Counters, Reading};
use pw_alloc::step::Step;
use pw_linux::error::{Error, Result};
use pw_sriov::apply::apply;
use pw_sriov::discover;
use pw_sriov::driver;
use pw_sriov::kernel::{Kernel, Linux};
use pw_sriov::link::{Links, Setting};
use pw_sriov::model::{self, LinkState, Place, Vlan, VlanProtocol};
use pw_sriov::plan::{self, Driver};
use pw_sriov::state::State;

use crate::daemon::forwarding::Forwarding;
use crate::daemon::net::Net;
use crate::daemon::pool::{Pool, PoolPf, PoolVf, PoolView};

/// The VFs of these PFs.
#[derive(Debug)]
pub struct Machine {
    /// The PFs by interface; none: all that have VFs.
    pfs: Vec<PfId>,
    kernel: Linux,
    state: State,
    forwarding: Forwarding,
}

impl Machine {
    /// The VFs of the PFs named, or of all that have VFs. What is told to PFs is kept in this directory.
    pub fn new(pfs: Vec<PfId>, state_directory: &Path) -> Self {
        let kernel = Linux::new(Path::new("/sys"));
        let state = State::new(State::usual_directory());
        Self { pfs, kernel, state, forwarding: Forwarding::new(state_directory) }
    }

    fn steps(&mut self, id: &VfId, step: &Step) -> Result<plan::Plan> {
        let address = pw_sriov::lookup::pf(&mut self.kernel, id.pf.as_str())?;
        let pf = discover::settled_pf(&mut self.kernel, address)?;
        let index = u32::from(id.index);
        let vf = pf.vfs.iter().find(|vf| vf.index == index).ok_or_else(|| {
            Error::failed(format!("the VF {id} is gone"), "`planewised vf list` shows what is")
        })?;
        let tell = |setting| plan::Step::Set { pf: address, vf: index, setting };
        let mac = |mac: Mac| tell(Setting::Mac(pw_sriov::mac::Mac(mac.0)));
        Ok(match step {
            Step::SetMac { mac: wanted, .. } => vec![mac(*wanted)],
            Step::ClearMac { .. } => vec![mac(Mac::ZERO)],
            Step::Recall { .. } => match &vf.netdev {
                Some(netdev) if !netdev.netns.is_home() => {
                    let taken = self.names()?;
                    plan::bring_home(vf, &taken)
                }
                _ => Vec::new(),
            },
            Step::Reset { .. } => Self::reset(&pf, vf, &tell)?,
            _ => Vec::new(),
        })
    }

    fn names(&mut self) -> Result<Vec<String>> {
        Ok(self.kernel.links(&Place::Home)?.into_iter().map(|seen| seen.netdev.name).collect())
    }

    /// The driver bound anew, and all that the PF can say of a VF as it is when nobody said anything.
    fn reset(
        pf: &model::Pf,
        vf: &model::Vf,
        tell: &dyn Fn(Setting) -> plan::Step,
    ) -> Result<plan::Plan> {
        if vf.driver.as_deref() == Some(driver::VFIO)
            && let Some(used) = &vf.used_by
        {
            return Err(Error::failed(
                format!("the VF {} cannot be reset: {used}", vf.address),
                "end it first: the kernel would wait for it without end",
            ));
        }
        let mut plan = plan::Plan::new();
        let file = |name: &str| format!("bus/pci/devices/{}/{name}", vf.address);
        let write = |file: String, value: String| plan::Step::Write { file, value };
        if vf.driver.is_some() {
            plan.push(write(file("driver/unbind"), vf.address.to_string()));
        }
        let config = vf.config.clone().unwrap_or_default();
        let untagged = Vlan { id: 0, qos: 0, protocol: VlanProtocol::Dot1q };
        if config.vlan.is_some_and(|vlan| vlan != untagged) {
            plan.push(tell(Setting::Vlan(untagged)));
        }
        let limited = |rate: Option<u32>| rate.is_some_and(|rate| rate != 0);
        if limited(config.min_tx_mbps) || limited(config.max_tx_mbps) {
            plan.push(tell(Setting::Rate { min_tx_mbps: 0, max_tx_mbps: 0 }));
        }
        if config.spoof_check == Some(false) {
            plan.push(tell(Setting::SpoofCheck(true)));
        }
        if config.trust == Some(true) {
            plan.push(tell(Setting::Trust(false)));
        }
        if config.link_state.is_some_and(|state| state != LinkState::Auto) {
            plan.push(tell(Setting::LinkState(LinkState::Auto)));
        }
        plan.push(tell(Setting::Mac(pw_sriov::mac::Mac::NONE)));
        if let Some(driver) = Driver::Network.name(pf)? {
            plan.push(write(file("driver_override"), driver));
            plan.push(write("bus/pci/drivers_probe".to_owned(), vf.address.to_string()));
        }
        Ok(plan)
    }
}

impl Pool for Machine {
    fn read(&mut self) -> Result<PoolView> {
        let machine = discover::machine(&mut self.kernel)?;
        let links = Net::here()?.all()?;
        let mut view = PoolView::default();
        for pf in machine.pfs {
            let Some(netdev) = &pf.netdev else { continue };
            let name = PfId::from(netdev.name.as_str());
            let wanted =
                if self.pfs.is_empty() { pf.num_vfs > 0 } else { self.pfs.contains(&name) };
            if !wanted {
                continue;
            }
            let link = links.iter().find(|link| link.index == netdev.index);
            let master = link.and_then(|link| link.master);
            let bridge = links
                .iter()
                .find(|link| Some(link.index) == master && link.kind.as_deref() == Some("bridge"));
            for vf in &pf.vfs {
                let Ok(index) = u16::try_from(vf.index) else { continue };
                let held = vf.driver.as_deref() == Some(driver::VFIO) && vf.used_by.is_some();
                let away = vf.netdev.as_ref().is_some_and(|netdev| !netdev.netns.is_home());
                let lost = vf.netdev.is_none()
                    && vf.driver.as_deref().is_some_and(|driver| driver != driver::VFIO);
                let seen = PoolVf {
                    address: vf.address,
                    mac: mac_of(vf),
                    driver: vf.driver.clone(),
                    at_home: !held && !away && !lost,
                    counters: reading(&vf.counters),
                };
                view.vfs.insert(VfId::new(name.clone(), index), seen);
            }
            let seen = PoolPf {
                index: netdev.index,
                address: pf.address,
                numa: pf.numa_node.and_then(|node| u16::try_from(node).ok()),
                link_up: link.is_some_and(|link| link.up && link.carrier),
                bridge: bridge.map(|link| link.name.clone()),
            };
            view.pfs.insert(name, seen);
        }
        for pf in &self.pfs {
            if !view.pfs.contains_key(pf) {
                return Err(Error::failed(
                    format!("{pf} of the configuration's [pool] is no PF of this host"),
                    "`planewised vf list` shows them",
                ));
            }
        }
        Ok(view)
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let mut net = Net::here()?;
        let mut links = Links::open()?;
        for (name, pf) in &mut view.pfs {
            let link = net.indexed(pf.index)?;
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
        Ok(())
    }

    fn settle(&mut self, view: &PoolView, managed: &BTreeSet<Mac>) -> Result<()> {
        self.forwarding.settle(view, managed)
    }

    fn perform(
        &mut self,
        step: &Step,
        view: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let (Step::SetMac { vf, .. }
        | Step::ClearMac { vf }
        | Step::Recall { vf }
        | Step::Reset { vf }
        | Step::Release { vf }) = step
        else {
            return Ok(());
        };
        let failed = |error: Error| Failure { why: error.what, guest_silent: false };
        if matches!(step, Step::Release { .. }) {
            return Ok(());
        }
        let address = view.vfs.get(vf).map(|vf| vf.address).ok_or_else(|| Failure {
            why: format!("the VF {vf} is not known"),
            guest_silent: false,
        })?;
        // So that a `planewised vf` that works on this VF is not disturbed.
        let wait = deadline.saturating_duration_since(Instant::now());
        self.state.make().map_err(failed)?;
        let _lock = self.state.lock(address, false, wait).map_err(failed)?;
        let steps = self.steps(vf, step).map_err(failed)?;
        apply(&mut self.kernel, &steps, &[]).map_err(failed)
    }
}

/// What the NIC delivers to the VF: what its PF says, else what its interface has.
fn mac_of(vf: &model::Vf) -> Mac {
    let told = vf.config.as_ref().and_then(|config| config.mac).map(|mac| Mac(mac.0));
    let own = vf.netdev.as_ref().and_then(|netdev| netdev.mac).map(|mac| Mac(mac.0));
    told.filter(|mac| *mac != Mac::ZERO).or(own).unwrap_or(Mac::ZERO)
}

fn reading(counters: &model::Counters) -> Reading {
    match counters {
        // The PF's words are the VF's: what it received, the guest received.
        model::Counters::Supported(count) => Reading::Counted(Counters {
            rx_packets: count.rx_packets,
            tx_packets: count.tx_packets,
            rx_bytes: count.rx_bytes,
            tx_bytes: count.tx_bytes,
        }),
        model::Counters::Unsupported { .. } => Reading::Unsupported,
    }
}
