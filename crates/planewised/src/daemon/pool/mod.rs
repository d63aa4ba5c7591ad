//! VFs behind one trait: this host's, or simulated ones.

pub mod host;
mod usage;
pub mod view;

use pw_error::Result;

use crate::daemon::tasks::{Executor, PoolReading};

pub use self::view::{Addresses, PoolPf, PoolVf, PoolView};

/// The VFs of a host.
pub trait Pool: Send {
    /// Reads everything: users, addresses, settings. It may take seconds, and is a task. `sample` completes
    /// the view.
    fn reading(&mut self) -> PoolReading;

    /// Updates `view` with what changes often: the host's interfaces and filters, counters, links, and
    /// whether VFs are with the host. The host's own use of VFs takes a reading.
    fn sample(&mut self, view: &mut PoolView) -> Result<()>;

    /// Keeps stations on the host's bridges reachable for guests on VFs.
    fn settle(&mut self, _view: &PoolView, _managed: &Addresses) -> Result<()> {
        Ok(())
    }

    /// An executor of steps on VFs that are in no guest: `Reserve`, `SetMac`, `ClearMac`, `Recall` and
    /// `Reset`. All but `Recall` refuse a VF unless it is certainly unused; `Recall` takes it from no namespace but
    /// one that a managed guest may have left it in.
    fn executor(&self) -> Box<dyn Executor>;
}
