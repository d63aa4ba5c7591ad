//! What tests of the kernel share: network namespaces of their own, and interfaces, PFs and VFs as values.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use pw_alloc::model::Mac;

use crate::daemon::net::Link;
use crate::daemon::pool::PoolPf;

/// What a script of the shell prints; none: it failed.
pub fn shell(script: &str) -> Option<String> {
    let output = Command::new("sh").args(["-ec", script]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a script, and then `look`, in a network namespace of their own. None: this machine cannot.
pub fn in_namespace<T: Send>(script: &str, look: impl FnOnce() -> T + Send) -> Option<T> {
    let looked = || {
        let set_up = unshare(CloneFlags::CLONE_NEWNET).is_ok() && shell(script).is_some();
        set_up.then(look)
    };
    let looked = std::thread::scope(|scope| scope.spawn(looked).join().expect("no panic"));
    if looked.is_none() {
        eprintln!("skipped: needs root and what this runs: {script}");
    }
    looked
}

/// An interface that is up; a device is of no kind.
pub fn link(index: u32, name: &str, kind: &str, controller: Option<u32>) -> Link {
    Link {
        index,
        name: name.into(),
        mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
        mtu_bytes: 1500,
        up: true,
        carrier: Some(true),
        kind: kind.into(),
        controller,
        ..Link::default()
    }
}

/// A PF with a link, that is a port of this bridge.
pub fn pf(index: u32, bridge: Option<&str>) -> PoolPf {
    PoolPf {
        index,
        address: "0000:01:00.0".parse().expect("valid"),
        numa: None,
        link_up: true,
        bridge: bridge.map(Into::into),
    }
}
