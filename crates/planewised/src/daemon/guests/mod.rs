//! The kinds of guests that a host may have, behind one trait: containers and namespaces, libvirt's
//! machines, simulated ones. The daemon's loop knows them by this trait alone.

pub mod containers;
pub mod libvirt;

use std::time::Instant;

use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, Mac, VfId, Wish};
use pw_alloc::signal::Sample;
use pw_alloc::step::{Join, Step};
use pw_alloc::world::Found;
use pw_linux::error::Result;

use crate::daemon::config::Config;
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;

/// A guest that is managed now.
#[derive(Debug, Clone, PartialEq)]
pub struct Managed {
    /// Its name, unique on the host.
    pub id: GuestId,
    /// Its address on its paravirtual path.
    pub mac: Mac,
    /// What joins its paths.
    pub join: Join,
    /// What its labels or its metadata wish for it. What the configuration or the operator wishes
    /// goes before.
    pub wish: Wish,
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

/// One kind of guests of a host. All calls come from one thread; none may wait longer than a few
/// milliseconds, but for `find`, `perform` and `release`.
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

    /// Its part of the world, read afresh: all its guests, and those VFs that are in them
    /// (`Place::Guest`). VFs that are in none of its guests are left out.
    ///
    /// # Errors
    /// It cannot be told what is. Nothing is moved then.
    fn find(&mut self, pool: &PoolView) -> Result<Found>;

    /// Does one step about a guest of this kind: `Attach`, `AwaitPath`, `Prefer`, `Direct`, `Verify`
    /// or `Detach`. (`Reserve` needs nothing; the pool does the others.) It may be done twice, and
    /// after it was begun and interrupted at any point. Returns by the deadline.
    ///
    /// # Errors
    /// Why it is not done; `guest_silent` when the guest did not answer in time, or refused.
    fn perform(
        &mut self,
        step: &Step,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure>;

    /// Makes a VF of the pool ready for a guest, as far as that disturbs nobody: frames for the guest
    /// are lost from the moment in which the VF gets its address, and what can be done before should
    /// be. Part of `Step::Reserve`; `Step::Reset` undoes it.
    ///
    /// # Errors
    /// Why it cannot be done.
    fn prepare(
        &mut self,
        _vf: &VfId,
        _pool: &PoolView,
        _deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        Ok(())
    }

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

/// The kinds of guests of this host. `dry_run`: they look and change nothing.
///
/// # Errors
/// The kernel gives no socket.
pub fn kinds(config: &Config, dry_run: bool) -> Result<Vec<Box<dyn Guests>>> {
    let containers =
        containers::Containers::new(&config.containers, &config.state_directory, dry_run)?;
    let machines = libvirt::Machines::new(config.machines.sockets.clone())?;
    Ok(vec![Box::new(containers), Box::new(machines)])
}
