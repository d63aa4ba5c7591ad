//! Faults around the core: names that clash, full disks, drivers that are loaded anew.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use planewised::daemon::config::Simulated;
use planewised::daemon::journal::{Journal, Storage};
use planewised::daemon::request::{Answer, Request};
use planewised::daemon::simulated::World;
use pw_alloc::journal::{self, Entry};
use pw_alloc::model::{GuestId, Stance, VfId};
use pw_alloc::step::Path;
use pw_alloc::traffic::Traffic;
use pw_alloc::world::VfPlace;

use super::{Daemon, SETTINGS, core_on, daemon, faults, id, start, vf};

/// Lets a daemon begin anew in its world, with its journal on this storage.
fn keep_journal_on(daemon: &mut Daemon, storage: impl Storage + 'static) {
    let (journal, _) = Journal::with_storage("j", Some(Box::new(storage)), b"").expect("begun");
    let directory = daemon.directory.path();
    (daemon.core, _) = core_on(SETTINGS, daemon.world.host(), journal, directory);
}

/// A directory with a journal that says who holds what and who is marked, and nothing else.
fn with_checkpoint(
    holders: BTreeMap<VfId, GuestId>,
    marked: BTreeMap<GuestId, String>,
) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut journal, _) = Journal::open(directory.path()).expect("a journal");
    let (format, quarantined) = (journal::FORMAT, BTreeMap::new());
    let entry = Entry::Checkpoint { format, holders, marked, quarantined };
    journal.append(&entry).expect("written");
    directory
}

#[test]
fn of_two_guests_of_one_name_and_two_kinds_the_first_is_managed_until_it_goes() {
    let mut daemon = daemon(SETTINGS, 1, &[]);
    let machines = World::new(&Simulated { vfs: 0, guests: BTreeMap::new(), pods: None });
    let mut host = daemon.world.host();
    host.kinds.extend(machines.host().kinds);
    let directory = tempfile::tempdir().expect("a directory");
    let (journal, _) = Journal::open(directory.path()).expect("a journal");
    (daemon.core, _) = core_on(SETTINGS, host, journal, directory.path());
    daemon.directory = directory;
    daemon.world.add("web", Traffic::Constant(100.0));
    daemon.pass(10);
    let mac = daemon.core.status().guests[0].mac;
    machines.add("other", Traffic::Constant(1.0));
    machines.add("web", Traffic::Constant(9000.0));
    daemon.pass(20);
    let guests = daemon.core.status().guests.clone();
    let web: Vec<_> = guests.iter().filter(|guest| guest.id == id("web")).collect();
    assert_eq!((web.len(), web[0].mac), (1, mac), "the second did not take the first one's place");
    assert_eq!(daemon.holders(), ["web"]);
    let told =
        daemon.core.status().errors.iter().filter(|error| error.what.contains("are called web"));
    assert_eq!(told.count(), 1, "it is said once");
    // The first one goes: the second is the one of that name.
    daemon.world.destroy("web", false);
    daemon.pass(10);
    assert!(
        daemon.core.status().guests.iter().any(|guest| guest.id == id("web") && guest.mac != mac)
    );
}

#[test]
fn a_guest_that_the_host_filters_loses_its_vf_though_the_configuration_pins_it() {
    let settings = format!("{SETTINGS}\n[guests.web]\nstance = 'pinned'");
    let mut daemon = daemon(&settings, 1, &[("web", 9000.0), ("db", 1.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["web"]);
    daemon.world.with(|host| host.barred.insert(id("web")));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["db"]);
}

#[test]
fn of_two_guests_with_one_address_the_first_is_managed_until_it_goes() {
    let mut daemon = daemon(SETTINGS, 2, &[("web", 100.0)]);
    daemon.pass(10);
    let mac = daemon.core.status().guests[0].mac.expect("it has one");
    daemon.world.add("thief", Traffic::Constant(9000.0));
    daemon.world.guest("thief", |thief| thief.mac = mac);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["web"], "an address is on one VF");
    let errors = daemon.core.status().errors.clone();
    let told = errors.iter().filter(|error| error.what.contains("thief has the address"));
    assert_eq!(told.count(), 1, "it is said once");
    daemon.world.destroy("web", false);
    daemon.pass(10);
    assert_eq!(daemon.holders(), ["thief"]);
}

/// A disk that refuses the lines that a test picks.
#[derive(Clone)]
struct Disk {
    text: Arc<Mutex<Vec<u8>>>,
    refuses: Arc<Mutex<dyn FnMut() -> bool + Send>>,
}

impl Disk {
    fn new(refuses: impl FnMut() -> bool + Send + 'static) -> Self {
        Self { text: Arc::default(), refuses: Arc::new(Mutex::new(refuses)) }
    }

