//! The interface to the cluster that this host is a node of. The client of the cluster's API is in
//! another crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use pw_alloc::evidence::User;
use pw_error::Result;
use pw_sriov::address::PciAddress;
use tokio::sync::watch;

use crate::daemon::config::Kubernetes;
use crate::daemon::guests::source::Source;
use crate::daemon::pool::{Addresses, Pool, PoolView};
use crate::daemon::status::Status;
use crate::daemon::tasks::{Executor, PoolReading};

/// Joins a cluster; the program that starts the daemon provides it.
pub trait Cluster {
    /// Starts to watch the pods of this node, and to publish `status`.
    ///
    /// # Errors
    /// The configuration is invalid. An API server that does not answer is not an error.
    fn join(&self, config: &Kubernetes, status: watch::Receiver<Arc<Status>>) -> Result<Node>;
}

/// This host as a node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its pods.
    pub pods: Arc<dyn Source>,
    /// Devices of the node that others allocate to pods.
    pub devices: Arc<dyn Devices>,
}

/// PCI devices that device plugins or DRA drivers allocate to pods.
pub trait Devices: std::fmt::Debug + Send + Sync {
    /// Which device plugin or driver allocates which device, by PCI address.
    fn handed_out(&self) -> std::result::Result<BTreeMap<PciAddress, String>, String>;
}

/// A pool in which free VFs count as used where another component allocates VFs of their PF to pods.
pub struct ExclusivePool {
    pool: Box<dyn Pool>,
    devices: Arc<dyn Devices>,
}

impl ExclusivePool {
    /// This pool without the PFs of `devices`.
    pub fn new(pool: Box<dyn Pool>, devices: Arc<dyn Devices>) -> Self {
        Self { pool, devices }
    }

    /// Marks the free VFs of such PFs as used. Those that guests hold stay.
    fn mark(&self, view: &mut PoolView) {
        let handed_out = self.devices.handed_out();
        for (id, pf) in &view.pfs {
            let of_pf = || view.vfs.iter().filter(|(vf, _)| vf.pf == *id);
            let user = match &handed_out {
                Err(why) => Some(User::Unknown(why.clone())),
                Ok(handed_out) => std::iter::once(&pf.address)
                    .chain(of_pf().map(|(_, vf)| &vf.address))
                    .find_map(|address| Some((address, handed_out.get(address)?)))
                    .map(|(address, by)| {
                        User::Host(format!("{by} hands out {address} of the PF {id} to pods"))
                    }),
            };
            let Some(user) = user else { continue };
            let free =
                view.vfs.iter_mut().filter(|(vf_id, vf)| vf_id.pf == *id && vf.user.is_nobody());
            free.for_each(|(_, vf)| vf.user = user.clone());
        }
    }
}

impl Pool for ExclusivePool {
    fn reading(&mut self) -> PoolReading {
        self.pool.reading()
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        self.pool.sample(view)?;
        self.mark(view);
        Ok(())
    }

    fn settle(&mut self, view: &PoolView, managed: &Addresses) -> Result<()> {
        self.pool.settle(view, managed)
    }

    fn executor(&self) -> Box<dyn Executor> {
        self.pool.executor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::Simulated;
    use crate::daemon::simulated::World;

    #[derive(Debug, Clone)]
    struct Allocated(std::result::Result<BTreeMap<PciAddress, String>, String>);

    impl Devices for Allocated {
        fn handed_out(&self) -> std::result::Result<BTreeMap<PciAddress, String>, String> {
            self.0.clone()
        }
    }

    /// The users of the two VFs of a made-up PF.
    fn users(devices: impl Fn(&PoolView) -> Allocated) -> Vec<User> {
        let world = World::new(&Simulated { vfs: 2, guests: BTreeMap::new(), pods: None });
        let mut pool = world.host().pool;
        let mut view = pool.reading()().expect("a pool");
        let devices = devices(&view);
        ExclusivePool::new(pool, Arc::new(devices)).sample(&mut view).expect("a pool");
        view.vfs.into_values().map(|vf| vf.user).collect()
    }

    #[test]
    fn no_vf_of_a_pf_is_free_if_somebody_else_gives_one_of_them_to_pods_or_that_is_not_known() {
        let nothing = users(|_| Allocated(Ok(BTreeMap::new())));
        assert!(nothing.iter().all(User::is_nobody), "{nothing:?}");
        let of_first = users(|view| {
            let first = view.vfs.values().next().expect("a VF").address;
            Allocated(Ok([(first, "the device plugin of a/b".to_owned())].into()))
        });
        assert_eq!(of_first.len(), 2);
        for user in of_first {
            assert!(
                matches!(&user, User::Host(why) if why.starts_with("the device plugin of a/b"))
            );
        }
        for user in users(|_| Allocated(Err("no answer yet".to_owned()))) {
            assert_eq!(user, User::Unknown("no answer yet".to_owned()));
        }
    }
}
