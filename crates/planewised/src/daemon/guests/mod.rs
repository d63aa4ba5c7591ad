//! Kinds of guests behind one trait: containers and namespaces, pods, libvirt's machines, simulated ones.

pub mod containers;
pub mod libvirt;
pub mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pw_alloc::execute::Performed;
use pw_alloc::model::{GuestId, Mac, PfId, VfId, Wish};
use pw_alloc::signal::Sample;
use pw_alloc::step::Join;
use pw_error::Result;

use crate::daemon::config::Config;
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;
use crate::daemon::tasks::{Adoption, Executor, Search};

/// A managed guest.
#[derive(Debug, Clone, PartialEq)]
pub struct Managed {
    /// Its name, unique on the host.
    pub id: GuestId,
    /// Identity of this run of the guest: it changes when the guest is restarted, and only then.
    pub incarnation: String,
    /// MAC address of its paravirtual path.
    pub mac: Mac,
    /// The mechanism that joins its paths.
    pub join: Join,
    /// Wishes of its labels or metadata; those of the configuration and the operator take precedence.
    pub wish: Wish,
    /// What is known of its network.
    pub network: Network,
    /// Does its paravirtual path work?
    pub paravirtual_up: bool,
    /// It is no longer to be managed: its VF is taken, then [`Guests::release`] is called.
    pub leaving: bool,
}

/// What is known of the network that a guest's paravirtual path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Nothing: the host was not read since the guest's port appeared. It is left as it is.
    Unread,
    /// The host filters its frames, which a VF would bypass: it gets none, whatever the wishes.
    Barred,
    /// These PFs lead to it. Empty: its port is on no bridge, and only PFs that the configuration names for
    /// it can.
    Pfs(BTreeSet<PfId>),
}

/// One kind of guests of a host. All calls come from one thread; none may block for more than a few
/// milliseconds.
pub trait Guests: Send {
    /// The kind's name in messages, as `containers`.
    fn name(&self) -> &'static str;

    /// The kind in the status.
    fn kind(&self) -> GuestKind;

    /// The guests that are managed now. Called before every sample, so it must be cheap while nothing has
    /// changed, by events where there are any.
    ///
    /// # Errors
    /// The guests' source does not answer (its daemon is restarting): known guests stay until the next
    /// call.
    fn discover(&mut self, pool: &PoolView) -> Result<Vec<Managed>>;

    /// The next adoption or release of a guest, for a task; none: there is none at the moment. It is called again
    /// once that has ended, and [`Guests::discover`] then has the adopted guest.
    fn adoption(&mut self, _pool: &PoolView) -> Option<Adoption> {
        None
    }

    /// Reads the counters of all guests. `now_ms` is on a monotonic clock; `pool` has the PFs' counters of
    /// VFs. A guest whose counters cannot be read is left out; one without counters is
    /// `Reading::Unsupported`.
    fn sample(&mut self, now_ms: u64, pool: &PoolView, into: &mut Vec<(GuestId, Sample)>);

    /// The VFs that guests have by this sample, and whether they send by them: guests that are left out have
    /// none, `None` is unknown. Costs no more than `sample`, and follows it.
    fn holdings(&mut self, pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeMap<VfId, bool>>>;

    /// VFs that guests which do not run will take when they start, with the reasons.
    fn reserved(&self, _pool: &PoolView) -> BTreeMap<VfId, String> {
        BTreeMap::new()
    }

    /// Why [`Guests::discover`] may lack guests: their source has not answered yet, or no longer does.
    /// None: it is complete.
    fn gap(&self) -> Option<String>;

    /// Is the first answer of its source, or an adoption, outstanding?
    fn is_pending(&self) -> bool {
        false
    }

    /// Surveys all its guests, and the VFs in them (`VfPlace::Guest`) or in
    /// unmanaged ones of this kind (`VfPlace::Foreign`). Other VFs are left out. Whatever does not answer
    /// is a gap ([`pw_alloc::world::HostState::gaps`]), not *nothing*. The survey may block.
    fn find(&mut self, pool: &PoolView) -> Search;

    /// Must the pool have PFs take the addresses of guests without a VF? Other kinds do it at adoption.
    fn needs_filters(&self) -> bool {
        false
    }

    /// An executor of this guest's steps: `Attach`, `AwaitPath`, `Prefer`, `Direct`, `Verify` and
    /// `Detach`. `Reserve` prepares the VF for the guest as far as that loses no frames (those for the
    /// guest are lost once the VF has its address), and waits until the guest can be given a device;
    /// `Step::Reset` undoes it.
    fn executor(&mut self, guest: &GuestId) -> Performed<Box<dyn Executor>>;

    /// Gives up a guest, which holds no VF: [`Guests::discover`] no longer has it, and a task of
    /// [`Guests::adoption`] restores it to its state before it was managed.
    fn release(&mut self, _guest: &GuestId) {}

    /// The configuration was reloaded.
    fn configure(&mut self, _config: &Config) {}

    /// Problems of this kind, a sentence each, for the status: its daemon does not answer, a guest cannot
    /// be managed.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The kinds of guests of this host, and of a cluster with `pods`. With `dry_run` they change nothing.
pub fn kinds(
    config: &Config,
    pods: Option<Arc<dyn source::Source>>,
    dry_run: bool,
) -> Result<Vec<Box<dyn Guests>>> {
    let containers = containers::Containers::new(config, dry_run)?;
    let machines =
        libvirt::Machines::new(config.machines.sockets.clone(), config.pool.bypass_filters)?;
    let mut kinds: Vec<Box<dyn Guests>> = vec![Box::new(containers), Box::new(machines)];
    if let Some(source) = pods {
        kinds.push(Box::new(containers::Containers::pods(source, config, dry_run)?));
    }
    Ok(kinds)
}
