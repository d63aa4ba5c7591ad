//! The daemon's core on a made-up host: real observing, deciding, performing and journalling, with
//! guests that lie, flap, die and fall silent. Time is given by the tests.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod faults;
mod hanging;
mod recorded;

use std::path::Path;
use std::time::Instant;

use planewised::daemon::config::{self, Config, Simulated};
use planewised::daemon::core::{Core, Host};
use planewised::daemon::journal::Journal;
use planewised::daemon::request::{
    Answer, Caller, Envelope, Fault, HttpEnds, Refused, Request, ends,
};
use planewised::daemon::simulated::World;
use planewised::daemon::status::{Status, VfState};
use pw_alloc::model::{GuestId, Stance, VfId};
use pw_alloc::settings::PolicyKind;
use pw_alloc::traffic::Traffic;
use pw_alloc::world;
use tokio::sync::oneshot;

struct Daemon {
    core: Core,
    world: World,
    now_ms: u64,
    http: HttpEnds,
    directory: tempfile::TempDir,
}

const SETTINGS: &str = "
    [alloc]
    policy = 'activity'
    interval_s = 5.0
    min_residency_s = 0.0
    signal = { smoothing = { window = 3.0 } }
";

fn daemon(settings: &str, vfs: u16, guests: &[(&str, f64)]) -> Daemon {
    let traffic = guests.iter().map(|(name, pps)| ((*name).to_owned(), Traffic::Constant(*pps)));
    let world = World::new(&Simulated { vfs, guests: traffic.collect(), pods: None });
    start(settings, world, tempfile::tempdir().expect("a directory"), 0)
}

fn start(settings: &str, world: World, directory: tempfile::TempDir, now_ms: u64) -> Daemon {
    let (journal, _) = Journal::open(directory.path()).expect("a journal");
    let (core, http) = core_on(settings, world.host(), journal, directory.path());
    Daemon { core, world, now_ms, http, directory }
}

/// A core that keeps its state in `directory`, and the ends for a server.
fn core_on(settings: &str, host: Host, journal: Journal, directory: &Path) -> (Core, HttpEnds) {
    let mut config: Config = config::parse(settings, "test").expect("valid");
    config.state_directory = directory.to_owned();
    let (core_ends, http) = ends(Status::new(PolicyKind::Activity, 1.0, 1.0));
    let core = Core::new(config, host, journal, core_ends, false, Box::new(|| false));
    (core.expect("starts"), http)
}

impl Daemon {
    /// Lets so many seconds pass.
    fn pass(&mut self, seconds: u64) {
        let end = self.now_ms + seconds * 1000;
        while self.now_ms < end {
            self.now_ms += 100;
            if self.core.next_ms() <= self.now_ms {
                self.core.tick(self.now_ms);
                self.check();
            }
        }
    }

    /// What must be so at every moment: no VF twice, none lost, status and world agree.
    fn check(&self) {
        if !self.core.is_settled() {
            return;
        }
        let found = self.world.state();
        let status = self.core.status();
        for guest in &status.guests {
            let attached: Vec<_> = found.attached(&guest.id).cloned().collect();
            assert!(attached.len() <= 1, "{} holds {attached:?}", guest.id);
            // A VF on its way into a guest that fell silent counts as that guest's.
            if guest.marked.is_none() {
                assert_eq!(guest.vf, attached.first().cloned(), "{}", guest.id);
            }
        }
        let held = status.vfs.iter().filter(|vf| vf.place == VfState::Held).count();
        assert_eq!(held, status.guests.iter().filter(|guest| guest.vf.is_some()).count());
    }

    /// Ends, and starts anew in a world that has changed meanwhile.
    fn restarted(self, change: impl FnOnce(&World)) -> Self {
        let Self { core, world, directory, .. } = self;
        drop(core);
        change(&world);
        start(SETTINGS, world, directory, 0)
    }

    fn holders(&self) -> Vec<&str> {
        let guests = self.core.status().guests.iter();
        guests.filter(|guest| guest.vf.is_some()).map(|guest| guest.id.as_str()).collect()
    }

    fn ask(&mut self, request: Request) -> Result<Answer, Refused> {
        let (reply, mut answer) = oneshot::channel();
        let caller = Caller::Local { uid: 0, pid: None };
        self.core.handle(Envelope { request, caller, reply }, self.now_ms);
        answer.try_recv().expect("answered")
    }

