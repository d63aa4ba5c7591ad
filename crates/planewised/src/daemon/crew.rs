//! Who performs what may take its time: each step of a move or of a recovery is a task, in a thread of
//! its own, so that whoever does not answer delays nobody else. Knows neither journal nor policy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use pw_alloc::execute::Failure;
use pw_alloc::step::Step;
use pw_alloc::world::Found;
use pw_error::Result;

use crate::daemon::pool::view::PoolView;

/// What performs steps of one guest, or of the pool. Made by the core, used by a task.
pub trait Hands: Send {
    /// Does one step. It may be done twice, and after it was begun and interrupted at any point.
    /// Returns by the deadline.
    ///
    /// # Errors
    /// Why it is not done; `guest_silent` when the guest did not answer in time, or refused.
    fn perform(
        &mut self,
        step: &Step,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure>;
}

/// Looks for what a kind of guests has: its part of the world.
pub type Search = Box<dyn FnOnce() -> Result<Found> + Send>;

/// What is to be done.
pub enum Work {
    /// A step, by all of these hands in turn.
    Step {
        /// Which.
        step: Step,
        /// By whom.
        hands: Vec<Box<dyn Hands>>,
        /// The pool as it is known.
        pool: Arc<PoolView>,
        /// How long it may take.
        within: Duration,
    },
    /// Searches, with the place of each one's kind.
    Find(Vec<(usize, Search)>),
}

/// What became of it.
#[derive(Debug)]
pub enum Outcome {
    /// Of a step.
    Step(std::result::Result<(), Failure>),
    /// Of searches.
    Found(Vec<(usize, Result<Found>)>),
}

/// A task.
pub struct Task {
    /// Tells it from the others that are under way.
    pub number: u64,
    /// What is to be done.
    pub work: Work,
}

impl Task {
    /// Does it.
    pub fn perform(self) -> Report {
        let begun = Instant::now();
        let number = self.number;
        let outcome = match self.work {
            Work::Step { step, mut hands, pool, within } => {
                let deadline = begun + within;
                let done =
                    hands.iter_mut().try_for_each(|hands| hands.perform(&step, &pool, deadline));
                Outcome::Step(done)
            }
            Work::Find(searches) => Outcome::Found(
                searches.into_iter().map(|(kind, search)| (kind, search())).collect(),
            ),
        };
        Report { number, outcome, took: begun.elapsed() }
    }

    /// The report of a task that came to nothing for this reason.
    fn failed(number: u64, is_step: bool, why: &str) -> Report {
        let failure = Failure { why: why.to_owned(), guest_silent: false };
        let outcome =
            if is_step { Outcome::Step(Err(failure)) } else { Outcome::Found(Vec::new()) };
        Report { number, outcome, took: Duration::ZERO }
    }
}

/// How a task went.
#[derive(Debug)]
pub struct Report {
    /// Which task.
    pub number: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// Performs tasks. No call waits.
pub trait Crew: Send {
    /// Begins a task.
    fn begin(&mut self, task: Task);

    /// The tasks that have ended since the last call, or by this moment [ms] where time is made up.
    fn ended(&mut self, now_ms: u64) -> Vec<Report>;
}

/// Performs each task at once, in the calling thread: for a made-up host.
#[derive(Debug, Default)]
pub struct AtOnce(Vec<Report>);

impl Crew for AtOnce {
    fn begin(&mut self, task: Task) {
        self.0.push(task.perform());
    }

    fn ended(&mut self, _: u64) -> Vec<Report> {
        std::mem::take(&mut self.0)
    }
}

/// Performs each task in a thread of its own. There are no more tasks at a time than VFs.
pub struct Threads {
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Threads {
    /// Calls `wake` whenever a task has ended.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (report, reports) = mpsc::channel();
        Self { reports, report, wake }
    }
}

impl Crew for Threads {
    fn begin(&mut self, task: Task) {
        let number = task.number;
        let is_step = matches!(task.work, Work::Step { .. });
        let (report, wake) = (self.report.clone(), Arc::clone(&self.wake));
        let run = move || {
            let done = catch_unwind(AssertUnwindSafe(|| task.perform()));
            let done = done.unwrap_or_else(|_| {
                Task::failed(number, is_step, "a fault of planewised ended it: please report it")
            });
            // Nobody listens: the daemon ends.
            let _ = report.send(done);
            wake();
        };
        let named = std::thread::Builder::new().name(format!("move-{number}"));
        if let Err(error) = named.spawn(run) {
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

    impl Hands for Slow {
        fn perform(
            &mut self,
            _: &Step,
            _: &PoolView,
            _: Instant,
        ) -> std::result::Result<(), Failure> {
            assert!(!self.0.is_zero(), "a fault");
            std::thread::sleep(self.0);
            Ok(())
        }
    }

    fn task(number: u64, slow: Duration) -> Task {
        let step = Step::Reset { vf: VfId::new("pf0", 0) };
        let hands: Vec<Box<dyn Hands>> = vec![Box::new(Slow(slow))];
        let work = Work::Step { step, hands, pool: Arc::default(), within: Duration::ZERO };
        Task { number, work }
    }

    #[test]
    fn a_task_that_takes_its_time_delays_no_other_and_one_that_panics_is_reported() {
        let (woken, wakes) = mpsc::channel();
        let mut crew = Threads::new(Arc::new(move || woken.send(()).unwrap_or(())));
        crew.begin(task(1, Duration::from_secs(20)));
        crew.begin(task(2, Duration::from_millis(1)));
        crew.begin(task(3, Duration::ZERO));
        let mut reports = Vec::new();
        while reports.len() < 2 {
            wakes.recv_timeout(Duration::from_secs(10)).expect("the quick ones end first");
            reports.extend(crew.ended(0));
        }
        reports.sort_by_key(|report| report.number);
        assert!(matches!(reports[0], Report { number: 2, outcome: Outcome::Step(Ok(())), .. }));
        let Outcome::Step(Err(failure)) = &reports[1].outcome else { panic!("{reports:?}") };
        assert!(failure.why.contains("a fault of planewised"), "{}", failure.why);
    }
}
