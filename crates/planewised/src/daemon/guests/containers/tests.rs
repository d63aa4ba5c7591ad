//! Tests of containers, pods and namespaces as guests.

use super::*;

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