    fn moves(&self) -> u64 {
        self.core.status().counters.given.completed
    }
}

fn id(name: &str) -> GuestId {
    name.into()
}

#[test]
fn the_busiest_hold_and_a_vf_follows_when_traffic_shifts() {
    let mut daemon = daemon(SETTINGS, 2, &[("a", 500.0), ("b", 900.0), ("c", 10.0), ("d", 0.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a", "b"]);
    daemon.world.send("a", Traffic::Constant(1.0));
    daemon.world.send("d", Traffic::Constant(700.0));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["b", "d"]);
    assert!(daemon.world.state().faults().is_empty(), "{:?}", daemon.world.state().faults());
    let last = daemon.core.status().moves.back().expect("moves").clone();
    assert_eq!((last.guest.as_str(), last.ending.map(|end| end.why)), ("d", Some(None)));
    assert!(last.duration_ms.is_some() && last.steps.len() >= 6 && !last.why.is_empty());
    let published = daemon.http.status.borrow().clone();
    assert_eq!(*published, *daemon.core.status());
}

#[test]
fn pfs_take_the_addresses_of_those_without_a_vf_also_of_who_never_had_one() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 900.0), ("c", 0.0)]);
    daemon.core.tick(0);
    // Until all is known somebody may have a VF, by which its frames must not come twice.
    assert_eq!(daemon.world.addresses(), [vec![], vec![id("a"), id("b"), id("c")]]);
    daemon.pass(20);
    assert_eq!(daemon.world.addresses(), [vec![id("a"), id("c")], vec![id("b")]]);
    daemon.world.send("b", Traffic::Constant(1.0));
    daemon.pass(20);
    assert_eq!(daemon.world.addresses(), [vec![id("b"), id("c")], vec![id("a")]]);
    let mut daemon = daemon.restarted(|_| ());
    daemon.core.tick(0);
    assert_eq!(daemon.world.addresses()[0], Vec::<GuestId>::new());
}

#[test]
fn a_restart_finds_what_was_left() {
    let mut first = daemon(SETTINGS, 2, &[("a", 500.0), ("b", 900.0), ("c", 10.0)]);
    first.pass(20);
    let moves = first.moves();
    let Daemon { core, world, directory, now_ms, .. } = first;
    assert!(core.final_state().contains("a on simulated0/"), "{}", core.final_state());
    drop(core);
    let mut second = start(SETTINGS, world, directory, 0);
    second.pass(20);
    assert_eq!(second.holders(), ["a", "b"]);
    assert_eq!((second.moves(), moves), (0, 2), "nothing moves because of a restart at {now_ms}");
}

#[test]
fn a_guest_that_does_not_answer_keeps_its_vf_until_it_is_well_again() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    daemon.world.guest("a", |guest| guest.answers = false);
    daemon.world.send("b", Traffic::Constant(5000.0));
    daemon.pass(60);
    assert_eq!(daemon.holders(), ["a"], "nobody else gets it");
    let a = daemon.core.status().guests[0].clone();
    assert!(a.marked.is_some_and(|why| why.contains("does not answer")), "{}", a.why);
    assert!(daemon.core.status().errors.iter().any(|error| error.guest == Some(id("a"))));
    let not_marked = daemon.ask(Request::Unmark { guest: id("b") }).expect_err("is well");
    assert_eq!(not_marked.fault, Fault::Conflict);
    daemon.world.guest("a", |guest| guest.answers = true);
    daemon.ask(Request::Unmark { guest: id("a") }).expect("done");
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["b"]);
}

#[test]
fn a_guest_that_dies_with_a_vf_in_its_hands_loses_nobody_a_vf() {
    for strands in [false, true] {
        let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
        daemon.pass(20);
        assert_eq!(daemon.holders(), ["a"]);
        daemon.world.destroy("a", strands);
        daemon.pass(20);
        assert_eq!(daemon.holders(), ["b"]);
        assert!(daemon.world.state().faults().is_empty(), "{:?}", daemon.world.state().faults());
    }
}

#[test]
fn a_vf_that_is_nowhere_while_its_guest_dies_is_found_when_it_has_come_home() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    daemon.world.destroy("a", true);
    daemon.world.with(|host| host.unseen = 3);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["b"]);
}

