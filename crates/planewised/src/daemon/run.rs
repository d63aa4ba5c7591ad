//! `planewised daemon`: puts the daemon together, waits for requests and signals, ends it. Decides
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use pw_linux::error::{Error, Result};
use tokio::sync::oneshot;

use crate::daemon::config::{self, Config};
use crate::daemon::core::{Core, Host};
use crate::daemon::guests;
use crate::daemon::journal::Journal;
use crate::daemon::pool::machine::Machine;
use crate::daemon::profile;
use crate::daemon::request::{Caller, Envelope, Request, ends};
use crate::daemon::simulated::World;
use crate::daemon::status::Status;
use crate::face::{self, Face};

/// Gives the VFs of this host to the guests that gain most, and moves them as traffic changes.
///
/// SIGHUP reads the configuration again; SIGTERM ends the daemon and leaves all guests as they are.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration (docs/reference/alloc.md)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only look and say what would be done: change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The longest sleep: by then the clock has been looked at again.
const NAP: Duration = Duration::from_millis(500);

/// Signals, as the loop sees them.
struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// A thread takes the signals and wakes the loop.
    fn listen(wake: SyncSender<Envelope>) -> Result<Self> {
        let set: SigSet = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        let failed = |what: &dyn std::fmt::Display| {
            Error::failed(format!("cannot listen to signals: {what}"), "")
        };
        // Threads that are made from here on inherit this: the signals are the thread's alone.
        set.thread_block().map_err(|error| failed(&error))?;
        let signals = Self { stop: Arc::default(), reload: Arc::default() };
        let (stop, reload) = (Arc::clone(&signals.stop), Arc::clone(&signals.reload));
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                while let Ok(signal) = set.wait() {
                    let flag = if signal == Signal::SIGHUP { &reload } else { &stop };
                    flag.store(true, Ordering::SeqCst);
                    // A request that nobody waits for does nothing but wake the loop.
                    let (reply, _) = oneshot::channel();
                    let caller = Caller::Local { uid: 0, pid: None };
                    let _ = wake.try_send(Envelope { request: Request::Plan, caller, reply });
                }
            })
            .map_err(|error| failed(&error))?;
        Ok(signals)
    }
}

/// Reads the configuration and the gain profile that it names; what an operator should know of the latter.
fn read(path: &Path) -> Result<(Config, Vec<String>)> {
    let text = |what: &str, path: &Path, remedy: &str| {
        std::fs::read_to_string(path).map_err(|error| {
            Error::bad_input(format!("cannot read the {what} {}: {error}", path.display()), remedy)
        })
    };
    let example = "docs/reference/alloc.md has an example";
    let mut config =
        config::parse(&text("configuration", path, example)?, &path.display().to_string())?;
    let Some(file) = &config.gain_profile else { return Ok((config, Vec::new())) };
    let profile = text("gain profile", file, "`planewise boost RUN -o FILE` writes one")?;
    let here = if config.simulated.is_some() { None } else { Some(profile::Host::here()?) };
    let gain = profile::parse(&profile, &file.display().to_string(), here.as_ref())?;
    config.alloc.benefit.curve = gain.curve;
    Ok((config, gain.notes))
}

fn host(config: &Config, dry_run: bool) -> Result<Host> {
    if let Some(simulated) = &config.simulated {
        return Ok(World::new(simulated).host());
    }
    Ok(Host {
        pool: Box::new(Machine::new(config.pool.pfs.clone(), &config.state_directory)),
        kinds: guests::kinds(config, dry_run)?,
    })
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// It cannot start: the configuration makes no sense, another daemon runs, root is needed.
pub fn run(args: &Args) -> Result<()> {
    let (config, gain_notes) = read(&args.config)?;
    face::log::start(config.log);
    for note in gain_notes {
        tracing::info!("{note}");
    }
    if config.simulated.is_none() && !nix::unistd::geteuid().is_root() {
        return Err(Error::failed(
            "a host's VFs can be moved by root alone",
            "run as root, or try a made-up host: [simulated] in the configuration",
        ));
    }
    // A second daemon ends here, before it has touched anything.
    let (journal, notes) = Journal::open(&config.state_directory)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    let first = Status::new(config.alloc.policy, config.alloc.interval_s, config.sample_s);
    let (core_ends, face_ends) = ends(first);
    let signals = Signals::listen(face_ends.requests.clone())?;
    let stop = Arc::clone(&signals.stop);
    let host = host(&config, args.dry_run)?;
    let face = face::start(&config, face_ends)?;
    if args.dry_run {
        tracing::info!("only looks: `planewise alloc plan` says what would be done");
    }
    tracing::info!("listens at {}", face.socket().display());
    let stop = Box::new(move || stop.load(Ordering::SeqCst));
    let core = Core::new(config, host, journal, core_ends, args.dry_run, stop)?;
    let core = work(core, &face, &signals, args);
    face.stop();
    tracing::info!("ends; {}", core.leaves());
    Ok(())
}

/// The loop.
fn work(mut core: Core, face: &Face, signals: &Signals, args: &Args) -> Core {
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    while !signals.stop.load(Ordering::SeqCst) {
        if signals.reload.swap(false, Ordering::SeqCst) {
            match reload(&mut core, face, args) {
                Ok(()) => tracing::info!("the configuration was read again"),
                Err(error) => core.refuse(&error),
            }
        }
        core.tick(now_ms());
        let wait = Duration::from_millis(core.next_ms().saturating_sub(now_ms())).min(NAP);
        match core.ends().requests.recv_timeout(wait) {
            Ok(envelope) if envelope.request == Request::Reload => {
                let answer = reload(&mut core, face, args);
                core.reloaded(envelope, answer, now_ms());
            }
            Ok(envelope) => core.handle(envelope, now_ms()),
            Err(RecvTimeoutError::Timeout) => {}
            // The signals' thread keeps its end: this is not to be.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(wait),
        }
    }
    core.stopping();
    core
}

/// Reads the configuration again, and certificate, key and tokens. What cannot change in a running daemon
/// stays as it is.
fn reload(core: &mut Core, face: &Face, args: &Args) -> Result<()> {
    let (config, gain_notes) = read(&args.config)?;
    let old = core.config();
    let fixed = [
        ("socket", config.socket == old.socket),
        ("group", config.group == old.group),
        ("tcp", config.tcp == old.tcp),
        ("log", config.log == old.log),
        ("state_directory", config.state_directory == old.state_directory),
        ("simulated", config.simulated == old.simulated),
        ("pool", config.pool == old.pool),
    ];
    if let Some((name, _)) = fixed.iter().find(|(_, same)| !same) {
        return Err(Error::failed(
            format!("{}: {name} cannot be changed while the daemon runs", args.config.display()),
            "restart it: guests keep working meanwhile",
        ));
    }
    let fresh = face::read_again(&config)?;
    core.configure(config)?;
    for note in gain_notes {
        tracing::info!("{note}");
    }
    face.renew(&fresh);
    Ok(())
}
