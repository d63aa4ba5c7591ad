//! What is refused, and what is said of it, on a made-up kernel.

use std::time::{Duration, Instant};

use pw_sriov::kernel::{Holder, Kernel};
use pw_sriov::model::{Counters, Namespace, NetNs};
use pw_sriov::plan::{Driver, Settings, Setup};

use super::made_up::{self, MadeUp};
use super::{Scene, setup};

#[test]
fn a_pf_that_carries_the_default_route_is_left_alone() {
    let mut world = MadeUp::new();
    // By way of a bridge.
    let lower = world.tree().path("class/net/br0/lower_pf0");
    std::fs::create_dir_all(lower).expect("made");
    world.vital = vec![("br0".into(), "the default route".into())];
    let mut scene = Scene::new(world);
    let before = scene.pf();
    let error = scene.operator().setup("pf0", &setup(1)).expect_err("vital");
    assert_eq!(error.what, "pf0 carries the default route, which would be cut");
    scene.must_be(&before);
    let mut operator = scene.operator();
    operator.options.force = true;
    operator.setup("pf0", &setup(1)).expect("forced");
    // Whoever was forced once need not be again to take it back.
    scene.restore();
    scene.must_be(&before);
}

#[test]
fn a_vf_that_a_process_drives_is_never_taken_away() {
    let mut scene = Scene::new(MadeUp::new());
    let wanted = Setup { driver: Driver::Named("vfio-pci".into()), ..setup(1) };
    scene.operator().setup("pf0", &wanted).expect("set up");
    scene.kernel.inner.vfio_holder = Holder::Process("process 7 (qemu) holds /dev/vfio/8".into());
    let mut operator = scene.operator();
    operator.options.force = true;
    let forced = Setup { force: true, ..setup(2) };
    let error = operator.setup("pf0", &forced).expect_err("held");
    assert!(error.what.contains("process 7 (qemu) holds /dev/vfio/8"), "{}", error.what);
    let error = operator.bind("pf0/0", &Driver::Network).expect_err("held");
    assert!(error.what.contains("process 7"), "{}", error.what);
    let error = operator.restore(&[]).expect_err("held");
    assert!(error.remedy.contains("end it first"), "{}", error.remedy);
    // That nobody can be seen is not that nobody is there.
    scene.kernel.inner.vfio_holder = Holder::Unknown("process 8 cannot be read".into());
    let mut operator = scene.operator();
    let error = operator.bind("pf0/0", &Driver::Network).expect_err("unknown");
    assert!(error.what.contains("unknown: process 8 cannot be read"), "{}", error.what);
    scene.kernel.inner.vfio_holder = Holder::Nobody;
    scene.restore();
}

#[test]
fn a_pf_with_representors_is_in_switchdev_mode_and_keeps_its_own_interface() {
    let mut scene = Scene::new(MadeUp::new());
    assert!(!scene.pf().switchdev);
    scene.kernel.inner.represent(made_up::PF.parse().expect("valid"));
    let pf = scene.pf();
    assert!(pf.switchdev);
    assert_eq!(pf.netdev.map(|netdev| netdev.name).as_deref(), Some("pf0"));
}