#[test]
fn a_pf_without_link_loses_all_its_holders_at_once_and_gets_them_back() {
    let guests: Vec<(String, f64)> = (0..20).map(|at| (format!("g{at}"), 100.0)).collect();
    let guests: Vec<(&str, f64)> = guests.iter().map(|(name, pps)| (&**name, *pps)).collect();
    let settings = &SETTINGS.replace("interval_s = 5.0", "interval_s = 3600.0\nmax_moves = 32");
    let mut daemon = daemon(settings, 16, &guests);
    daemon.pass(10);
    daemon.ask(Request::Rebalance).expect("begun");
    daemon.pass(2);
    assert_eq!(daemon.holders().len(), 16);
    daemon.world.with(|host| host.link_down = true);
    // The next decision is an hour away; this does not wait for it.
    daemon.pass(2);
    assert_eq!(daemon.holders(), Vec::<&str>::new());
    assert!(!daemon.core.status().pools[0].link_up);
    daemon.world.with(|host| host.link_down = false);
    daemon.pass(2);
    assert!(daemon.core.status().pools[0].link_up);
}

#[test]
fn guests_that_flap_at_the_cut_move_no_more_than_the_bound() {
    let mut daemon = daemon(
        "[alloc]
        policy = 'activity'
        interval_s = 5.0
        min_residency_s = 0.0
        max_moves = 2
        signal = { smoothing = { window = 1.0 } }",
        4,
        &[],
    );
    for at in 0..12 {
        let (low_pps, high_pps) = if at % 2 == 0 { (10.0, 1000.0) } else { (1000.0, 10.0) };
        daemon.world.add(&format!("g{at:02}"), Traffic::Flap { low_pps, high_pps, period_s: 7.0 });
    }
    daemon.pass(20);
    for _ in 0..40 {
        let before = daemon.moves();
        daemon.pass(5);
        // A window of one interval touches at most two decisions.
        assert!(daemon.moves() - before <= 4, "{} moves", daemon.moves() - before);
    }
    let total = daemon.moves();
    assert!((40..=84).contains(&total), "it flaps, and is bounded: {total}");
}

#[test]
fn who_only_says_that_it_is_busy_takes_no_vf_from_who_is_seen_to_be() {
    let mut daemon = daemon(SETTINGS, 1, &[("honest", 100.0), ("liar", 0.0)]);
    daemon
        .world
        .with(|host| host.traffic.get_mut(&id("liar")).expect("it sends").claims_pps = Some(1e7));
    daemon.pass(60);
    assert_eq!(daemon.holders(), ["honest"]);
    let liar = daemon.core.status().guests[1].clone();
    assert!(liar.rate.pps.is_some_and(|pps| pps > 1e6), "{:?}", liar.rate);
}

#[test]
fn a_step_of_the_clock_makes_no_traffic_and_moves_nobody() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 400.0)]);
    daemon.pass(20);
    let moves = daemon.moves();
    // Ten hours asleep; the guests slept, too.
    daemon.world.send("a", Traffic::Constant(0.0));
    daemon.world.send("b", Traffic::Constant(0.0));
    daemon.now_ms += 36_000_000;
    daemon.pass(1);
    daemon.world.send("a", Traffic::Constant(500.0));
    daemon.world.send("b", Traffic::Constant(400.0));
    daemon.pass(30);
    assert_eq!((daemon.holders(), daemon.moves()), (vec!["a"], moves));
    for guest in &daemon.core.status().guests {
        assert!(guest.rate.pps.is_some_and(|pps| pps < 600.0), "{:?}", guest.rate);
    }
}

#[test]
fn ten_thousand_guests_at_once_are_taken_in_and_the_busiest_are_served() {
    let settings = SETTINGS.replace("interval_s = 5.0", "interval_s = 5.0\nmax_moves = 63");
    let mut daemon = daemon(&settings, 63, &[("first", 1.0)]);
    daemon.pass(6);
    for at in 0..10_000 {
        daemon.world.add(&format!("g{at:05}"), Traffic::Constant(f64::from(at)));
    }
    let begun = Instant::now();
    daemon.pass(6);
    assert_eq!(daemon.core.status().guests.len(), 10_001);
    daemon.pass(20);
    println!("10001 guests, 26 s of their time: {:.1} s", begun.elapsed().as_secs_f64());
    let holders = daemon.holders();
    assert_eq!(holders.len(), 63);
    let busiest = holders.iter().filter(|name| **name >= "g09937").count();
    assert!(busiest >= 60, "{busiest} of the 63 busiest");
}

