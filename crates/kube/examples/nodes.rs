//! Many nodes' agents in one process, for tests of a fleet's load on an API server: the agents are the real
//! ones, their daemons are made up and give each VF to the first pod.
//!
//!     nodes KUBECONFIG PROC NAME COUNT VFS
//!
//! The nodes are NAME-0, NAME-1 and so on, the processes of each in PROC/NAME-0, PROC/NAME-1. Runs until
//! it is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use planewised::daemon::cluster::{Cluster, Node};
use planewised::daemon::config;
use planewised::daemon::guests::source::{Container, KnownContainers};
use planewised::daemon::status::{Guest, GuestKind, Pool, Rate, Source, Status, Vf, VfState};
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::settings::PolicyKind;
use pw_error::{Error, Result};
use tokio::sync::watch;

const PF: &str = "simulated0";
/// Traffic of each pod [packets a second].
const PPS: f64 = 1000.0;

/// The made-up daemon of one node.
struct Daemon {
    node: Node,
    status: watch::Sender<Arc<Status>>,
    holders: BTreeMap<GuestId, u16>,
    vfs: u16,
}

fn guest(container: Container, vf: Option<u16>) -> Guest {
    Guest {
        id: container.id,
        kind: GuestKind::Pod,
        mac: None,
        vf: vf.map(|index| VfId::new(PF, index)),
        since_unix_ms: 0,
        why: String::new(),
        rate: Rate { pps: Some(PPS), bytes_per_s: None, source: Source::HostSide, blind_ms: 0 },
        stance: container.wish.stance,
        class: container.wish.class,
        moving: false,
        paravirtual_up: true,
        marked: None,
    }
}

impl Daemon {
    fn start(access: &config::Kubernetes, name: String, vfs: u16) -> Result<Self> {
        let (status, receiver) =
            watch::channel(Arc::new(Status::new(PolicyKind::Benefit, 1.0, 1.0)));
        let proc = access.proc.join(&name);
        // There is no kubelet: an absent record in an existing folder.
        let device_plugins = proc.join("kubelet_internal_checkpoint");
        let config =
            config::Kubernetes { node: Some(name), proc, device_plugins, ..access.clone() };
        let node = pw_kube::Kubernetes.join(&config, receiver)?;
        Ok(Self { node, status, holders: BTreeMap::new(), vfs })
    }

    /// Looks at the pods, and gives and takes VFs at once.
    fn decide(&mut self) {
        let KnownContainers::All(pods) = self.node.pods.state().containers else { return };
        self.holders.retain(|holder, _| pods.iter().any(|pod| pod.id == *holder));
        let mut guests = Vec::new();
        for pod in pods {
            if !self.holders.contains_key(&pod.id) {
                let free = (0..self.vfs)
                    .find(|index| !self.holders.values().any(|holding| holding == index));
                self.holders.extend(free.map(|index| (pod.id.clone(), index)));
            }
            let vf = self.holders.get(&pod.id).copied();
            guests.push(guest(pod, vf));
        }
        let mut status = Status::clone(&self.status.borrow());
        status.guests = guests;
        status.vfs = (0..self.vfs)
            .map(|index| {
                let holder = self.holders.iter().find(|(_, holding)| **holding == index);
                let place = if holder.is_some() { VfState::Held } else { VfState::Pool };
                let holder = holder.map(|(guest, _)| guest.clone());
                Vf { id: VfId::new(PF, index), place, holder, why: None }
            })
            .collect();
        let (vfs, free) = (u32::from(self.vfs), u32::from(self.vfs) - self.holders.len() as u32);
        status.pools =
            vec![Pool { pf: PF.into(), vfs, free, quarantined: 0, link_up: true, numa: None }];
        status.counters.samples += 1;
        self.status.send_replace(Arc::new(status));
    }
}

fn main() -> std::process::ExitCode {
    pw_error::exit("nodes", run())
}

fn run() -> Result<()> {
    let wrong = || Error::bad_input("not five arguments", "KUBECONFIG PROC NAME COUNT VFS");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kubeconfig, proc, name, count, vfs] = &arguments[..] else { return Err(wrong()) };
    let count: u32 = count.parse().map_err(|_| wrong())?;
    let vfs: u16 = vfs.parse().map_err(|_| wrong())?;
    let access = config::Kubernetes {
        kubeconfig: Some(kubeconfig.into()),
        proc: proc.into(),
        ..config::Kubernetes::default()
    };
    let daemons = (0..count).map(|index| Daemon::start(&access, format!("{name}-{index}"), vfs));
    let mut daemons: Vec<Daemon> = daemons.collect::<Result<_>>()?;
    loop {
        daemons.iter_mut().for_each(Daemon::decide);
        std::thread::sleep(Duration::from_secs(1));
    }
}
