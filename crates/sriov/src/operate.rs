//! The operations: each takes the locks, reads the present state, plans, records it, applies the plan
//! and checks the result. Every change of a PF or VF goes through this module.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use pw_error::{Error, Result};
use serde::Serialize;

use crate::address::PciAddress;
use crate::apply::apply;
use crate::discover::settled_pf;
use crate::driver;
use crate::kernel::{Kernel, vital_interfaces};
use crate::lookup;
use crate::model::{NetNs, Pf, Vf};
use crate::plan::{self, Driver, Move, Plan, Settings, Setup, Step};
use crate::state::{Before, Lock, NOBODY, Record, State};

/// Options of all operations.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name under which changes are recorded.
    pub owner: Option<String>,
    /// Disregard the default route, the SSH session, other owners and, in `setup`, VFs in use.
    pub force: bool,
    /// Plan, but change nothing.
    pub dry_run: bool,
    /// How long to wait for a lock of another planewised.
    pub wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { owner: None, force: false, dry_run: false, wait: Duration::from_secs(30) }
    }
}

/// The steps of an operation, taken or planned, and the state after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done<T> {
    /// The steps, in order.
    pub steps: Plan,
    /// The state now.
    pub now: T,
}

/// The result of `release` and `restore`, done or planned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The steps, in order.
    #[serde(skip)]
    pub steps: Plan,
    /// The functions that were restored.
    pub restored: Vec<PciAddress>,
}

/// Operations on the machine of a kernel, with a state directory.
#[derive(Debug)]
pub struct Operator<'a, K: Kernel> {
    /// The kernel.
    pub kernel: &'a mut K,
    /// Records and locks.
    pub state: &'a State,
    /// Options.
    pub options: Options,
}

/// Blocks SIGINT, SIGTERM and SIGHUP until it is dropped, so that no change is cut in half.
struct BlockedSignals {
    previous: Option<SigSet>,
}

impl BlockedSignals {
    fn new() -> Self {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        Self { previous: signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK).ok() }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(previous) = &self.previous {
            let _ = previous.thread_set_mask();
        }
    }
}

