//! The kernel's interface to SR-IOV functions, as a trait: Linux itself, or a fake in tests.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::statfs::{SYSFS_MAGIC, statfs};
use pw_error::{Error, Result};
use pw_linux::rtnetlink::{Errno, errno_text};

use crate::address::PciAddress;
use crate::driver;
use crate::link::{Change, Link, Links, Outcome, Setting};
use crate::model::{Namespace, NetNs, Netdev};
use crate::namespaces::{self, run_in};
use crate::sysfs::{Tree, device};
use crate::vfinfo::VfInfo;

/// A kernel, or a fake of one.
pub trait Kernel {
    /// Its sysfs.
    fn tree(&self) -> &Tree;

    /// Major and minor number of its release.
    fn version(&self) -> (u32, u32);

    /// The interfaces of a namespace.
    fn links(&mut self, netns: &NetNs) -> Result<Vec<Link>>;

    /// All namespaces but the host's. `thorough`: also those that only open files hold, which is slow.
    fn namespaces(&mut self, thorough: bool) -> Vec<Namespace>;

    /// The VFs of a PF as rtnetlink reports them; none when it cannot be asked.
    fn vfs(&mut self, pf: &Netdev) -> Result<Option<Vec<VfInfo>>>;

    /// The processes that hold these functions through VFIO or verbs; those without one are left out.
    fn holders(&mut self, vfs: &[PciAddress]) -> BTreeMap<PciAddress, Holder>;

    /// Interfaces that must not go away, each with the reason: default routes and the SSH session.
    fn vital(&mut self) -> Result<Vec<(String, String)>>;

    /// Writes a value into a file of sysfs.
    fn write(&mut self, file: &Path, value: &str) -> std::result::Result<(), std::io::Error>;

    /// Sets a VF's setting through its PF.
    fn set_vf(&mut self, pf: &Netdev, vf: u32, setting: Setting) -> Result<Outcome>;

    /// Changes an interface in its namespace.
    fn change(&mut self, netdev: &Netdev, change: &Change) -> Result<Outcome>;

    /// Moves an interface from its namespace to another, where it gets `name`.
    fn move_to_netns(&mut self, netdev: &Netdev, to: &NetNs, name: &str) -> Result<Outcome>;
}

/// Who holds a function through VFIO or verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process, for a sentence.
    Process(String),
    /// The reason why the holder is unknown. Not to be taken for nobody.
    Unknown(String),
}

/// Linux, below a sysfs. Netlink is not used where the root is a made-up tree, whose interfaces it
/// does not have.
#[derive(Debug, Clone)]
pub struct Linux {
    tree: Tree,
    real: bool,
    version: (u32, u32),
    /// Inodes of the namespaces that had functions' interfaces last: they are looked into first.
    likely: Arc<Mutex<BTreeSet<u64>>>,
}

impl Linux {
    /// The kernel that runs, as the sysfs below `root` shows it.
    pub fn new(root: &Path) -> Self {
        let real = statfs(root).is_ok_and(|stat| stat.filesystem_type() == SYSFS_MAGIC);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let version = driver::kernel_version(&release).unwrap_or((0, 0));
        Self { tree: Tree::new(root), real, version, likely: Arc::default() }
    }

    /// Whether the root is a sysfs, not a made-up tree.
    pub fn is_real(&self) -> bool {
        self.real
    }

    fn must_be_real(&self) -> Result<()> {
        if self.real {
            return Ok(());
        }
        Err(Error::failed(
            format!("{} is not sysfs: no interface can be changed", self.tree.root().display()),
            "leave out --sysfs, or add --dry-run",
        ))
    }

