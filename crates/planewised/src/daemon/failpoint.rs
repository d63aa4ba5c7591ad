//! Places at which a test may have the daemon killed. Costs nothing unless the environment asks.

use std::sync::OnceLock;

/// The variable that names a place, as `give/attach/before`.
pub const VARIABLE: &str = "PLANEWISE_TEST_KILL_AT";

fn asked() -> Option<&'static str> {
    static ASKED: OnceLock<Option<String>> = OnceLock::new();
    ASKED.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref()
}

/// If the environment names this place, the process dies here as by kill -9.
pub fn reached(place: impl FnOnce() -> String) {
    if let Some(asked) = asked()
        && asked == place()
    {
        eprintln!("planewised: killed at {asked}, as {VARIABLE} says");
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGKILL);
    }
}
