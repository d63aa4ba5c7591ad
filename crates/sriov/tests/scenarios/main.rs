//! What must hold of every machine with SR-IOV. On a made-up kernel anywhere; on the real one where
//! PLANEWISE_TEST_PF names a PF without VFs that may be used (tests/lab does that in a lab; run with
//! --test-threads=1 then, as there is one PF).

#![expect(clippy::expect_used, reason = "a test that cannot go on says why and ends")]

mod made_up;
mod refusals;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use made_up::MadeUp;
use pw_error::{Error, Result};
use pw_sriov::address::PciAddress;
use pw_sriov::discover;
use pw_sriov::kernel::{Holder, Kernel, Linux};
use pw_sriov::link::{Change, Link, Outcome, Setting};
use pw_sriov::lookup;
use pw_sriov::model::{Counters, LinkState, Namespace, NetNs, Netdev, Pf, Vf};
use pw_sriov::operate::{Operator, Options};
use pw_sriov::plan::{self, Driver, Move, Settings, Setup};
use pw_sriov::state::State;
use pw_sriov::sysfs::Tree;
use pw_sriov::vfinfo::VfInfo;

/// A kernel under which the process can be killed: after so many changes, every further one fails,
/// and so does what would undo them.
struct Mortal<K> {
    inner: K,
    changes_left: Option<usize>,
}

impl<K> Mortal<K> {
    fn dead(&mut self) -> bool {
        match &mut self.changes_left {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }
}

/// After how many changes the process is killed: after each, in an emulated host after every fifth.
fn moments() -> impl Iterator<Item = usize> {
    let real = std::env::var_os("PLANEWISE_TEST_PF").is_some();
    (0..).step_by(if real { 5 } else { 1 })
}

fn killed() -> Error {
    Error::failed("killed", "")
}

impl<K: Kernel> Kernel for Mortal<K> {
    fn tree(&self) -> &Tree {
        self.inner.tree()
    }

    fn version(&self) -> (u32, u32) {
        self.inner.version()
    }

    fn links(&mut self, netns: &NetNs) -> Result<Vec<Link>> {
        self.inner.links(netns)
    }

    fn namespaces(&mut self, thorough: bool) -> Vec<Namespace> {
        self.inner.namespaces(thorough)
    }

    fn vfs(&mut self, pf: &Netdev) -> Result<Option<Vec<VfInfo>>> {
        self.inner.vfs(pf)
    }

    fn holders(&mut self, vfs: &[PciAddress]) -> BTreeMap<PciAddress, Holder> {
        self.inner.holders(vfs)
    }

    fn vital(&mut self) -> Result<Vec<(String, String)>> {
        self.inner.vital()
    }

    fn write(&mut self, file: &Path, value: &str) -> std::result::Result<(), std::io::Error> {
        if self.dead() {
            return Err(std::io::Error::other("killed"));
        }
        self.inner.write(file, value)
    }

    fn set_vf(&mut self, pf: &Netdev, vf: u32, setting: Setting) -> Result<Outcome> {
        if self.dead() { Err(killed()) } else { self.inner.set_vf(pf, vf, setting) }
    }

    fn change(&mut self, netdev: &Netdev, change: &Change) -> Result<Outcome> {
        if self.dead() { Err(killed()) } else { self.inner.change(netdev, change) }
    }

    fn move_to_netns(&mut self, netdev: &Netdev, to: &NetNs, name: &str) -> Result<Outcome> {
        if self.dead() { Err(killed()) } else { self.inner.move_to_netns(netdev, to, name) }
    }
}

/// A machine, a PF on it, and namespaces that can be made and ended.
trait World: Kernel + Sized {
    fn pf(&self) -> String;
    fn make_namespace(&mut self, name: &str) -> NetNs;
    fn end_namespace(&mut self, place: &NetNs);
}

impl World for MadeUp {
    fn pf(&self) -> String {
        "pf0".into()
    }

    fn make_namespace(&mut self, name: &str) -> NetNs {
        self.add_namespace(name)
    }

    fn end_namespace(&mut self, place: &NetNs) {
        MadeUp::end_namespace(self, place);
    }
}

impl World for Linux {
    fn pf(&self) -> String {
        std::env::var("PLANEWISE_TEST_PF").expect("set: this world is real")
    }

    fn make_namespace(&mut self, name: &str) -> NetNs {
        let name = format!("pw-test-{name}");
        let made = Command::new("ip").args(["netns", "add", &name]).status().expect("iproute2");
        assert!(made.success());
        lookup::netns(&name).expect("just made")
    }

