//! Observation: the pool, the guests, their traffic, and where these contradict the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pw_alloc::evidence::{Observation, ObservedGuest, ObservedVf, User, doubt};
use pw_alloc::journal::Entry;
use pw_alloc::model::{
    GuestId, GuestView, Health, Mac, Snapshot, Stance, VfId, VfState, VfView, Wish,
};
use pw_alloc::plan::Move;
use pw_alloc::signal::Tracker;
use pw_error::{Error, Result};

use super::{Core, Doubt, Subject, Tracked};
use crate::daemon::guests::{Managed, Network};
use crate::daemon::pool::{Addresses, PoolView};
use crate::daemon::request::Event;
use crate::daemon::status::unix_ms;
use crate::daemon::tasks::{Task, Work};

/// Interval of full readings of the pool while a guest may have left a VF behind [ms].
const READ_STRAYED_MS: u64 = 2_000;
/// The same while a VF has another user, which may end at any time.
const READ_FOREIGN_MS: u64 = 10_000;
/// The same otherwise. The host's use of a VF is checked again before it is given.
const READ_MS: u64 = 60_000;

/// Number of a reading's task; operations count up from 0.
const READING: u64 = u64::MAX - 1;
/// Number of an adoption's task.
const ADOPTION: u64 = u64::MAX - 2;

/// Readings of the pool, one at a time.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// How many were begun.
    pub begun: u64,
    under_way: bool,
    /// The first one has ended: before, nothing is known of the host.
    done_once: bool,
    /// VFs that steps have touched since it was begun, which it may show as they were before.
    touched: BTreeSet<VfId>,
}

