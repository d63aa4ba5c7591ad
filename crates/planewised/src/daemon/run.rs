//! `planewised daemon`: puts the daemon together, waits for requests and signals, ends it. Decides
//! nothing.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use pw_error::{Error, Result};
use pw_sriov::state::State;
use tokio::sync::{oneshot, watch};

use crate::daemon::cluster::{Cluster, ExclusivePool, Node};
use crate::daemon::config::{self, Config};
use crate::daemon::core::{Core, Host};
use crate::daemon::forwarding::Budget;
use crate::daemon::guests;
use crate::daemon::journal::Journal;
use crate::daemon::pool::host::HostPool;
use crate::daemon::profile;
use crate::daemon::request::{Caller, Envelope, Fault, Refused, Request, ends};
use crate::daemon::status::Status;
use crate::daemon::tasks::ThreadRunner;
use crate::http::{self, Server};

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

/// Polling interval for operations under way when the daemon ends.
const ENDING: Duration = Duration::from_millis(100);
/// The longest sleep.
const NAP: Duration = Duration::from_millis(500);

/// Flags of received signals.
struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Starts a thread that receives the signals and wakes the loop.
    fn listen(wake: SyncSender<Envelope>) -> Result<Self> {
        let set: SigSet = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        let failed = |what: &dyn std::fmt::Display| {
            Error::failed(format!("cannot listen to signals: {what}"), "")
        };
        // Later threads inherit the mask, so that only this one receives the signals.
        set.thread_block().map_err(|error| failed(&error))?;
        let signals = Self { stop: Arc::default(), reload: Arc::default() };
        let (stop, reload) = (Arc::clone(&signals.stop), Arc::clone(&signals.reload));
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let wake = waker(wake);
                while let Ok(signal) = set.wait() {
                    let flag = if signal == Signal::SIGHUP { &reload } else { &stop };
                    flag.store(true, Ordering::SeqCst);
                    wake();
                }
            })
            .map_err(|error| failed(&error))?;
        Ok(signals)
    }
}

/// Reads the configuration and its gain profile; also returns notes on the profile for the operator.
fn read(path: &Path) -> Result<(Config, Vec<String>)> {
    let text = |what: &str, path: &Path, remedy: &str| {
        std::fs::read_to_string(path).map_err(|error| {
            Error::bad_input(format!("cannot read the {what} {}", path.display()), remedy)
                .caused_by(error)
        })
    };
    let example = "docs/reference/alloc.md has an example";
    let mut config =
        config::parse(&text("configuration", path, example)?, &path.display().to_string())?;
    let Some(file) = &config.gain_profile else { return Ok((config, Vec::new())) };
    let profile = text("gain profile", file, "`planewise boost RUN -o FILE` writes one")?;
    let host = if config.is_simulated() { None } else { Some(profile::Host::read()?) };
    let gain = profile::parse(&profile, &file.display().to_string(), host.as_ref())?;
    config.alloc.benefit.curve = gain.curve;
    if let Some(switch) = gain.switch {
        switch.apply(&mut config.alloc.benefit);
    }
    Ok((config, gain.notes))
}

/// Wakes the core by a request without a caller.
fn waker(wake: SyncSender<Envelope>) -> impl Fn() + Send + Sync {
    move || {
        let (reply, _) = oneshot::channel();
        let caller = Caller::Local { uid: 0, pid: None };
        // A core that has more requests than it can hold is awake.
        let _ = wake.try_send(Envelope { request: Request::Plan, caller, reply });
    }
}