    /// The interfaces in the tree, which are those of the namespace it was mounted in.
    fn links_of_tree(&self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        for pf in self.tree.pfs()? {
            let vfs = self.tree.vfs(pf).into_iter().map(|(_, vf)| vf);
            for function in std::iter::once(pf).chain(vfs) {
                for name in self.tree.interfaces(function) {
                    let text = |file: &str| self.tree.interface_text(function, &name, file);
                    let number = |file: &str| crate::sysfs::number(&text(file)?);
                    let netdev = Netdev {
                        index: number("ifindex").unwrap_or(0),
                        mac: text("address").and_then(|mac| mac.parse().ok()),
                        mac_is_permanent: number("addr_assign_type").map(|kind| kind == 0),
                        mtu_bytes: number("mtu").unwrap_or(0),
                        up: number("flags").is_some_and(|flags| flags & 1 == 1),
                        carrier: number("carrier").map(|carrier| carrier != 0),
                        attached_to: self.tree.upper(&name).into_iter().next(),
                        name,
                        ..Netdev::default()
                    };
                    links.push(Link { device: Some(function), representor: false, netdev });
                }
            }
        }
        Ok(links)
    }
}

impl Kernel for Linux {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn version(&self) -> (u32, u32) {
        self.version
    }

    fn links(&mut self, netns: &NetNs) -> Result<Vec<Link>> {
        if !self.real {
            return if netns.is_host() { self.links_of_tree() } else { Ok(Vec::new()) };
        }
        let links = run_in(netns, || Links::open()?.all(netns))?;
        if let NetNs::Other(namespace) = netns {
            let has_functions = links.iter().any(|link| link.device.is_some());
            let mut likely = self.likely.lock().unwrap_or_else(PoisonError::into_inner);
            if has_functions {
                likely.insert(namespace.inode);
            } else {
                likely.remove(&namespace.inode);
            }
        }
        Ok(links)
    }

    fn namespaces(&mut self, thorough: bool) -> Vec<Namespace> {
        let mut namespaces = if self.real { namespaces::list() } else { Vec::new() };
        if self.real && thorough {
            namespaces.extend(namespaces::held_by_files());
        }
        let mut likely = self.likely.lock().unwrap_or_else(PoisonError::into_inner);
        likely.retain(|inode| namespaces.iter().any(|namespace| namespace.inode == *inode));
        namespaces.sort_by_key(|namespace| !likely.contains(&namespace.inode));
        namespaces
    }

    fn vfs(&mut self, pf: &Netdev) -> Result<Option<Vec<VfInfo>>> {
        if !self.real {
            return Ok(None);
        }
        run_in(&pf.netns, || Links::open()?.vfs(&pf.name))
    }

    fn holders(&mut self, vfs: &[PciAddress]) -> BTreeMap<PciAddress, Holder> {
        let mut files = Vec::new();
        for vf in vfs.iter().filter(|_| self.real) {
            let entries = |of: &str, place: &str| {
                let names = fs::read_dir(self.tree.path(device(*vf)).join(of));
                let names = names.into_iter().flatten().flatten().map(|entry| entry.file_name());
                names.map(|name| format!("{place}/{}", name.to_string_lossy())).collect::<Vec<_>>()
            };
            let mut of_vf = entries("infiniband_verbs", "/dev/infiniband");
            if self.tree.link(*vf, "driver").as_deref() == Some(driver::VFIO) {
                of_vf.extend(entries("vfio-dev", "/dev/vfio/devices"));
                if let Some(group) = self.tree.iommu_group(*vf) {
                    of_vf.extend([
                        format!("/dev/vfio/{group}"),
                        format!("/dev/vfio/noiommu-{group}"),
                    ]);
                }
            }
            if !of_vf.is_empty() {
                files.push((*vf, of_vf));
            }
        }
        let (vfs, files): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        let holders = holders_of(&files, Path::new("/proc"));
        let of_vf = |(vf, holder)| match holder {
            // vfio-pci enables a device when it is opened (vfio_pci_core_enable), by whatever process.
            Holder::Nobody | Holder::Unknown(_)
                if self.tree.link(vf, "driver").as_deref() == Some(driver::VFIO)
                    && self.tree.number(vf, "enable").is_some_and(|count| count > 0) =>
            {
                let what = format!("a process that cannot be seen has opened {vf}");
                (vf, Holder::Process(what))
            }
            holder => (vf, holder),
        };
        vfs.into_iter().zip(holders).map(of_vf).collect()
    }

