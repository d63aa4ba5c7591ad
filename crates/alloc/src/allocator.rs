//! One decision: a snapshot in, a plan and its reasons out. Sees to the constraints (pins,
//! exclusions, classes, guaranteed shares, affinity, residency, moves an interval); the policies
//! rank. Knows no clock and performs nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::history::{Histories, History};
use crate::matching::{Seating, Seeker};
use crate::model::{GuestId, GuestView, Health, PfId, Snapshot, Stance, VfId, VfState, VfView};
use crate::plan::{Direction, Move, Plan, Reason};
use crate::policy::{self, Standing};
use crate::settings::{PolicyKind, Settings};

/// What is decided about one guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which guest.
    pub guest: GuestId,
    /// The VF that it has once the plan is performed.
    pub vf: Option<VfId>,
    /// Why it has it, or has none.
    pub reason: Reason,
}

/// A plan, and a verdict for each guest, in the order of the snapshot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Decision {
    /// What is to be done.
    pub plan: Plan,
    /// What it comes to, guest by guest.
    pub verdicts: Vec<Verdict>,
    /// VFs that would have been given, had the interval's moves not been used up.
    pub deferred: usize,
}

/// How firmly a guest stands before the policy has its say, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It lost its VF too lately: it gets what nobody else wants.
    Cooling,
    /// It waits.
    Waiter,
    /// It holds, or gets a VF that is free.
    Settled,
    /// Its guaranteed share is due.
    Owed,
    /// It got its VF too lately to lose it.
    Resident,
    /// The operator wants it to have one.
    Pinned,
}

/// What is remembered of a guest that has never been observed.
static BLANK: History = History::new();

struct Contender<'a> {
    view: &'a GuestView,
    history: &'a History,
    standing: Standing,
    claim: Claim,
    /// The PF of the VF that it holds and may keep.
    home: Option<usize>,
}

/// Decides who holds VFs. Feed it every snapshot with [`Allocator::observe`]; ask for a plan with
/// [`Allocator::decide`]; say with [`Allocator::commit`] that a plan is being performed.
#[derive(Debug, Clone)]
pub struct Allocator {
    settings: Settings,
    histories: Histories,
}

impl Allocator {
    /// An allocator without a past. Fails when the settings make no sense.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self { settings, histories: Histories::default() })
    }

    /// The settings in force.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Other settings from now on; what is remembered stays.
    pub fn configure(&mut self, settings: Settings) -> Result<()> {
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    /// What is remembered.
    pub const fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Takes in the time since the last snapshot.
    pub fn observe(&mut self, now: &Snapshot) {
        self.histories.observe(now, &self.settings);
    }

    /// Takes in what a switch was measured to take and to lose.
    pub fn measured(&mut self, direction: Direction, seconds: f64, lost_packets: Option<f64>) {
        self.histories.switch.measured(direction == Direction::Give, seconds, lost_packets);
    }

    /// Remembers that this VF was given to this guest.
    pub fn given(&mut self, guest: &GuestId, vf: &VfId) {
        self.histories.done(guest, vf);
    }

    /// Remembers that this VF could not be given to this guest: each time in a row it is left alone for
    /// twice as long, up to `retry_most_s`, and other VFs are tried first.
    pub fn undone(&mut self, guest: &GuestId, vf: &VfId, now_ms: u64) {
        self.histories.undone(guest, vf, now_ms, &self.settings);
    }

    /// Whoever could not be given a VF is tried again with the next plan: this guest, or all.
    pub fn retry(&mut self, guest: Option<&GuestId>) {
        self.histories.retry(guest);
    }

    /// Remembers that this plan is being performed.
    pub fn commit(&mut self, plan: &Plan, now_ms: u64) {
        self.histories.commit(plan.changes(), now_ms);
    }

    /// Decides. Changes nothing: the same snapshot gives the same decision.
    pub fn decide(&self, now: &Snapshot) -> Decision {
        let mut draft = Draft::new(now, self);
        draft.evacuate();
        draft.contend();
        draft.seat();
        draft.challenge();
        draft.exchange();
        draft.finish()
    }
}

