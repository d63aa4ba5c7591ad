//! The VFs that are given and taken, behind one trait: this machine's, or made-up ones. Knows nothing
//! of guests.

pub mod machine;
pub mod view;

use std::collections::BTreeSet;

use pw_alloc::model::Mac;
use pw_error::Result;

use crate::daemon::crew::Hands;

pub use self::view::{PoolPf, PoolVf, PoolView};

/// The VFs of a host.
pub trait Pool: Send {
    /// Reads it all afresh: links, places, addresses.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn read(&mut self) -> Result<PoolView>;

    /// Reads only what changes all the time, into `view`: counters, links, and whether VFs are with
    /// the host. What the host itself does with a VF, `read` tells.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn sample(&mut self, view: &mut PoolView) -> Result<()>;

    /// Sees that whoever else is on the host's bridges stays reachable for guests on VFs. `managed`:
    /// addresses of guests, for which their kind cares.
    ///
    /// # Errors
    /// The kernel refuses.
    fn settle(&mut self, _view: &PoolView, _managed: &BTreeSet<Mac>) -> Result<()> {
        Ok(())
    }

    /// What performs steps about VFs that are in no guest: `Reserve`, `SetMac`, `ClearMac`, `Recall`,
    /// `Reset` and `Release`. All but `Recall` look first, and refuse a VF of which it is not certain
    /// that nobody uses it.
    fn hands(&self) -> Box<dyn Hands>;
}