    fn end_namespace(&mut self, place: &NetNs) {
        let NetNs::Other(namespace) = place else { return };
        let name = Path::new(&namespace.path).file_name().expect("has one").to_owned();
        let ended = Command::new("ip").args(["netns", "del"]).arg(name).status().expect("iproute2");
        assert!(ended.success());
    }
}

struct Scene<W> {
    kernel: Mortal<W>,
    state: State,
    directory: tempfile::TempDir,
}

impl<W: World> Scene<W> {
    fn new(world: W) -> Self {
        let directory = tempfile::tempdir().expect("made");
        let state = State::new(directory.path().join("vf"));
        Self { kernel: Mortal { inner: world, changes_left: None }, state, directory }
    }

    fn name(&self) -> String {
        self.kernel.inner.pf()
    }

    fn vf_name(&self, index: u32) -> String {
        format!("{}/{index}", self.name())
    }

    fn as_owner(&mut self, owner: Option<&str>) -> Operator<'_, Mortal<W>> {
        let options = Options {
            owner: owner.map(Into::into),
            wait: Duration::from_millis(100),
            ..Options::default()
        };
        Operator { kernel: &mut self.kernel, state: &self.state, options }
    }

    fn operator(&mut self) -> Operator<'_, Mortal<W>> {
        self.as_owner(None)
    }

    fn pf(&mut self) -> Pf {
        let name = self.name();
        let address = lookup::pf(&mut self.kernel, &name).expect("there");
        discover::settled_pf(&mut self.kernel, address, None).expect("there")
    }

    fn vf(&mut self, index: usize) -> Vf {
        self.pf().vfs[index].clone()
    }

    fn must_be(&mut self, before: &Pf) {
        let now = self.pf();
        assert_eq!(plan::differences(&now, before), Vec::<String>::new(), "{now:#?}\n{before:#?}");
        assert_eq!(now.vfs.len(), before.vfs.len());
    }

    fn records(&self) -> usize {
        self.state.all().expect("read").len()
    }

    fn restore(&mut self) {
        self.kernel.changes_left = None;
        self.operator().restore(&[]).expect("restored");
        assert_eq!(self.records(), 0);
    }

    /// As another program leaves it: VFs that their driver took at once, one in use.
    fn made_by_another(&mut self, count: u32) -> Pf {
        let pf = self.pf();
        let file = format!("bus/pci/devices/{}/sriov_numvfs", pf.address);
        self.kernel.write(Path::new(&file), &count.to_string()).expect("made");
        let vf = self.vf(0);
        let netdev = vf.netdev.expect("its driver took it");
        for change in [
            Change::Name("pwx".into()),
            Change::MtuBytes(1400),
            Change::Up(true),
            Change::AddAddress("198.18.7.1/24".parse().expect("valid")),
        ] {
            self.kernel.change(&netdev, &change).expect("asked").expect("done");
        }
        self.pf()
    }

    fn unmake(&mut self) {
        let address = self.pf().address;
        for (file, value) in [("sriov_numvfs", "0"), ("sriov_drivers_autoprobe", "1")] {
            let file = format!("bus/pci/devices/{address}/{file}");
            self.kernel.write(Path::new(&file), value).expect("written");
        }
    }
}

fn setup(count: u32) -> Setup {
    Setup { count, first_mac: None, driver: Driver::Network, force: false }
}

fn move_to_netns(to: &NetNs, name: &str) -> Move {
    Move {
        to: to.clone(),
        name: Some(name.into()),
        mac: None,
        mtu_bytes: Some(1400),
        addresses: vec!["198.18.0.1/24".parse().expect("valid")],
        up: true,
        force: false,
    }
}

/// Runs a scenario in the real world if there is one, else in a made-up one.
macro_rules! scenario {
    ($name:ident, $scene:ident, $body:block) => {
        #[test]
        fn $name() {
            fn play<W: World>(mut $scene: Scene<W>) {
                $body
            }
            if std::env::var_os("PLANEWISE_TEST_PF").is_some() {
                play(Scene::new(Linux::new(Path::new("/sys"))));
            } else {
                play(Scene::new(MadeUp::new()));
            }
        }
    };
}

