//! One made-up host under one player: the daemon's path from counters to plans, and an account of each
//! guest.

use super::Player;
use super::outcome::Tally;
use super::scenario::Scenario;
use crate::allocator::Allocator;
use crate::gain::GainCurve;
use crate::model::{GuestId, GuestView, Origin, Snapshot, VfId, VfState, VfView};
use crate::plan::{Direction, Plan};
use crate::settings::Settings;
use crate::signal::{Counters, Reading, Sample, Tracker};
use crate::traffic::Random;
use pw_error::{Error, Result};

/// What all guests send and would gain in one interval.
#[derive(Debug, Clone, Default)]
pub struct Interval {
    /// When it begins [ms].
    pub from_ms: u64,
    /// How long it lasts [s].
    pub seconds: f64,
    /// By guest [packets per second]; NaN while it is not there.
    pub pps: Vec<f64>,
    /// By guest: what a VF would save it [µs/s].
    pub gain: Vec<f64>,
}

impl Interval {
    /// Sets the gains by the rates.
    pub fn set_gains(&mut self, curve: &GainCurve) {
        let gain = |pps: &f64| if pps.is_nan() { 0.0 } else { curve.gain_us_per_s(*pps) };
        self.gain.clear();
        self.gain.extend(self.pps.iter().map(gain));
    }
}

/// How one guest fares.
#[derive(Debug, Clone, Default)]
struct Account {
    tracker: Tracker,
    packets: f64,
    present_s: f64,
    on_vf_s: f64,
    latency_us: f64,
    waited_s: f64,
    longest_wait_s: f64,
    /// How long the VF that it was given carries nothing yet [s].
    switching_s: f64,
}

/// One host under one player.
#[derive(Debug)]
pub struct Host {
    player: Player,
    allocator: Option<Allocator>,
    now: Snapshot,
    /// By place in the snapshot: the guest's number.
    present: Vec<usize>,
    accounts: Vec<Account>,
    saved_us: f64,
    next_decision_ms: u64,
    moves: usize,
    switch_s: f64,
    vf_us: f64,
    lost_us: f64,
    /// For the player that gives VFs at random.
    seed: u64,
}

impl Host {
    /// A host whose guests are yet to come.
    pub fn new(
        scenario: &Scenario,
        host: u32,
        player: Player,
        settings: &Settings,
    ) -> Result<Self> {
        let allocator = match player {
            Player::Policy(policy) => {
                let mut settings = Settings { policy, ..settings.clone() };
                settings.benefit.curve = scenario.curve.clone();
                let benefit = &mut settings.benefit;
                (benefit.plug_s, benefit.unplug_s) = (scenario.switch_s, 0.0);
                benefit.lost_packets = scenario.lost_packets;
                Some(Allocator::new(settings)?)
            }
            _ => None,
        };
        let vfs = (0..scenario.vfs)
            .map(|index| VfView { id: VfId::new("pf0", index), numa: None, state: VfState::Usable })
            .collect();
        Ok(Self {
            player,
            allocator,
            now: Snapshot { now_ms: 0, guests: Vec::new(), vfs },
            present: Vec::new(),
            accounts: Vec::new(),
            saved_us: 0.0,
            next_decision_ms: 0,
            moves: 0,
            switch_s: scenario.switch_s,
            vf_us: scenario.vf_us,
            lost_us: scenario.lost_packets * settings.benefit.loss_us,
            seed: !scenario.host_seed(host),
        })
    }

    /// Lives through one interval; `name` names guests that come. Returns the plan that was performed
    /// at its beginning.
    pub fn live(
        &mut self,
        interval: &Interval,
        name: &dyn Fn(usize) -> GuestId,
    ) -> Result<Option<Plan>> {
        self.now.now_ms = interval.from_ms;
        let newcomers = self.update_guests(interval, name);
        if self.player == Player::Random && newcomers {
            self.give_at_random();
        }
        let plan = self.decide()?;
        for (guest, &number) in self.now.guests.iter().zip(&self.present) {
            let (pps, gain) = (interval.pps[number], interval.gain[number]);
            let account = &mut self.accounts[number];
            let seconds = interval.seconds;
            let held = guest.holds.is_some();
            let on_vf_s = if held { (seconds - account.switching_s).max(0.0) } else { 0.0 };
            account.switching_s = (account.switching_s - seconds).max(0.0);
            account.packets += pps * seconds;
            account.present_s += seconds;
            account.on_vf_s += on_vf_s;
            account.latency_us += pps * seconds * self.vf_us + gain * (seconds - on_vf_s);
            account.waited_s = if held { 0.0 } else { account.waited_s + seconds };
            account.longest_wait_s = account.longest_wait_s.max(account.waited_s);
            self.saved_us += gain * on_vf_s;
        }
        Ok(plan)
    }