impl Core {
    pub(super) fn observe(&mut self) {
        let begun = Instant::now();
        self.observe_pool();
        if !self.reading.done_once {
            return;
        }
        self.discover();
        self.begin_adoption();
        let reserved = self.host.kinds.iter().flat_map(|kind| kind.reserved(&self.view)).collect();
        self.decide_now |= self.reserved != reserved;
        self.reserved = reserved;
        if !self.dry_run {
            let managed = self.addresses();
            if let Err(error) = self.host.pool.settle(&self.view, &managed) {
                self.report_once(&error);
            }
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.clear();
        for kind in &mut self.host.kinds {
            kind.sample(self.now_ms, &self.view, &mut samples);
        }
        let settings = self.allocator.settings().signal;
        for (id, sample) in &samples {
            if let Some(guest) = self.guests.get_mut(id) {
                guest.tracker.feed(sample, &settings);
                if let Some(recorder) = self.allocator.recorder() {
                    recorder.read(id, sample);
                }
            }
        }
        self.samples = samples;
        self.observe_doubts();
        self.report_addresses_elsewhere();
        self.report_overdue();
        let snapshot = self.snapshot();
        self.allocator.observe(&snapshot);
        self.status.counters.samples += 1;
        self.status.counters.sample_durations.observe(begun.elapsed().as_secs_f64());
    }

    /// The addresses of managed guests, by who lets PFs take them.
    fn addresses(&self) -> Addresses {
        let mut addresses = Addresses::default();
        for (id, guest) in &self.guests {
            let managed = &guest.managed;
            if self.host.kinds[guest.kind].needs_filters()
                && self.held_by(id).is_none()
                && !self.is_guest_under_way(id)
                && !self.is_doubtful()
                && !self.doubts.contains_key(&Subject::Guest(id.clone()))
            {
                addresses.resting.insert(managed.mac, managed.wish.pfs.clone());
            } else {
                addresses.cared_for.insert(managed.mac);
            }
        }
        addresses
    }

    fn observe_pool(&mut self) {
        let links: Vec<_> = self.view.pfs.iter().map(|(id, pf)| (id.clone(), pf.link_up)).collect();
        let down = |view: &PoolView| view.vfs.values().filter(|vf| !vf.link_up).count();
        let (unused_before, down_before) = (unused(&self.view), down(&self.view));
        let has_pfs = !self.view.pfs.is_empty();
        let sampled = has_pfs && self.host.pool.sample(&mut self.view).is_ok();
        if has_pfs && !sampled {
            // A PF went or came, and a reading may take its time: what the last one showed may be over.
            let unread = User::Unknown("its PF has changed, and was not read since".to_owned());
            self.view.vfs.values_mut().for_each(|vf| vf.user = unread.clone());
        }
        // The users of VFs, the host's own use, and new PFs take a reading.
        if !sampled || self.now_ms >= self.next_read_ms || unused(&self.view) != unused_before {
            self.begin_reading();
            self.take_reports();
        }
        // Holders of VFs without a link fall back.
        self.decide_now |= down(&self.view) != down_before;
        self.decide_now |=
            has_pfs && unused(&self.view).difference(&unused_before).next().is_some();
        for (pf, was_up) in links {
            let up = self.view.pfs.get(&pf).is_some_and(|pf| pf.link_up);
            if up != was_up {
                // Its holders fall back, or may have VFs again: decide at once.
                self.decide_now = true;
                self.ends.emit(Event::Link { pf, up });
                if up {
                    self.allocator.retry(None);
                }
            }
        }
    }

    /// Begins a reading of the pool, unless one is under way.
    pub(super) fn begin_reading(&mut self) {
        if self.reading.under_way {
            return;
        }
        self.reading.begun += 1;
        self.reading.under_way = true;
        self.reading.touched = self.vfs_under_way();
        let work = Work::Read(self.host.pool.reading());
        self.host.tasks.begin(Task { number: READING, work });
    }

    /// A step of this VF has ended: readings that began before do not show it.
    pub(super) fn touch(&mut self, vf: Option<&VfId>) {
        self.reading.touched.extend(vf.cloned());
    }

    /// Takes what a reading shows, but for VFs that were touched meanwhile.
    pub(super) fn reading_ended(&mut self, result: Result<PoolView>) {
        self.reading.under_way = false;
        let touched = std::mem::take(&mut self.reading.touched);
        let completed = result.and_then(|mut view| {
            view.links = self.view.links.clone();
            self.host.pool.sample(&mut view).map(|()| view)
        });
        let mut view = match completed {
            Ok(view) => view,
            Err(error) => {
                self.report_once(&error);
                self.next_read_ms = self.now_ms + READ_STRAYED_MS;
                return self.survey_has_read(Err(error));
            }
        };
        for pf in &view.missing {
            self.report_once(&Error::failed(
                format!("{pf} of the configuration's [pool] is no PF of this host"),
                "`planewised vf list` shows them",
            ));
        }
        for vf in &touched {
            if let (Some(known), Some(read)) = (self.view.vfs.get(vf), view.vfs.get_mut(vf)) {
                *read = known.clone();
            }
        }
        let unused_before = unused(&self.view);
        self.view = view;
        if !self.reading.done_once {
            self.reading.done_once = true;
            self.next_sample_ms = self.now_ms;
        }
        self.decide_now |= unused(&self.view).difference(&unused_before).next().is_some();
        self.schedule_reading(!touched.is_empty());
        self.survey_has_read(Ok(()));
    }

    /// Schedules the next reading; `soon`: this one has not shown all.
    fn schedule_reading(&mut self, soon: bool) {
        let ledger = self.journal.ledger();
        let unheld = || {
            self.view
                .vfs
                .iter()
                .filter(|(id, _)| !ledger.holders.contains_key(*id))
                .map(|(_, vf)| vf)
        };
        let period_ms = if soon || unheld().any(|vf| vf.strayed) {
            READ_STRAYED_MS
        } else if unheld().any(|vf| !vf.user.is_nobody()) {
            READ_FOREIGN_MS
        } else {
            READ_MS
        };
        self.next_read_ms = self.now_ms + period_ms;
    }

    /// Compares the journal with this sample.
    fn observe_doubts(&mut self) {
        let mut observation = Observation {
            complete: self.host.kinds.iter().all(|kind| kind.gap().is_none()),
            pfs: self.view.pfs.keys().cloned().collect(),
            ..Observation::default()
        };
        for (id, vf) in &self.view.vfs {
            let observed = ObservedVf { user: vf.user.clone(), mac: vf.mac };
            observation.vfs.insert(id.clone(), observed);
        }
        for (id, guest) in &self.guests {
            let Managed { mac, join, .. } = guest.managed;
            let observed = ObservedGuest { mac, join, has: Some(BTreeMap::new()) };
            observation.guests.insert(id.clone(), observed);
        }
        for (index, kind) in self.host.kinds.iter_mut().enumerate() {
            for (id, has) in kind.holdings(&self.view) {
                let of_kind = self.guests.get(&id).is_some_and(|guest| guest.kind == index);
                if let Some(guest) = observation.guests.get_mut(&id).filter(|_| of_kind) {
                    guest.has = has;
                    // Without a link it cannot be sent by: a decision takes it back.
                    let down = |vf: &VfId| self.view.vfs.get(vf).is_some_and(|vf| !vf.link_up);
                    for (vf, sends) in guest.has.iter_mut().flatten() {
                        *sends |= down(vf);
                    }
                }
            }
        }
        let found = doubt(self.journal.ledger(), &observation);
        let (vfs, dry_run) = (&self.view.vfs, self.dry_run);
        self.doubts.retain(|subject, doubt| match subject {
            Subject::Vf(vf) => {
                let waits = doubt.due_ms == Some(0) && vfs.contains_key(vf) && !dry_run;
                waits || found.contains_key(vf)
            }
            Subject::Guest(_) | Subject::Host => true,
        });
        for (vf, why) in found {
            // Guests' devices may be reported later than changes of their VFs: a single sample counts from
            // the kernel alone.
            let certain = vfs.get(&vf).is_some_and(|vf| vf.user.is_nobody());
            let now_ms = Some(self.now_ms);
            self.doubts
                .entry(Subject::Vf(vf))
                .and_modify(|doubt| doubt.due_ms = doubt.due_ms.or(now_ms))
                .or_insert(Doubt { why, tries: 0, due_ms: now_ms.filter(|_| certain) });
        }
        self.unmark_absent_guests(observation.complete);
    }

    /// Removes the marks of guests that are gone, so that no later guest of the name inherits them.
    fn unmark_absent_guests(&mut self, complete: bool) {
        if !complete || self.is_doubtful() || self.dry_run {
            return;
        }
        let ledger = self.journal.ledger();
        let holds = |id: &GuestId| ledger.holders.values().any(|holder| holder == id);
        let absent: Vec<GuestId> = ledger
            .marked
            .keys()
            .filter(|id| !self.guests.contains_key(*id) && !holds(id))
            .filter(|id| !self.is_guest_under_way(id))
            .cloned()
            .collect();
        for guest in absent {
            if let Err(error) = self.journal.append(&Entry::Unmark { guest }) {
                return self.journal_failed(&error);
            }
        }
    }

    fn discover(&mut self) {
        for index in 0..self.host.kinds.len() {
            let guests = self.host.kinds[index].discover(&self.view);
            for trouble in self.host.kinds[index].troubles() {
                self.report_once(&Error::failed(trouble, ""));
            }
            match guests {
                Ok(guests) => self.update_guests(index, guests),
                Err(error) => self.report_once(&error),
            }
        }
    }

    /// Begins the next adoption or release, unless one is under way or the daemon ends.
    pub(super) fn begin_adoption(&mut self) {
        if self.adopting || (self.stop)() {
            return;
        }
        let view = &self.view;
        let mut next = self.host.kinds.iter_mut().filter_map(|kind| kind.adoption(view));
        if let Some(adoption) = next.next() {
            self.adopting = true;
            self.host.tasks.begin(Task { number: ADOPTION, work: Work::Adopt(adoption) });
        }
    }

    /// An adoption has ended: another one begins, or the guests are known now.
    pub(super) fn adoption_ended(&mut self) {
        self.adopting = false;
        self.begin_adoption();
        if !self.adopting {
            self.discover();
        }
    }

    fn update_guests(&mut self, kind: usize, guests: Vec<Managed>) {
        let names: BTreeSet<&GuestId> = guests.iter().map(|guest| &guest.id).collect();
        let absent: Vec<GuestId> = self
            .guests
            .iter()
            .filter(|(id, guest)| guest.kind == kind && !names.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in absent {
            self.guests.remove(&id);
            self.suspect(&id, "is gone");
            self.ends.emit(Event::GuestGone { guest: id });
        }
        for managed in guests {
            let id = managed.id.clone();
            match self.guests.get_mut(&id) {
                Some(guest) if guest.kind == kind => {
                    let restarted = guest.managed.incarnation != managed.incarnation;
                    guest.managed = managed;
                    if restarted {
                        self.restarted(&id);
                    }
                }
                Some(guest) => {
                    let other = self.host.kinds[guest.kind].name();
                    let this = self.host.kinds[kind].name();
                    self.report_once(&Error::failed(
                        format!("two guests are called {id}: one of {other}, one of {this}"),
                        "rename one: the second one is not managed",
                    ));
                }
                None => {
                    if self.clashes_by_address(&managed) {
                        continue;
                    }
                    let tracked = Tracked {
                        kind,
                        managed,
                        tracker: Tracker::default(),
                        since_unix_ms: unix_ms(),
                        why: "has just been found".to_owned(),
                    };
                    self.guests.insert(id.clone(), tracked);
                    self.record_restart(&id);
                    if !self.is_doubtful() {
                        // It was absent, or unknown, when everything was recovered.
                        self.doubts.insert(Subject::Guest(id.clone()), Doubt::default());
                    }
                    // Failures of another guest of that name do not count for this one.
                    self.allocator.retry(Some(&id));
                    let kind = self.host.kinds[kind].kind();
                    self.ends.emit(Event::GuestAppeared { guest: id, kind });
                }
            }
        }
    }

    /// Does another guest have this guest's address? A NIC sends frames for an address to one VF.
    fn clashes_by_address(&mut self, managed: &Managed) -> bool {
        let mut others = self.guests.iter();
        let other = others.find(|(_, guest)| guest.managed.mac == managed.mac);
        let Some((other, _)) = other else { return false };
        let what = format!("{} has the address {} of {other}", managed.id, managed.mac);
        let remedy = "give it one of its own: it is not managed";
        self.report_once(&Error::failed(what, remedy));
        true
    }

    /// Marks the VFs that a guest holds by the journal as doubtful: it is gone, or was replaced.
    pub(super) fn suspect(&mut self, id: &GuestId, what: &str) {
        let ledger = self.journal.ledger();
        let held = ledger.holders.iter().filter(|(_, holder)| *holder == id);
        let suspects: Vec<_> = held
            .map(|(vf, _)| (Subject::Vf(vf.clone()), format!("{id}, who held {vf}, {what}")))
            .map(|(vf, why)| (vf, Doubt { why, ..Doubt::default() }))
            .collect();
        self.decide_now |= !suspects.is_empty();
        self.doubts.extend(suspects);
        self.doubts.insert(Subject::Guest(id.clone()), Doubt::default());
    }

    /// Discards all observations of a guest that was restarted between two samples.
    fn restarted(&mut self, id: &GuestId) {
        if let Some(guest) = self.guests.get_mut(id) {
            guest.tracker = Tracker::default();
            guest.since_unix_ms = unix_ms();
            guest.why = "was started anew".to_owned();
        }
        self.record_restart(id);
        if self.journal.ledger().marked.contains_key(id)
            && !self.dry_run
            && let Err(error) = self.journal.append(&Entry::Unmark { guest: id.clone() })
        {
            self.journal_failed(&error);
        }
        self.allocator.retry(Some(id));
        self.suspect(id, "was started anew");
    }

    /// How a guest is to be served: by the operator, else the configuration, else its labels. Only PFs that lead
    /// to its network count, whatever a label says; where the host does not show them, those that the
    /// configuration names.
    pub(super) fn wish(&self, id: &GuestId, managed: &Managed) -> Wish {
        let configured = self.config.guests.get(id.as_str());
        let mut wish = configured.unwrap_or(&managed.wish).clone();
        wish.numa = wish.numa.or(managed.wish.numa);
        if let Some(stance) = self.wishes.stance(id) {
            wish.stance = stance;
        }
        let mut excluded = managed.leaving;
        match &managed.network {
            Network::Unread => {}
            Network::Barred => excluded = true,
            Network::Pfs(pfs) => {
                if wish.pfs.is_empty() {
                    wish.pfs = pfs.iter().cloned().collect();
                } else if !pfs.is_empty() || configured.is_none() {
                    wish.pfs.retain(|pf| pfs.contains(pf));
                }
                excluded |= wish.pfs.is_empty();
            }
        }
        excluded |= self.held_by(id).is_none() && self.address_elsewhere(id, managed.mac).is_some();
        if excluded {
            wish.stance = Stance::Excluded;
        }
        wish
    }

    /// The VF that has this guest's address and is neither held by it nor being given to it: another user took
    /// the VF before its address was cleared. While it has the address, the guest gets no other VF.
    pub(super) fn address_elsewhere(&self, guest: &GuestId, mac: Mac) -> Option<&VfId> {
        let ledger = self.journal.ledger();
        let belongs = |vf: &VfId| {
            let being_given = |open: &Move| open.vf == *vf && open.guest == *guest;
            ledger.holders.get(vf) == Some(guest) || ledger.open.values().any(being_given)
        };
        let with_mac = self.view.vfs.iter().filter(|(_, vf)| vf.mac == mac);
        with_mac.map(|(id, _)| id).find(|id| !belongs(id))
    }

    /// Reports guests without a VF whose address is on a VF of another user, which no step may touch.
    fn report_addresses_elsewhere(&mut self) {
        let mut reports = Vec::new();
        for (id, guest) in &self.guests {
            let mac = guest.managed.mac;
            if self.held_by(id).is_none()
                && let Some(vf) = self.address_elsewhere(id, mac)
                && let Some(why) = self.unavailable_reason(vf)
            {
                reports.push(format!("{id} gets no VF: its address {mac} is on {vf}, and {why}"));
            }
        }
        for what in reports {
            self.report_once(&Error::failed(what, "end that use: the address is cleared then"));
        }
    }

    /// Why a VF can be neither given nor taken; none where it can.
    pub(super) fn unavailable_reason(&self, id: &VfId) -> Option<String> {
        if let Some(doubt) = self.doubts.get(&Subject::Vf(id.clone())) {
            return Some(doubt.why.clone());
        }
        // A move may have waited while its PF went away.
        let Some(vf) = self.view.vfs.get(id) else {
            return Some("this host does not show it".to_owned());
        };
        match self.journal.ledger().holders.get(id) {
            // Once taken, it could not be known to be free.
            Some(holder) if self.guests.contains_key(holder) => match &vf.user {
                unknown @ User::Unknown(_) => unknown.unavailable_reason(),
                _ => None,
            },
            Some(holder) => Some(format!("{holder}, which is not a known guest, holds it")),
            None => vf
                .user
                .unavailable_reason()
                .or_else(|| vf.changed.clone())
                .or_else(|| self.reserved.get(id).cloned()),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let ledger = self.journal.ledger();
        let held: BTreeMap<&GuestId, &VfId> =
            ledger.holders.iter().map(|(vf, guest)| (guest, vf)).collect();
        let settings = &self.allocator.settings().signal;
        let guests = self
            .guests
            .iter()
            .map(|(id, guest)| GuestView {
                id: id.clone(),
                rate: guest.tracker.rate(self.now_ms, settings),
                wish: match self.wish(id, &guest.managed) {
                    wish if self.status.draining => Wish { stance: Stance::Excluded, ..wish },
                    wish => wish,
                },
                holds: held.get(id).map(|vf| (*vf).clone()),
                health: match ledger.marked.get(id) {
                    Some(why) => Health::Stuck(why.clone()),
                    // Nothing is decided of a guest whose network is not known yet.
                    None if self.is_guest_under_way(id)
                        || guest.managed.network == Network::Unread =>
                    {
                        Health::Busy
                    }
                    None => Health::Ready,
                },
                paravirtual_up: guest.managed.paravirtual_up,
            })
            .collect();
        let vfs = self
            .view
            .vfs
            .keys()
            .map(|id| {
                let pf = self.view.pfs.get(&id.pf);
                let state = if let Some(why) = ledger.quarantined.get(id) {
                    VfState::Quarantined(why.clone())
                } else if self.is_vf_under_way(id) {
                    VfState::Quarantined("a move of it is under way".to_owned())
                } else if let Some(why) = self.unavailable_reason(id) {
                    VfState::Quarantined(why)
                } else if !self.view.vfs.get(id).is_some_and(|vf| vf.link_up)
                    || self.reserved.contains_key(id)
                {
                    // Its holder falls back.
                    VfState::LinkDown
                } else {
                    VfState::Usable
                };
                VfView { id: id.clone(), numa: pf.and_then(|pf| pf.numa), state }
            })
            .collect();
        Snapshot { now_ms: self.now_ms, guests, vfs }
    }
}

/// The VFs that nobody uses.
fn unused(view: &PoolView) -> BTreeSet<VfId> {
    let vfs = view.vfs.iter().filter(|(_, vf)| vf.user.is_nobody());
    vfs.map(|(id, _)| id.clone()).collect()
}