scenario!(a_pool_is_set_up_and_gone_again_with_all_as_before, scene, {
    let before = scene.pf();
    let name = scene.name();
    let done = scene.operator().setup(&name, &setup(3)).expect("set up");
    assert_eq!(done.now.num_vfs, 3);
    assert_eq!(done.now.drivers_autoprobe, Some(false));
    let macs: Vec<_> = done.now.vfs.iter().map(|vf| vf.config.clone().expect("told").mac).collect();
    assert!(macs[0] != macs[1] && macs[1] != macs[2] && macs.iter().all(Option::is_some));
    for (vf, mac) in done.now.vfs.iter().zip(macs) {
        assert_eq!(vf.driver.as_deref(), Some("igbvf"));
        assert_eq!(vf.netdev.as_ref().and_then(|netdev| netdev.mac), mac);
        assert!(matches!(vf.counters, Counters::Unsupported { .. }));
        assert_eq!(vf.used_by, None);
    }
    let again = scene.operator().setup(&name, &setup(3)).expect("nothing to do");
    assert_eq!(again.steps, []);
    scene.restore();
    scene.must_be(&before);
});

scenario!(what_another_program_made_comes_back_exactly_after_a_new_pool, scene, {
    let before = scene.made_by_another(2);
    let name = scene.name();
    let refused = scene.operator().setup(&name, &setup(3)).expect_err("VF 0 is in use");
    assert!(refused.what.contains("has the address 198.18.7.1/24"), "{}", refused.what);
    scene.must_be(&before);
    assert_eq!(scene.records(), 0);
    let wanted = Setup { force: true, ..setup(3) };
    scene.operator().setup(&name, &wanted).expect("forced");
    assert_eq!(scene.pf().num_vfs, 3);
    scene.restore();
    scene.must_be(&before);
    scene.unmake();
});

scenario!(a_kill_at_any_moment_of_a_setup_leaves_what_restore_needs, scene, {
    let before = scene.pf();
    let name = scene.name();
    for moment in moments() {
        scene.kernel.changes_left = Some(moment);
        if scene.operator().setup(&name, &setup(2)).is_ok() {
            assert!(moment >= 8, "{moment} changes");
            break;
        }
        scene.restore();
        scene.must_be(&before);
    }
    scene.restore();
    scene.must_be(&before);
});

scenario!(a_kill_at_any_moment_of_a_move_leaves_what_restore_needs, scene, {
    let name = scene.name();
    scene.operator().setup(&name, &setup(2)).expect("set up");
    let before = scene.pf();
    let there = scene.kernel.inner.make_namespace("kill");
    let vf = scene.vf_name(1);
    let mac = "02:70:77:aa:00:01".parse().expect("valid");
    let wanted = Move { mac: Some(mac), ..move_to_netns(&there, "eth0") };
    for moment in moments() {
        scene.kernel.changes_left = Some(moment);
        let done = scene.operator().move_to_netns(&vf, &wanted).is_ok();
        scene.kernel.changes_left = None;
        scene.operator().restore(std::slice::from_ref(&vf)).expect("restored");
        scene.must_be(&before);
        assert_eq!(scene.records(), 1);
        if done {
            assert!(moment >= 6, "{moment} changes");
            break;
        }
    }
    scene.kernel.inner.end_namespace(&there);
    scene.restore();
});

scenario!(a_kill_during_restore_is_restored_by_the_next, scene, {
    let before = scene.made_by_another(1);
    let name = scene.name();
    for moment in moments() {
        scene.kernel.changes_left = None;
        scene.operator().setup(&name, &Setup { force: true, ..setup(2) }).expect("set up");
        scene.kernel.changes_left = Some(moment);
        let done = scene.operator().restore(&[]).is_ok();
        scene.restore();
        scene.must_be(&before);
        if done {
            assert!(moment >= 5, "{moment} changes");
            break;
        }
    }
    scene.unmake();
});

