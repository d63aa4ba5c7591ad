//! Guests that never answer cost themselves: samples, requests and everybody else's moves go on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use planewised::daemon::config::{Config, Simulated};
use planewised::daemon::core::{Core, Host};
use planewised::daemon::journal::Journal;
use planewised::daemon::net::Net;
use planewised::daemon::pool::{Pool, PoolView};
use planewised::daemon::request::HttpEnds;
use planewised::daemon::simulated::World;
use planewised::daemon::status::Guest;
use planewised::daemon::tasks::{
    Executor, PoolReading, Report, Task, TaskRunner, ThreadRunner, Work,
};
use planewised::http;
use pw_alloc::evidence::User;
use pw_alloc::execute::Failure;
use pw_alloc::step::Step;
use pw_alloc::traffic::Traffic;
use pw_sriov::kernel::{Kernel, Linux};
use pw_sriov::model::NetNs;
use pw_sriov::namespaces;

use super::core_on;

/// So many guests never answer.
const HANGING: usize = 20;
/// And so many do.
const OTHERS: usize = 6;
const TIMEOUT_MS: u64 = 30_000;
/// A guest with very many interfaces is adopted in this time.
const ADOPTION_MS: u64 = 4_000;
/// What hangs in a thread does so for this long; it is asked about for at most PATIENCE.
const HANGS: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(20);
/// And until so many samples, of one a second, were taken.
const SAMPLES: usize = 4;

const SETTINGS: &str = "
    step_timeout_s = 30.0
    [alloc]
    policy = 'activity'
    interval_s = 1.0
    min_residency_s = 0.0
    max_moves = 64
    signal = { smoothing = { window = 2.0 } }
";

/// Time is made up: a step of a guest that does not answer takes until its deadline, any other 200 ms.
#[derive(Clone)]
struct Clocked {
    world: World,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    now_ms: u64,
    pending: Vec<(u64, Task)>,
    most_pending: usize,
}

impl Clocked {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskRunner for Clocked {
    fn begin(&mut self, task: Task) {
        let takes_ms = match &task.work {
            Work::Step { step, .. } => {
                let found = self.world.state();
                let guest = step.guest().and_then(|guest| found.guests.get(guest));
                if guest.is_some_and(|guest| !guest.answers) { TIMEOUT_MS } else { 200 }
            }
            Work::Adopt(_) => ADOPTION_MS,
            _ => 200,
        };
        let mut state = self.state();
        let end_ms = state.now_ms + takes_ms;
        state.pending.push((end_ms, task));
        state.most_pending = state.most_pending.max(state.pending.len());
    }

    fn ended(&mut self, now_ms: u64) -> Vec<Report> {
        let due: Vec<Task> = {
            let mut state = self.state();
            let pending = std::mem::take(&mut state.pending);
            let (due, later): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|(end_ms, _)| *end_ms <= now_ms);
            state.pending = later;
            due.into_iter().map(|(_, task)| task).collect()
        };
        due.into_iter().map(Task::perform).collect()
    }
}

fn core(host: Host, directory: &std::path::Path) -> (Core, HttpEnds) {
    let (journal, _) = Journal::open(directory).expect("a journal");
    core_on(SETTINGS, host, journal, directory)
}

/// A host with a VF for each guest.
fn world() -> World {
    let vfs = u16::try_from(HANGING + OTHERS).expect("few");
    let world = World::new(&Simulated { vfs, guests: BTreeMap::new(), pods: None });
    for at in 0..HANGING {
        world.add(&format!("hangs{at:02}"), Traffic::Constant(5000.0));
    }
    for at in 0..OTHERS {
        world.add(&format!("other{at}"), Traffic::Constant(10.0));
    }
    world
}

/// What a host with hanging guests, or without, came to in two minutes of its time.
struct SourceState {
    samples: u64,
    /// When each of the others had its VF [ms].
    served_ms: BTreeMap<String, u64>,
    most_at_a_time: usize,
}

fn two_minutes(hang: bool) -> SourceState {
    let world = world();
    let tasks = Clocked { world: world.clone(), state: Arc::default() };
    let directory = tempfile::tempdir().expect("a directory");
    let (mut core, _http) = core(world.host_with(Box::new(tasks.clone())), directory.path());
    let mut served_ms = BTreeMap::new();
    for now_ms in (0..120_000).step_by(50) {
        tasks.state().now_ms = now_ms;
        if now_ms == 900 {
            // They are known, and have not been given anything yet.
            (0..HANGING).for_each(|at| {
                world.guest(&format!("hangs{at:02}"), |guest| guest.answers = !hang)
            });
        }
        core.tick(now_ms);
        for guest in &core.status().guests {
            if guest.vf.is_some() && !guest.moving && guest.id.as_str().starts_with("other") {
                served_ms.entry(guest.id.to_string()).or_insert(now_ms);
            }
        }
    }
    let most_at_a_time = tasks.state().most_pending;
    SourceState { samples: core.status().counters.samples, served_ms, most_at_a_time }
}