    /// Adds and removes guests by the interval's rates. Returns whether any came.
    fn update_guests(&mut self, interval: &Interval, name: &dyn Fn(usize) -> GuestId) -> bool {
        let is_present = |number: &usize| !interval.pps[*number].is_nan();
        let count = interval.pps.iter().filter(|pps| !pps.is_nan()).count();
        if count == self.present.len() && self.present.iter().all(is_present) {
            return false;
        }
        self.accounts.resize(interval.pps.len(), Account::default());
        let mut staying: Vec<Option<GuestView>> = vec![None; interval.pps.len()];
        for (guest, number) in self.now.guests.drain(..).zip(self.present.drain(..)) {
            if is_present(&number) {
                staying[number] = Some(guest);
            } else {
                // A guest that returns counts as another, with new counters.
                let account = &mut self.accounts[number];
                (account.tracker, account.waited_s) = (Tracker::default(), 0.0);
            }
        }
        let mut newcomers = false;
        for number in (0..interval.pps.len()).filter(is_present) {
            newcomers |= staying[number].is_none();
            let guest = staying[number].take().unwrap_or_else(|| GuestView::new(name(number)));
            self.now.guests.push(guest);
            self.present.push(number);
        }
        newcomers
    }

    /// Reads all counters, and decides and moves VFs when it is time.
    fn decide(&mut self) -> Result<Option<Plan>> {
        let Some(allocator) = &mut self.allocator else { return Ok(None) };
        let signal = allocator.settings().signal;
        for (guest, &number) in self.now.guests.iter_mut().zip(&self.present) {
            let account = &mut self.accounts[number];
            let counters = Counters { tx_packets: account.packets as u64, ..Counters::default() };
            let sample = Sample {
                at_ms: self.now.now_ms,
                source: u64::from(guest.holds.is_some()),
                origin: Origin::HostSide,
                reading: Reading::Counted(counters),
            };
            account.tracker.feed(&sample, &signal);
            guest.rate = account.tracker.rate(self.now.now_ms, &signal);
        }
        allocator.observe(&self.now);
        if self.now.now_ms < self.next_decision_ms {
            return Ok(None);
        }
        let interval_ms = (allocator.settings().interval_s * 1e3) as u64;
        self.next_decision_ms = self.now.now_ms + interval_ms;
        let plan = allocator.plan(&self.now);
        if !plan.is_empty() {
            allocator.commit(&plan, self.now.now_ms);
            self.perform(&plan)?;
        }
        Ok(Some(plan))
    }

    fn perform(&mut self, plan: &Plan) -> Result<()> {
        debug_assert!(plan.try_on(&self.now).is_ok(), "{plan}");
        for change in &plan.moves {
            let mut guests = self.now.guests.iter();
            let Some(place) = guests.position(|guest| guest.id.is_clone_of(&change.guest)) else {
                return Err(Error::bad_input(
                    format!("cannot {change}: there is no such guest"),
                    "report this: the plan is not of this host",
                ));
            };
            let give = change.direction == Direction::Give;
            self.now.guests[place].holds = give.then(|| change.vf.clone());
            if give {
                self.given(place);
            }
        }
        Ok(())
    }

    fn given(&mut self, place: usize) {
        self.accounts[self.present[place]].switching_s = self.switch_s;
        self.saved_us -= self.lost_us;
        self.moves += 1;
    }

    /// Gives free VFs to guests drawn at random, for as long as they stay.
    fn give_at_random(&mut self) {
        // A separate sequence, so that the traffic is the same for all players.
        let mut random = Random::new(self.seed);
        let mut order: Vec<usize> =
            (0..self.now.guests.len()).filter(|&at| self.now.guests[at].holds.is_none()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, (random.draw() % (at as u64 + 1)) as usize);
        }
        let free: Vec<VfId> = self
            .now
            .vfs
            .iter()
            .filter(|vf| self.now.holder(&vf.id).is_none())
            .map(|vf| vf.id.clone())
            .collect();
        for (place, vf) in order.into_iter().zip(free) {
            self.now.guests[place].holds = Some(vf);
            self.given(place);
        }
    }

    /// Sums up the guests' accounts; `group` maps a guest to its group.
    pub fn tally(&self, group: &dyn Fn(usize) -> usize) -> Tally {
        let mut tally = Tally::new(self.player);
        for (number, account) in self.accounts.iter().enumerate() {
            let mean_us =
                if account.packets > 0.0 { account.latency_us / account.packets } else { 0.0 };
            let share = account.on_vf_s / account.present_s.max(f64::MIN_POSITIVE);
            tally.guests.push((group(number), share, mean_us));
            tally.packets += account.packets;
            tally.latency_us += account.latency_us;
            tally.longest_wait_s = tally.longest_wait_s.max(account.longest_wait_s);
        }
        tally.saved_us = self.saved_us;
        tally.moves = self.moves;
        tally
    }
}