    fn vital(&mut self) -> Result<Vec<(String, String)>> {
        if !self.real {
            return Ok(Vec::new());
        }
        let mut socket = Links::open()?;
        let links = socket.all(&NetNs::Host)?;
        let name = |index: u32| {
            links
                .iter()
                .find(|link| link.netdev.index == index)
                .map(|link| link.netdev.name.clone())
        };
        let mut vital: Vec<(String, String)> = socket
            .default_routes()?
            .into_iter()
            .filter_map(|index| Some((name(index)?, "the default route".to_owned())))
            .collect();
        for client in ssh_clients() {
            let route = socket.socket().route(client, None, None)?;
            if let Some(name) = route.and_then(|hop| name(hop.interface_index)) {
                vital.push((name, format!("the SSH session from {client}")));
            }
        }
        Ok(vital)
    }

    fn write(&mut self, file: &Path, value: &str) -> std::result::Result<(), std::io::Error> {
        // Not created: a made-up tree lacks what the kernel would lack.
        let mut file = fs::OpenOptions::new().write(true).open(self.tree.path(file))?;
        if !self.real {
            file.set_len(0)?;
        }
        // An empty write never reaches the kernel; a newline clears driver_override.
        let value = if value.is_empty() { "\n" } else { value };
        // One write: sysfs takes each for a value of its own.
        std::io::Write::write(&mut file, value.as_bytes()).map(|_| ())
    }

    fn set_vf(&mut self, pf: &Netdev, vf: u32, setting: Setting) -> Result<Outcome> {
        self.must_be_real()?;
        run_in(&pf.netns, || Links::open()?.set_vf(pf.index, vf, setting))
    }

    fn change(&mut self, netdev: &Netdev, change: &Change) -> Result<Outcome> {
        self.must_be_real()?;
        run_in(&netdev.netns, || Links::open()?.change(netdev.index, change))
    }

    fn move_to_netns(&mut self, netdev: &Netdev, to: &NetNs, name: &str) -> Result<Outcome> {
        self.must_be_real()?;
        // Opened here, so that neither a change of mounts nor of processes matters afterwards.
        let file = match to {
            NetNs::Other(namespace) => namespaces::file(namespace)?,
            NetNs::Host => fs::File::open("/proc/self/ns/net").map_err(|error| {
                Error::failed("cannot open /proc/self/ns/net", "mount /proc").caused_by(error)
            })?,
        };
        run_in(&netdev.netns, || Links::open()?.move_to_netns(netdev.index, file.as_raw_fd(), name))
    }
}

/// For each device, by its files: the process that has one of them open, found by reading the open files
/// of all processes once. `proc` is where procfs is mounted. Without CAP_DAC_READ_SEARCH and
/// CAP_SYS_PTRACE the open files of other users' processes cannot be read, and the answer is
/// [`Holder::Unknown`] unless a readable process has one.
pub fn holders_of(devices: &[Vec<String>], proc: &Path) -> Vec<Holder> {
    let mut holders = vec![Holder::Nobody; devices.len()];
    if devices.is_empty() {
        return holders;
    }
    let mut unreadable = None;
    let processes = match fs::read_dir(proc) {
        Ok(processes) => processes,
        Err(error) => {
            return vec![Holder::Unknown(format!("{}: {error}", proc.display())); devices.len()];
        }
    };
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let mut missed = |error: &std::io::Error| {
            // A process or a file that has gone meanwhile holds nothing.
            let gone = error.kind() == std::io::ErrorKind::NotFound
                || error.raw_os_error() == Some(libc::ESRCH);
            if !gone {
                unreadable.get_or_insert_with(|| {
                    format!("the open files of process {pid} cannot be read: {error}")
                });
            }
        };
        let open = match fs::read_dir(entry.path().join("fd")) {
            Ok(open) => open,
            Err(error) => {
                missed(&error);
                continue;
            }
        };
        for file in open {
            let target = match file.and_then(|file| fs::read_link(file.path())) {
                Ok(target) => target,
                Err(error) => {
                    missed(&error);
                    continue;
                }
            };
            let is_target = |file: &&String| Path::new(file) == target;
            for (files, holder) in devices.iter().zip(&mut holders) {
                if let Some(file) = files.iter().find(is_target) {
                    let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                    let what = format!("process {pid} ({}) holds {file}", name.trim());
                    *holder = Holder::Process(what);
                }
            }
        }
    }
    for holder in holders.iter_mut().filter(|holder| **holder == Holder::Nobody) {
        if let Some(why) = &unreadable {
            *holder = Holder::Unknown(why.clone());
        }
    }
    holders
}

