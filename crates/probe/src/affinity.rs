//! The CPU affinity of threads.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// Pins the calling thread to one CPU; none leaves it where it is.
///
/// # Errors
/// There is no such CPU, or it is not allowed to this process.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|errno| {
        Error::bad_input(
            format!("cannot run on CPU {cpu}"),
            "`nproc --all` tells how many CPUs there are; they are counted from 0",
        )
        .caused_by(errno)
    })
}

/// The CPU for a generator: `requested`, or else the last one that this process may use and the sink
/// does not, as the kernel's own work is mostly on the first; none where there is only one.
pub fn for_generator(requested: Option<usize>, sink: Option<usize>) -> Option<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let usable = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    if (0..CpuSet::count()).filter(usable).count() < 2 {
        return requested;
    }
    requested.or_else(|| (0..CpuSet::count()).rev().filter(usable).find(|&cpu| Some(cpu) != sink))
}

/// Keeps the calling thread off `cpu` where it may run on others.
pub fn keep_off(cpu: usize) {
    if let Ok(mut set) = sched_getaffinity(Pid::from_raw(0)) {
        let mut others = (0..CpuSet::count()).filter(|&other| other != cpu);
        if others.any(|other| set.is_set(other).unwrap_or(false)) && set.unset(cpu).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
    }
}

/// Checks that a thread may run on `cpu`, before anything is sent.
///
/// # Errors
/// As [`pin`].
pub fn check_cpu(cpu: Option<usize>) -> Result<()> {
    crate::threads::run(|| pin(cpu))
}
