//! Failpoints: places at which a test kills the daemon. They cost nothing unless one is set.

use std::sync::OnceLock;

/// The environment variable that names a failpoint, as `give/attach/before`.
pub const VARIABLE: &str = "PLANEWISE_TEST_KILL_AT";

fn configured() -> Option<&'static str> {
    static CONFIGURED: OnceLock<Option<String>> = OnceLock::new();
    CONFIGURED.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref()
}

/// Kills the process as by kill -9, if the environment names this failpoint.
pub fn reached(place: impl FnOnce() -> String) {
    if let Some(configured) = configured()
        && configured == place()
    {
        eprintln!("planewised: killed at {configured}, as {VARIABLE} says");
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGKILL);
    }
}
