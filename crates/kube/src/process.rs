//! Finds a process of each pod, which refers to its network namespace: by the pod's uid in the path of the
//! process's control group below the kubelet's, where only root makes groups.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The kubelet's groups above those of pods, of both drivers; `..` leads there from the agent's own
/// group. Other groups (`user.slice`, another runtime's) are not trusted: the user to whom such a group
/// is delegated chooses the names below it.
const KUBELET_GROUPS: [&str; 8] = [
    "",
    "..",
    "kubepods",
    "besteffort",
    "burstable",
    "kubepods.slice",
    "kubepods-besteffort.slice",
    "kubepods-burstable.slice",
];

/// The uid of the pod in the text of `/proc/PID/cgroup`; none: it is not a pod's.
/// Paths are `/kubepods/…/podUID/…`, or systemd's `…-podUID.slice` with `_` in place of `-`.
pub fn pod_uid(cgroup: &str) -> Option<String> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(of_path).next()
}

fn of_path(path: &str) -> Option<String> {
    let component = path.split('/').find(|component| !KUBELET_GROUPS.contains(component))?;
    let name = component.strip_suffix(".slice").unwrap_or(component);
    let uid = match name.strip_prefix("pod") {
        Some(uid) => uid,
        None => name.strip_prefix("kubepods")?.split_once("-pod")?.1,
    };
    let uid = uid.replace('_', "-");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!uid.is_empty() && uid.bytes().all(plain)).then_some(uid)
}

