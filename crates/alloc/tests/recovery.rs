//! The daemon is killed at every moment of a plan, and again at every moment of its recovery; guests
//! go away, stop answering, come up late. Afterwards no VF is lost or held twice, no address is there
//! twice, and every guest that answers can be reached.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;

use pw_alloc::execute::{Action, Failure, Operation};
use pw_alloc::journal::{self, Ending, Entry, Ledger};
use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::plan::{Direction, Move, Reason};
use pw_alloc::recover::{Recovery, recover};
use pw_alloc::step::{Join, Path, Step, give};
use pw_alloc::world::{GuestState, HostState, VfPlace, VfPlacement};

/// A world, a journal, and a number of moments after which the daemon is dead.
struct Host {
    found: HostState,
    journal: String,
    moments: usize,
    /// Called after every whole step.
    watch: fn(&HostState, &Step),
}

/// The daemon is dead.
struct Killed;

impl Host {
    fn moment(&mut self) -> Result<(), Killed> {
        self.moments = self.moments.checked_sub(1).ok_or(Killed)?;
        Ok(())
    }

    fn write(&mut self, entry: &Entry) -> Result<(), Killed> {
        let line = journal::line(entry);
        if self.moment().is_err() {
            // Killed in the middle of writing.
            self.journal.push_str(&line[..line.len() / 2]);
            return Err(Killed);
        }
        self.journal.push_str(&line);
        self.moment()
    }

    fn perform(&mut self, step: &Step) -> Result<Result<(), String>, Killed> {
        if self.moment().is_err() {
            let _ = self.found.perform_until(step, true);
            return Err(Killed);
        }
        let result = self.found.perform(step);
        (self.watch)(&self.found, step);
        self.moment()?;
        Ok(result)
    }

    fn execute(&mut self, operation: u64, change: &Move) -> Result<Ending, Killed> {
        let guest = self.found.guests.get(&change.guest).expect("a guest of this world");
        let mut execution = Operation::of_move(operation, change.clone(), guest.mac, guest.join);
        loop {
            match execution.next_action() {
                Action::Write(entry) => self.write(&entry)?,
                Action::Do(step) => {
                    let result = self.perform(&step)?;
                    execution.report(result.map_err(|why| Failure { why, guest_silent: true }));
                }
                Action::Finished => return Ok(execution.ending().expect("it has ended").clone()),
            }
        }
    }

    /// What a daemon does first.
    fn start(&mut self) -> Result<Recovery, Killed> {
        let read = journal::read(self.journal.as_bytes());
        assert!(read.damaged.is_empty());
        if read.torn {
            let whole = self.journal.rfind('\n').map_or(0, |end| end + 1);
            self.journal.truncate(whole);
        }
        let ledger = Ledger::replay(&read.entries);
        let mut all = Recovery::default();
        for part in recover(&ledger, &self.found, None) {
            assert!(all.vfs.is_disjoint(&part.vfs) && all.guests.is_disjoint(&part.guests));
            for step in &part.steps {
                self.perform(step)?.expect("what recovery does can be done");
            }
            self.write(&part.settled(ledger.next_operation))?;
            all.vfs.extend(part.vfs);
            all.guests.extend(part.guests);
            all.steps.extend(part.steps);
            all.notes.extend(part.notes);
            all.holders.extend(part.holders);
            all.marked.extend(part.marked);
            all.unmarked.extend(part.unmarked);
        }
        Ok(all)
    }
}

fn vf(index: u16) -> VfId {
    VfId::new("pf0", index)
}

fn change(direction: Direction, guest: &str, index: u16) -> Move {
    Move { direction, guest: guest.into(), vf: vf(index), reason: Reason::Turn }
}