#[test]
fn a_vf_that_cannot_be_seen_delays_no_step_of_another() {
    let mut scene = Scene::new(MadeUp::new());
    let pool = scene.operator().setup("pf0", &setup(2)).expect("set up").now;
    // Its guest has hidden it.
    let nowhere = Namespace { inode: 1, path: "/nowhere".into() };
    let hidden = scene.kernel.inner.netdev(pool.vfs[1].address).expect("it has an interface");
    hidden.netns = NetNs::Other(nowhere);
    let begun = Instant::now();
    scene
        .operator()
        .set("pf0/0", &Settings { trust: Some(true), ..Settings::default() })
        .expect("set");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_vf_that_the_iommu_cannot_give_away_alone_is_not_bound_to_vfio() {
    let vfio = Driver::Named("vfio-pci".into());
    let mut scene = Scene::new(MadeUp::new());
    let pool = scene.operator().setup("pf0", &setup(3)).expect("set up").now;
    let made_up = &scene.kernel.inner;
    made_up.leave_iommu(pool.vfs[0].address);
    made_up.share_group(pool.vfs[1].address, "0000:09:00.0".parse().expect("valid"), "ahci");
    made_up.share_group(pool.vfs[2].address, "0000:0a:00.0".parse().expect("valid"), "pcieport");
    let before = scene.pf();
    let error = scene.operator().bind("pf0/0", &vfio).expect_err("no IOMMU");
    assert!(error.what.contains("has no IOMMU group"), "{}", error.what);
    assert!(error.remedy.contains("intel_iommu=on"), "{}", error.remedy);
    let error = scene.operator().bind("pf0/1", &vfio).expect_err("shared");
    assert!(error.what.contains("also has 0000:09:00.0, which the driver ahci"), "{}", error.what);
    scene.must_be(&before);
    // Bridges in the group are in nobody's way.
    scene.operator().bind("pf0/2", &vfio).expect("bound");
    scene.restore();
}

#[test]
fn counters_that_were_seen_to_count_are_supported() {
    let mut world = MadeUp::new();
    world.counted = 5;
    let mut scene = Scene::new(world);
    scene.operator().setup("pf0", &setup(1)).expect("set up");
    match scene.vf(0).counters {
        Counters::Supported(counters) => assert_eq!(counters.rx_packets, 5),
        Counters::Unsupported { reason } => panic!("{reason}"),
    }
}

#[test]
fn a_pf_that_refuses_a_number_of_vfs_is_said_with_the_way_out() {
    for (code, what, remedy) in [
        (libc::EBUSY, "the PF is busy: it has VFs", "`planewised vf list` shows what the PF has"),
        (libc::ENOMEM, "the platform has no room for so many VFs", "try fewer"),
        (libc::ENOENT, "the driver of the PF has no SR-IOV", "load a driver that has"),
        (libc::EACCES, "Permission denied", "run as root"),
    ] {
        let mut scene = Scene::new(MadeUp::new());
        let before = scene.pf();
        scene.kernel.inner.refuses_vfs = Some(code);
        let refused = scene.operator().setup("pf0", &setup(2)).expect_err("refused");
        assert!(refused.what.contains(what), "{}", refused.what);
        assert!(refused.what.ends_with("all is as before"), "{}", refused.what);
        assert!(refused.remedy.contains(remedy), "{}", refused.remedy);
        scene.must_be(&before);
        assert_eq!(scene.records(), 0);
    }
}

#[test]
fn a_vf_that_does_not_hear_its_mac_is_told_again() {
    let mut scene = Scene::new(MadeUp::new());
    scene.operator().setup("pf0", &setup(1)).expect("set up");
    let vf = scene.vf_name(0);
    let mac = "02:70:77:aa:00:02".parse().expect("valid");
    let wanted = Settings { mac: Some(mac), trust: Some(true), ..Settings::default() };
    scene.kernel.inner.deaf = 3;
    let now = scene.operator().set(&vf, &wanted).expect("heard in the end").now;
    assert_eq!(now.config.expect("told").mac, Some(mac));
    assert_eq!(now.netdev.expect("bound").mac, Some(mac));
    // Where it was told before, and is only bound anew.
    scene.operator().bind(&vf, &Driver::None).expect("unbound");
    scene.kernel.inner.deaf = 1;
    let now = scene.operator().bind(&vf, &Driver::Network).expect("bound").now;
    assert_eq!(now.netdev.expect("bound").mac, Some(mac));
}

#[test]
fn a_vf_that_never_hears_its_mac_is_said() {
    let mut scene = Scene::new(MadeUp::new());
    scene.operator().setup("pf0", &setup(1)).expect("set up");
    let before = scene.pf();
    let vf = scene.vf_name(0);
    let wanted =
        Settings { mac: Some("02:70:77:aa:00:02".parse().expect("valid")), ..Settings::default() };
    scene.kernel.inner.deaf = 5;
    let refused = scene.operator().set(&vf, &wanted).expect_err("never heard");
    assert!(refused.what.contains("did not hear from the PF, in 5 attempts"), "{}", refused.what);
    assert!(refused.what.ends_with("all is as before"), "{}", refused.what);
    scene.must_be(&before);
}

#[test]
fn a_record_that_is_broken_is_named_and_touched_by_nobody() {
    let mut scene = Scene::new(MadeUp::new());
    scene.operator().setup("pf0", &setup(1)).expect("set up");
    let file = scene.directory.path().join("vf").join(format!("pf-{}.json", made_up::PF));
    std::fs::write(&file, "{").expect("written");
    let error = scene.operator().restore(&[]).expect_err("broken");
    assert!(error.what.contains(file.to_str().expect("text")), "{}", error.what);
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "{");
    pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        assert!(pw_sriov::state::parse(bytes).is_err() || bytes.starts_with(b"{"));
    });
}