#[test]
fn what_the_operator_wishes_holds_at_once_and_over_a_restart() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    let planned = daemon.ask(Request::Plan).expect("a plan");
    assert!(matches!(planned, Answer::Plan(plan) if plan.moves.is_empty() && !plan.performed));
    daemon.ask(Request::Stance { guest: id("b"), stance: Stance::Pinned }).expect("done");
    daemon.pass(1);
    assert_eq!(daemon.holders(), ["b"]);
    let unknown = daemon
        .ask(Request::Stance { guest: id("nobody"), stance: Stance::Pinned })
        .expect_err("no such guest");
    assert_eq!(unknown.fault, Fault::NotFound);
    let mut daemon = daemon.restarted(|_| ());
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["b"]);
    daemon.ask(Request::Stance { guest: id("b"), stance: Stance::Free }).expect("done");
    daemon.pass(10);
    assert_eq!(daemon.holders(), ["a"]);
    daemon.ask(Request::Drain { on: true }).expect("done");
    daemon.pass(1);
    assert_eq!(daemon.holders(), Vec::<&str>::new());
    daemon.ask(Request::Drain { on: false }).expect("done");
    daemon.ask(Request::Policy { policy: PolicyKind::Static }).expect("done");
    daemon.pass(10);
    assert_eq!(daemon.holders().len(), 1);
    assert_eq!(daemon.core.status().policy, PolicyKind::Static);
}

#[test]
fn a_give_that_comes_to_nothing_is_tried_ever_more_seldom_and_said() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.world.with(|host| host.refusing.insert(id("a")));
    daemon.pass(600);
    // At intervals of 5 s that would have been 120 times.
    let undone = daemon.core.status().counters.given.undone;
    assert!((6..=9).contains(&undone), "{undone}");
    assert_eq!(daemon.holders(), ["b"]);
    let a = daemon.core.status().guests[0].clone();
    assert!(a.marked.is_none(), "it answers");
    assert!(a.why.starts_with("could not be given a VF "), "{}", a.why);
    // The operator says that it is well: it is tried at once.
    daemon.world.with(|host| host.refusing.remove(&id("a")));
    daemon.ask(Request::Rebalance).expect("done");
    daemon.pass(10);
    assert_eq!(daemon.holders(), ["a"]);
}

#[test]
fn a_request_whose_caller_has_gone_is_not_performed() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0)]);
    daemon.pass(20);
    let (reply, answer) = oneshot::channel();
    drop(answer);
    let caller = Caller::Local { uid: 0, pid: None };
    let request = Request::Stance { guest: id("a"), stance: Stance::Excluded };
    daemon.core.handle(Envelope { request, caller, reply }, daemon.now_ms);
    daemon.pass(10);
    assert_eq!(daemon.holders(), ["a"]);
    assert_eq!(daemon.core.status().counters.requests, 0);
}

fn vf(index: u16) -> VfId {
    VfId::new(planewised::daemon::simulated::PF, index)
}

fn faults(daemon: &Daemon) -> Vec<String> {
    daemon.world.state().faults()
}

#[test]
fn a_guest_that_was_started_anew_between_two_looks_is_no_holder_any_more() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    daemon.world.restart("a");
    daemon.pass(1);
    // Its VF is as new, or it has it again.
    assert!(faults(&daemon).is_empty(), "{:?}", faults(&daemon));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    assert!(faults(&daemon).is_empty(), "{:?}", faults(&daemon));
}

#[test]
fn a_vf_that_is_released_late_is_taken_back_with_its_address_within_a_sample() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    daemon.world.guest("a", |guest| guest.answers = false);
    daemon.world.send("b", Traffic::Constant(5000.0));
    daemon.pass(30);
    assert!(daemon.core.status().guests[0].marked.is_some());
    // After the time-out the guest lets go after all.
    daemon.world.guest("a", |guest| guest.answers = true);
    daemon.world.with(|host| host.host.release(&id("a")));
    daemon.pass(2);
    assert!(faults(&daemon).is_empty(), "{:?}", faults(&daemon));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["b"]);
    assert!(daemon.core.status().guests[0].marked.is_none(), "it answered by letting go");
}

