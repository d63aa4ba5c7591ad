//! A decision in the making: constraints first (pins, exclusions, classes, guaranteed shares, affinity,
//! residency, moves an interval), then what the policy says. Guests go by their place in the snapshot.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::history::{Histories, History};
use crate::matching::{Seating, Seeker};
use crate::model::{GuestId, GuestView, Health, PfId, Snapshot, Stance, VfId, VfState, VfView};
use crate::plan::{Decision, Direction, Move, Plan, Reason, Verdict};
use crate::policy::{self, Standing, order_bits};
use crate::settings::{PolicyKind, Settings};

/// A guest's claim to a VF before the policy ranks guests, from weakest to strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It lost its VF too recently: it gets only a VF that is left over.
    Cooling,
    /// It waits.
    Waiter,
    /// It holds, or gets a VF that is free.
    Settled,
    /// Its guaranteed share is due.
    Owed,
    /// It got its VF too recently to lose it.
    Resident,
    /// The operator wants it to have one.
    Pinned,
}

/// The history of a guest that has never been observed.
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
    /// Order of seating: claim, then standing; among guests whose share is due, the time owed.
    rank: u128,
}

/// Sort key that decides who challenges first and who is challenged last; claims do not count. Greater is better:
/// the standing, then holding a VF, then the longest time since a change.
type Order<'a> = (u128, bool, Reverse<Option<u64>>, Reverse<&'a GuestId>);

impl<'a> Contender<'a> {
    fn order(&self) -> Order<'a> {
        let changed_ms = Reverse(self.history.changed_ms);
        (self.standing.key(), self.home.is_some(), changed_ms, Reverse(&self.view.id))
    }
}

/// A decision in the making.
pub struct Draft<'a> {
    now: &'a Snapshot,
    settings: &'a Settings,
    histories: &'a Histories,
    pfs: Vec<&'a PfId>,
    /// By PF and number.
    vfs: Vec<&'a VfView>,
    /// Usable VFs without a holder, by PF; the lowest number last.
    free: Vec<Vec<&'a VfId>>,
    /// VFs that can change hands, by PF.
    seats: Vec<usize>,
    /// Places of guests that hold a VF or cannot be moved.
    noted: Vec<usize>,
    contenders: Vec<Contender<'a>>,
    /// By contender: the PF that it is to have a VF of.
    target: Vec<Option<usize>>,
    /// By guest: the VF in its hands once the plan is performed.
    holds: Vec<Option<&'a VfId>>,
    /// By guest.
    reasons: Vec<Option<Reason>>,
    /// What is to be done.
    pub plan: Plan,
    deferred: usize,
    /// The standing of the holder that ranks last.
    worst: Option<Standing>,
}