/// Guests a, b, c and VFs 0, 1, 2; a holds VF 0. The plan: a's goes to b, c gets VF 1.
fn host(join: Join) -> (Host, Vec<Move>) {
    let mut found = HostState::default();
    for index in 0..3 {
        found.vfs.insert(vf(index), VfPlacement { mac: Mac::NONE, place: VfPlace::Pool });
    }
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let guest = GuestState {
            mac: Mac([2, 0, 0, 0, 0, number as u8]),
            join,
            answers: true,
            paravirtual_up: true,
            vf_up: false,
            active: Path::Paravirtual,
            directed: Path::Paravirtual,
        };
        found.guests.insert(name.into(), guest);
    }
    for step in give(&"a".into(), &vf(0), Mac([2, 0, 0, 0, 0, 0]), join) {
        found.perform(&step).expect("a world that behaves");
    }
    let checkpoint = Entry::Checkpoint {
        format: journal::FORMAT,
        holders: [(vf(0), "a".into())].into(),
        marked: [].into(),
        quarantined: [].into(),
    };
    assert!(found.faults().is_empty(), "{:?}", found.faults());
    let plan = vec![
        change(Direction::Take, "a", 0),
        change(Direction::Give, "b", 0),
        change(Direction::Give, "c", 1),
    ];
    let journal = journal::line(&checkpoint);
    (Host { found, journal, moments: usize::MAX, watch: |_, _| () }, plan)
}

fn perform_all(host: &mut Host, plan: &[Move]) -> Result<(), Killed> {
    for (operation, change) in plan.iter().enumerate() {
        host.execute(operation as u64, change)?;
    }
    Ok(())
}

/// What may happen while the daemon is dead.
const MEANWHILE: [fn(&mut HostState); 8] = [
    |_| (),
    |found| found.guests.values_mut().for_each(|guest| guest.vf_up = true),
    |found| found.guests.values_mut().for_each(|guest| guest.vf_up = false),
    |found| found.destroy(&"b".into(), false),
    |found| found.destroy(&"a".into(), true),
    |found| found.guests.values_mut().for_each(|guest| guest.answers = false),
    |found| silence(found, "b"),
    |found| paravirtual_down(found, "a"),
];

fn silence(found: &mut HostState, name: &str) {
    if let Some(guest) = found.guests.get_mut(&GuestId::from(name)) {
        guest.answers = false;
    }
}

fn paravirtual_down(found: &mut HostState, name: &str) {
    let id = GuestId::from(name);
    let up = found.guests.get(&id).is_some_and(|guest| guest.vf_up);
    let attached = found.attached(&id).count() == 1;
    if let Some(guest) = found.guests.get_mut(&id).filter(|_| up && attached) {
        guest.paravirtual_up = false;
    }
}

