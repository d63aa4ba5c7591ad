//! A decision in the making: constraints first (pins, exclusions, classes, guaranteed shares, affinity,
//! residency, moves an interval), then what the policy says. Guests go by their place in the snapshot.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::history::{Histories, History};
use crate::matching::{Seating, Seeker};
use crate::model::{GuestView, Health, PfId, Snapshot, Stance, VfId, VfState, VfView};
use crate::plan::{Decision, Direction, Move, Plan, Reason, Verdict};
use crate::policy::{self, Standing};
use crate::settings::{PolicyKind, Settings};

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
    /// Its place in the snapshot.
    place: usize,
    view: &'a GuestView,
    history: &'a History,
    standing: Standing,
    claim: Claim,
    /// The PF of the VF that it holds and may keep.
    home: Option<usize>,
}

/// A decision in the making.
pub struct Draft<'a> {
    now: &'a Snapshot,
    settings: &'a Settings,
    histories: &'a Histories,
    pfs: Vec<&'a PfId>,
    /// By PF and number.
    vfs: Vec<&'a VfView>,
    /// Usable VFs that nobody holds, by PF; the lowest number last.
    free: Vec<Vec<&'a VfId>>,
    /// VFs that can change hands, by PF.
    seats: Vec<usize>,
    /// By guest: the first place that its name has in the snapshot.
    first: Vec<usize>,
    contenders: Vec<Contender<'a>>,
    /// By contender: the PF that it is to be on.
    wanted: Vec<Option<usize>>,
    /// By guest: the VF in its hands once the plan is performed.
    holds: Vec<Option<&'a VfId>>,
    /// By guest.
    reasons: Vec<Option<Reason>>,
    /// What is to be done.
    pub plan: Plan,
    deferred: usize,
    /// Where the holder stands that ranks last.
    worst: Option<Standing>,
}

/// By place in the snapshot: the first place of the same name.
fn first_places(now: &Snapshot, histories: &Histories) -> Vec<usize> {
    let mut of_slot = vec![None; histories.slots()];
    let mut of_name = BTreeMap::new();
    now.guests
        .iter()
        .enumerate()
        .map(|(place, guest)| match histories.slot(place, &guest.id) {
            Some(slot) => *of_slot[slot].get_or_insert(place),
            None => *of_name.entry(&guest.id).or_insert(place),
        })
        .collect()
}

impl<'a> Draft<'a> {
    /// The decision, but for the reasons of those for whom nothing changes.
    pub fn made(now: &'a Snapshot, settings: &'a Settings, histories: &'a Histories) -> Self {
        let mut draft = Self::new(now, settings, histories);
        draft.evacuate();
        draft.contend();
        draft.seat();
        draft.challenge();
        draft.exchange();
        draft
    }

    fn new(now: &'a Snapshot, settings: &'a Settings, histories: &'a Histories) -> Self {
        let mut vfs: Vec<&VfView> = now.vfs.iter().collect();
        if !vfs.is_sorted_by(|a, b| a.id < b.id) {
            // Of two views of a VF the last one counts.
            vfs.reverse();
            vfs.sort_by(|a, b| a.id.cmp(&b.id));
            vfs.dedup_by(|a, b| a.id == b.id);
        }
        let mut pfs: Vec<&PfId> = vfs.iter().map(|vf| &vf.id.pf).collect();
        pfs.dedup();
        let first = first_places(now, histories);
        let mut draft = Self {
            now,
            settings,
            histories,
            free: vec![Vec::new(); pfs.len()],
            seats: vec![0; pfs.len()],
            pfs,
            vfs,
            contenders: Vec::new(),
            wanted: Vec::new(),
            holds: vec![None; first.len()],
            reasons: vec![None; first.len()],
            first,
            plan: Plan::default(),
            deferred: 0,
            worst: None,
        };
        let mut claims = vec![0_u32; draft.vfs.len()];
        for (guest, &place) in now.guests.iter().zip(&draft.first) {
            if let Some(holding) = &guest.holds {
                draft.holds[place].get_or_insert(&holding.vf);
                if let Some(vf) = draft.vf(&holding.vf) {
                    claims[vf] += 1;
                }
            }
        }
        for (vf, claims) in draft.vfs.iter().zip(&claims).rev() {
            let Some(pf) = draft.pf_of(&vf.id) else { continue };
            // A VF in somebody's hands is counted with its holder.
            if vf.state == VfState::Usable && *claims == 0 {
                draft.free[pf].push(&vf.id);
                draft.seats[pf] += 1;
            }
        }
        for free in &mut draft.free {
            // What could not be given last time comes last; the sort keeps the order of equals.
            free.sort_by_key(|vf| Reverse(histories.refusals(vf)));
        }
        for (at, guest) in now.guests.iter().enumerate() {
            if let Some(reason) = draft.immovable(guest, &claims) {
                draft.reasons[draft.first[at]].get_or_insert(reason);
            }
        }
        draft
    }

