//! Tasks: each step of a move or a recovery, and each survey, runs in a thread of its own, so that a guest
//! that does not answer delays no other. Knows neither journal nor policy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use pw_alloc::execute::{Failure, Performed};
use pw_alloc::step::Step;
use pw_alloc::world::HostState;
use pw_error::Result;

use crate::daemon::pool::view::PoolView;

/// Performs steps of one guest, or of the pool. Made by the core, used by a task.
pub trait Executor: Send {
    /// Performs one step, by the deadline. It is idempotent, also after an interruption at any point.
    ///
    /// # Errors
    /// Why it failed; `guest_silent` where the guest did not answer in time, or refused.
    fn perform(&mut self, step: &Step, pool: &PoolView, deadline: Instant) -> Performed;
}

/// Surveys the guests of one kind and their VFs.
pub type Search = Box<dyn FnOnce() -> Result<HostState> + Send>;

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
    /// Surveys, each with the index of its kind.
    Find(Vec<(usize, Search)>),
}

/// The result of a task.
#[derive(Debug)]
pub enum Outcome {
    /// Of a step.
    Step(Performed),
    /// Of surveys.
    Survey(Vec<(usize, Result<HostState>)>),
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
            Work::Find(searches) => Outcome::Survey(
                searches.into_iter().map(|(kind, search)| (kind, search())).collect(),
            ),
        };
        Report { number, outcome, took: begun.elapsed() }
    }

    /// The report of a task that could not be performed.
    fn failed(number: u64, is_step: bool, why: &str) -> Report {
        let failure = Failure::new(why);
        let outcome =
            if is_step { Outcome::Step(Err(failure)) } else { Outcome::Survey(Vec::new()) };
        Report { number, outcome, took: Duration::ZERO }
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

/// Runs each task in a thread of its own. There are never more than VFs.
pub struct ThreadRunner {
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl ThreadRunner {
    /// Calls `wake` whenever a task has ended.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (report, reports) = mpsc::channel();
        Self { reports, report, wake }
    }
}

impl TaskRunner for ThreadRunner {
    fn begin(&mut self, task: Task) {
        let number = task.number;
        let is_step = matches!(task.work, Work::Step { .. });
        let (report, wake) = (self.report.clone(), Arc::clone(&self.wake));
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| task.perform()));
            let ended = ended.unwrap_or_else(|_| {
                Task::failed(number, is_step, "a fault of planewised ended it: please report it")
            });
            // Without a receiver the daemon is ending.
            let _ = report.send(ended);
            wake();
        };
        let thread = std::thread::Builder::new().name(format!("move-{number}"));
        if let Err(error) = thread.spawn(run) {
            let why = format!("the kernel gives no thread: {error}");
            let _ = self.report.send(Task::failed(number, is_step, &why));
        }
    }

    fn ended(&mut self, _: u64) -> Vec<Report> {
        self.reports.try_iter().collect()
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
}
