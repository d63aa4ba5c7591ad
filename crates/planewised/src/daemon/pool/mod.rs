//! VFs behind one trait: this host's, or simulated ones. Knows nothing of guests.

pub mod host;
pub mod view;

use pw_error::Result;

use crate::daemon::tasks::Executor;

pub use self::view::{Addresses, PoolPf, PoolVf, PoolView};

/// The VFs of a host.
pub trait Pool: Send {
    /// Reads everything: links, users, addresses.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn read(&mut self) -> Result<PoolView>;

    /// Updates `view` with what changes often: counters, links, and whether VFs are with the host. The
    /// host's own use of VFs takes `read`.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn sample(&mut self, view: &mut PoolView) -> Result<()>;

    /// Keeps stations on the host's bridges reachable for guests on VFs.
    ///
    /// # Errors
    /// The kernel refuses.
    fn settle(&mut self, _view: &PoolView, _managed: &Addresses) -> Result<()> {
        Ok(())
    }

    /// An executor of steps on VFs that are in no guest: `Reserve`, `SetMac`, `ClearMac`, `Recall` and
    /// `Reset`. All but `Recall` refuse a VF unless it is certainly unused.
    fn executor(&self) -> Box<dyn Executor>;
}
