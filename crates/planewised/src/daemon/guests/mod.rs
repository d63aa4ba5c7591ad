//! The kinds of guests that a host may have, behind one trait: containers and namespaces, pods,
//! libvirt's machines, simulated ones. The daemon's loop knows them by this trait alone.

pub mod containers;
pub mod libvirt;
pub mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, Mac, VfId, Wish};
use pw_alloc::signal::Sample;
use pw_alloc::step::Join;
use pw_alloc::world::Found;
use pw_error::Result;

use crate::daemon::config::Config;
use crate::daemon::crew::{Hands, Search};
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;

/// A guest that is managed now.
#[derive(Debug, Clone, PartialEq)]
pub struct Managed {
    /// Its name, unique on the host.
    pub id: GuestId,
    /// Tells this run of the guest from every other of its name: it changes when the guest is started
    /// anew, and with nothing else.
    pub incarnation: String,
    /// Its address on its paravirtual path.
    pub mac: Mac,
    /// What joins its paths.
    pub join: Join,
    /// What its labels or its metadata wish for it. What the configuration or the operator wishes
    /// goes before.
    pub wish: Wish,
    /// It gets no VF, whatever anybody wishes: a VF would lead elsewhere, or past a filter of the host's.
    pub barred: bool,
    /// Does its paravirtual path work?
    pub paravirtual_up: bool,
    /// It is no longer to be managed: its VF, if it has one, is taken, then [`Guests::release`] is
    /// called.
    pub leaving: bool,
}

/// What [`Guests::discover`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Discovery {
    /// The same guests as last time, in the same state.
    Unchanged,
    /// These, and no others.
    Guests(Vec<Managed>),
}

/// What [`Guests::find`] found.
pub enum Finding {
    /// This.
    Found(Found),
    /// It has to ask somebody who may take his time: a task is to do it.
    Later(Search),
}

/// One kind of guests of a host. All calls come from one thread; none may wait longer than a few
/// milliseconds.
pub trait Guests: Send {
    /// What the kind is called in sentences and in the status, as `containers`.
    fn name(&self) -> &'static str;

    /// What sort of guests they are, for the status.
    fn kind(&self) -> GuestKind;

    /// The guests that are managed now. Called before every sample, so it must cost next to nothing
    /// while nothing has changed: events where there are any.
    ///
    /// # Errors
    /// The source of the guests does not answer (its daemon is restarting): those known stay, and
    /// the next call tries again.
    fn discover(&mut self, pool: &PoolView) -> Result<Discovery>;

    /// Reads the counters of all guests. `now_ms` is the moment, on a clock that is never set back;
    /// `pool` has what the PFs count for their VFs. A guest whose counters cannot be read is left
    /// out; one without counters is `Reading::Unsupported`.
    fn sample(&mut self, now_ms: u64, pool: &PoolView, into: &mut Vec<(GuestId, Sample)>);

    /// The VFs that guests have, as this sample shows it; guests that are left out have none, and of
    /// those with `None` it cannot be told. Costs no more than `sample`, and comes after it.
    fn holdings(&mut self, pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeSet<VfId>>>;

    /// Why guests of this kind may be missing from what [`Guests::discover`] told: their source has
    /// not answered yet, or does not any more. None: they are all there.
    fn gap(&self) -> Option<String>;

    /// Has [`Guests::discover`] tell all guests again.
    fn tell_again(&mut self) {}

    /// Has its source been asked for the first time and neither answered nor failed yet?
    fn is_pending(&self) -> bool {
        false
    }

    /// Its part of the world, read afresh: all its guests, and those VFs that are in them
    /// (`VfPlace::Guest`), or in somebody of this kind who is not managed (`VfPlace::Foreign`). VFs that
    /// are in neither are left out. What cannot be asked is a gap ([`Found::gaps`]), not *nothing*.
    fn find(&mut self, pool: &PoolView) -> Finding;

    /// What performs a step about this guest: `Attach`, `AwaitPath`, `Prefer`, `Direct`, `Verify` or
    /// `Detach`. `Reserve` makes the VF ready for the guest as far as that disturbs nobody (frames for
    /// the guest are lost from the moment in which the VF gets its address) and waits for whatever must
    /// be over before that guest is given a device; `Step::Reset` undoes it.
    ///
    /// # Errors
    /// There is no such guest any more.
    fn hands(&mut self, guest: &GuestId) -> std::result::Result<Box<dyn Hands>, Failure>;

    /// Gives back what a guest had before it was managed. It holds no VF any more.
    ///
    /// # Errors
    /// Why it is not done; it is tried again later.
    fn release(&mut self, guest: &GuestId) -> Result<()>;

    /// The configuration was read again.
    fn configure(&mut self, _config: &Config) {}

    /// What is amiss with this kind as a whole, one sentence each (its daemon does not answer, a
    /// guest that is to be managed cannot be); for the status.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The kinds of guests of this host; `pods`: those of a cluster, too. `dry_run`: they look and change
/// nothing.
///
/// # Errors
/// The kernel gives no socket.
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