/// Start time of a process, from the text of `/proc/PID/stat` [ticks since boot].
fn started(stat: &str) -> Option<u64> {
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The uid of a process' pod; none: it is in no pod, or has ended.
fn uid_of(proc: &Path, pid: u32) -> io::Result<Option<String>> {
    const ENDED: i32 = 3; // ESRCH
    match std::fs::read(proc.join(pid.to_string()).join("cgroup")) {
        Ok(text) => Ok(pod_uid(&String::from_utf8_lossy(&text))),
        Err(error)
            if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ENDED) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The network namespace of a process, by the kernel's name; none: it cannot be read.
fn network(proc: &Path, process: &str) -> Option<PathBuf> {
    std::fs::read_link(proc.join(process).join("ns/net")).ok()
}

/// Finds a process of each of these pods, by uid: the one in `previous` while it lives, else the pod's
/// oldest, which holds its namespaces. A process of the runtime, which joins the pod's control group before
/// its network namespace, does not count until then.
pub fn find(
    proc: &Path,
    pods: &BTreeSet<String>,
    previous: &BTreeMap<String, u32>,
) -> io::Result<BTreeMap<String, u32>> {
    let mut processes = BTreeMap::new();
    for (uid, pid) in previous.iter().filter(|(uid, _)| pods.contains(*uid)) {
        if uid_of(proc, *pid)?.as_ref() == Some(uid) {
            processes.insert(uid.clone(), *pid);
        }
    }
    if pods.iter().all(|uid| processes.contains_key(uid)) {
        return Ok(processes);
    }
    let own_network = network(proc, "self");
    let mut oldest: BTreeMap<String, (u64, u32)> = BTreeMap::new();
    for entry in std::fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Some(uid) = uid_of(proc, pid)?.filter(|uid| pods.contains(uid)) else { continue };
        if own_network.is_some() && network(proc, &pid.to_string()) == own_network {
            continue;
        }
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some(started) = started(&stat) else { continue };
        let of_pod = oldest.entry(uid).or_insert((started, pid));
        *of_pod = (*of_pod).min((started, pid));
    }
    for (uid, (_, pid)) in oldest {
        processes.entry(uid).or_insert(pid);
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b1c7a9e-2f0d-4c3e-9a61-5d1a2b3c4d5e";

    #[test]
    fn the_uid_is_read_from_paths_of_both_drivers_and_both_versions() {
        let slice = UID.replace('-', "_");
        for text in [
            format!("0::/kubepods/besteffort/pod{UID}/0123abcd\n"),
            format!("12:memory:/kubepods/pod{UID}/0123abcd\n0::/init\n"),
            format!("0::/../../pod{UID}/0123abcd\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-0123.scope\n"
            ),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-0123.scope\n"),
        ] {
            assert_eq!(pod_uid(&text).as_deref(), Some(UID), "{text}");
        }
        for text in
            ["0::/init.scope\n", "0::/system.slice/podman.service\n", "", "x", "0::/pod/x\n"]
        {
            assert_eq!(pod_uid(text), None, "{text}");
        }
    }

    #[test]
    fn a_group_named_after_a_pod_outside_the_kubelets_is_no_pods() {
        let slice = UID.replace('-', "_");
        for path in [
            format!("/user.slice/user-1000.slice/user@1000.service/pod{UID}"),
            format!("/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/c"),
            format!("/../../../user.slice/user-1000.slice/kubepods-pod{slice}.slice"),
            format!("/system.slice/docker-0123.scope/kubepods.slice/kubepods-pod{slice}.slice"),
            format!("/machine.slice/pod{UID}"),
        ] {
            assert_eq!(pod_uid(&format!("0::{path}\n")), None, "{path}");
        }
        // Below a pod's own group it is still that pod's.
        let other = "11111111-2222-3333-4444-555555555555";
        let nested = format!("0::/kubepods/burstable/pod{UID}/0123abcd/pod{other}\n");
        assert_eq!(pod_uid(&nested).as_deref(), Some(UID));
    }

    fn process(proc: &Path, pid: u32, uid: &str, started: u64) {
        let directory = proc.join(pid.to_string());
        std::fs::create_dir_all(&directory).expect("made");
        std::fs::write(directory.join("cgroup"), format!("0::/kubepods/pod{uid}/c\n"))
            .expect("written");
        let stat = format!("{pid} (a) b) S {} {started} 0\n", vec!["0"; 18].join(" "));
        std::fs::write(directory.join("stat"), stat).expect("written");
    }

    #[test]
    fn the_oldest_process_of_a_pod_is_taken_and_kept_while_it_is_there() {
        let proc = tempfile::tempdir().expect("a directory");
        process(proc.path(), 30, UID, 500);
        process(proc.path(), 40, UID, 400);
        process(proc.path(), 50, "other", 1);
        let pods: BTreeSet<String> = [UID.to_owned(), "gone".to_owned()].into();
        let find =
            |previous: &BTreeMap<String, u32>| find(proc.path(), &pods, previous).expect("read");
        let processes = find(&BTreeMap::new());
        assert_eq!(processes, [(UID.to_owned(), 40)].into());
        process(proc.path(), 20, UID, 300);
        assert_eq!(find(&processes), processes);
        // Its number is another pod's now.
        process(proc.path(), 40, "other", 600);
        assert_eq!(find(&processes), [(UID.to_owned(), 20)].into());
    }

    #[test]
    fn a_process_that_is_still_in_the_nodes_network_is_not_the_pods_yet() {
        let proc = tempfile::tempdir().expect("a directory");
        let namespace = |process: &str, inode: u32| {
            let directory = proc.path().join(process).join("ns");
            std::fs::create_dir_all(&directory).expect("made");
            let link = directory.join("net");
            std::os::unix::fs::symlink(format!("net:[{inode}]"), link).expect("linked");
        };
        namespace("self", 1);
        process(proc.path(), 30, UID, 500);
        namespace("30", 1);
        let pods: BTreeSet<String> = [UID.to_owned()].into();
        let find = || find(proc.path(), &pods, &BTreeMap::new()).expect("read");
        assert_eq!(find(), BTreeMap::new());
        process(proc.path(), 31, UID, 501);
        namespace("31", 2);
        assert_eq!(find(), [(UID.to_owned(), 31)].into());
    }

    #[test]
    fn processes_that_cannot_be_read_are_not_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let pods: BTreeSet<String> = [UID.to_owned()].into();
        assert!(find(&directory.path().join("nowhere"), &pods, &BTreeMap::new()).is_err());
    }
}