impl<'a> Draft<'a> {
    /// The decision, without the reasons of guests for which nothing changes.
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
            vfs.sort_by(|a, b| a.id.cmp(&b.id));
        }
        let mut pfs: Vec<&PfId> = vfs.iter().map(|vf| &vf.id.pf).collect();
        pfs.dedup();
        let mut draft = Self {
            now,
            settings,
            histories,
            free: vec![Vec::new(); pfs.len()],
            seats: vec![0; pfs.len()],
            pfs,
            vfs,
            contenders: Vec::new(),
            target: Vec::new(),
            holds: vec![None; now.guests.len()],
            reasons: vec![None; now.guests.len()],
            noted: Vec::new(),
            plan: Plan::default(),
            deferred: 0,
            worst: None,
        };
        let mut claims = vec![0_u32; draft.vfs.len()];
        for (at, guest) in now.guests.iter().enumerate() {
            if guest.holds.is_some() || guest.health != Health::Ready {
                draft.noted.push(at);
            }
            if let Some(held) = &guest.holds {
                draft.holds[at] = Some(held);
                if let Some(vf) = draft.vf(held) {
                    claims[vf] += 1;
                }
            }
        }
        for (vf, claims) in draft.vfs.iter().zip(&claims).rev() {
            let Some(pf) = draft.pf_of(&vf.id) else { continue };
            // A held VF is counted with its holder.
            if vf.state == VfState::Usable && *claims == 0 {
                draft.free[pf].push(&vf.id);
                draft.seats[pf] += 1;
            }
        }
        for free in &mut draft.free {
            // VFs that could not be given come last; the sort keeps the order of equals.
            free.sort_by_key(|vf| Reverse(histories.refusals(vf)));
        }
        for &at in &draft.noted {
            draft.reasons[at] = draft.immovable(&now.guests[at], &claims);
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
        let usable = self.vf(guest.holds.as_ref()?).is_some_and(|vf| {
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

    /// Takes VFs from guests that may not keep them, whatever the limit of moves.
    fn evacuate(&mut self) {
        for place in std::mem::take(&mut self.noted) {
            let guest = &self.now.guests[place];
            let Some(held) = &guest.holds else { continue };
            if self.reasons[place].is_some() {
                continue;
            }
            let link_down = self.state(held) == Some(&VfState::LinkDown);
            let reason = if guest.wish.stance == Stance::Excluded {
                Reason::Excluded
            } else if link_down {
                Reason::LinkDown
            } else if !guest.allows(&held.pf) {
                Reason::Misplaced
            } else {
                continue;
            };
            self.take(place, reason);
            if !link_down && let Some(pf) = self.pf_of(held) {
                self.seats[pf] += 1;
            }
        }
    }

    /// Collects the guests that may hold a VF.
    fn contend(&mut self) {
        let residency_ms = (self.settings.min_residency_s * 1e3) as u64;
        self.contenders.reserve(self.now.guests.len());
        for (place, view) in self.now.guests.iter().enumerate() {
            if self.reasons[place].is_some() {
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
            let rank = match claim {
                Claim::Owed => u128::from(order_bits(history.owed_ms)),
                _ => standing.key(),
            };
            let rank = (claim as u128) << 100 | rank;
            self.contenders.push(Contender { place, view, history, standing, claim, home, rank });
        }
    }

    /// Lets waiters challenge holders: the best waiter first, each the worst holder whose place it could take.
    /// A holder that loses its place may challenge in turn.
    fn challenge(&mut self) {
        for (contender, seat) in self.contenders.iter_mut().zip(&self.target) {
            if contender.claim == Claim::Waiter && seat.is_some() {
                contender.claim = Claim::Settled;
            }
        }
        let of_claim = |claim| {
            let contenders = self.contenders.iter().enumerate();
            let of_claim = contenders.filter(move |(_, contender)| contender.claim == claim);
            of_claim.map(|(at, contender)| (contender.order(), at))
        };
        let mut seated: Vec<BinaryHeap<Reverse<(Order<'_>, usize)>>> =
            self.pfs.iter().map(|_| BinaryHeap::new()).collect();
        for settled in of_claim(Claim::Settled) {
            if let Some(pf) = self.target[settled.1] {
                seated[pf].push(Reverse(settled));
            }
        }
        // A waiter that ranks below all holders takes no place: holders are only replaced by better ones.
        let worst = seated.iter().filter_map(BinaryHeap::peek).map(|Reverse(last)| last.0.0).min();
        let Some(worst) = worst else { return };
        let mut waiting: BinaryHeap<(Order<'_>, usize)> =
            of_claim(Claim::Waiter).filter(|(order, _)| order.0 >= worst).collect();
        // With a residency, a guest that lost its place rests before it challenges.
        let may_return = self.settings.min_residency_s == 0.0;
        while let Some(challenger) = waiting.pop() {
            if seated.iter().filter_map(BinaryHeap::peek).all(|Reverse(worst)| challenger < *worst)
            {
                // It and all later waiters rank below all holders that could lose their place.
                break;
            }
            let contender = &self.contenders[challenger.1];
            let worst = (seated.iter().enumerate())
                .filter(|&(pf, _)| contender.view.allows(self.pfs[pf]))
                .filter_map(|(pf, seated)| seated.peek().map(|holder| (holder, pf)))
                .max();
            let Some((Reverse(holder), pf)) = worst else { continue };
            if !policy::displaces(
                (&contender.standing, &contender.history.past),
                &self.contenders[holder.1].standing,
                self.settings,
            ) {
                continue;
            }
            self.target[challenger.1] = Some(pf);
            let Some(Reverse(holder)) = seated[pf].pop() else { continue };
            seated[pf].push(Reverse(challenger));
            self.target[holder.1] = None;
            if may_return {
                waiting.push(holder);
            }
        }
    }

    /// The order in which contenders are seated, and their moves written.
    fn seating_order(&self, at: usize) -> Reverse<(u128, Order<'a>)> {
        Reverse((self.contenders[at].rank, self.contenders[at].order()))
    }

    /// Assigns guests to PFs.
    fn seat(&mut self) {
        self.target = self.contenders.iter().map(|contender| contender.home).collect();
        let at_home = self.target.iter().flatten().count();
        let at_once = |c: &Contender<'_>| c.home.is_none() && c.claim >= Claim::Owed;
        if at_home == self.seats.iter().sum::<usize>() && !self.contenders.iter().any(at_once) {
            // The present holders take all seats, and no guest must be seated before them.
            return;
        }
        let numa: Vec<Option<u16>> = self
            .pfs
            .iter()
            .map(|pf| self.vfs.iter().find(|vf| vf.id.pf == **pf).and_then(|vf| vf.numa))
            .collect();
        let mut order: Vec<usize> = (0..self.contenders.len()).collect();
        order.sort_unstable_by_key(|&at| self.seating_order(at));
        let mut seating = Seating::new(self.seats.clone());
        for &at in &order {
            let contender = &self.contenders[at];
            if seating.is_full() {
                break;
            }
            let wish = &contender.view.wish;
            let mut pfs: Vec<usize> = (0..self.pfs.len())
                .filter(|&pf| self.seats[pf] > 0 && contender.view.allows(self.pfs[pf]))
                .collect();
            pfs.sort_by_key(|&pf| {
                let far = wish.numa.is_some() && numa[pf] != wish.numa;
                (contender.home != Some(pf), far, Reverse(self.free[pf].len()))
            });
            seating.seat(Seeker { pfs, home: contender.home });
        }
        self.target.fill(None);
        for (pf, taken) in seating.taken.iter().enumerate() {
            for &seeker in taken {
                self.target[order[seeker]] = Some(pf);
            }
        }
    }

    /// Writes the moves: by rank, each VF taken just before it is given.
    fn exchange(&mut self) {
        let most = self.settings.max_moves.map_or(usize::MAX, |most| most as usize);
        let mut budget = most.saturating_sub(self.histories.given(self.now.now_ms, self.settings));
        let moves = |&at: &usize| self.contenders[at].home != self.target[at];
        let mut moving: Vec<usize> = (0..self.contenders.len()).filter(moves).collect();
        moving.sort_unstable_by_key(|&at| self.seating_order(at));
        let mut outgoing = vec![Vec::new(); self.pfs.len()];
        for &at in &moving {
            if let Some(home) = self.contenders[at].home {
                outgoing[home].push(at);
            }
        }
        for at in moving {
            let Some(pf) = self.target[at] else { continue };
            let place = self.contenders[at].place;
            if budget == 0 {
                self.deferred += 1;
                self.reasons[place] = Some(Reason::Deferred);
                continue;
            }
            if self.free[pf].is_empty() {
                while let Some(out) = outgoing[pf].pop() {
                    let leaving = &self.contenders[out];
                    // A guest that has moved to another PF meanwhile holds a VF there.
                    let held = self.holds[leaving.place].and_then(|vf| self.pf_of(vf));
                    if held == leaving.home {
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
        let guests = self.now.guests.iter().zip(self.holds).zip(self.reasons);
        let verdicts = guests
            .map(|((guest, vf), reason)| Verdict {
                guest: guest.id.clone(),
                vf: vf.cloned(),
                reason: reason.unwrap_or(Reason::NoSuitableVf),
            })
            .collect();
        Decision { plan: self.plan, verdicts, deferred: self.deferred }
    }
}