/// A decision in the making.
struct Draft<'a> {
    now: &'a Snapshot,
    settings: &'a Settings,
    histories: &'a Histories,
    pfs: Vec<&'a PfId>,
    vfs: BTreeMap<&'a VfId, &'a VfView>,
    /// Usable VFs that nobody holds, by PF; the lowest number last.
    free: Vec<Vec<&'a VfId>>,
    /// VFs that can change hands, by PF.
    seats: Vec<usize>,
    contenders: Vec<Contender<'a>>,
    /// By contender: the PF that it is to be on.
    wanted: Vec<Option<usize>>,
    /// VFs in hands once the plan is performed.
    holds: BTreeMap<&'a GuestId, &'a VfId>,
    reasons: BTreeMap<&'a GuestId, Reason>,
    plan: Plan,
    deferred: usize,
    /// Where the holder stands that ranks last.
    worst: Option<Standing>,
}

impl<'a> Draft<'a> {
    fn new(now: &'a Snapshot, allocator: &'a Allocator) -> Self {
        let mut pfs: Vec<&PfId> = now.vfs.iter().map(|vf| &vf.id.pf).collect();
        pfs.sort_unstable();
        pfs.dedup();
        let vfs: BTreeMap<&VfId, &VfView> = now.vfs.iter().map(|vf| (&vf.id, vf)).collect();
        let mut holds = BTreeMap::new();
        let mut claims: BTreeMap<&VfId, usize> = BTreeMap::new();
        for guest in &now.guests {
            if let Some(holding) = &guest.holds {
                holds.entry(&guest.id).or_insert(&holding.vf);
                *claims.entry(&holding.vf).or_default() += 1;
            }
        }
        let mut free = vec![Vec::new(); pfs.len()];
        let mut seats = vec![0; pfs.len()];
        for (id, vf) in vfs.iter().rev() {
            let Ok(pf) = pfs.binary_search(&&id.pf) else { continue };
            // A VF in somebody's hands is counted with its holder.
            if vf.state == VfState::Usable && !claims.contains_key(id) {
                free[pf].push(*id);
                seats[pf] += 1;
            }
        }
        for free in &mut free {
            // What could not be given last time comes last; the sort keeps the order of equals.
            free.sort_by_key(|vf| std::cmp::Reverse(allocator.histories.refusals(vf)));
        }
        let mut draft = Self {
            now,
            settings: &allocator.settings,
            histories: &allocator.histories,
            pfs,
            vfs,
            free,
            seats,
            contenders: Vec::new(),
            wanted: Vec::new(),
            holds,
            reasons: BTreeMap::new(),
            plan: Plan::default(),
            deferred: 0,
            worst: None,
        };
        for guest in &now.guests {
            if let Some(reason) = draft.immovable(guest, &claims) {
                draft.reasons.entry(&guest.id).or_insert(reason);
            }
        }
        draft
    }

    /// Why this guest must be left alone; its VF, if it has one, takes no part.
    fn immovable(&self, guest: &GuestView, claims: &BTreeMap<&VfId, usize>) -> Option<Reason> {
        match &guest.health {
            Health::Busy => return Some(Reason::Busy),
            Health::Stuck(what) => return Some(Reason::Stuck { what: what.clone() }),
            Health::Ready => {}
        }
        let holding = guest.holds.as_ref()?;
        let vf = self.vfs.get(&holding.vf);
        let quarantined = vf.is_none_or(|vf| matches!(vf.state, VfState::Quarantined(_)));
        if quarantined || claims.get(&holding.vf).is_none_or(|count| *count > 1) {
            return Some(Reason::DoubtfulVf);
        }
        (!guest.paravirtual_up).then_some(Reason::OnlyPath)
    }

    fn pf_of(&self, vf: &VfId) -> Option<usize> {
        self.pfs.binary_search(&&vf.pf).ok()
    }