    /// A disk, and whether it is full.
    fn full_or_not() -> (Self, Arc<AtomicBool>) {
        let full = Arc::new(AtomicBool::new(false));
        let is_full = Arc::clone(&full);
        (Self::new(move || is_full.load(Ordering::Relaxed)), full)
    }

    fn write(&self, bytes: &[u8], from: usize) -> Result<()> {
        if (self.refuses.lock().expect("no panic"))() {
            return Err(Error::from(ErrorKind::StorageFull));
        }
        let mut text = self.text.lock().expect("no panic");
        text.truncate(from);
        text.extend(bytes);
        Ok(())
    }
}

impl Storage for Disk {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes, usize::MAX)
    }

    fn truncate(&mut self, length_bytes: u64) -> Result<()> {
        self.text.lock().expect("no panic").truncate(length_bytes as usize);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes, 0)
    }
}

#[test]
fn on_a_full_disk_neither_a_move_nor_a_recovery_does_anything_until_there_is_room() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    let (disk, full) = Disk::full_or_not();
    keep_journal_on(&mut daemon, disk);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    full.store(true, Ordering::Relaxed);
    // A move is due, and a VF is to be recovered that its holder has left with its address.
    daemon.world.restart("a");
    daemon.world.send("b", Traffic::Constant(5000.0));
    let before = daemon.world.state();
    daemon.pass(60);
    assert_eq!(daemon.world.state(), before, "nothing was touched");
    let told =
        daemon.core.status().errors.iter().filter(|error| error.what.contains("cannot write"));
    assert_eq!(told.count(), 1, "it is said once");
    full.store(false, Ordering::Relaxed);
    daemon.pass(120);
    assert_eq!(daemon.holders(), ["b"]);
    assert!(faults(&daemon).is_empty(), "{:?}", faults(&daemon));
}

#[test]
fn a_disk_that_is_full_again_after_a_quarter_of_an_hour_is_said_again() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0)]);
    let (disk, full) = Disk::full_or_not();
    keep_journal_on(&mut daemon, disk);
    daemon.pass(20);
    for times in [1, 2] {
        full.store(true, Ordering::Relaxed);
        daemon.world.restart("a");
        daemon.pass(400);
        let errors = &daemon.core.status().errors;
        let told = errors.iter().filter(|error| error.what.contains("cannot write"));
        assert_eq!(told.count(), times, "it is said once each time");
        full.store(false, Ordering::Relaxed);
        daemon.pass(900);
        assert_eq!(daemon.holders(), ["a"]);
    }
}

