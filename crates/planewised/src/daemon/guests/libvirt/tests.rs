//! The machines of a made-up libvirt, moved by the code that moves real ones: killed at every step,
//! refused, lied to, and left alone by libvirtd.

mod daemon;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pw_alloc::evidence::User;
use pw_alloc::execute::Action;
use pw_alloc::journal::{Ending, Entry, Ledger};
use pw_alloc::model::{GuestId, Mac, Origin};
use pw_alloc::plan::{Direction, Move};
use pw_alloc::recover::recover;
use pw_alloc::signal::{Reading, Sample};
use pw_alloc::step::Step;
use pw_alloc::world::VfPlace;

use super::api::Libvirt;
use super::simulated::{Manner, Simulated, mac, machine, uuid, vf};
use super::{Guests, Machines, watch};
use crate::daemon::guests::Network;
use daemon::*;

#[test]
fn a_vf_is_given_and_taken() {
    let simulated = Simulated::with(2, 1);
    let mut daemon = Daemon::on(&simulated);
    let names: Vec<String> = daemon.managed().iter().map(|one| one.id.to_string()).collect();
    assert_eq!(names, ["m0", "m1"]);
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    assert_eq!(holder(&simulated, 0).as_deref(), Some("m0"));
    assert_eq!(simulated.world().vfs[&vf(0)].mac, mac(0));
    assert!(simulated.world().directed.contains_key(&mac(0)));
    assert_eq!(simulated.world().tags.get(&vf(0)), Some(&42));
    assert!(daemon.find().faults().is_empty(), "{:?}", daemon.find().faults());
    assert_eq!(daemon.take(0, 0), Ending::Completed);
    assert_eq!(daemon.give(1, 0), Ending::Completed);
    assert_eq!(holder(&simulated, 0).as_deref(), Some("m1"));
    assert_eq!(simulated.world().vfs[&vf(0)].mac, mac(1));
    assert!(!simulated.world().directed.contains_key(&mac(0)));
    assert!(daemon.find().faults().is_empty());
}

#[test]
fn a_machine_is_reached_by_its_tap_until_it_drives_its_vf_and_from_the_request_to_release_it_on() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    assert!(!simulated.world().taken_in.contains(&mac(0)), "the VF has them alone");
    assert_eq!(daemon.take(0, 0), Ending::Completed);
    assert_eq!(simulated.world().cut_off, 0);
    // One that keeps its VF is reached by it alone.
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    simulated.change(0, |machine| machine.manner = Manner::Silent);
    daemon.patience = BRIEFLY;
    assert!(matches!(daemon.take(0, 0), Ending::Stuck { .. }));
    let world = simulated.world();
    assert!(world.directed.contains_key(&mac(0)) && !world.taken_in.contains(&mac(0)));
    assert_eq!(world.cut_off, 0);
}

#[test]
fn a_machine_whose_guest_makes_the_bond_itself_is_given_a_vf_without_a_pair() {
    let simulated = Simulated::with(2, 1);
    simulated.change(0, |machine| machine.joins_itself = true);
    let mut daemon = Daemon::on(&simulated);
    for n in [0, 1, 0] {
        assert_eq!(daemon.give(n, 0), Ending::Completed);
        assert_eq!(holder(&simulated, 0), Some(format!("m{n}")));
        assert_eq!(simulated.world().vfs[&vf(0)].mac, mac(n));
        assert!(daemon.find().faults().is_empty(), "{:?}", daemon.find().faults());
        assert_eq!(daemon.take(n, 0), Ending::Completed);
        assert_eq!(holder(&simulated, 0), None);
        assert!(daemon.find().faults().is_empty(), "{:?}", daemon.find().faults());
    }
}

/// What may happen while the daemon is dead.
const MEANWHILE: [fn(&Simulated); 6] = [
    |_| (),
    |simulated| simulated.destroy(0),
    |simulated| simulated.destroy(1),
    |simulated| simulated.change(1, |machine| machine.drives_after = Some(1_000_000)),
    |simulated| simulated.restart_libvirtd(Some(3)),
    |simulated| simulated.change(0, |machine| machine.marked = false),
];