    fn allows(guest: &GuestView, pf: &PfId) -> bool {
        guest.wish.pfs.is_empty() || guest.wish.pfs.contains(pf)
    }

    /// Takes VFs from those who may not keep them, whatever the interval's moves.
    fn evacuate(&mut self) {
        for guest in &self.now.guests {
            let Some(holding) = &guest.holds else { continue };
            if self.reasons.contains_key(&guest.id) {
                continue;
            }
            let link_down =
                self.vfs.get(&holding.vf).is_some_and(|vf| vf.state == VfState::LinkDown);
            let reason = if guest.wish.stance == Stance::Excluded {
                Reason::Excluded
            } else if link_down {
                Reason::LinkDown
            } else if !Self::allows(guest, &holding.vf.pf) {
                Reason::Misplaced
            } else {
                continue;
            };
            self.take(guest, reason);
            if !link_down && let Some(pf) = self.pf_of(&holding.vf) {
                self.seats[pf] += 1;
            }
        }
    }

    /// Gathers all who may hold a VF, by rank.
    fn contend(&mut self) {
        let residency_ms = (self.settings.min_residency_s * 1e3) as u64;
        let mut seen = BTreeSet::new();
        for view in &self.now.guests {
            if !seen.insert(&view.id) || self.reasons.contains_key(&view.id) {
                continue;
            }
            if view.wish.stance == Stance::Excluded {
                self.reasons.insert(&view.id, Reason::Excluded);
                continue;
            }
            let history = self.histories.of(&view.id);
            let waits_ms = history.map_or(0, |one| one.retry_ms.saturating_sub(self.now.now_ms));
            if waits_ms > 0 && view.holds.is_none() {
                let tries = history.map_or(0, |one| one.undone);
                let left_s = waits_ms.div_ceil(1000);
                self.reasons.insert(&view.id, Reason::BackingOff { tries, left_s });
                continue;
            }
            let lately = history
                .and_then(|history| history.changed_ms)
                .is_some_and(|changed| self.now.now_ms.saturating_sub(changed) < residency_ms);
            let home = self.holds.get(&view.id).and_then(|vf| self.pf_of(vf));
            if let Some(pf) = home {
                self.seats[pf] += 1;
            }
            let claim = match (view.wish.stance, home) {
                (Stance::Pinned, _) => Claim::Pinned,
                (_, Some(_)) if lately => Claim::Resident,
                _ if history.is_some_and(|history| history.owing) => Claim::Owed,
                (_, Some(_)) => Claim::Settled,
                (_, None) if lately => Claim::Cooling,
                (_, None) => Claim::Waiter,
            };
            self.contenders.push(Contender {
                view,
                history: history.unwrap_or(&BLANK),
                standing: policy::standing(view, history.unwrap_or(&BLANK), self.settings),
                claim,
                home,
            });
        }
        self.contenders.sort_by(|a, b| {
            let owed =
                |c: &Contender<'_>| if c.claim == Claim::Owed { c.history.owed_ms } else { 0.0 };
            b.claim
                .cmp(&a.claim)
                .then(owed(b).total_cmp(&owed(a)))
                .then(b.standing.compare(&a.standing))
                .then(b.home.is_some().cmp(&a.home.is_some()))
                // Of equals, whoever has waited longest.
                .then(a.history.changed_ms.cmp(&b.history.changed_ms))
                .then(a.view.id.cmp(&b.view.id))
        });
    }

