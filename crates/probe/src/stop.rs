//! Requests to end a command early: SIGINT, SIGTERM, or the death of its parent.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::error::{Error, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM set the flag that [`requested`] reads. Blocking system calls return
/// `EINTR` at once.
pub fn on_signals() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores to an atomic and does nothing else, which is
        // async-signal-safe.
        unsafe { sigaction(signal, &action) }.map_err(|errno| {
            Error::failed(format!("cannot handle {signal}"), "this is a bug; report it")
                .caused_by(errno)
        })?;
    }
    Ok(())
}

/// Whether SIGINT or SIGTERM has arrived.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// The option of every long-running command that must not outlive its parent.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Lifetime {
    /// End (as by SIGTERM) when the process that started this one dies
    #[arg(long)]
    pub with_parent: bool,
}

impl Lifetime {
    /// Installs the signal handlers and, if asked, ties this process to its parent.
    pub fn begin(self) -> Result<()> {
        on_signals()?;
        if !self.with_parent {
            return Ok(());
        }
        let parent = nix::unistd::getppid();
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).map_err(|errno| {
            Error::failed("cannot tie this process to its parent", "").caused_by(errno)
        })?;
        // The parent may have died before the request was in place.
        if nix::unistd::getppid() != parent {
            REQUESTED.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