fn host(
    config: &Config,
    node: Option<Node>,
    dry_run: bool,
    wake: SyncSender<Envelope>,
) -> Result<Host> {
    let pods = node.as_ref().map(|node| Arc::clone(&node.pods));
    #[cfg(feature = "simulated")]
    if let Some(simulated) = &config.simulated {
        let host = crate::daemon::simulated::World::new(simulated).host_of(pods);
        return Ok(with_devices(host, node));
    }
    let host = Host {
        pool: Box::new(HostPool::new(
            config.pool.pfs.clone(),
            &config.state_directory,
            Budget { per_port: config.pool.learned_per_port, per_pf: config.pool.learned_per_pf },
        )),
        kinds: guests::kinds(config, pods, dry_run)?,
        tasks: Box::new(ThreadRunner::new(Arc::new(waker(wake)))),
    };
    Ok(with_devices(host, node))
}

/// Leaves PFs alone whose VFs another component gives to pods.
fn with_devices(mut host: Host, node: Option<Node>) -> Host {
    if let Some(node) = node {
        host.pool = Box::new(ExclusivePool::new(host.pool, node.devices));
    }
    host
}

/// Joins the configured cluster, if any.
fn join(
    config: &Config,
    cluster: Option<&dyn Cluster>,
    status: &watch::Receiver<Arc<Status>>,
) -> Result<Option<Node>> {
    let Some(kubernetes) = &config.kubernetes else { return Ok(None) };
    let cluster = cluster.ok_or_else(|| {
        Error::bad_input(
            "the configuration has [kubernetes], and this planewised was built without it",
            "run planewised-kubernetes, or leave the section out",
        )
    })?;
    cluster.join(kubernetes, status.clone()).map(Some)
}

/// The lock of the one daemon that manages this host's VFs, whatever its state directory.
fn only_daemon(directory: &Path) -> Result<Flock<File>> {
    State::new(directory).make()?;
    let path = directory.join("lock-daemon");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| {
        Error::failed(format!("the lock {} cannot be made", path.display()), "run as root")
            .caused_by(error)
    })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        Error::failed(
            format!("another planewised manages this host's VFs: it has {}", path.display()),
            "stop it first: two would take each other's VFs",
        )
    })
}

/// Runs the daemon until it is told to end; `cluster` joins the cluster that may be configured.
pub fn run(args: &Args, cluster: Option<&dyn Cluster>) -> Result<()> {
    let (config, gain_notes) = read(&args.config)?;
    http::log::start(config.log);
    for note in gain_notes {
        tracing::info!("{note}");
    }
    if !config.is_simulated() && !nix::unistd::geteuid().is_root() {
        return Err(Error::failed("a host's VFs can be moved by root alone", "run as root"));
    }
    // A second daemon ends here, before it has touched anything, whatever its state directory is.
    let changes_host = !config.is_simulated() && !args.dry_run;
    let _only = changes_host.then(|| only_daemon(&State::default_directory())).transpose()?;
    // A guest takes a descriptor, and the usual limit is 1024.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let (journal, notes) = if args.dry_run {
        Journal::open_read_only(&config.state_directory)?
    } else {
        Journal::open(&config.state_directory)?
    };
    for note in notes {
        tracing::warn!("{note}");
    }
    let first = Status::new(config.alloc.policy, config.alloc.interval_s, config.sample_s);
    let (core_ends, http_ends) = ends(first);
    let signals = Signals::listen(http_ends.requests.clone())?;
    let stop = Arc::clone(&signals.stop);
    let node = join(&config, cluster, &http_ends.status)?;
    let host = host(&config, node, args.dry_run, http_ends.requests.clone())?;
    let server = http::start(&config, http_ends)?;
    if args.dry_run {
        tracing::info!("only looks: `planewise alloc plan` says what would be done");
    }
    tracing::info!("listens at {}", server.socket().display());
    let stop = Box::new(move || stop.load(Ordering::SeqCst));
    let core = Core::new(config, host, journal, core_ends, args.dry_run, stop)?;
    let core = run_core(core, &server, &signals, args);
    server.stop();
    tracing::info!("ends; {}", core.final_state());
    Ok(())
}