#[test]
fn a_kill_at_any_step_or_call_leaves_nothing_that_a_restart_does_not_put_right() {
    let mut kills = 0;
    for (number, meanwhile) in MEANWHILE.iter().enumerate() {
        // Killed before a line of the journal, or at a call of libvirt's.
        for at_call in [false, true] {
            for moment in 0.. {
                let simulated = Simulated::with(3, 2);
                let mut daemon = Daemon::on(&simulated);
                drop(daemon.managed());
                let mut lines = Vec::new();
                assert_eq!(
                    daemon.make(change(Direction::Give, 0, 0), &mut lines),
                    Ending::Completed
                );
                let plan = [
                    change(Direction::Take, 0, 0),
                    change(Direction::Give, 1, 0),
                    change(Direction::Give, 2, 1),
                ];
                let finished = killed_at(&mut daemon, &plan, &mut lines, moment, at_call);
                drop(daemon);
                simulated.world().calls_left = None;
                meanwhile(&simulated);
                kills += 1;
                let case = format!("meanwhile {number}, moment {moment}, at a call: {at_call}");
                check(&simulated, &lines, &case);
                if finished {
                    break;
                }
            }
        }
    }
    assert!(kills > 300, "{kills}");
}

/// Performs a plan until the daemon is killed; whether it came to its end.
fn killed_at(
    daemon: &mut Daemon,
    plan: &[Move],
    lines: &mut Vec<Entry>,
    moment: u32,
    at_call: bool,
) -> bool {
    let mut left = moment;
    if at_call {
        daemon.simulated.world().calls_left = Some(moment);
    }
    plan.iter().all(|change| {
        let ending = daemon.make_until(change.clone(), lines, |simulated, action| match action {
            _ if at_call => simulated.world().calls_left == Some(0),
            Action::Write(_) if left == 0 => true,
            Action::Write(_) => {
                left -= 1;
                false
            }
            _ => false,
        });
        assert!(ending.is_none() || ending == Some(Ending::Completed));
        ending.is_some()
    })
}

fn check(simulated: &Simulated, lines: &[Entry], case: &str) {
    let mut daemon = Daemon::on(simulated);
    // libvirtd may still be on its way.
    let deadline = Instant::now() + Duration::from_secs(60);
    while simulated.clone().connect().is_err() {
        assert!(Instant::now() < deadline, "{case}");
    }
    let mut ledger = Ledger::replay(lines);
    let recovered = daemon.recover(&mut ledger);
    let found = daemon.find();
    assert_eq!(found.faults(), Vec::<String>::new(), "{case}\n{recovered:#?}");
    assert_eq!(found.vfs.len(), 2, "{case}");
    let world = simulated.world();
    assert_eq!(world.given_twice, 0, "{case}");
    let macs: Vec<Mac> =
        world.vfs.values().map(|vf| vf.mac).filter(|mac| *mac != Mac::NONE).collect();
    assert_eq!(macs.len(), macs.iter().collect::<BTreeSet<_>>().len(), "{case}");
    for (id, vf) in &found.vfs {
        match &vf.place {
            VfPlace::Guest(guest) => assert_eq!(ledger.holders.get(id), Some(guest), "{case}"),
            place => {
                assert_eq!(*place, VfPlace::Pool, "{case}");
                assert_eq!(vf.mac, Mac::NONE, "{case}");
                assert!(!ledger.holders.contains_key(id), "{case}");
            }
        }
    }
    drop(world);
    let again = recover(&ledger, &daemon.find(), None);
    assert!(again.iter().all(|part| part.steps.is_empty()), "{case}: still to do {again:?}");
}