    /// Why this guest must be left alone; its VF, if it has one, takes no part.
    fn immovable(&self, guest: &GuestView, claims: &[u32]) -> Option<Reason> {
        match &guest.health {
            Health::Busy => return Some(Reason::Busy),
            Health::Stuck(what) => return Some(Reason::Stuck { what: what.clone() }),
            Health::Ready => {}
        }
        let holding = guest.holds.as_ref()?;
        let usable = self.vf(&holding.vf).is_some_and(|vf| {
            claims[vf] == 1 && !matches!(self.vfs[vf].state, VfState::Quarantined(_))
        });
        if !usable {
            return Some(Reason::DoubtfulVf);
        }
        (!guest.paravirtual_up).then_some(Reason::OnlyPath)
    }

    /// The place of this VF among all.
    fn vf(&self, id: &VfId) -> Option<usize> {
        // Of a single PF with all its VFs, the number is the place.
        let place = usize::from(id.index);
        if self.vfs.get(place).is_some_and(|vf| vf.id == *id) {
            return Some(place);
        }
        self.vfs.binary_search_by(|vf| vf.id.cmp(id)).ok()
    }

    fn state(&self, id: &VfId) -> Option<&VfState> {
        self.vf(id).map(|vf| &self.vfs[vf].state)
    }

    fn pf_of(&self, vf: &VfId) -> Option<usize> {
        self.pfs.iter().position(|pf| **pf == vf.pf)
    }

    fn allows(guest: &GuestView, pf: &PfId) -> bool {
        guest.wish.pfs.is_empty() || guest.wish.pfs.contains(pf)
    }

    /// Takes VFs from those who may not keep them, whatever the interval's moves.
    fn evacuate(&mut self) {
        for (at, guest) in self.now.guests.iter().enumerate() {
            let Some(holding) = &guest.holds else { continue };
            let place = self.first[at];
            if self.reasons[place].is_some() {
                continue;
            }
            let link_down = self.state(&holding.vf) == Some(&VfState::LinkDown);
            let reason = if guest.wish.stance == Stance::Excluded {
                Reason::Excluded
            } else if link_down {
                Reason::LinkDown
            } else if !Self::allows(guest, &holding.vf.pf) {
                Reason::Misplaced
            } else {
                continue;
            };
            self.take(place, reason);
            if !link_down && let Some(pf) = self.pf_of(&holding.vf) {
                self.seats[pf] += 1;
            }
        }
    }