/// The main loop: runs the core until a signal stops it, and then until no move is under way.
fn run_core(mut core: Core, server: &Server, signals: &Signals, args: &Args) -> Core {
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    while !signals.stop.load(Ordering::SeqCst) {
        if signals.reload.swap(false, Ordering::SeqCst) {
            match reload(&mut core, server, args) {
                Ok(()) => tracing::info!("the configuration was read again"),
                Err(error) => core.refuse(&error),
            }
        }
        core.tick(now_ms());
        let wait = Duration::from_millis(core.next_ms().saturating_sub(now_ms())).min(NAP);
        match core.ends().requests.recv_timeout(wait) {
            Ok(envelope) if envelope.request == Request::Reload => {
                let answer = reload(&mut core, server, args);
                core.reloaded(envelope, answer, now_ms());
            }
            Ok(envelope) => core.handle(envelope, now_ms()),
            Err(RecvTimeoutError::Timeout) => {}
            // Unreachable: the signals' thread keeps a sender.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(wait),
        }
    }
    // Moves under way end first, unless guests delay them; the journal has the unfinished ones.
    let end = Instant::now() + Duration::from_secs_f64(2.0 * core.config().step_timeout_s);
    core.finish(now_ms());
    while !core.is_idle() && Instant::now() < end {
        if let Ok(envelope) = core.ends().requests.recv_timeout(ENDING) {
            let what = "the daemon ends";
            envelope.answer(Err(Refused::new(Fault::Unavailable, what, "start it again")));
        }
        core.finish(now_ms());
    }
    core.stopping();
    core
}

/// Reloads the configuration, certificate, key and tokens. Settings that cannot change in a running daemon
/// stay.
fn reload(core: &mut Core, server: &Server, args: &Args) -> Result<()> {
    let (config, gain_notes) = read(&args.config)?;
    let old = core.config();
    if let Some(name) = fixed_difference(old, &config) {
        return Err(Error::failed(
            format!("{}: {name} cannot be changed while the daemon runs", args.config.display()),
            "restart it: guests keep working meanwhile",
        ));
    }
    let tls = http::read_keys(&config)?;
    core.configure(config)?;
    for note in gain_notes {
        tracing::info!("{note}");
    }
    server.renew(tls);
    Ok(())
}

/// The first setting that differs and cannot change in a running daemon.
fn fixed_difference(old: &Config, new: &Config) -> Option<&'static str> {
    let fixed = [
        ("socket", new.socket == old.socket),
        ("group", new.group == old.group),
        ("tcp", new.tcp == old.tcp),
        ("log", new.log == old.log),
        ("state_directory", new.state_directory == old.state_directory),
        ("recording", new.recording == old.recording),
        ("pool", new.pool == old.pool),
        ("machines", new.machines == old.machines),
        ("kubernetes", new.kubernetes == old.kubernetes),
    ];
    fixed.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_of_a_host_is_refused_whatever_its_state_directory_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = only_daemon(directory.path()).expect("the only one");
        let second = only_daemon(directory.path()).expect_err("another one runs");
        assert!(second.what.contains("another planewised manages this host's VFs"));
        assert!(!second.remedy.is_empty());
        drop(first);
        only_daemon(directory.path()).expect("the first one has ended");
    }

    #[test]
    fn what_cannot_change_in_a_running_daemon_is_named() {
        let parse = |text: &str| config::parse(text, "x").expect("valid");
        let old = parse("");
        for (text, name) in [
            ("[machines]\nsockets = ['/run/other']", "machines"),
            ("[pool]\npfs = ['eth1']", "pool"),
            ("state_directory = '/elsewhere'", "state_directory"),
            ("group = 'network'", "group"),
        ] {
            assert_eq!(fixed_difference(&old, &parse(text)), Some(name), "{text}");
        }
        let other = parse("sample_s = 2.0\n[alloc]\npolicy = 'fair'\n[guests.a]\nclass = 2");
        assert_eq!(fixed_difference(&old, &other), None);
    }
}