#[test]
fn a_guest_that_never_releases_its_vf_keeps_it_and_is_marked() {
    for manner in [Manner::Silent, Manner::Refuses] {
        let simulated = Simulated::with(2, 1);
        let mut daemon = Daemon::on(&simulated);
        drop(daemon.managed());
        assert_eq!(daemon.give(0, 0), Ending::Completed);
        simulated.change(0, |machine| machine.manner = manner);
        daemon.patience = BRIEFLY;
        let mut lines = Vec::new();
        let ending = daemon.make(change(Direction::Take, 0, 0), &mut lines);
        let Ending::Stuck { why } = ending else { panic!("{ending:?}") };
        assert!(why.contains("m0 has not released it in time"), "{why}");
        let ledger = Ledger::replay(&lines);
        assert_eq!(ledger.holders, [(vf(0), "m0".into())].into());
        assert!(ledger.marked.contains_key(&"m0".into()));
        // Nobody else gets it, though it be tried.
        let ending = daemon.give(1, 0);
        assert!(matches!(ending, Ending::Undone { .. }), "{ending:?}");
        assert_eq!(holder(&simulated, 0).as_deref(), Some("m0"));
    }
}

#[test]
fn a_guest_that_releases_late_is_waited_for() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    simulated.change(0, |machine| machine.manner = Manner::Releases(3));
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    assert_eq!(daemon.take(0, 0), Ending::Completed);
    assert_eq!(holder(&simulated, 0), None);
}

#[test]
fn a_guest_that_releases_its_vf_after_it_was_given_up_is_reached_by_its_tap() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    simulated.change(0, |machine| machine.manner = Manner::Silent);
    daemon.patience = BRIEFLY;
    let mut lines = Vec::new();
    assert!(matches!(daemon.make(change(Direction::Take, 0, 0), &mut lines), Ending::Stuck { .. }));
    assert!(simulated.world().directed.contains_key(&mac(0)));
    simulated.change(0, |machine| machine.manner = Manner::Releases(0));
    drop(daemon.find());
    assert_eq!(holder(&simulated, 0), None, "it has let go by itself");
    drop(daemon.recover(&mut Ledger::replay(&lines)));
    assert!(!simulated.world().directed.contains_key(&mac(0)), "its frames go to a VF at home");
}

#[test]
fn a_request_that_is_under_way_already_is_waited_for() {
    // The daemon asked, was killed, and the guest still takes its time.
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    simulated.change(0, |machine| machine.manner = Manner::Silent);
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    daemon.patience = BRIEFLY;
    assert!(matches!(daemon.take(0, 0), Ending::Stuck { .. }));
    let mut daemon = Daemon::on(&simulated);
    daemon.patience = BRIEFLY;
    drop(daemon.managed());
    assert!(matches!(daemon.take(0, 0), Ending::Stuck { .. }));
    assert!(simulated.world().asked_again >= 1);
    simulated.change(0, |machine| machine.manner = Manner::Releases(0));
    daemon.patience = PATIENCE;
    assert_eq!(daemon.take(0, 0), Ending::Completed);
    assert_eq!(holder(&simulated, 0), None);
}

#[test]
fn a_guest_without_a_driver_for_the_vf_gives_it_back() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    simulated.change(0, |machine| machine.drives_after = None);
    daemon.patience = BRIEFLY;
    let ending = daemon.give(0, 0);
    let Ending::Undone { why } = ending else { panic!("{ending:?}") };
    assert!(why.contains("its kernel may lack the VF's driver"), "{why}");
    assert_eq!(holder(&simulated, 0), None);
    assert_eq!(simulated.world().vfs[&vf(0)].mac, Mac::NONE);
    assert!(daemon.find().faults().is_empty());
}

#[test]
fn a_device_that_leaves_the_guest_again_is_not_waited_for() {
    // A guest that works off a request to release what was in that slot before.
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    simulated.change(0, |machine| {
        (machine.drives_after, machine.ejects_after) = (None, Some(2));
    });
    let begun = Instant::now();
    let ending = daemon.give(0, 0);
    let Ending::Undone { why } = ending else { panic!("{ending:?}") };
    assert!(why.contains("m0 released it before bringing it up"), "{why}");
    assert!(begun.elapsed() < PATIENCE / 10);
    assert_eq!(simulated.world().vfs[&vf(0)].mac, Mac::NONE);
    assert!(daemon.find().faults().is_empty());
    simulated.change(0, |machine| {
        (machine.drives_after, machine.ejects_after) = (Some(1), None);
    });
    assert_eq!(daemon.give(0, 0), Ending::Completed);
}