scenario!(a_vf_goes_into_a_namespace_and_comes_home_as_it_was, scene, {
    let name = scene.name();
    scene.operator().setup(&name, &setup(2)).expect("set up");
    let before = scene.pf();
    let there = scene.kernel.inner.make_namespace("move");
    let vf = scene.vf_name(0);
    let mac = "02:70:77:aa:00:01".parse().expect("valid");
    let wanted = Move { mac: Some(mac), ..move_to_netns(&there, "eth0") };
    let done = scene.as_owner(Some("one")).move_to_netns(&vf, &wanted).expect("moved");
    let netdev = done.now.netdev.expect("found by its address");
    assert_eq!((netdev.name.as_str(), &netdev.netns), ("eth0", &there));
    assert_eq!((netdev.mac, netdev.mtu_bytes, netdev.up), (Some(mac), 1400, true));
    assert_eq!(netdev.addresses, ["198.18.0.1/24"]);
    assert_eq!(done.now.config.expect("told").mac, Some(mac));
    assert_eq!(done.now.owner.as_deref(), Some("one"));
    assert!(done.now.used_by.expect("in use").contains("is in namespace"));

    let other = scene.as_owner(Some("two")).bind(&vf, &Driver::None).expect_err("not its own");
    assert!(other.what.ends_with("belongs to one"), "{}", other.what);
    let second = Move { name: Some("eth0".into()), ..move_to_netns(&there, "eth0") };
    let vf1 = scene.vf_name(1);
    let taken = scene.operator().move_to_netns(&vf1, &second).expect_err("the name is taken");
    assert!(taken.what.contains("has an interface eth0 already"), "{}", taken.what);
    let shrunk = scene.operator().setup(&name, &setup(1)).expect_err("in use");
    assert!(shrunk.what.contains("VF 0 is in use"), "{}", shrunk.what);

    let done = scene.operator().release(&[vf]).expect("released");
    assert_eq!(done.restored.len(), 1);
    scene.must_be(&before);
    scene.kernel.inner.end_namespace(&there);
    scene.restore();
});

scenario!(a_vf_whose_namespace_died_is_found_and_brought_home, scene, {
    let name = scene.name();
    scene.operator().setup(&name, &setup(2)).expect("set up");
    let before = scene.pf();
    let there = scene.kernel.inner.make_namespace("die");
    // The name is taken at home: the kernel has to find another one.
    let wanted = move_to_netns(&there, &before.vfs[1].netdev.clone().expect("has one").name);
    let vf = scene.vf_name(0);
    scene.operator().move_to_netns(&vf, &wanted).expect("moved");
    scene.kernel.inner.end_namespace(&there);
    scene.operator().release(std::slice::from_ref(&vf)).expect("released");
    scene.must_be(&before);
    assert_eq!(scene.operator().release(&[vf]).expect("no harm").steps, []);
    scene.restore();
});

scenario!(settings_are_told_and_taken_back, scene, {
    let name = scene.name();
    scene.operator().setup(&name, &setup(1)).expect("set up");
    let before = scene.pf();
    let vf = scene.vf_name(0);
    let wanted = Settings {
        mac: Some("02:70:77:aa:00:02".parse().expect("valid")),
        vlan: Some(pw_sriov::model::Vlan { id: 7, qos: 3, protocol: Default::default() }),
        spoof_check: Some(false),
        trust: Some(true),
        ..Settings::default()
    };
    let done = scene.operator().set(&vf, &wanted).expect("told");
    let config = done.now.config.expect("told");
    assert_eq!((config.mac, config.vlan), (wanted.mac, wanted.vlan));
    assert_eq!((config.spoof_check, config.trust), (Some(false), Some(true)));
    assert_eq!(done.now.netdev.expect("bound again").mac, wanted.mac);
    assert_eq!(scene.operator().set(&vf, &wanted).expect("known").steps, []);
    let unsupported = Settings { link_state: Some(LinkState::Enable), ..Settings::default() };
    let refused = scene.operator().set(&vf, &unsupported).expect_err("igb has no link state");
    assert!(refused.what.contains("the driver does not support it"), "{}", refused.what);
    assert!(refused.what.ends_with("all is as before"), "{}", refused.what);
    scene.operator().restore(&[vf]).expect("restored");
    scene.must_be(&before);
    scene.restore();
});

scenario!(a_vf_goes_to_vfio_and_back, scene, {
    let name = scene.name();
    let before = scene.pf();
    let wanted = Setup { driver: Driver::Named("vfio-pci".into()), ..setup(2) };
    let pool = scene.operator().setup(&name, &wanted).expect("set up").now;
    assert!(pool.vfs.iter().all(|vf| vf.driver.as_deref() == Some("vfio-pci")));
    assert!(pool.vfs.iter().all(|vf| vf.iommu_group.is_some() && vf.netdev.is_none()));
    let there = scene.kernel.inner.make_namespace("vfio");
    let vf = scene.vf_name(0);
    let refused = scene
        .operator()
        .move_to_netns(&vf, &move_to_netns(&there, "eth0"))
        .expect_err("no interface");
    assert!(refused.remedy.contains("vf bind"), "{}", refused.remedy);
    scene.kernel.inner.end_namespace(&there);
    let done = scene.operator().bind(&vf, &Driver::Network).expect("bound");
    assert_eq!(done.now.driver.as_deref(), Some("igbvf"));
    let mac = pool.vfs[0].config.clone().expect("told").mac;
    assert_eq!(done.now.netdev.expect("has one").mac, mac);
    scene.operator().restore(&[vf]).expect("restored");
    scene.must_be(&pool);
    scene.restore();
    scene.must_be(&before);
});

