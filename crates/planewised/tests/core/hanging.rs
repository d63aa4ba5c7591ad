//! Guests that never answer cost themselves: samples, requests and everybody else's moves go on.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use planewised::daemon::config::{self, Config, Simulated};
use planewised::daemon::core::{Core, Host};
use planewised::daemon::crew::{Crew, Hands, Report, Task, Threads, Work};
use planewised::daemon::journal::Journal;
use planewised::daemon::pool::PoolView;
use planewised::daemon::request::{Caller, Envelope, FaceEnds, Request, ends};
use planewised::daemon::simulated::World;
use planewised::daemon::status::Status;
use pw_alloc::execute::Failure;
use pw_alloc::settings::PolicyKind;
use pw_alloc::step::Step;
use pw_alloc::traffic::Traffic;
use tokio::sync::oneshot;

/// So many guests never answer.
const HANGING: usize = 20;
/// And so many do.
const OTHERS: usize = 6;
const TIMEOUT_MS: u64 = 30_000;

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

impl Crew for Clocked {
    fn begin(&mut self, task: Task) {
        let takes_ms = match &task.work {
            Work::Step { step, .. } => {
                let found = self.world.found();
                let guest = step.guest().and_then(|guest| found.guests.get(guest));
                if guest.is_some_and(|guest| !guest.answers) { TIMEOUT_MS } else { 200 }
            }
            Work::Find(_) => 200,
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

fn core_on(host: Host, directory: &std::path::Path) -> (Core, FaceEnds) {
    let mut config: Config = config::parse(SETTINGS, "test").expect("valid");
    config.state_directory = directory.to_owned();
    let (journal, _) = Journal::open(directory).expect("a journal");
    let (core_ends, face) = ends(Status::new(PolicyKind::Activity, 1.0, 1.0));
    let core = Core::new(config, host, journal, core_ends, false, Box::new(|| false));
    (core.expect("starts"), face)
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
struct Seen {
    samples: u64,
    /// When each of the others had its VF [ms].
    served_ms: BTreeMap<String, u64>,
    most_at_a_time: usize,
}

fn two_minutes(hang: bool) -> Seen {
    let world = world();
    let crew = Clocked { world: world.clone(), state: Arc::default() };
    let directory = tempfile::tempdir().expect("a directory");
    let (mut core, _face) = core_on(world.host_with(Box::new(crew.clone())), directory.path());
    let mut served_ms = BTreeMap::new();
    for now_ms in (0..120_000).step_by(50) {
        crew.state().now_ms = now_ms;
        if now_ms == 500 {
            // They are known, and have not been given anything yet.
            (0..HANGING).for_each(|at| world.answers(&format!("hangs{at:02}"), !hang));
        }
        core.tick(now_ms);
        for guest in &core.status().guests {
            if guest.vf.is_some() && !guest.moving && guest.id.as_str().starts_with("other") {
                served_ms.entry(guest.id.to_string()).or_insert(now_ms);
            }
        }
    }
    let most_at_a_time = crew.state().most_pending;
    Seen { samples: core.status().counters.samples, served_ms, most_at_a_time }
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

/// Hands that do nothing until the deadline.
struct Hangs(World);

impl Hands for Hangs {
    fn perform(&mut self, step: &Step, pool: &PoolView, deadline: Instant) -> Result<(), Failure> {
        let hangs = step.guest().is_some_and(|guest| guest.as_str().starts_with("hangs"));
        if hangs {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        self.0.clone().perform(step, pool, deadline)
    }
}

/// Threads, with hands that hang in them.
struct Hanging(Threads, World);

impl Crew for Hanging {
    fn begin(&mut self, task: Task) {
        let work = match task.work {
            Work::Step { step, pool, .. } => Work::Step {
                step,
                hands: vec![Box::new(Hangs(self.1.clone()))],
                pool,
                within: Duration::from_secs(5),
            },
            find @ Work::Find(_) => find,
        };
        self.0.begin(Task { work, ..task });
    }

    fn ended(&mut self, now_ms: u64) -> Vec<Report> {
        self.0.ended(now_ms)
    }
}

#[test]
fn requests_are_answered_while_twenty_guests_hang_in_threads_of_their_own() {
    let world = world();
    let (wake, woken) = mpsc::channel();
    let threads = Threads::new(Arc::new(move || wake.send(()).unwrap_or(())));
    let crew = Box::new(Hanging(threads, world.clone()));
    let directory = tempfile::tempdir().expect("a directory");
    let (mut core, _face) = core_on(world.host_with(crew), directory.path());
    let begun = Instant::now();
    let now_ms = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let moving = |core: &Core| {
        let guests = core.status().guests.iter();
        guests.filter(|guest| guest.moving && guest.id.as_str().starts_with("hangs")).count()
    };
    while moving(&core) < HANGING {
        assert!(begun.elapsed() < Duration::from_secs(60));
        core.tick(now_ms());
        if woken.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
    }
    let mut waits_ms = Vec::new();
    for _ in 0..200 {
        let (reply, mut answer) = oneshot::channel();
        let caller = Caller::Local { uid: 0, pid: None };
        let asked = Instant::now();
        core.handle(Envelope { request: Request::Plan, caller, reply }, now_ms());
        assert!(answer.try_recv().is_ok_and(|answer| answer.is_ok()));
        waits_ms.push(asked.elapsed().as_secs_f64() * 1e3);
        core.tick(now_ms());
    }
    waits_ms.sort_by(f64::total_cmp);
    println!(
        "200 requests while 20 guests hang: median {:.2}, p99 {:.2} ms",
        waits_ms[100], waits_ms[198]
    );
    // They were answered while the guests hung, not afterwards.
    assert_eq!(moving(&core), HANGING);
}