#[test]
fn a_guest_that_has_just_released_a_device_is_given_the_next_one_later() {
    let simulated = Simulated::with(2, 2);
    let mut daemon = Daemon::on(&simulated);
    daemon.machines.settles = Duration::from_millis(300);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    assert_eq!(daemon.take(0, 0), Ending::Completed);
    let released = Instant::now();
    // Only the machine that released one waits.
    assert_eq!(daemon.give(1, 1), Ending::Completed);
    daemon.patience = Duration::from_millis(50);
    let ending = daemon.give(0, 0);
    let Ending::Undone { why } = ending else { panic!("{ending:?}") };
    assert!(why.contains("m0 has just released a device"), "{why}");
    daemon.patience = PATIENCE;
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    assert!(released.elapsed() >= Duration::from_millis(250));
}

#[test]
fn a_guest_that_says_nothing_is_not_asked_again_soon() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    simulated.change(0, |machine| machine.manner = Manner::Silent);
    // Longer than it is waited for after a refusal.
    daemon.patience = super::executor::ASK_AGAIN + Duration::from_secs(1);
    assert!(matches!(daemon.take(0, 0), Ending::Stuck { .. }));
    assert_eq!(simulated.world().asked_again, 0);
}

#[test]
fn a_machine_that_ends_with_a_vf_gives_it_back() {
    let simulated = Simulated::with(2, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    let mut executor = daemon.executor(&"m0".into()).expect("it runs");
    simulated.destroy(0);
    let names: Vec<String> = daemon.managed().iter().map(|one| one.id.to_string()).collect();
    assert_eq!(names, ["m1"]);
    // Also in the middle of taking it: there is nobody to ask.
    let pool = daemon.pool();
    let step = Step::Detach { guest: "m0".into(), vf: vf(0) };
    let deadline = Instant::now() + PATIENCE;
    assert_eq!(executor.perform(&step, &pool, deadline), Ok(()));
    assert_eq!(pool.vfs[&vf(0)].user, User::Nobody);
}

#[test]
fn a_libvirtd_that_is_restarted_in_a_move_does_not_end_it() {
    for calls in 0..4 {
        let simulated = Simulated::with(1, 1);
        let mut daemon = Daemon::on(&simulated);
        drop(daemon.managed());
        let mut executor = daemon.executor(&"m0".into()).expect("it runs");
        simulated.restart_libvirtd(Some(calls));
        let step = Step::Attach { guest: "m0".into(), vf: vf(0) };
        let pool = daemon.pool();
        let deadline = Instant::now() + Duration::from_secs(60);
        let done = executor.perform(&step, &pool, deadline);
        assert_eq!(done, Ok(()), "{calls}");
        assert_eq!(holder(&simulated, 0).as_deref(), Some("m0"));
    }
}

#[test]
fn while_libvirt_is_away_the_guests_stay_and_afterwards_all_is_read_anew() {
    let simulated = Simulated::with(2, 1);
    let mut daemon = Daemon::on(&simulated);
    assert_eq!(daemon.managed().len(), 2);
    simulated.restart_libvirtd(None);
    daemon.watch();
    let pool = daemon.pool();
    let error = daemon.machines.discover(&pool).expect_err("it is away");
    assert!(error.what.contains("libvirt cannot be asked") && !error.remedy.is_empty());
    assert_eq!(found(&mut daemon.machines, &pool).gaps.len(), 1);
    assert!(daemon.machines.gap().is_some());
    assert_eq!(daemon.samples().len(), 2);
    // A machine ended meanwhile, and nobody told.
    simulated.world().machines.remove(&uuid(0));
    simulated.world().there = true;
    assert_eq!(daemon.managed().len(), 1);
}

#[test]
fn a_daemon_that_starts_while_libvirt_is_away_touches_no_vf_in_a_machines_hands() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    simulated.restart_libvirtd(None);
    let mut daemon = Daemon::on(&simulated);
    daemon.watch();
    let pool = daemon.pool();
    let found = found(&mut daemon.machines, &pool);
    assert!(found.guests.is_empty() && found.gaps.len() == 1, "{found:?}");
    simulated.world().there = true;
    let mut ledger = Ledger::default();
    drop(daemon.recover(&mut ledger));
    assert_eq!(ledger.holders.len(), 1);
}