scenario!(what_cannot_be_is_refused_in_a_sentence, scene, {
    let name = scene.name();
    let before = scene.pf();
    let total = before.total_vfs;
    let error = scene.operator().setup(&name, &setup(total + 1)).expect_err("too many");
    assert_eq!(error.kind, pw_error::Kind::BadInput);
    assert!(error.what.ends_with(&format!("at most {total}")), "{}", error.what);
    let error = scene.operator().setup("pw-none", &setup(1)).expect_err("none");
    assert_eq!(error.what, "there is no interface or PCI device pw-none");
    assert!(error.remedy.contains(&name), "{}", error.remedy);
    let vf = scene.vf_name(0);
    let error = scene.operator().bind(&vf, &Driver::None).expect_err("none");
    assert!(error.what.contains("has no VF 0"), "{}", error.what);
    let wanted = Setup { driver: Driver::Named("pw-none".into()), ..setup(1) };
    let error = scene.operator().setup(&name, &wanted).expect_err("no driver");
    assert_eq!(error.remedy, "load it: modprobe pw-none");
    scene.must_be(&before);
    assert_eq!(scene.records(), 0);
});

scenario!(a_dry_run_changes_nothing_and_writes_nothing, scene, {
    let name = scene.name();
    let before = scene.pf();
    let mut operator = scene.operator();
    operator.options.dry_run = true;
    let planned = operator.setup(&name, &setup(2)).expect("planned").steps;
    scene.must_be(&before);
    assert!(!scene.directory.path().join("vf").exists());
    let done = scene.operator().setup(&name, &setup(2)).expect("set up").steps;
    assert_eq!(planned, done);
    scene.restore();
});

scenario!(one_who_works_on_a_pf_keeps_the_others_waiting, scene, {
    let name = scene.name();
    let address = scene.pf().address;
    scene.state.make().expect("made");
    let held = scene.state.lock(address, false, Duration::ZERO).expect("free");
    let error = scene.operator().setup(&name, &setup(1)).expect_err("locked");
    assert!(error.what.starts_with("another planewised works on"), "{}", error.what);
    drop(held);
    let shared = scene.state.lock(address, true, Duration::ZERO).expect("free");
    let second = scene.state.lock(address, true, Duration::ZERO).expect("shared");
    assert!(scene.operator().setup(&name, &setup(1)).is_err());
    drop((shared, second));
    scene.operator().setup(&name, &setup(1)).expect("free");
    scene.restore();
});

#[test]
fn whatever_was_done_and_wherever_it_was_killed_restore_brings_back_what_was() {
    pw_cases::check!(150).with_type::<(bool, Vec<(u8, u8, u8)>)>().for_each(|(used, deeds)| {
        let mut scene = Scene::new(MadeUp::new());
        let before = if *used { scene.made_by_another(2) } else { scene.pf() };
        let places = [
            NetNs::Host,
            scene.kernel.inner.add_namespace("a"),
            scene.kernel.inner.add_namespace("b"),
        ];
        for (deed, which, kill) in deeds.iter().take(8) {
            scene.kernel.changes_left = (kill % 4 == 0).then_some(usize::from(kill / 4 % 12));
            let vf = format!("pf0/{}", which % 3);
            let to = &places[usize::from(which / 3 % 3)];
            let mut operator = scene.operator();
            operator.options.force = true;
            let _ = match deed % 6 {
                0 => operator
                    .setup("pf0", &Setup { force: true, ..setup(u32::from(which % 4)) })
                    .map(|_| ()),
                1 => operator.bind(&vf, &Driver::Named("vfio-pci".into())).map(|_| ()),
                2 => operator.bind(&vf, &Driver::Network).map(|_| ()),
                3 => operator
                    .move_to_netns(&vf, &Move { force: true, ..move_to_netns(to, "eth9") })
                    .map(|_| ()),
                4 => operator.release(&[vf]).map(|_| ()),
                _ => {
                    let mac = "02:70:77:aa:00:05".parse().expect("valid");
                    let wanted = Settings { mac: Some(mac), ..Settings::default() };
                    operator.set(&vf, &wanted).map(|_| ())
                }
            };
        }
        scene.restore();
        scene.must_be(&before);
    });
}
