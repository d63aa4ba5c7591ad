//! Threads whose creation may fail, as where a control group limits the number of processes.

use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use pw_error::{Error, Result};

/// Starts a thread in a scope.
///
/// # Errors
/// The system gives no further thread.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().spawn_scoped(scope, work).map_err(|error| {
        Error::failed(
            "cannot start a thread",
            "raise the limit on processes or memory (docker --pids-limit, ulimit -u, ulimit -v)",
        )
        .caused_by(error)
    })
}

/// Waits for a thread; passes its panic on.
pub fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `work` on a thread of its own to its end.
///
/// # Errors
/// The system gives no further thread, or `work` failed.
pub fn run<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    scope(|scope| join(spawn(scope, work)?))
}