#[test]
fn the_first_look_knows_all_machines_and_later_ones_are_told_by_the_watcher() {
    let simulated = Simulated::with(3, 1);
    let board = watch::start(simulated.another()).expect("a thread");
    let host = Box::new(simulated.clone());
    let mut machines = Machines::with(simulated.another(), board, Arc::default(), host);
    let pool = simulated.clone().read().expect("a made-up pool");
    let deadline = Instant::now() + PATIENCE;
    while machines.is_pending() {
        assert!(Instant::now() < deadline && machines.gap().is_some());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(machines.discover(&pool).expect("it is there").len(), 3);
    simulated.destroy(1);
    while machines.discover(&pool).expect("it is there").len() != 2 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_host_without_libvirt_has_no_machines_and_no_errors() {
    let simulated = Simulated::with(0, 1);
    simulated.restart_libvirtd(None);
    simulated.world().installed = false;
    let mut daemon = Daemon::on(&simulated);
    assert!(daemon.managed().is_empty());
    let pool = daemon.pool();
    assert_eq!(daemon.machines.discover(&pool).ok(), Some(Vec::new()));
    assert!(found(&mut daemon.machines, &pool).guests.is_empty());
    assert!(daemon.samples().is_empty());
}

#[test]
fn a_guests_word_is_marked_as_such_and_asked_only_where_the_host_is_blind() {
    let simulated = Simulated::with(2, 1);
    for n in 0..2 {
        simulated.change(n, |machine| (machine.word, machine.tap_packets) = (Some(1 << 60), 7));
    }
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    daemon.ask_agents();
    let origins = |samples: &[(GuestId, Sample)]| {
        samples
            .iter()
            .map(|(id, sample)| {
                (id.to_string(), sample.origin, sample.reading == Reading::Unsupported)
            })
            .collect::<Vec<_>>()
    };
    let host = |name: &str, blind| (name.to_owned(), Origin::HostSide, blind);
    assert_eq!(origins(&daemon.samples()), [host("m0", false), host("m1", false)]);
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    drop(daemon.managed());
    daemon.ask_agents();
    let word = ("m0".to_owned(), Origin::GuestReported, false);
    assert_eq!(origins(&daemon.samples()), [host("m0", true), word, host("m1", false)]);
    // The host's own reading, where a PF counts.
    let counted = Reading::Counted(pw_alloc::signal::Counters::default());
    simulated.world().vfs.get_mut(&vf(0)).expect("a VF").counters = counted;
    let samples = daemon.samples();
    assert_eq!(samples[0].1.reading, counted);
    assert_ne!(samples[0].1.source, samples[2].1.source);
}

#[test]
fn a_pulled_cable_is_seen_and_taken_vfs_stay() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    assert!(daemon.managed()[0].paravirtual_up);
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    simulated.change(0, |machine| machine.tap_works = false);
    assert!(!daemon.managed()[0].paravirtual_up);
    let ending = daemon.take(0, 0);
    assert!(matches!(ending, Ending::Undone { .. }), "{ending:?}");
    assert_eq!(holder(&simulated, 0).as_deref(), Some("m0"));
}

#[test]
fn a_machine_whose_mark_is_taken_away_leaves_only_without_its_vf() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    drop(daemon.managed());
    simulated.change(0, |machine| machine.marked = false);
    let managed = daemon.managed();
    assert_eq!((managed.len(), managed[0].leaving), (1, true));
    assert_eq!(daemon.take(0, 0), Ending::Completed);
    assert!(daemon.managed().is_empty());
}