    /// Lets those who are not seated challenge those who are: the best of them first, each the worst
    /// holder whose place it could take. Whoever is unseated may challenge in turn.
    fn challenge(&mut self) {
        for (contender, seat) in self.contenders.iter_mut().zip(&self.wanted) {
            if contender.claim == Claim::Waiter && seat.is_some() {
                contender.claim = Claim::Settled;
            }
        }
        let contenders = &self.contenders;
        let by_rank = |a: usize, b: usize| {
            let (one, other) = (&contenders[a], &contenders[b]);
            other.standing.compare(&one.standing).then(a.cmp(&b))
        };
        // Best first; contenders of equal standing keep their order.
        let mut seated = vec![Vec::new(); self.pfs.len()];
        let mut queue = BTreeSet::new();
        let rank: Vec<usize> = {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            order.sort_by(|&a, &b| by_rank(a, b));
            let mut rank = vec![0; order.len()];
            for (place, &at) in order.iter().enumerate() {
                rank[at] = place;
                match (contenders[at].claim, self.wanted[at]) {
                    (Claim::Settled, Some(pf)) => seated[pf].push(at),
                    (Claim::Waiter, None) => drop(queue.insert((place, at))),
                    _ => {}
                }
            }
            rank
        };
        // With a residency, whoever loses its place rests before it challenges.
        let may_return = self.settings.min_residency_s == 0.0;
        while let Some((_, at)) = queue.pop_first() {
            let contender = &contenders[at];
            let worst = (0..self.pfs.len())
                .filter(|&pf| Self::allows(contender.view, self.pfs[pf]))
                .filter_map(|pf| seated[pf].last().map(|&holder| (rank[holder], holder, pf)))
                .max();
            let Some((_, holder, pf)) = worst else { continue };
            if !policy::displaces(
                (&contender.standing, contender.history),
                &contenders[holder].standing,
                self.settings,
            ) {
                continue;
            }
            seated[pf].pop();
            let place = seated[pf].partition_point(|&other| rank[other] < rank[at]);
            seated[pf].insert(place, at);
            self.wanted[at] = Some(pf);
            self.wanted[holder] = None;
            if may_return {
                queue.insert((rank[holder], holder));
            }
        }
    }

    /// Decides who is to be on which PF.
    fn seat(&mut self) {
        let numa: Vec<Option<u16>> = self
            .pfs
            .iter()
            .map(|pf| self.now.vfs.iter().find(|vf| vf.id.pf == **pf).and_then(|vf| vf.numa))
            .collect();
        let seekers: Vec<Seeker> = self
            .contenders
            .iter()
            .map(|contender| {
                let wish = &contender.view.wish;
                let mut pfs: Vec<usize> = (0..self.pfs.len())
                    .filter(|&pf| self.seats[pf] > 0 && Self::allows(contender.view, self.pfs[pf]))
                    .collect();
                pfs.sort_by_key(|&pf| {
                    let far = wish.numa.is_some() && numa[pf] != wish.numa;
                    (contender.home != Some(pf), far, std::cmp::Reverse(self.free[pf].len()))
                });
                Seeker { pfs, home: contender.home }
            })
            .collect();
        let mut seating = Seating::new(&seekers, self.seats.clone());
        for at in 0..seekers.len() {
            if seating.is_full() {
                break;
            }
            seating.seat(at);
        }
        self.wanted = vec![None; seekers.len()];
        for (pf, taken) in seating.taken.iter().enumerate() {
            for &at in taken {
                self.wanted[at] = Some(pf);
            }
        }
    }

    /// Writes the moves: by rank, each VF taken just before it is given.
    fn exchange(&mut self) {
        let most = self.settings.max_moves.map_or(usize::MAX, |most| most as usize);
        let mut budget = most.saturating_sub(self.histories.given(self.now.now_ms, self.settings));
        let leaves = |at: usize, home: usize| self.wanted[at] != Some(home);
        let mut outgoing = vec![Vec::new(); self.pfs.len()];
        for (at, contender) in self.contenders.iter().enumerate() {
            if let Some(home) = contender.home.filter(|&home| leaves(at, home)) {
                outgoing[home].push(at);
            }
        }
        for at in 0..self.contenders.len() {
            let Some(pf) = self.wanted[at] else { continue };
            let view = self.contenders[at].view;
            if self.contenders[at].home == Some(pf) {
                continue;
            }
            if budget == 0 {
                self.deferred += 1;
                self.reasons.insert(&view.id, Reason::Deferred);
                continue;
            }
            if self.free[pf].is_empty() {
                while let Some(out) = outgoing[pf].pop() {
                    let leaving = &self.contenders[out];
                    if self.holds.contains_key(&leaving.view.id) {
                        let reason = self.reason(leaving, false);
                        self.take(leaving.view, reason);
                        break;
                    }
                }
            }
            let Some(vf) = self.free[pf].pop() else { continue };
            let reason = self.reason(&self.contenders[at], true);
            if self.holds.contains_key(&view.id) {
                self.take(view, reason.clone());
            }
            self.give(view, vf, reason);
            budget -= 1;
        }
    }