/// After recovery: everything is in order, and says so.
fn check(host: &Host, recovery: &Recovery, case: &str) {
    let found = &host.found;
    let faults = found.faults();
    assert!(faults.is_empty(), "{case}: {faults:?}\n{recovery:#?}\n{}", host.journal);
    assert_eq!(found.vfs.len(), 3, "{case}: no VF is lost");
    for (id, vf) in &found.vfs {
        let holder = match &vf.place {
            VfPlace::Guest(guest) => Some(guest),
            _ => None,
        };
        assert_eq!(recovery.holders.get(id), holder, "{case}: {id}");
    }
    for (id, guest) in &found.guests {
        assert_eq!(recovery.marked.contains_key(id), !guest.answers, "{case}: {id}");
    }
    let read = journal::read(host.journal.as_bytes());
    let ledger = Ledger::replay(&read.entries);
    let left: Vec<Step> =
        recover(&ledger, found, None).into_iter().flat_map(|part| part.steps).collect();
    assert!(left.is_empty(), "{case}: still to do {left:?}");
    assert_eq!(ledger.holders, recovery.holders);
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_that_a_restart_does_not_put_right() {
    let (mut kills, mut second_kills) = (0, 0);
    for join in [Join::Bond, Join::Failover] {
        for (number, meanwhile) in MEANWHILE.iter().enumerate() {
            for moment in 0.. {
                let (mut first, plan) = host(join);
                first.moments = moment;
                let finished = perform_all(&mut first, &plan).is_ok();
                meanwhile(&mut first.found);
                kills += 1;
                for second in 0.. {
                    let mut restarted = Host {
                        found: first.found.clone(),
                        journal: first.journal.clone(),
                        ..host(join).0
                    };
                    restarted.moments = second;
                    let through = restarted.start().is_ok();
                    restarted.moments = usize::MAX;
                    let recovery = restarted.start().unwrap_or_else(|Killed| unreachable!());
                    let case =
                        format!("{join:?}, meanwhile {number}, killed at {moment}, {second}");
                    check(&restarted, &recovery, &case);
                    second_kills += 1;
                    if through {
                        break;
                    }
                }
                if finished {
                    break;
                }
            }
        }
    }
    assert!(kills > 500 && second_kills > 2_000, "{kills} kills, {second_kills} of the recovery");
}

#[test]
fn with_a_bond_a_guest_sends_and_is_reached_from_the_wire_after_every_step() {
    let (mut host, plan) = host(Join::Bond);
    host.watch = |found, step| {
        for id in found.guests.keys() {
            assert!(found.sends(id) && found.reached_from_wire(id), "{id} after {step}");
            // Guests on the host's bridge miss it between two neighbouring steps only.
            let between = matches!(step, Step::Prefer { guest, .. } if guest == id);
            assert!(found.reached_from_host(id) || between, "{id} after {step}");
        }
    };
    assert!(perform_all(&mut host, &plan).is_ok());
    assert!(host.found.faults().is_empty());
    let ledger = Ledger::replay(&journal::read(host.journal.as_bytes()).entries);
    assert_eq!(ledger.holders, [(vf(0), "b".into()), (vf(1), "c".into())].into());
}

#[test]
fn a_step_that_fails_is_turned_round_or_marks_the_guest() {
    // Every step of a give and of a take fails once, with a guest that answers and one that does not.
    for join in [Join::Bond, Join::Failover] {
        for (direction, guest, index) in [(Direction::Give, "b", 1), (Direction::Take, "a", 0)] {
            for guest_silent in [false, true] {
                for failing in 0..10 {
                    let (mut host, _) = host(join);
                    let change = change(direction, guest, index);
                    let id = GuestId::from(guest);
                    let mac = host.found.guests[&id].mac;
                    let mut execution = Operation::of_move(1, change, mac, join);
                    let (mut done, mut entries, mut failed) = (0, Vec::new(), None);
                    let ending = loop {
                        match execution.next_action() {
                            Action::Write(entry) => entries.push(entry),
                            Action::Do(step) => {
                                let fails = done == failing;
                                done += 1;
                                if fails {
                                    let _ = host.found.perform_until(&step, true);
                                    failed = Some(step);
                                    let why = "no".to_owned();
                                    execution.report(Err(Failure { why, guest_silent }));
                                } else {
                                    let failure = |why| Failure { why, guest_silent: false };
                                    execution.report(host.found.perform(&step).map_err(failure));
                                }
                            }
                            Action::Finished => {
                                break execution.ending().expect("it has ended").clone();
                            }
                        }
                    };
                    let case = format!(
                        "{join:?} {direction:?} silent {guest_silent}: {failed:?}: {ending:?}"
                    );
                    let Some(step) = failed else {
                        assert_eq!(ending, Ending::Completed, "{case}");
                        continue;
                    };
                    assert_ne!(ending, Ending::Completed, "{case}");
                    let read = Ledger::replay(&entries);
                    assert!(read.open.is_empty(), "{case}");
                    let place = &host.found.vfs[&vf(index)].place;
                    match ending {
                        // What the journal says of the VF is so.
                        Ending::Undone { why } => {
                            assert!(why.starts_with("could not ") && why.contains(": no"), "{why}");
                            let back = VfPlace::Guest(id.clone());
                            let before =
                                if direction == Direction::Take { back } else { VfPlace::Pool };
                            assert_eq!(*place, before, "{case}");
                        }
                        Ending::Stuck { .. } => {
                            assert!(read.marked.contains_key(&id), "{case}");
                            assert_eq!(read.holders.get(&vf(index)), Some(&id), "{case}");
                        }
                        Ending::Quarantined { .. } => {
                            assert_eq!(*place, VfPlace::Pool, "{case}");
                            assert!(read.quarantined.contains_key(&vf(index)), "{case}");
                        }
                        Ending::Completed => unreachable!(),
                    }
                    if !guest_silent && !matches!(step, Step::Detach { .. }) {
                        assert!(host.found.sends(&id), "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn without_a_journal_what_is_found_is_adopted_and_what_is_left_over_is_cleared() {
    let (mut host, _) = host(Join::Failover);
    host.journal.clear();
    host.found.vfs.get_mut(&vf(2)).expect("VF 2").mac = Mac([2, 0, 0, 0, 0, 1]);
    let recovery = host.start().unwrap_or_else(|Killed| unreachable!());
    assert_eq!(recovery.holders, [(vf(0), "a".into())].into());
    assert!(recovery.notes[0].contains("pf0/2 is in the pool with the address 02:00:00:00:00:01"));
    assert!(host.found.faults().is_empty());
}

#[test]
fn of_two_vfs_in_one_guest_the_one_that_the_journal_knows_stays() {
    let (mut host, _) = host(Join::Bond);
    host.found.vfs.get_mut(&vf(1)).expect("VF 1").place = VfPlace::Guest("a".into());
    let recovery = host.start().unwrap_or_else(|Killed| unreachable!());
    assert_eq!(recovery.holders, [(vf(0), "a".into())].into());
    assert!(host.found.faults().is_empty(), "{:?}", host.found.faults());
}

#[test]
fn a_vf_in_other_hands_or_in_unknown_ones_is_never_touched() {
    let hands = [
        VfPlace::Foreign("process 7 (dpdk-testpmd) holds /dev/vfio/12".into()),
        VfPlace::Unknown("libvirt cannot be asked".into()),
    ];
    for place in hands {
        for known in [true, false] {
            let (mut host, _) = host(Join::Failover);
            // VF 0 is held by a by the journal; VF 2 the journal does not know.
            let index = if known { 0 } else { 2 };
            host.found.guests.remove(&"a".into());
            host.found.vfs.get_mut(&vf(0)).expect("VF 0").place = VfPlace::Foreign("x".into());
            host.found.vfs.get_mut(&vf(index)).expect("a VF").place = place.clone();
            let mac = Mac([2, 0, 0, 0, 0, 1]);
            host.found.vfs.get_mut(&vf(index)).expect("a VF").mac = mac;
            let recovery = host.start().unwrap_or_else(|Killed| unreachable!());
            let touched = recovery.steps.iter().any(|step| format!("{step:?}").contains("Vf"));
            assert!(!touched, "{place:?} {known}: {:?}", recovery.steps);
            assert_eq!(host.found.vfs[&vf(index)].mac, mac);
            let stays = known && matches!(place, VfPlace::Unknown(_));
            assert_eq!(recovery.holders.contains_key(&vf(index)), stays, "{place:?} {known}");
        }
    }
}

#[test]
fn a_mark_outlives_a_restart_and_goes_when_the_guest_has_released_its_vf() {
    let (mut host, _) = host(Join::Failover);
    let checkpoint = Entry::Checkpoint {
        format: journal::FORMAT,
        holders: [(vf(0), "a".into())].into(),
        marked: [("a".into(), "did not release it".into())].into(),
        quarantined: [].into(),
    };
    host.journal = journal::line(&checkpoint);
    let recovery = host.start().unwrap_or_else(|Killed| unreachable!());
    assert!(recovery.marked.contains_key(&GuestId::from("a")), "it still has the VF");
    assert_eq!(recovery.holders.get(&vf(0)), Some(&"a".into()));
    // It releases the VF late: its address is still on it.
    host.found.vfs.get_mut(&vf(0)).expect("VF 0").place = VfPlace::Pool;
    let a = host.found.guests.get_mut(&GuestId::from("a")).expect("a");
    (a.vf_up, a.active) = (false, Path::Paravirtual);
    assert!(!host.found.reachable(&"a".into()), "a black hole");
    let recovery = host.start().unwrap_or_else(|Killed| unreachable!());
    assert!(recovery.marked.is_empty() && recovery.holders.is_empty());
    assert!(host.found.faults().is_empty(), "{:?}", host.found.faults());
}

#[test]
fn a_recovery_of_one_vf_leaves_all_others_as_they_are() {
    let (mut host, _) = host(Join::Bond);
    host.found.vfs.get_mut(&vf(1)).expect("VF 1").mac = Mac([2, 0, 0, 0, 0, 1]);
    host.found.vfs.get_mut(&vf(2)).expect("VF 2").mac = Mac([2, 0, 0, 0, 0, 2]);
    let ledger = Ledger::replay(&journal::read(host.journal.as_bytes()).entries);
    let only = BTreeSet::from([vf(2)]);
    let mut parts = recover(&ledger, &host.found, Some((&only, &BTreeSet::new())));
    assert_eq!(parts.len(), 1);
    let recovery = parts.remove(0);
    assert!(recovery.steps.iter().all(|step| format!("{step}").contains("pf0/2")));
    assert!(!recovery.steps.is_empty());
    let mut after = ledger.clone();
    after.apply(&recovery.settled(9));
    assert_eq!(after, Ledger { next_operation: after.next_operation, ..ledger });
}