#[test]
fn a_pf_whose_driver_is_loaded_anew_is_taken_in_again_with_its_vfs() {
    let mut daemon = daemon(SETTINGS, 2, &[("a", 500.0), ("b", 400.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a", "b"]);
    for away_s in [0, 1, 30] {
        daemon.world.reload_driver(true);
        daemon.pass(away_s);
        daemon.world.reload_driver(false);
        daemon.pass(40);
        assert_eq!(daemon.holders(), ["a", "b"], "after {away_s} s");
        assert!(faults(&daemon).is_empty(), "{:?}", faults(&daemon));
    }
}

#[test]
fn a_pf_that_went_is_said_at_the_next_sample_and_not_when_the_pool_is_read_the_next_time() {
    let mut daemon = daemon(SETTINGS, 2, &[("a", 500.0), ("b", 400.0)]);
    daemon.pass(20);
    assert_eq!(daemon.core.status().vfs.len(), 2);
    daemon.world.reload_driver(true);
    daemon.pass(2);
    assert_eq!(daemon.core.status().vfs, []);
}

#[test]
fn a_guest_that_could_not_be_asked_about_when_its_vf_went_is_put_right_once_it_can_be() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    daemon.world.silence(Some("Docker does not answer"));
    daemon.world.reload_driver(false);
    daemon.world.place(&vf(0), VfPlace::Foreign("a DPDK process has it".into()));
    daemon.pass(20);
    assert!(daemon.holders().is_empty());
    daemon.world.silence(None);
    daemon.pass(40);
    assert!(faults(&daemon).is_empty(), "{:?}", faults(&daemon));
    assert!(daemon.core.is_settled());
}

#[test]
fn a_mark_ends_with_its_guest_and_does_not_pass_to_the_next_of_that_name() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    daemon.world.guest("a", |guest| guest.answers = false);
    daemon.world.send("b", Traffic::Constant(5000.0));
    daemon.pass(30);
    assert!(daemon.core.status().guests[0].marked.is_some());
    daemon.world.destroy("a", false);
    daemon.pass(10);
    daemon.world.add("a", Traffic::Constant(1.0));
    daemon.pass(10);
    assert!(daemon.core.status().guests[0].marked.is_none());
    assert_eq!(daemon.holders(), ["b"]);
}

#[test]
fn a_mark_outlives_a_kind_that_cannot_say_which_guests_there_are() {
    let marked = [(id("a"), "let go of nothing".to_owned())].into();
    let directory = with_checkpoint(BTreeMap::new(), marked);
    let world = World::new(&Simulated { vfs: 1, guests: BTreeMap::new(), pods: None });
    world.add("a", Traffic::Constant(500.0));
    world.guest("a", |guest| guest.answers = false);
    world.silence(Some("Docker does not answer"));
    let mut daemon = start(SETTINGS, world, directory, 0);
    daemon.pass(60);
    assert!(daemon.core.status().guests.is_empty());
    daemon.world.silence(None);
    daemon.pass(10);
    let a = daemon.core.status().guests[0].clone();
    assert_eq!(a.marked.as_deref(), Some("let go of nothing"));
}

/// What is decided about a VF that nobody may have: nothing, for as long as this lasts.
fn leaves_alone(daemon: &mut Daemon, vf: &VfId) {
    let Ok(Answer::Plan(plan)) = daemon.ask(Request::Plan) else { panic!("a plan") };
    assert!(plan.moves.is_empty(), "{:?}", plan.moves);
    let seen = daemon.core.status().vfs.iter().find(|seen| seen.id == *vf).cloned();
    assert!(seen.is_some_and(|seen| seen.why.is_some()), "{:?}", daemon.core.status().vfs);
    assert_eq!(daemon.core.status().counters.given.undone, 0, "nothing was even tried");
}

#[test]
fn a_vf_of_a_guest_that_is_not_managed_is_neither_fetched_nor_given() {
    let world = World::new(&Simulated { vfs: 2, guests: BTreeMap::new(), pods: None });
    world.add("honest", Traffic::Constant(500.0));
    world.add("thief", Traffic::Constant(9000.0));
    world.add("waiting", Traffic::Constant(100.0));
    // It is there, and holds a VF by somebody else's doing; for its address it is not managed.
    let mac = world.state().guests[&id("honest")].mac;
    world.guest("thief", |thief| thief.mac = mac);
    world.place(&vf(1), VfPlace::Guest(id("thief")));
    let mut daemon = start(SETTINGS, world, tempfile::tempdir().expect("a directory"), 0);
    daemon.pass(60);
    assert_eq!(daemon.holders(), ["honest"]);
    assert_eq!(daemon.world.state().vfs[&vf(1)].place, VfPlace::Guest(id("thief")));
    leaves_alone(&mut daemon, &vf(1));
}

#[test]
fn a_vf_whose_holder_by_the_journal_nobody_has_heard_of_is_in_no_plan() {
    let directory = with_checkpoint([(vf(0), id("ghost"))].into(), BTreeMap::new());
    let world = World::new(&Simulated { vfs: 1, guests: BTreeMap::new(), pods: None });
    world.add("web", Traffic::Constant(9000.0));
    world.place(&vf(0), VfPlace::Unknown("process 7 cannot be read".into()));
    let mut daemon = start(SETTINGS, world, directory, 0);
    daemon.pass(60);
    leaves_alone(&mut daemon, &vf(0));
    daemon.world.place(&vf(0), VfPlace::Pool);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["web"]);
}

#[test]
fn of_a_guest_that_was_started_anew_nothing_holds_that_was_known_of_the_one_before() {
    let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["a"]);
    daemon.world.guest("a", |guest| guest.answers = false);
    daemon.world.send("b", Traffic::Constant(5000.0));
    daemon.pass(30);
    let before = daemon.core.status().guests[0].clone();
    assert!(before.marked.is_some() && before.rate.pps.is_some(), "{before:?}");
    daemon.world.guest("a", |guest| guest.answers = true);
    daemon.world.restart("a");
    daemon.now_ms = daemon.core.next_ms().max(daemon.now_ms);
    daemon.core.tick(daemon.now_ms);
    let after = daemon.core.status().guests[0].clone();
    assert_eq!((after.rate.pps, after.marked), (None, None));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["b"]);
}

#[test]
fn whichever_line_could_not_be_written_no_step_belongs_to_a_move_or_recovery_without_its_beginning()
{
    let mut recoveries = 0;
    for refused in 0..40 {
        let mut daemon = daemon(SETTINGS, 1, &[("a", 500.0), ("b", 10.0)]);
        let mut line = 0;
        let disk = Disk::new(move || {
            line += 1;
            line == refused + 1
        });
        keep_journal_on(&mut daemon, disk.clone());
        daemon.pass(20);
        daemon.world.send("b", Traffic::Constant(5000.0));
        daemon.world.restart("a");
        daemon.pass(200);
        assert_eq!(daemon.holders(), ["b"], "after line {refused}");
        let mut begun = BTreeSet::new();
        let text = disk.text.lock().expect("no panic").clone();
        for entry in journal::read(&text).entries {
            match entry {
                Entry::Begin { operation, .. } => drop(begun.insert(operation)),
                Entry::Recover { operation, .. } => {
                    recoveries += 1;
                    begun.insert(operation);
                }
                Entry::Intent { operation, step } => {
                    assert!(begun.contains(&operation), "line {refused}: {step:?}");
                }
                _ => {}
            }
        }
    }
    assert!(recoveries > 10, "{recoveries}");
}