#[test]
fn twenty_guests_that_never_answer_delay_no_sample_and_nobody_elses_move() {
    let (without, with) = (two_minutes(false), two_minutes(true));
    assert!(with.most_at_a_time >= HANGING, "they hang at the same time");
    // Once a second, whatever hangs.
    assert_eq!((without.samples, with.samples), (120, 120));
    assert_eq!(with.served_ms.len(), OTHERS);
    assert_eq!(
        with.served_ms, without.served_ms,
        "everybody else is served when he would be anyway"
    );
}

#[test]
fn guests_are_adopted_one_after_the_other_while_samples_and_moves_go_on() {
    let world = world();
    let late: Vec<String> = (0..3).map(|at| format!("late{at}")).collect();
    let tasks = Clocked { world: world.clone(), state: Arc::default() };
    let directory = tempfile::tempdir().expect("a directory");
    let (mut core, _http) = core(world.host_with(Box::new(tasks.clone())), directory.path());
    for now_ms in (0..20_000).step_by(50) {
        tasks.state().now_ms = now_ms;
        if now_ms == 2_000 {
            late.iter().for_each(|name| world.add(name, Traffic::Constant(1.0)));
            world.with(|host| host.to_adopt.extend(late.iter().map(|name| name.as_str().into())));
        }
        core.tick(now_ms);
        let adopting = |(_, task): &&(u64, Task)| matches!(task.work, Work::Adopt(_));
        assert!(tasks.state().pending.iter().filter(adopting).count() <= 1, "one at a time");
        let is_late = |guest: &&Guest| guest.id.as_str().starts_with("late");
        let known = core.status().guests.iter().filter(is_late).count();
        if now_ms == 1_500 + ADOPTION_MS {
            assert_eq!(known, 0);
            let moves = core.status().counters.given.completed;
            assert!(moves > 4, "{moves} moves while the first is adopted");
        }
        if now_ms == 19_000 {
            assert_eq!(known, 3);
        }
    }
    assert_eq!(core.status().counters.samples, 20);
}

/// An executor that does nothing until the deadline.
struct Hangs(World);

impl Executor for Hangs {
    fn perform(&mut self, step: &Step, pool: &PoolView, deadline: Instant) -> Result<(), Failure> {
        let hangs = step.guest().is_some_and(|guest| guest.as_str().starts_with("hangs"));
        if hangs {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        self.0.clone().perform(step, pool, deadline)
    }
}

/// Task threads, with executors that hang.
struct Hanging(ThreadRunner, World);

impl TaskRunner for Hanging {
    fn begin(&mut self, task: Task) {
        let work = match task.work {
            Work::Step { step, pool, .. } => Work::Step {
                step,
                executors: vec![Box::new(Hangs(self.1.clone()))],
                pool,
                within: HANGS,
            },
            other => other,
        };
        self.0.begin(Task { work, ..task });
    }

    fn ended(&mut self, now_ms: u64) -> Vec<Report> {
        self.0.ended(now_ms)
    }
}

/// A pool on this machine: each sample reads its interfaces, and begins a reading of all its namespaces.
struct Crowded {
    pool: Box<dyn Pool>,
    net: Net,
    flips: bool,
}

impl Pool for Crowded {
    fn reading(&mut self) -> PoolReading {
        let reading = self.pool.reading();
        Box::new(move || {
            let mut kernel = Linux::new(std::path::Path::new("/sys"));
            for namespace in kernel.namespaces(true) {
                drop(kernel.links(&NetNs::Other(namespace)));
            }
            reading()
        })
    }

    fn sample(&mut self, view: &mut PoolView) -> pw_error::Result<()> {
        drop(self.net.all()?);
        self.pool.sample(view)?;
        self.flips = !self.flips;
        if let Some(vf) = view.vfs.values_mut().next() {
            vf.user = if self.flips { User::Host("now and then".into()) } else { User::Nobody };
        }
        Ok(())
    }

