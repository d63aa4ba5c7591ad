//! Tasks: each step of a move or a recovery, each survey, reading of the pool and adoption runs in a thread of
//! its own, so that a guest that does not answer delays no other.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pw_alloc::execute::{Failure, Performed};
use pw_alloc::step::Step;
use pw_alloc::world::HostState;
use pw_error::{Error, Result};

use crate::daemon::pool::view::PoolView;

/// Performs steps of one guest, or of the pool. Made by the core, used by a task.
pub trait Executor: Send {
    /// Performs one step, by the deadline. It is idempotent, also after an interruption at any point.
    fn perform(&mut self, step: &Step, pool: &PoolView, deadline: Instant) -> Performed;
}

/// Surveys the guests of one kind and their VFs.
pub type Search = Box<dyn FnOnce() -> Result<HostState> + Send>;

/// Adopts or releases a guest. Its kind keeps the result.
pub type Adoption = Box<dyn FnOnce() + Send>;

/// Reads the pool.
pub type PoolReading = Box<dyn FnOnce() -> Result<PoolView> + Send>;

/// The work of a task.
pub enum Work {
    /// A step, by these executors in turn.
    Step {
        /// The step.
        step: Step,
        /// Its executors.
        executors: Vec<Box<dyn Executor>>,
        /// The last reading of the pool.
        pool: Arc<PoolView>,
        /// Time limit.
        within: Duration,
    },
    /// Surveys, one for each kind of guests.
    Find(Vec<Search>),
    /// A reading of the pool.
    Read(PoolReading),
    /// An adoption, or a release.
    Adopt(Adoption),
}

/// The result of a task.
#[derive(Debug)]
pub enum Outcome {
    /// Of a step.
    Step(Performed),
    /// Of surveys; none after a panic.
    Survey(Vec<Result<HostState>>),
    /// Of a reading.
    Read(Box<Result<PoolView>>),
    /// An adoption has ended, well or not.
    Adopted,
}

/// A task.
pub struct Task {
    /// Its number, unique among those under way.
    pub number: u64,
    /// Its work.
    pub work: Work,
}

impl Task {
    /// Performs the task.
    pub fn perform(self) -> Report {
        let begun = Instant::now();
        let number = self.number;
        let outcome = match self.work {
            Work::Step { step, mut executors, pool, within } => {
                let deadline = begun + within;
                let result = executors
                    .iter_mut()
                    .try_for_each(|executors| executors.perform(&step, &pool, deadline));
                Outcome::Step(result)
            }
            Work::Find(searches) => {
                Outcome::Survey(searches.into_iter().map(|search| search()).collect())
            }
            Work::Read(read) => Outcome::Read(Box::new(read())),
            Work::Adopt(adopt) => {
                adopt();
                Outcome::Adopted
            }
        };
        Report { number, outcome, took: begun.elapsed() }
    }
}

/// The report of an ended task.
#[derive(Debug)]
pub struct Report {
    /// The task's number.
    pub number: u64,
    /// Its result.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// Runs tasks. No call waits.
pub trait TaskRunner: Send {
    /// Begins a task.
    fn begin(&mut self, task: Task);

    /// Reports of tasks that ended since the last call, by this time [ms] where time is simulated.
    fn ended(&mut self, now_ms: u64) -> Vec<Report>;
}

/// Runs each task at once, in the calling thread: for simulated hosts.
#[derive(Debug, Default)]
pub struct InlineRunner(Vec<Report>);

impl TaskRunner for InlineRunner {
    fn begin(&mut self, task: Task) {
        self.0.push(task.perform());
    }

    fn ended(&mut self, _: u64) -> Vec<Report> {
        std::mem::take(&mut self.0)
    }
}

/// Most steps at a time: a task each of the unit's TasksMax, with room for what they begin.
const STEPS_AT_ONCE: usize = 48;

/// Begins threads: `std::thread::Builder`, or what a test makes of it.
type Spawn = Box<dyn FnMut(Box<dyn FnOnce() + Send>) -> std::io::Result<()> + Send>;

/// What waits for a thread, and the threads that there are.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Task>,
    threads: usize,
}

fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs tasks in a bounded number of threads, each of which ends when nothing waits. What finds no thread waits.
pub struct ThreadRunner {
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
    wake: Arc<dyn Fn() + Send + Sync>,
    queue: Arc<Mutex<Queue>>,
    spawn: Spawn,
}

impl ThreadRunner {
    /// Calls `wake` whenever a task has ended.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let named = |run| std::thread::Builder::new().name("task".into()).spawn(run).map(drop);
        Self::with(wake, Box::new(named))
    }

    fn with(wake: Arc<dyn Fn() + Send + Sync>, spawn: Spawn) -> Self {
        let (report, reports) = mpsc::channel();
        Self { reports, report, wake, queue: Arc::default(), spawn }
    }

    /// Begins threads for what waits, as far as there may be more.
    fn begin_waiting(&mut self) {
        let wanted = {
            let queue = locked(&self.queue);
            queue.waiting.len().min(STEPS_AT_ONCE.saturating_sub(queue.threads))
        };
        for _ in 0..wanted {
            locked(&self.queue).threads += 1;
            let (report, wake) = (self.report.clone(), Arc::clone(&self.wake));
            let queue = Arc::clone(&self.queue);
            let run = move || {
                while let Some(task) = next(&queue) {
                    // Without a receiver the daemon is ending.
                    let _ = report.send(perform(task));
                    wake();
                }
            };
            if let Err(error) = (self.spawn)(Box::new(run)) {
                tracing::debug!("the kernel gives no thread: {error}");
                locked(&self.queue).threads -= 1;
                return;
            }
        }
    }
}