impl<K: Kernel> Operator<'_, K> {
    /// Gives a PF its VFs.
    ///
    /// # Errors
    /// See `plan::setup`; the PF is vital or another owner's; a step failed, and all is as before
    /// unless the message says otherwise.
    pub fn setup(&mut self, pf: &str, request: &Setup) -> Result<Done<Pf>> {
        let address = lookup::pf(self.kernel, pf)?;
        let _lock = self.lock(address, false)?;
        let before = self.pf(address, None)?;
        let steps = plan::setup(&before, request)?;
        if let Some(driver) = request.driver.name(&before)? {
            self.must_have_driver(&driver)?;
        }
        let recreates = before.num_vfs != request.count;
        if recreates {
            let vfs = before.vfs.iter().filter_map(|vf| vf.netdev.as_ref());
            let names = before.netdev.iter().chain(vfs).map(|netdev| netdev.name.clone());
            self.refuse_vital(&names.collect::<Vec<_>>())?;
        }
        let record = self.state.record(address)?;
        if !steps.is_empty() {
            self.refuse_other_owner(record.as_ref(), &before.label())?;
        }
        let mut first = before.clone();
        for vf in &mut first.vfs {
            let record = self.state.record(vf.address)?;
            if recreates {
                self.refuse_other_owner(record.as_ref(), &format!("VF {}", vf.address))?;
            }
            // A VF with a record of its own was changed before: its first state is in there.
            if let Some(Before::Vf { first, .. }) = record.map(|record| record.before) {
                *vf = *first;
            }
        }
        if self.options.dry_run || steps.is_empty() {
            return Ok(Done { steps, now: before });
        }
        match &record {
            Some(Record { before: Before::Pf(recorded), .. }) => first = (**recorded).clone(),
            _ => self.state.write(&self.record_of(Before::Pf(Box::new(first.clone()))))?,
        }
        let _signals = BlockedSignals::new();
        self.apply_or_undo(&steps, record.as_ref(), address, &before.label(), |operator| {
            plan::converge_pf(&operator.pf(address, None)?, &before)
        })?;
        let now = self.pf(address, None)?;
        if now.num_vfs != first.num_vfs || request.count == 0 {
            self.forget_vfs(address)?;
        }
        if plan::differences(&now, &first).is_empty() {
            self.state.remove(address)?;
        }
        Ok(Done { steps, now })
    }

    /// Sets a VF's settings through its PF.
    pub fn set(&mut self, vf: &str, settings: &Settings) -> Result<Done<Vf>> {
        let force = self.options.force;
        self.change(vf, false, |_, pf, vf| plan::set(pf, vf, settings, force))
    }

    /// Binds another driver to a VF.
    pub fn bind(&mut self, vf: &str, request: &Driver) -> Result<Done<Vf>> {
        let force = self.options.force;
        self.change(vf, false, |operator, pf, vf| {
            if let Some(driver) = request.name(pf)? {
                operator.must_have_driver(&driver)?;
                if driver == driver::VFIO && vf.driver.as_deref() != Some(driver::VFIO) {
                    operator.must_be_viable(vf)?;
                }
            }
            plan::rebind(pf, vf, request, force)
        })
    }

    /// Moves a VF's interface into a namespace.
    pub fn move_to_netns(&mut self, vf: &str, request: &Move) -> Result<Done<Vf>> {
        self.change(vf, true, |operator, pf, vf| {
            let taken = operator.names(&request.to)?;
            plan::move_to_netns(pf, vf, request, &taken)
        })
    }

    fn change(
        &mut self,
        vf: &str,
        moves: bool,
        plan: impl FnOnce(&mut Self, &Pf, &Vf) -> Result<Plan>,
    ) -> Result<Done<Vf>> {
        let (pf_address, address) = lookup::vf(self.kernel, vf)?;
        let (_locks, pf, before) = self.locked_vf(pf_address, address)?;
        let record = self.state.record(address)?;
        self.refuse_other_owner(record.as_ref(), &format!("VF {address}"))?;
        let steps = plan(self, &pf, &before)?;
        let disturbs = |step: &Step| !matches!(step, Step::Set { .. });
        if let Some(netdev) = before.netdev.as_ref().filter(|_| steps.iter().any(disturbs))
            && netdev.netns.is_host()
        {
            self.refuse_vital(std::slice::from_ref(&netdev.name))?;
        }
        if self.options.dry_run || steps.is_empty() {
            return Ok(Done { steps, now: before });
        }
        let boxed = || Box::new(before.clone());
        let mut new_record = record.clone().unwrap_or_else(|| {
            self.record_of(Before::Vf { pf: pf_address, first: boxed(), before_move: None })
        });
        if let Before::Vf { before_move, .. } = &mut new_record.before
            && moves
            && before_move.is_none()
        {
            *before_move = Some(boxed());
        }
        if record.as_ref() != Some(&new_record) {
            self.state.write(&new_record)?;
        }
        let _signals = BlockedSignals::new();
        self.apply_or_undo(&steps, record.as_ref(), address, &address.to_string(), |operator| {
            let (_, now) = operator.vf(pf_address, address)?;
            plan::converge_vf(pf_address, &now, &before)
        })?;
        let (_, now) = self.vf(pf_address, address)?;
        self.forget_if_restored(&new_record, &now)?;
        Ok(Done { steps, now })
    }

    /// Moves VFs' interfaces back to the host's namespace, in their state before `move`.
    ///
    /// # Errors
    /// There is no such VF, or a step failed: the record stays, and the call can be repeated.
    pub fn release(&mut self, vfs: &[String]) -> Result<Restored> {
        let mut done = Restored::default();
        for vf in vfs {
            let (pf_address, address) = lookup::vf(self.kernel, vf)?;
            let (_locks, _, now) = self.locked_vf(pf_address, address)?;
            let record = self.state.record(address)?;
            let target = match record.as_ref().map(|record| &record.before) {
                Some(Before::Vf { before_move, .. }) => before_move.as_deref(),
                _ => None,
            };
            let steps = match target {
                Some(before) => plan::converge_vf(pf_address, &now, before)?,
                None => {
                    let taken = self.names(&NetNs::Host)?;
                    plan::return_to_host(&now, &taken)
                }
            };
            if target.is_some() || !steps.is_empty() {
                done.restored.push(address);
            }
            done.steps.extend(steps.iter().cloned());
            if self.options.dry_run {
                continue;
            }
            let _signals = BlockedSignals::new();
            self.apply(&steps)?;
            let Some(mut record) = record else { continue };
            let (_, now) = self.vf(pf_address, address)?;
            if let Before::Vf { before_move, .. } = &mut record.before {
                *before_move = None;
            }
            if !self.forget_if_restored(&record, &now)? {
                self.state.write(&record)?;
            }
        }
        Ok(done)
    }

    /// Restores functions to their state before the first change: those named, or all with a record,
    /// in either case only those of `owner` if the options name one.
    pub fn restore(&mut self, functions: &[String]) -> Result<Restored> {
        let mut done = Restored::default();
        let mut failures = Vec::new();
        for record in self.recorded(functions)? {
            let address = record.address();
            let restored = match record.before {
                Before::Vf { pf, .. } => self.restore_vf(pf, address, &mut done),
                Before::Pf(_) => self.restore_pf(address, &mut done),
            };
            failures.extend(restored.err());
        }
        let count = failures.len();
        match failures.into_iter().next() {
            None => Ok(done),
            Some(error) if count == 1 => Err(error),
            Some(mut error) => {
                error.what += &format!(" (and {} more could not be restored)", count - 1);
                Err(error)
            }
        }
    }

    /// The records that `restore` is asked for, those of VFs before those of PFs.
    fn recorded(&mut self, functions: &[String]) -> Result<Vec<Record>> {
        let mut records = self.state.all()?;
        let mut named = BTreeSet::new();
        for text in functions {
            named.insert(self.function(text, &records)?);
        }
        let owner = &self.options.owner;
        records.retain(|record| {
            let of_named_pf = matches!(&record.before, Before::Vf { pf, .. } if named.contains(pf));
            let is_named = named.contains(&record.address()) || of_named_pf;
            (functions.is_empty() || is_named) && (owner.is_none() || record.owner == *owner)
        });
        Ok(records)
    }

    /// A function by its name; by its address also one that has a record but is gone.
    fn function(&mut self, text: &str, records: &[Record]) -> Result<PciAddress> {
        let recorded = text.parse().ok().filter(|address: &PciAddress| {
            records.iter().any(|record| record.address() == *address)
        });
        if let Some(address) = recorded {
            return Ok(address);
        }
        let not_a_vf = match lookup::vf(self.kernel, text) {
            Ok((_, vf)) => return Ok(vf),
            Err(error) => error,
        };
        lookup::pf(self.kernel, text).map_err(
            |error| {
                if text.contains('/') { not_a_vf } else { error }
            },
        )
    }

    fn restore_vf(
        &mut self,
        pf_address: PciAddress,
        address: PciAddress,
        done: &mut Restored,
    ) -> Result<()> {
        let _locks = self.lock_vf(pf_address, address)?;
        // Another process may have restored it while this one waited for the lock.
        let record = self.state.record(address)?.map(|record| record.before);
        let Some(Before::Vf { first, .. }) = record else { return Ok(()) };
        if self.kernel.tree().pf_of(address) != Some(pf_address) {
            // Its PF has fewer VFs now: the VF is gone, and the record with it.
            return if self.options.dry_run { Ok(()) } else { self.state.remove(address) };
        }
        let (_, now) = self.vf(pf_address, address)?;
        let steps = plan::converge_vf(pf_address, &now, &first)?;
        done.restored.push(address);
        done.steps.extend(steps.iter().cloned());
        if self.options.dry_run {
            return Ok(());
        }
        let _signals = BlockedSignals::new();
        self.apply(&steps)?;
        let (_, now) = self.vf(pf_address, address)?;
        self.must_be_restored(plan::differences_of_vf(&now, &first), address)?;
        self.state.remove(address)
    }

    fn restore_pf(&mut self, address: PciAddress, done: &mut Restored) -> Result<()> {
        let _lock = self.lock(address, false)?;
        let Some(record) = self.state.record(address)? else { return Ok(()) };
        let Before::Pf(before) = &record.before else { return Ok(()) };
        let now = self.pf(address, None)?;
        let recreates = now.num_vfs != before.num_vfs;
        for vf in self.state.all()? {
            let Before::Vf { pf, .. } = &vf.before else { continue };
            let foreign = vf.owner != record.owner && vf.owner != self.options.owner;
            if *pf == address && recreates && foreign && !self.options.force {
                return Err(Error::failed(
                    format!(
                        "{} cannot be restored: its VF {} belongs to {}",
                        before.label(),
                        vf.address(),
                        vf.owner.as_deref().unwrap_or(NOBODY)
                    ),
                    "restore the VF first, or add --force",
                ));
            }
        }
        if recreates && !record.forced {
            let names = now.netdev.iter().map(|netdev| netdev.name.clone());
            self.refuse_vital(&names.collect::<Vec<_>>())?;
        }
        let steps = plan::converge_pf(&now, before)?;
        done.restored.push(address);
        done.steps.extend(steps.iter().cloned());
        if self.options.dry_run {
            return Ok(());
        }
        let _signals = BlockedSignals::new();
        self.apply(&steps)?;
        let now = self.pf(address, None)?;
        self.must_be_restored(plan::differences(&now, before), address)?;
        self.forget_vfs(address)?;
        self.state.remove(address)
    }

    /// Performs a plan. Where it fails, performs `undo`'s and puts the earlier record back.
    fn apply_or_undo(
        &mut self,
        steps: &[Step],
        record: Option<&Record>,
        address: PciAddress,
        label: &str,
        undo: impl FnOnce(&mut Self) -> Result<Plan>,
    ) -> Result<()> {
        let Err(mut error) = self.apply(steps) else { return Ok(()) };
        let undone = undo(self).and_then(|steps| self.apply(&steps)).and_then(|()| match record {
            Some(record) => self.state.write(record),
            None => self.state.remove(address),
        });
        match undone {
            Ok(()) => error.what += "; all is as before",
            Err(undo) => {
                error.what += &format!("; and it could not be undone: {}", undo.what);
                error.remedy = format!("planewised vf restore {label}");
            }
        }
        Err(error)
    }

    /// Performs a plan, which may rename interfaces of VFs that have a record.
    fn apply(&mut self, steps: &[Step]) -> Result<()> {
        let mut displaceable = Vec::new();
        for record in self.state.all()? {
            match record.before {
                Before::Vf { first, .. } => displaceable.push(first.address),
                Before::Pf(pf) => displaceable
                    .extend(self.kernel.tree().vfs(pf.address).into_iter().map(|(_, vf)| vf)),
            }
        }
        apply(self.kernel, steps, &displaceable)
    }

    fn must_be_restored(&self, differences: Vec<String>, address: PciAddress) -> Result<()> {
        if differences.is_empty() || self.options.force {
            return Ok(());
        }
        Err(Error::failed(
            format!("{address} was not restored entirely: {} differ", differences.join(", ")),
            "`planewised vf list` shows its state; --force drops the record of the earlier one",
        ))
    }

    fn lock(&self, address: PciAddress, shared: bool) -> Result<Option<Lock>> {
        if self.options.dry_run {
            return Ok(None);
        }
        self.state.make()?;
        self.state.lock(address, shared, self.options.wait).map(Some)
    }

    /// Locks a VF for this process alone, and its PF against changes of the number of VFs.
    fn lock_vf(&self, pf: PciAddress, address: PciAddress) -> Result<[Option<Lock>; 2]> {
        Ok([self.lock(pf, true)?, self.lock(address, false)?])
    }

    /// Locks a VF, and reads it and its PF.
    fn locked_vf(
        &mut self,
        pf: PciAddress,
        address: PciAddress,
    ) -> Result<([Option<Lock>; 2], Pf, Vf)> {
        let locks = self.lock_vf(pf, address)?;
        let (pf, vf) = self.vf(pf, address)?;
        Ok((locks, pf, vf))
    }

    /// Reads a PF, and waits for the interface of this VF; none: of all.
    fn pf(&mut self, address: PciAddress, vf: Option<PciAddress>) -> Result<Pf> {
        let mut pf = settled_pf(self.kernel, address, vf)?;
        self.state.annotate(std::slice::from_mut(&mut pf))?;
        Ok(pf)
    }

    fn vf(&mut self, pf: PciAddress, address: PciAddress) -> Result<(Pf, Vf)> {
        let pf = self.pf(pf, Some(address))?;
        match pf.vfs.iter().find(|vf| vf.address == address).cloned() {
            Some(vf) => Ok((pf, vf)),
            None => Err(Error::failed(format!("the VF {address} is gone"), "")),
        }
    }

    fn names(&mut self, netns: &NetNs) -> Result<Vec<String>> {
        Ok(self.kernel.links(netns)?.into_iter().map(|link| link.netdev.name).collect())
    }

    fn record_of(&self, before: Before) -> Record {
        Record::new(before, self.options.owner.clone(), self.options.force)
    }

    fn must_have_driver(&self, driver: &str) -> Result<()> {
        if self.kernel.tree().has_driver(driver) {
            return Ok(());
        }
        Err(Error::failed(
            format!("the driver {driver} is not loaded"),
            format!("load it: modprobe {driver}"),
        ))
    }

    /// Checks that VFIO can pass this VF through: the kernel passes whole IOMMU groups only.
    fn must_be_viable(&self, vf: &Vf) -> Result<()> {
        let tree = self.kernel.tree();
        let Some(mates) = tree.group_mates(vf.address) else {
            return Err(Error::failed(
                format!("the VF {} cannot be passed through: it has no IOMMU group", vf.address),
                "switch the IOMMU on: VT-d or AMD-Vi in the firmware, and the kernel parameter \
                 intel_iommu=on or amd_iommu=on",
            ));
        };
        let blocker = mates.into_iter().find_map(|mate| {
            let driver = tree.link(mate, "driver")?;
            (!driver::VFIO_ALLOWED.contains(&driver.as_str())).then_some((mate, driver))
        });
        match blocker {
            None => Ok(()),
            Some((mate, driver)) => Err(Error::failed(
                format!(
                    "the VF {} cannot be passed through: its IOMMU group {} also has {mate}, which \
                     the driver {driver} has",
                    vf.address,
                    vf.iommu_group.map_or_else(String::new, |group| group.to_string()),
                ),
                "use a slot of the machine whose root port has ACS, or give that function to \
                 vfio-pci, too",
            )),
        }
    }

    fn refuse_other_owner(&self, record: Option<&Record>, label: &str) -> Result<()> {
        match record {
            Some(record) if record.owner != self.options.owner && !self.options.force => {
                Err(Error::failed(
                    format!("{label} belongs to {}", record.owner.as_deref().unwrap_or(NOBODY)),
                    "take another one, restore it first, or add --force",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to disturb vital interfaces (`Kernel::vital`) and those below them.
    fn refuse_vital(&mut self, names: &[String]) -> Result<()> {
        if self.options.force {
            return Ok(());
        }
        let vital = vital_interfaces(self.kernel)?;
        if let Some((name, reason)) = names.iter().find_map(|name| vital.get_key_value(name)) {
            return Err(Error::failed(
                format!("{name} carries {reason}, which would be cut"),
                "use another PF, or add --force if you can do without",
            ));
        }
        Ok(())
    }

    /// Removes the record of a VF that is in its first state again; returns whether it did.
    fn forget_if_restored(&self, record: &Record, now: &Vf) -> Result<bool> {
        let Before::Vf { first, before_move, .. } = &record.before else { return Ok(false) };
        let restored = before_move.is_none() && plan::differences_of_vf(now, first).is_empty();
        if restored {
            self.state.remove(now.address)?;
        }
        Ok(restored)
    }

    fn forget_vfs(&self, of_pf: PciAddress) -> Result<()> {
        for record in self.state.all()? {
            if let Before::Vf { pf, first, .. } = &record.before
                && *pf == of_pf
            {
                self.state.remove(first.address)?;
            }
        }
        Ok(())
    }
}
