//! One decision: a snapshot in, a plan and its reasons out. Sees to the constraints (pins,
//! exclusions, classes, guaranteed shares, affinity, residency, moves an interval); the policies
//! rank.

use crate::draft::Draft;
use crate::history::Histories;
use crate::model::{GuestId, Snapshot, VfId};
use crate::plan::{Decision, Direction, Plan};
use crate::quiet;
use crate::recording::{Entry, Recorder};
use crate::settings::Settings;
use pw_error::Result;

/// Decides who holds VFs. Feed it every snapshot with [`Allocator::observe`]; ask for a plan with
/// [`Allocator::decide`]; say with [`Allocator::commit`] that a plan is being performed.
#[derive(Debug, Clone)]
pub struct Allocator {
    settings: Settings,
    histories: Histories,
    /// Records all calls.
    recorder: Option<Box<Recorder>>,
}

impl Allocator {
    /// An allocator without a past. Fails when the settings make no sense.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self { settings, histories: Histories::default(), recorder: None })
    }

    /// Records all calls from now on. Must be called before any other.
    pub fn record(&mut self) {
        self.recorder = Some(Box::new(Recorder::begun(&self.settings)));
    }

    /// Records no more.
    pub fn stop_recording(&mut self) {
        self.recorder = None;
    }

    /// The recording, if any, to which the caller adds counters and decisions that it performs.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }

    fn recorded(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(entry());
        }
    }

    /// The settings in force.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Replaces the settings; histories stay.
    pub fn configure(&mut self, settings: Settings) -> Result<()> {
        settings.check()?;
        self.recorded(|| Entry::Configured(Box::new(settings.clone())));
        self.settings = settings;
        Ok(())
    }

    /// The histories of guests.
    pub const fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Takes in the time since the last snapshot.
    pub fn observe(&mut self, now: &Snapshot) {
        if let Some(recorder) = &mut self.recorder {
            recorder.snapshot(now);
            recorder.push(Entry::Observed(now.now_ms));
        }
        self.histories.observe(now, &self.settings);
    }

    /// Takes in the measured duration of a switch.
    pub fn measured(&mut self, direction: Direction, seconds: f64) {
        self.recorded(|| Entry::Measured(direction, seconds, ()));
        self.histories.switch.measured(direction, seconds, &self.settings);
    }

    /// Remembers that this VF was given to this guest.
    pub fn given(&mut self, guest: &GuestId, vf: &VfId) {
        self.recorded(|| Entry::Given(guest.clone(), vf.clone()));
        self.histories.done(guest, vf);
    }

    /// Remembers that this VF could not be given to this guest: each time in a row it is left alone for
    /// twice as long, up to `retry_most_s`, and other VFs are tried first.
    pub fn undone(&mut self, guest: &GuestId, vf: &VfId, now_ms: u64) {
        self.recorded(|| Entry::Undone(guest.clone(), vf.clone(), now_ms));
        self.histories.undone(guest, vf, now_ms, &self.settings);
    }

    /// Tries this guest, or all, again with the next plan after VFs could not be given.
    pub fn retry(&mut self, guest: Option<&GuestId>) {
        self.recorded(|| Entry::Retried(guest.cloned()));
        self.histories.retry(guest);
    }

    /// Remembers that this plan is being performed.
    pub fn commit(&mut self, plan: &Plan, now_ms: u64) {
        self.recorded(|| Entry::Committed(now_ms, plan.clone()));
        self.histories.commit(plan.changes(), now_ms);
    }

    /// Decides. Changes nothing: the same snapshot gives the same decision.
    pub fn decide(&self, now: &Snapshot) -> Decision {
        Draft::made(now, &self.settings, &self.histories).finish()
    }

    /// The plan of [`Allocator::decide`] alone, which is quicker.
    pub fn plan(&self, now: &Snapshot) -> Plan {
        if quiet::nothing_changes(now, &self.settings, &self.histories) {
            return Plan::default();
        }
        Draft::made(now, &self.settings, &self.histories).plan
    }
}