    fn executor(&self) -> Box<dyn Executor> {
        self.pool.executor()
    }
}

/// What the daemon's socket came to while guests hung, or while none did.
#[derive(Debug)]
struct Served {
    /// So many requests were answered.
    answers: usize,
    /// So many samples were taken.
    samples: usize,
    /// The slowest of a hundred requests [ms].
    p99_ms: f64,
    /// The longest time from one sample to the next [ms].
    apart_ms: f64,
}

/// Asks the real server by its socket, again and again until there were enough samples, while guests hang in
/// threads of their own (`hang`), or readings look into all of this machine's namespaces (`crowd`).
fn served(hang: bool, crowd: bool) -> Served {
    let world = world();
    let (wake, woken) = mpsc::channel();
    let threads = ThreadRunner::new(Arc::new(move || wake.send(()).unwrap_or(())));
    let tasks: Box<dyn TaskRunner> = match hang {
        true => Box::new(Hanging(threads, world.clone())),
        false => Box::new(threads),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut host = world.host_with(tasks);
    if crowd {
        let net = Net::open().expect("Linux");
        host.pool = Box::new(Crowded { pool: host.pool, net, flips: false });
    }
    let (mut core, ends) = core(host, directory.path());
    let socket = directory.path().join("socket");
    let http = http::start(&Config { socket: socket.clone(), ..Config::default() }, ends);
    let http = http.expect("a server");
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let moving = |core: &Core| {
        let guests = core.status().guests.iter();
        guests.filter(|guest| guest.moving && guest.id.as_str().starts_with("hangs")).count()
    };
    while moving(&core) < if hang { HANGING } else { 0 } {
        assert!(begun.elapsed() < Duration::from_secs(60), "they hang");
        core.tick(now_ms());
        let _ = woken.recv_timeout(Duration::from_millis(20));
    }
    let (enough, stop) = (Arc::new(AtomicBool::new(false)), Instant::now() + PATIENCE);
    let stops = enough.clone();
    let asked = std::thread::spawn(move || {
        let mut took_ms = Vec::new();
        while !stops.load(Ordering::Relaxed) && Instant::now() < stop {
            for path in ["/plan", "/status", "/metrics"] {
                let asked = Instant::now();
                let mut stream = UnixStream::connect(&socket).expect("it listens");
                let request =
                    format!("GET {path} HTTP/1.1\r\nhost: planewised\r\nconnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).expect("it reads");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("it answers");
                took_ms.push(asked.elapsed().as_secs_f64() * 1e3);
                assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            }
        }
        took_ms
    });
    let (mut samples, mut last, mut apart_ms) = (0, None::<Instant>, 0.0_f64);
    let mut taken = 0;
    while !asked.is_finished() {
        core.tick(now_ms());
        if core.status().counters.samples != samples {
            samples = core.status().counters.samples;
            let now = Instant::now();
            apart_ms = apart_ms.max(last.map_or(0.0, |last| (now - last).as_secs_f64() * 1e3));
            last = Some(now);
            taken += 1;
        }
        enough.store(taken >= SAMPLES, Ordering::Relaxed);
        let wait = Duration::from_millis(core.next_ms().saturating_sub(now_ms()).min(500));
        if let Ok(envelope) = core.ends().requests.recv_timeout(wait) {
            core.handle(envelope, now_ms());
        }
    }
    // They were asked while the guests hung, not afterwards.
    assert!(!hang || moving(&core) > 0, "nobody hangs any more");
    http.stop();
    let mut took_ms = asked.join().expect("all were answered");
    took_ms.sort_by(f64::total_cmp);
    Served {
        answers: took_ms.len(),
        samples: taken,
        p99_ms: took_ms[took_ms.len() * 99 / 100],
        apart_ms,
    }
}

#[test]
fn the_socket_answers_and_samples_come_while_twenty_guests_hang_in_threads_of_their_own() {
    let (without, with) = (served(false, false), served(true, false));
    println!(
        "API by HTTP, p99: {:.1} ms while {HANGING} guests hang, {:.1} ms while none does; samples at most \
         {:.0} and {:.0} ms apart",
        with.p99_ms, without.p99_ms, with.apart_ms, without.apart_ms
    );
    // How fast is only printed: whatever else the machine does is in it. What waited for them would come to
    // nothing before they end.
    for (what, served) in [("none hangs", &without), ("they hang", &with)] {
        assert!(served.answers >= 3, "while {what}: {served:?}");
        assert!(served.samples >= SAMPLES, "while {what}: {served:?}");
    }
}

/// `cargo test -p planewised --test core -- --ignored thousands`, as root.
#[test]
#[ignore = "makes 2000 namespaces, and 10,000 interfaces in one"]
fn thousands_of_foreign_namespaces_and_interfaces_delay_no_sample_and_no_answer() {
    let script = "for n in $(seq 2000); do unshare --net sleep 900 & done
        exec unshare --net sh -ec \"seq 5000 | sed 's/.*/link add a& type veth peer b&/' | ip -batch -
        echo ready; exec sleep 900\"";
    // They end with the first process of their PID namespace.
    let mut crowd = Command::new("unshare");
    crowd.args(["--pid", "--fork", "--kill-child", "sh", "-ec", script]).stdout(Stdio::piped());
    let mut crowd = crowd.spawn().expect("util-linux");
    let mut ready = String::new();
    BufReader::new(crowd.stdout.take().expect("piped")).read_line(&mut ready).expect("text");
    assert_eq!(ready, "ready\n");
    let found = namespaces::list().len();
    let served = served(false, true);
    crowd.kill().expect("it runs");
    crowd.wait().expect("it has ended");
    println!("{found} namespaces: {served:?}");
    assert!(found >= 2_000 && served.apart_ms <= 1_100.0 && served.p99_ms <= 50.0);
}