/// The next task of a thread; none: the thread ends.
fn next(queue: &Mutex<Queue>) -> Option<Task> {
    let mut queue = locked(queue);
    let task = queue.waiting.pop_front();
    queue.threads -= usize::from(task.is_none());
    task
}

/// Performs a task; one that panics has failed.
fn perform(task: Task) -> Report {
    let (number, why) = (task.number, "a fault of planewised ended it: please report it");
    let outcome = match &task.work {
        Work::Step { .. } => Outcome::Step(Err(Failure::new(why))),
        Work::Find(_) => Outcome::Survey(Vec::new()),
        Work::Read(_) => Outcome::Read(Box::new(Err(Error::failed(why, "")))),
        Work::Adopt(_) => Outcome::Adopted,
    };
    let failed = Report { number, outcome, took: Duration::ZERO };
    catch_unwind(AssertUnwindSafe(|| task.perform())).unwrap_or(failed)
}

impl TaskRunner for ThreadRunner {
    fn begin(&mut self, task: Task) {
        {
            let mut queue = locked(&self.queue);
            match task.work {
                Work::Step { .. } => queue.waiting.push_back(task),
                // Everything waits for what is observed.
                _ => queue.waiting.push_front(task),
            }
        }
        self.begin_waiting();
    }

    fn ended(&mut self, _: u64) -> Vec<Report> {
        let ended = self.reports.try_iter().collect();
        self.begin_waiting();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pw_alloc::model::VfId;

    struct Slow(Duration);

    impl Executor for Slow {
        fn perform(&mut self, _: &Step, _: &PoolView, _: Instant) -> Performed {
            assert!(!self.0.is_zero(), "a fault");
            std::thread::sleep(self.0);
            Ok(())
        }
    }

    fn task(number: u64, slow: Duration) -> Task {
        let step = Step::Reset { vf: VfId::new("pf0", 0) };
        let executors: Vec<Box<dyn Executor>> = vec![Box::new(Slow(slow))];
        let work = Work::Step { step, executors, pool: Arc::default(), within: Duration::ZERO };
        Task { number, work }
    }

    #[test]
    fn a_task_that_takes_its_time_delays_no_other_and_one_that_panics_is_reported() {
        let (woken, wakes) = mpsc::channel();
        let mut tasks = ThreadRunner::new(Arc::new(move || woken.send(()).unwrap_or(())));
        tasks.begin(task(1, Duration::from_secs(20)));
        tasks.begin(task(2, Duration::from_millis(1)));
        tasks.begin(task(3, Duration::ZERO));
        let mut reports = Vec::new();
        while reports.len() < 2 {
            wakes.recv_timeout(Duration::from_secs(10)).expect("the quick ones end first");
            reports.extend(tasks.ended(0));
        }
        reports.sort_by_key(|report| report.number);
        assert!(matches!(reports[0], Report { number: 2, outcome: Outcome::Step(Ok(())), .. }));
        let Outcome::Step(Err(failure)) = &reports[1].outcome else { panic!("{reports:?}") };
        assert!(failure.why.contains("a fault of planewised"), "{}", failure.why);
    }

    #[test]
    fn a_drain_of_200_guests_takes_a_bounded_number_of_threads_and_what_finds_none_waits() {
        let (woken, wakes) = mpsc::channel();
        // The kernel refuses every thread at first, and never has more than a few.
        let threads = Arc::new(Mutex::new((true, 0_usize, 0_usize)));
        let state = Arc::clone(&threads);
        let spawn = move |run: Box<dyn FnOnce() + Send>| {
            let mut threads = state.lock().expect("no panic");
            if threads.0 {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            threads.1 += 1;
            threads.2 = threads.2.max(threads.1);
            let state = Arc::clone(&state);
            std::thread::Builder::new().spawn(move || {
                run();
                state.lock().expect("no panic").1 -= 1;
            })?;
            Ok(())
        };
        let wake = Arc::new(move || woken.send(()).unwrap_or(()));
        let mut tasks = ThreadRunner::with(wake, Box::new(spawn));
        (0..200).for_each(|number| tasks.begin(task(number, Duration::from_millis(2))));
        assert!(tasks.ended(0).is_empty(), "no thread, no report, no panic");
        threads.lock().expect("no panic").0 = false;
        let mut done = tasks.ended(0).len();
        while done < 200 {
            wakes.recv_timeout(Duration::from_secs(10)).expect("all are done");
            done += tasks.ended(0).len();
        }
        assert!(threads.lock().expect("no panic").2 <= STEPS_AT_ONCE, "{threads:?}");
    }
}
