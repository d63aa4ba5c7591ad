//! Tests of containers, pods and namespaces as guests.

use super::*;
use crate::daemon::testing::{in_namespace, pf, shell};

#[test]
fn another_namespace_of_the_same_inode_and_another_start_of_a_container_are_other_guests() {
    let namespace = |inode, cookie| Identity { inode, cookie };
    let first = incarnation(Some("0a1b 10:00"), namespace(7, Some(70)));
    assert_eq!(first, incarnation(Some("0a1b 10:00"), namespace(7, Some(70))));
    assert_ne!(first, incarnation(Some("0a1b 10:00"), namespace(7, Some(71))));
    assert_ne!(first, incarnation(Some("0a1b 10:05"), namespace(7, Some(70))));
    // Before Linux 5.14 the inode is all there is.
    assert_ne!(incarnation(None, namespace(7, None)), incarnation(None, namespace(8, None)));
}

#[test]
fn a_guest_is_adopted_by_a_task_and_its_refusal_known_once_that_has_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = format!(
        "state_directory = '{}'\n[containers]\ndocker = ''\n[containers.namespaces.web]\nnetns = 'pid:{}'",
        directory.path().display(),
        std::process::id()
    );
    let config = config::parse(&text, "x").expect("valid");
    let mut containers = Containers::new(&config, true).expect("Linux");
    let pool = PoolView::default();
    drop(containers.discover(&pool));
    assert!(containers.is_pending() && containers.troubles().is_empty());
    let adoption = containers.adoption(&pool).expect("of web");
    assert!(containers.adoption(&pool).is_none(), "one at a time");
    adoption();
    drop(containers.discover(&pool));
    assert!(containers.troubles()[0].starts_with("web cannot be managed: "));
    assert!(!containers.is_pending(), "it is tried again later");
}

#[test]
fn a_container_whose_named_process_ended_is_not_taken_for_gone_while_it_is_told_of() {
    let (leaving, container, exists, recorded) = (true, true, true, true);
    assert_eq!(presence(!leaving, container, !exists, recorded), Presence::Unknown);
    assert_eq!(presence(leaving, container, !exists, recorded), Presence::Absent);
    assert_eq!(presence(!leaving, container, exists, recorded), Presence::Present);
    // A name of the configuration names its namespace itself.
    assert_eq!(presence(!leaving, !container, !exists, recorded), Presence::Absent);
    assert_eq!(presence(!leaving, !container, !exists, !recorded), Presence::Unknown);
    // To be given back first.
    assert_eq!(presence(leaving, container, exists, recorded), Presence::Present);
    assert_eq!(presence(leaving, container, exists, !recorded), Presence::Absent);
}

#[test]
fn what_a_guest_that_is_gone_leaves_on_the_host_is_removed_by_a_task() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().display();
    let text = format!("state_directory = '{state}'\n[containers]\ndocker = ''");
    let config = config::parse(&text, "x").expect("valid");
    let record = record::Record {
        guest: "web".into(),
        netns: directory.path().join("gone").display().to_string(),
        inode: 7,
        cookie: None,
        container: None,
        taken_over: true,
        boot: record::boot(),
        interface: "eth0".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu_bytes: 1500,
        up: true,
        addresses: Vec::new(),
        routes: Vec::new(),
        port: 7,
    };
    record::write(&directory.path().join("guests"), &record).expect("written");
    let mut containers = Containers::new(&config, false).expect("Linux");
    let (pool, path) = (PoolView::default(), record::path(&containers.records, &"web".into()));
    assert!(containers.discover(&pool).expect("known").is_empty());
    assert!(path.exists(), "the core itself asks the kernel nothing");
    containers.adoption(&pool).expect("of what it left")();
    assert!(containers.discover(&pool).expect("known").is_empty());
    assert!(!path.exists() && containers.guests.is_empty() && containers.troubles().is_empty());
    assert!(containers.adoption(&pool).is_none());
}

/// As an adoption without a bond leaves it, which not every kernel has.
#[test]
fn a_released_guest_is_gone_at_once_and_restored_by_a_task_with_its_address_and_route() {
    let done = in_namespace("true", || {
        let (send, receive) = mpsc::channel();
        let (_end, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            in_namespace("true", move || {
                let _ = (send.send(nix::unistd::gettid()), ended.recv());
            });
        });
        let netns = format!("/proc/{}/ns/net", receive.recv().ok()?);
        let inside = format!("nsenter --net={netns}");
        shell(&format!(
            "ip link add br0 up type bridge; ip link add pf0 up master br0 type veth peer far
             ip link add port up master br0 type veth peer eth0; ip link set eth0 netns {netns}
             {inside} ip link set eth0 up; {inside} ip address add 198.18.7.2/24 dev eth0
             {inside} ip route add default via 198.18.7.1"
        ))?;
        let state = || shell(&format!("{inside} ip -4 -o address; {inside} ip route"));
        let before = state()?;
        let directory = tempfile::tempdir().expect("a directory");
        let base = format!(
            "state_directory = '{}'\n[containers]\ndocker = ''",
            directory.path().display()
        );
        let with_web =
            format!("{base}\n[containers.namespaces.web]\nnetns = '{netns}'\ninterface = 'eth0'");
        let parse = |text: &str| config::parse(text, "x").expect("valid");
        let mut containers = Containers::new(&parse(&with_web), true).expect("Linux");
        let links = Net::open().and_then(|mut net| net.all()).expect("answered");
        let index = links.iter().find(|link| link.name == "pf0").expect("made").index;
        let pf = pf(index, Some("br0"));
        let links = Arc::new(links.into_iter().map(|link| (link.index, link)).collect());
        let pool = PoolView { pfs: [("pf0".into(), pf)].into(), links, ..PoolView::default() };
        let known = |containers: &mut Containers| containers.discover(&pool).expect("known");
        assert!(known(&mut containers).is_empty());
        containers.adoption(&pool).expect("of web")();
        assert_eq!(known(&mut containers).len(), 1, "{:?}", containers.troubles());
        let adopted = containers.guests[&GuestId::from("web")].adopted.as_ref().expect("adopted");
        record::write(&containers.records, &adopted.record).expect("written");
        containers.configure(&parse(&base));
        assert!(known(&mut containers)[0].leaving);
        containers.release(&"web".into());
        assert!(known(&mut containers).is_empty());
        let restore = containers.adoption(&pool).expect("its release");
        assert!(containers.guests.contains_key(&GuestId::from("web")), "it is not restored yet");
        restore();
        assert!(known(&mut containers).is_empty() && containers.guests.is_empty());
        assert!(!containers.is_pending() && containers.troubles().is_empty());
        assert_eq!(state()?, before);
        Some(())
    });
    if done.flatten().is_none() {
        eprintln!("skipped: needs root, ip and nsenter");
    }
}