/// A guest with the only VF, and another without.
fn with_one_vf() -> Daemon {
    let mut daemon = daemon(SETTINGS, 1, &[("busy", 900.0), ("calm", 10.0)]);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["busy"]);
    daemon
}

#[test]
fn a_vf_without_a_link_is_taken_back_within_five_seconds_and_its_guest_reached_again() {
    let mut daemon = with_one_vf();
    daemon.world.vf_link(&vf(0), false);
    assert!(
        !daemon.world.state().reached_from_wire(&id("busy")),
        "its bond fell back, the NIC did not"
    );
    daemon.pass(5);
    assert!(daemon.holders().is_empty());
    let found = daemon.world.state();
    assert!(found.reachable(&id("busy")) && faults(&daemon).is_empty(), "{found:?}");
    daemon.world.vf_link(&vf(0), true);
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["busy"]);
}

#[test]
fn a_guest_that_did_not_give_its_vf_back_is_given_no_other() {
    let mut daemon = daemon(SETTINGS, 2, &[("busy", 900.0)]);
    daemon.pass(20);
    let held = daemon.core.status().guests[0].vf.clone().expect("there are two");
    daemon.world.guest("busy", |guest| guest.answers = false);
    daemon.world.vf_link(&held, false);
    daemon.pass(20);
    let vfs = &daemon.core.status().vfs;
    let its: Vec<&VfId> = vfs.iter().filter(|vf| vf.holder.is_some()).map(|vf| &vf.id).collect();
    assert_eq!(its, [&held]);
}

#[test]
fn a_bond_that_went_to_its_other_member_by_itself_is_put_right() {
    let mut daemon = with_one_vf();
    // Between two samples the link was gone and came back.
    daemon.world.vf_link(&vf(0), false);
    daemon.world.vf_link(&vf(0), true);
    assert_eq!(daemon.world.state().guests[&id("busy")].active, Path::Paravirtual);
    daemon.pass(5);
    let found = daemon.world.state();
    assert!(found.reachable(&id("busy")), "{found:?}");
    assert_eq!(found.guests[&id("busy")].active, Path::Vf(vf(0)));
}

#[test]
fn a_vf_with_the_operators_vlan_is_given_to_nobody_until_it_has_none() {
    let mut daemon = daemon(SETTINGS, 1, &[("busy", 900.0)]);
    daemon.world.with(|host| host.tagged.insert(vf(0)));
    daemon.pass(20);
    assert!(daemon.holders().is_empty());
    let why = daemon.core.status().vfs[0].why.clone();
    assert_eq!(why.as_deref(), Some("its PF sets VLAN 7 for it"));
    assert!(daemon.world.with(|host| host.tagged.contains(&vf(0))), "nor is it removed");
    daemon.world.with(|host| host.tagged.remove(&vf(0)));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["busy"]);
}

#[test]
fn a_vf_that_a_machine_will_take_when_it_starts_goes_back_to_the_pool_and_stays_there() {
    let mut daemon = with_one_vf();
    daemon.world.with(|host| host.reserved.insert(vf(0)));
    daemon.pass(10);
    assert!(daemon.holders().is_empty() && faults(&daemon).is_empty());
    let why = daemon.core.status().vfs[0].why.clone();
    assert_eq!(why.as_deref(), Some("the machine db has it in its configuration"));
}

#[test]
fn a_guest_whose_port_was_not_read_yet_gets_no_vf_and_loses_none() {
    let mut daemon = with_one_vf();
    daemon.world.with(|host| host.unread.insert(id("busy")));
    daemon.world.send("calm", Traffic::Constant(5000.0));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["busy"]);
    daemon.world.with(|host| host.unread.remove(&id("busy")));
    daemon.world.with(|host| host.unread.insert(id("calm")));
    daemon.world.send("busy", Traffic::Constant(1.0));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["busy"], "nothing is known of calm's network");
    daemon.world.with(|host| host.unread.remove(&id("calm")));
    daemon.pass(20);
    assert_eq!(daemon.holders(), ["calm"]);
}

#[test]
fn a_drained_guest_is_not_said_to_be_excluded() {
    let mut daemon = with_one_vf();
    daemon.ask(Request::Drain { on: true }).expect("it is done");
    daemon.pass(10);
    let guest = &daemon.core.status().guests[0];
    assert_eq!((guest.vf.as_ref(), guest.stance), (None, Stance::Free));
    assert_eq!(guest.why, "every VF goes back to its pool");
}