    fn take(&mut self, guest: &'a GuestView, reason: Reason) {
        let Some(vf) = self.holds.remove(&guest.id) else { return };
        if self.vfs.get(vf).is_some_and(|view| view.state == VfState::Usable)
            && let Some(pf) = self.pf_of(vf)
        {
            self.free[pf].push(vf);
        }
        let (guest, vf) = (guest.id.clone(), vf.clone());
        self.plan.moves.push(Move { direction: Direction::Take, guest, vf, reason });
    }

    fn give(&mut self, guest: &'a GuestView, vf: &'a VfId, reason: Reason) {
        self.holds.insert(&guest.id, vf);
        let (guest, vf) = (guest.id.clone(), vf.clone());
        self.plan.moves.push(Move { direction: Direction::Give, guest, vf, reason });
    }

    /// Why this guest has a VF, or none.
    fn reason(&self, contender: &Contender<'_>, holds: bool) -> Reason {
        let seats: usize = self.seats.iter().sum();
        let pps = contender.view.rate.map(|rate| rate.pps);
        match (contender.claim, self.settings.policy, holds) {
            (Claim::Pinned, _, true) => Reason::Pinned,
            (_, _, true) if self.contenders.len() <= seats => Reason::EnoughForAll,
            (Claim::Owed, _, true) => Reason::GuaranteedShare,
            (Claim::Resident, _, true) => Reason::Residency,
            (_, PolicyKind::Fair, true) => Reason::Turn,
            (_, PolicyKind::Static, true) => Reason::FirstCome,
            (_, _, true) => Reason::AboveCut { pps },
            (Claim::Pinned | Claim::Owed, _, false) => Reason::NoSuitableVf,
            (_, _, false) if seats == 0 => Reason::NoSuitableVf,
            (Claim::Cooling, _, false) => Reason::Residency,
            (_, PolicyKind::Fair, false) => Reason::TurnOfOthers,
            (_, PolicyKind::Static, false) => Reason::NoSuitableVf,
            (Claim::Waiter, PolicyKind::Benefit, false) if self.beats_worst(contender) => {
                Reason::NotWorthTheSwitch
            }
            (_, _, false) => Reason::BelowCut { pps },
        }
    }

    fn beats_worst(&self, waiter: &Contender<'_>) -> bool {
        self.worst.is_some_and(|worst| waiter.standing.compare(&worst).is_gt())
    }

    fn finish(mut self) -> Decision {
        self.worst = self
            .contenders
            .iter()
            .filter(|contender| contender.home.is_some())
            .map(|contender| contender.standing)
            .min_by(Standing::compare);
        for contender in &self.contenders {
            let holds = self.holds.contains_key(&contender.view.id);
            if !self.reasons.contains_key(&contender.view.id) {
                let reason = self.reason(contender, holds);
                self.reasons.insert(&contender.view.id, reason);
            }
        }
        let mut seen = BTreeSet::new();
        let verdicts = self
            .now
            .guests
            .iter()
            .filter(|guest| seen.insert(&guest.id))
            .map(|guest| Verdict {
                guest: guest.id.clone(),
                vf: self.holds.get(&guest.id).map(|vf| (*vf).clone()),
                reason: self.reasons.get(&guest.id).cloned().unwrap_or(Reason::NoSuitableVf),
            })
            .collect();
        Decision { plan: self.plan, verdicts, deferred: self.deferred }
    }
}