#[test]
fn a_vf_that_somebody_else_plugged_in_is_left_alone() {
    let simulated = Simulated::with(2, 1);
    let mut daemon = Daemon::on(&simulated);
    drop(daemon.managed());
    assert_eq!(daemon.give(0, 0), Ending::Completed);
    simulated.change(0, |machine| machine.marked = false);
    // Another daemon, which has never seen it, knows its own device by its alias, and takes it back.
    let mut other = Daemon::on(&simulated);
    assert!(other.managed().iter().all(|one| one.leaving || one.id.as_str() == "m1"));
    // What somebody else plugged in is in other hands, whatever the journal says.
    simulated.change(0, |machine| machine.vfs[0].alias = "hostdev0".into());
    let mut daemon = Daemon::on(&simulated);
    let mut ledger = Ledger::default();
    let recovered = daemon.recover(&mut ledger);
    assert!(recovered.iter().all(|part| part.steps.is_empty()), "{recovered:?}");
    assert!(ledger.marked.is_empty() && ledger.holders.is_empty(), "{ledger:?}");
    assert_eq!(daemon.managed().len(), 1);
}

#[test]
fn a_machine_that_is_started_anew_is_another_run_of_the_same_guest() {
    let simulated = Simulated::with(1, 1);
    let mut daemon = Daemon::on(&simulated);
    let first = daemon.managed()[0].clone();
    simulated.change(0, |machine| machine.starts += 1);
    let second = daemon.managed()[0].clone();
    assert_eq!((&first.id, first.mac), (&second.id, second.mac));
    assert_ne!(first.incarnation, second.incarnation);
}

#[test]
fn ten_thousand_machines_at_once_are_managed() {
    let simulated = Simulated::with(0, 8);
    let mut daemon = Daemon::on(&simulated);
    assert!(daemon.managed().is_empty());
    {
        let mut world = simulated.world();
        for n in 0..10_000 {
            world.machines.insert(uuid(n), machine(n));
        }
    }
    for n in 0..10_000 {
        simulated.change(n, |_| ());
    }
    assert_eq!(daemon.managed().len(), 10_000);
    assert_eq!(daemon.samples().len(), 10_000);
    simulated.destroy(4_321);
    assert_eq!(daemon.managed().len(), 9_999);
}

#[test]
fn nothing_is_decided_of_a_machine_until_its_tap_was_read_and_a_label_cannot_leave_its_bridge() {
    let simulated = Simulated::with(1, 1);
    simulated.change(0, |machine| machine.tap_seen = false);
    let mut daemon = Daemon::on(&simulated);
    assert_eq!(daemon.managed()[0].network, Network::Unread);
    assert!(!daemon.managed()[0].paravirtual_up);
    simulated.change(0, |machine| machine.tap_seen = true);
    assert_eq!(daemon.managed()[0].network, Network::Pfs(["pf0".into()].into()));
    // Open vSwitch, macvtap and routed taps are on no bridge.
    for bridge in [None, Some("br9".to_owned())] {
        simulated.change(0, |machine| machine.bridge = bridge.clone());
        assert_eq!(daemon.managed()[0].network, Network::Pfs(BTreeSet::new()), "{bridge:?}");
    }
}

#[test]
fn a_vf_in_the_configuration_of_a_machine_that_does_not_run_is_reserved_for_it() {
    let simulated = Simulated::with(2, 2);
    simulated.change(1, |machine| (machine.runs, machine.configured) = (false, Some(1)));
    let mut daemon = Daemon::on(&simulated);
    let pool = daemon.pool();
    drop(daemon.managed());
    let reserved = daemon.machines.reserved(&pool);
    let why = "the machine m1 has it in its configuration".to_owned();
    assert_eq!(reserved, [(vf(1), why)].into());
    simulated.change(1, |machine| machine.configured = None);
    drop(daemon.managed());
    assert!(daemon.machines.reserved(&pool).is_empty());
}