#[test]
fn a_vf_that_the_host_uses_or_of_which_nothing_is_known_is_given_to_nobody() {
    for place in [
        world::VfPlace::Foreign("its interface eth3 is a port of br0".into()),
        world::VfPlace::Unknown("process 7 cannot be read".into()),
    ] {
        let mut daemon = daemon(SETTINGS, 2, &[("a", 500.0), ("b", 400.0)]);
        daemon.world.place(&vf(0), place.clone());
        daemon.pass(40);
        assert_eq!(daemon.holders(), ["a"], "{place:?}");
        assert_eq!(daemon.world.state().vfs[&vf(0)].place, place);
        assert_eq!(daemon.core.status().counters.given.undone, 0, "nothing was even tried");
        let told = daemon.core.status().vfs.iter().find(|seen| seen.id == vf(0)).cloned();
        assert!(told.and_then(|seen| seen.why).is_some_and(|why| why.contains(": ")));
        // Once it is free it is anybody's.
        daemon.world.place(&vf(0), world::VfPlace::Pool);
        daemon.pass(20);
        assert_eq!(daemon.holders(), ["a", "b"]);
    }
}

#[test]
fn guests_that_cannot_be_asked_about_keep_what_they_have_also_over_a_restart() {
    let mut first = daemon(SETTINGS, 2, &[("a", 500.0), ("b", 400.0)]);
    first.pass(20);
    assert_eq!(first.holders(), ["a", "b"]);
    let before = first.world.state();
    let mut second = first.restarted(|world| world.silence(Some("Docker does not answer")));
    second.pass(30);
    assert_eq!(second.world.state(), before, "nothing was touched");
    second.world.silence(None);
    second.pass(30);
    assert_eq!(second.holders(), ["a", "b"]);
    assert_eq!(second.world.state(), before);
    assert_eq!(second.moves(), 0);
}

#[test]
fn a_mark_is_there_after_a_restart() {
    let mut first = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    first.pass(20);
    first.world.guest("a", |guest| guest.answers = false);
    first.world.send("b", Traffic::Constant(5000.0));
    first.pass(30);
    assert!(first.core.status().guests[0].marked.is_some());
    let mut second = first.restarted(|world| world.guest("a", |guest| guest.answers = true));
    second.pass(30);
    let marked = |daemon: &Daemon| {
        let a = &daemon.core.status().guests[0];
        assert!(a.marked.is_some() && a.vf.is_some(), "until the operator says otherwise: {a:?}");
    };
    marked(&second);
    // The journal was begun anew meanwhile: what it came to holds the mark, too.
    let mut third = second.restarted(|_| ());
    third.pass(30);
    marked(&third);
}

#[test]
fn a_waiter_whose_give_was_never_begun_has_not_had_its_turn() {
    let patient = "
        [alloc]
        policy = 'benefit'
        interval_s = 5.0
        min_residency_s = 0.0
        signal = { smoothing = { window = 3.0 } }
        benefit = { fixed_us = 3e6 }
    ";
    let mut daemon = daemon(patient, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    // b waits until a switch is worth its price. The take comes to nothing, so that b is given nothing.
    daemon.world.guest("a", |guest| guest.answers = false);
    daemon.world.send("b", Traffic::Constant(2000.0));
    let begun_ms = daemon.now_ms;
    while daemon.core.status().guests[0].marked.is_none() {
        daemon.pass(1);
        assert!(daemon.now_ms - begun_ms < 600_000, "b is never served");
    }
    let waited_s = (daemon.now_ms - begun_ms) / 1000;
    assert!(waited_s > 60, "{waited_s} s: this tells nothing of patience");
    assert_eq!(daemon.holders(), ["a"]);
    daemon.world.guest("a", |guest| guest.answers = true);
    daemon.ask(Request::Unmark { guest: id("a") }).expect("done");
    daemon.pass(15);
    assert_eq!(daemon.holders(), ["b"], "it does not wait for {waited_s} s again");
}