    /// Gathers all who may hold a VF, by rank.
    fn contend(&mut self) {
        let residency_ms = (self.settings.min_residency_s * 1e3) as u64;
        self.contenders.reserve(self.now.guests.len());
        for (place, view) in self.now.guests.iter().enumerate() {
            if self.first[place] != place || self.reasons[place].is_some() {
                continue;
            }
            if view.wish.stance == Stance::Excluded {
                self.reasons[place] = Some(Reason::Excluded);
                continue;
            }
            let history = self.histories.at(place, &view.id).unwrap_or(&BLANK);
            let waits_ms = history.retry_ms.saturating_sub(self.now.now_ms);
            if waits_ms > 0 && view.holds.is_none() {
                let left_s = waits_ms.div_ceil(1000);
                self.reasons[place] = Some(Reason::BackingOff { tries: history.undone, left_s });
                continue;
            }
            let lately = history
                .changed_ms
                .is_some_and(|changed| self.now.now_ms.saturating_sub(changed) < residency_ms);
            let home = self.holds[place].and_then(|vf| self.pf_of(vf));
            if let Some(pf) = home {
                self.seats[pf] += 1;
            }
            let claim = match (view.wish.stance, home) {
                (Stance::Pinned, _) => Claim::Pinned,
                (_, Some(_)) if lately => Claim::Resident,
                _ if history.owing => Claim::Owed,
                (_, Some(_)) => Claim::Settled,
                (_, None) if lately => Claim::Cooling,
                (_, None) => Claim::Waiter,
            };
            let standing = policy::standing(view, &history.past, self.settings);
            self.contenders.push(Contender { place, view, history, standing, claim, home });
        }
        let owed = |c: &Contender<'_>| if c.claim == Claim::Owed { c.history.owed_ms } else { 0.0 };
        self.contenders.sort_by(|a, b| {
            (b.claim.cmp(&a.claim))
                .then_with(|| owed(b).total_cmp(&owed(a)))
                .then_with(|| b.standing.compare(&a.standing))
                .then_with(|| b.home.is_some().cmp(&a.home.is_some()))
                // Of equals, whoever has waited longest.
                .then_with(|| a.history.changed_ms.cmp(&b.history.changed_ms))
                .then_with(|| a.view.id.cmp(&b.view.id))
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
        // Best first; contenders of equal standing keep their order.
        let mut order: Vec<(Reverse<u128>, usize)> =
            contenders.iter().enumerate().map(|(at, c)| (Reverse(c.standing.key()), at)).collect();
        order.sort_unstable();
        let mut seated = vec![Vec::new(); self.pfs.len()];
        let mut waiting = Vec::new();
        let mut rank = vec![0; order.len()];
        for (place, &(_, at)) in order.iter().enumerate() {
            rank[at] = place;
            match (contenders[at].claim, self.wanted[at]) {
                (Claim::Settled, Some(pf)) => seated[pf].push(at),
                (Claim::Waiter, None) => waiting.push(Reverse((place, at))),
                _ => {}
            }
        }
        let mut queue = BinaryHeap::from(waiting);
        // With a residency, whoever loses its place rests before it challenges.
        let may_return = self.settings.min_residency_s == 0.0;
        while let Some(Reverse((_, at))) = queue.pop() {
            let contender = &contenders[at];
            let worst = (0..self.pfs.len())
                .filter(|&pf| Self::allows(contender.view, self.pfs[pf]))
                .filter_map(|pf| seated[pf].last().map(|&holder| (rank[holder], holder, pf)))
                .max();
            let Some((_, holder, pf)) = worst else { continue };
            if !policy::displaces(
                (&contender.standing, &contender.history.past),
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
                queue.push(Reverse((rank[holder], holder)));
            }
        }
    }

    /// Decides who is to be on which PF.
    fn seat(&mut self) {
        let numa: Vec<Option<u16>> = self
            .pfs
            .iter()
            .map(|pf| self.vfs.iter().find(|vf| vf.id.pf == **pf).and_then(|vf| vf.numa))
            .collect();
        let mut seating = Seating::new(self.seats.clone());
        for contender in &self.contenders {
            if seating.is_full() {
                break;
            }
            let wish = &contender.view.wish;
            let mut pfs: Vec<usize> = (0..self.pfs.len())
                .filter(|&pf| self.seats[pf] > 0 && Self::allows(contender.view, self.pfs[pf]))
                .collect();
            pfs.sort_by_key(|&pf| {
                let far = wish.numa.is_some() && numa[pf] != wish.numa;
                (contender.home != Some(pf), far, Reverse(self.free[pf].len()))
            });
            seating.seat(Seeker { pfs, home: contender.home });
        }
        self.wanted = vec![None; self.contenders.len()];
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
            let place = self.contenders[at].place;
            if self.contenders[at].home == Some(pf) {
                continue;
            }
            if budget == 0 {
                self.deferred += 1;
                self.reasons[place] = Some(Reason::Deferred);
                continue;
            }
            if self.free[pf].is_empty() {
                while let Some(out) = outgoing[pf].pop() {
                    let leaving = &self.contenders[out];
                    if self.holds[leaving.place].is_some() {
                        let (place, reason) = (leaving.place, self.reason(leaving, false));
                        self.take(place, reason);
                        break;
                    }
                }
            }
            let Some(vf) = self.free[pf].pop() else { continue };
            let reason = self.reason(&self.contenders[at], true);
            if self.holds[place].is_some() {
                self.take(place, reason.clone());
            }
            self.holds[place] = Some(vf);
            let (guest, vf) = (self.now.guests[place].id.clone(), vf.clone());
            self.plan.moves.push(Move { direction: Direction::Give, guest, vf, reason });
            budget -= 1;
        }
    }

    fn take(&mut self, place: usize, reason: Reason) {
        let Some(vf) = self.holds[place].take() else { return };
        if self.state(vf) == Some(&VfState::Usable)
            && let Some(pf) = self.pf_of(vf)
        {
            self.free[pf].push(vf);
        }
        let (guest, vf) = (self.now.guests[place].id.clone(), vf.clone());
        self.plan.moves.push(Move { direction: Direction::Take, guest, vf, reason });
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

    /// The decision with a verdict for each guest.
    pub fn finish(mut self) -> Decision {
        self.worst = self
            .contenders
            .iter()
            .filter(|contender| contender.home.is_some())
            .map(|contender| contender.standing)
            .min_by(Standing::compare);
        for contender in &self.contenders {
            let place = contender.place;
            if self.reasons[place].is_none() {
                self.reasons[place] = Some(self.reason(contender, self.holds[place].is_some()));
            }
        }
        let guests = self.now.guests.iter().enumerate();
        let verdicts = guests
            .filter(|(place, _)| self.first[*place] == *place)
            .map(|(place, guest)| Verdict {
                guest: guest.id.clone(),
                vf: self.holds[place].cloned(),
                reason: self.reasons[place].clone().unwrap_or(Reason::NoSuitableVf),
            })
            .collect();
        Decision { plan: self.plan, verdicts, deferred: self.deferred }
    }
}