/// The interfaces that must not go away and those below them (a bridge's ports, a bond's members),
/// each with the reason.
pub fn vital_interfaces(kernel: &mut dyn Kernel) -> Result<BTreeMap<String, String>> {
    let mut reasons = BTreeMap::new();
    for (vital, reason) in kernel.vital()? {
        let mut below = vec![vital];
        while let Some(name) = below.pop() {
            if let Entry::Vacant(entry) = reasons.entry(name) {
                below.extend(kernel.tree().lower(entry.key()));
                entry.insert(reason.clone());
            }
        }
    }
    Ok(reasons)
}

/// Clients of the SSH sessions that this process runs in, also behind sudo.
fn ssh_clients() -> Vec<IpAddr> {
    let mut clients = Vec::new();
    let mut pid = std::process::id();
    // Bounded, should /proc be made up.
    for _ in 0..64 {
        if let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) {
            clients.extend(ssh_client(&environment));
        }
        let Some(parent) = fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| parent(&stat))
            .filter(|parent| *parent > 0)
        else {
            break;
        };
        pid = parent;
    }
    clients.sort_unstable();
    clients.dedup();
    clients
}

/// The parent in a line of /proc/PID/stat; the name in parentheses may hold anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The client in an environment's SSH_CONNECTION (sshd(8)).
fn ssh_client(environment: &[u8]) -> Option<IpAddr> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="))?;
    let text = std::str::from_utf8(value).ok()?.split(' ').next()?;
    // A link-local client has its interface behind a percent sign.
    text.split('%').next()?.parse().ok()
}

/// The sentence for an errno of a change, with its usual cause.
pub fn explain(code: Errno) -> String {
    match code {
        libc::EOPNOTSUPP => "the driver does not support it".into(),
        libc::EPERM | libc::EACCES => "not allowed; run as root".into(),
        code => errno_text(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_a_session_is_read_from_an_environment() {
        let client = |text: &str| ssh_client(text.as_bytes()).map(|ip| ip.to_string());
        let session = "A=1\0SSH_CONNECTION=198.18.0.9 50000 198.18.0.1 22\0B=2";
        assert_eq!(client(session), Some("198.18.0.9".into()));
        assert_eq!(client("SSH_CONNECTION=fe80::1%pf0 1 fe80::2%pf0 22"), Some("fe80::1".into()));
        assert_eq!(client("NOT_SSH_CONNECTION=198.18.0.9 1 2 3"), None);
        assert_eq!(parent("12 (a) b) S 7 12 12 0"), Some(7));
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _ = ssh_client(bytes);
            let _ = ssh_client(&[b"SSH_CONNECTION=".as_slice(), bytes].concat());
            let _ = parent(&String::from_utf8_lossy(bytes));
        });
    }

    #[test]
    fn no_interface_is_changed_below_a_made_up_tree() {
        let directory = tempfile::tempdir().expect("made");
        let mut linux = Linux::new(directory.path());
        assert!(linux.must_be_real().is_err());
        assert_eq!(linux.vital().expect("nothing asked"), []);
        assert!(Linux::new(Path::new("/sys")).must_be_real().is_ok());
    }
}
