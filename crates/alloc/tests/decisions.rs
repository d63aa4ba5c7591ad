//! What holds of every decision, whatever is observed.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::collections::BTreeSet;

use common::{
    allocator, any_guest, brief, guest, guests, holders, holds, rate, settings, snapshot, turn, vfs,
};
use pw_alloc::Allocator;
use pw_alloc::model::{GuestView, Health, Origin, Rate, Snapshot, Stance, VfId, VfState};
use pw_alloc::plan::{Direction, Reason};
use pw_alloc::settings::{PolicyKind, Settings};

type AnyCase = (Vec<(u16, [u8; 3])>, [u8; 2], u8, Vec<(u8, u16)>);

/// A random world, and an allocator that has watched it for a while.
fn any_world(case: &AnyCase, settings: Settings) -> (Allocator, Snapshot) {
    let (made, counts, down, later) = case;
    let mut pool = vfs("pf0", u16::from(counts[0] % 5));
    pool.extend(vfs("pf1", u16::from(counts[1] % 5)));
    let mut taken = Vec::new();
    let made: Vec<GuestView> = made
        .iter()
        .take(20)
        .enumerate()
        .map(|(at, &(pps, bits))| any_guest(at, pps, bits, &pool, &mut taken))
        .collect();
    for (at, vf) in pool.iter_mut().enumerate() {
        vf.state = match (down >> (at % 4 * 2)) & 3 {
            3 if down & 1 == 1 => VfState::LinkDown,
            2 if down & 16 != 0 => VfState::Quarantined("its driver is gone".into()),
            _ => VfState::Usable,
        };
    }
    let mut allocator = allocator(settings);
    let mut now = snapshot(1_000, made, pool);
    allocator.observe(&now);
    for &(who, pps) in later.iter().take(20) {
        now.now_ms += 10_000;
        if let Some(guest) = now.guests.get_mut(usize::from(who) % 21) {
            guest.rate = rate(f64::from(pps));
        }
        allocator.observe(&now);
    }
    (allocator, now)
}

fn each_any_world(check: impl Fn(&mut Allocator, &Snapshot) + std::panic::RefUnwindSafe) {
    pw_cases::check!(120).with_type::<AnyCase>().for_each(|case| {
        for policy in PolicyKind::ALL {
            for (max_moves, min_residency_s) in [(None, 0.0), (Some(2), 30.0)] {
                let chosen = Settings { max_moves, min_residency_s, ..settings(policy) };
                let (mut allocator, now) = any_world(case, chosen);
                check(&mut allocator, &now);
            }
        }
    });
}

#[test]
fn no_plan_gives_a_vf_twice_or_takes_the_only_working_path() {
    each_any_world(|allocator, now| {
        let decision = allocator.decide(now);
        // try_on refuses a VF that is held, unusable or unknown, a guest that holds one already,
        // and the VF of a guest whose paravirtual path is down.
        let after = decision.plan.try_on(now).expect("every move can be made in its order");
        let held: Vec<&VfId> =
            after.guests.iter().filter_map(|guest| guest.holds.as_ref()).collect();
        assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());
        assert!(held.len() <= now.vfs.len());
        let mut served = BTreeSet::new();
        for change in &decision.plan.moves {
            let guest = now.guest(&change.guest).expect("a guest of the snapshot");
            assert_eq!(guest.health, Health::Ready);
            assert!(!served.contains(&guest.id), "{} moves on:\n{}", guest.id, decision.plan);
            if change.direction == Direction::Give {
                served.insert(&guest.id);
                assert_ne!(guest.wish.stance, Stance::Excluded);
                assert!(guest.wish.pfs.is_empty() || guest.wish.pfs.contains(&change.vf.pf));
            }
        }
        if let Some(most) = allocator.settings().max_moves {
            assert!(decision.plan.given() <= most as usize);
        }
        for (verdict, guest) in decision.verdicts.iter().zip(&after.guests) {
            assert_eq!(verdict.guest, guest.id);
            assert_eq!(verdict.vf, guest.holds);
        }
    });
}

#[test]
fn the_quick_plan_is_the_decisions() {
    each_any_world(|allocator, now| assert_eq!(allocator.plan(now), allocator.decide(now).plan));
    // Without constraints, second by second: most decisions change nothing.
    pw_cases::check!(60).with_type::<(u8, Vec<[u8; 12]>)>().for_each(|(vfs_count, rates)| {
        for policy in PolicyKind::ALL {
            let mut allocator = allocator(settings(policy));
            let mut now = snapshot(0, guests(&[0.0; 12]), vfs("pf0", u16::from(vfs_count % 14)));
            for (second, rates) in rates.iter().enumerate() {
                now.now_ms = second as u64 * 1_000;
                for (guest, pps) in now.guests.iter_mut().zip(rates) {
                    guest.rate = rate(f64::from(*pps));
                }
                allocator.observe(&now);
                let plan = allocator.plan(&now);
                assert_eq!(plan, allocator.decide(&now).plan);
                now = plan.try_on(&now).expect("performed");
                allocator.commit(&plan, now.now_ms);
            }
        }
    });
}

#[test]
fn once_a_plan_is_performed_there_is_nothing_more_to_do() {
    each_any_world(|allocator, now| {
        let plan = allocator.decide(now).plan;
        let after = plan.try_on(now).expect("performed");
        allocator.commit(&plan, now.now_ms);
        allocator.observe(&after);
        let again = allocator.decide(&after);
        assert!(again.plan.is_empty(), "first\n{plan}then\n{}of {}", again.plan, brief(now));
    });
}

#[test]
fn a_pinned_guest_waits_for_nobody_who_is_not_pinned() {
    each_any_world(|allocator, now| {
        if allocator.settings().max_moves.is_some() {
            return;
        }
        let after = allocator.decide(now).plan.try_on(now).expect("performed");
        let movable =
            |g: &GuestView| g.health == Health::Ready && g.paravirtual_up && g.holds.is_some();
        for pinned in &after.guests {
            if pinned.wish.stance != Stance::Pinned
                || pinned.health != Health::Ready
                || pinned.holds.is_some()
            {
                continue;
            }
            for other in after.guests.iter().filter(|other| movable(other)) {
                let Some(held) = &other.holds else { continue };
                let fits = pinned.wish.pfs.is_empty() || pinned.wish.pfs.contains(&held.pf);
                let quarantined = now
                    .vfs
                    .iter()
                    .any(|vf| vf.id == *held && matches!(vf.state, VfState::Quarantined(_)));
                assert!(
                    !fits || quarantined || other.wish.stance == Stance::Pinned,
                    "{} holds what pinned {} may have",
                    other.id,
                    pinned.id
                );
            }
        }
    });
}

#[test]
fn while_there_are_enough_vfs_everybody_has_one() {
    pw_cases::check!().with_type::<(Vec<u16>, u8)>().for_each(|(rates, spare)| {
        let rates: Vec<f64> = rates.iter().take(30).map(|r| f64::from(*r)).collect();
        for policy in PolicyKind::ALL {
            let pool = vfs("pf0", rates.len() as u16 + u16::from(spare % 4));
            let mut now = snapshot(1_000, guests(&rates), pool);
            let mut allocator = allocator(settings(policy));
            assert_eq!(turn(&mut allocator, &mut now), rates.len());
            now.now_ms += 1_000_000;
            assert_eq!(turn(&mut allocator, &mut now), 0);
            assert_eq!(holders(&now).len(), rates.len());
        }
    });
}

#[test]
fn activity_is_the_top_n_by_packet_rate() {
    pw_cases::check!().with_type::<(Vec<(u32, u32)>, u8)>().for_each(|(rates, count)| {
        let first: Vec<f64> = rates.iter().take(40).map(|r| f64::from(r.0)).collect();
        let mut now = snapshot(1_000, guests(&first), vfs("pf0", u16::from(count % 20)));
        let mut allocator = allocator(settings(PolicyKind::Activity));
        turn(&mut allocator, &mut now);
        now.now_ms += 5_000;
        for (guest, pps) in now.guests.iter_mut().zip(rates) {
            guest.rate = rate(f64::from(pps.1));
        }
        turn(&mut allocator, &mut now);
        let pps = |guest: &GuestView| guest.rate.map_or(0.0, |rate| rate.pps);
        let (with, without): (Vec<_>, Vec<_>) =
            now.guests.iter().partition(|guest| guest.holds.is_some());
        assert_eq!(with.len(), now.vfs.len().min(now.guests.len()));
        let least = with.iter().map(|guest| pps(guest)).fold(f64::INFINITY, f64::min);
        assert!(without.iter().all(|guest| pps(guest) <= least));
    });
}

#[test]
fn under_fair_nobody_starves_and_all_hold_for_the_same_time() {
    pw_cases::check!(60).with_type::<(u8, u8, u8)>().for_each(|&(count, vf_count, most)| {
        let (count, vf_count) = (usize::from(count % 25) + 2, usize::from(vf_count % 6) + 1);
        let most = usize::from(most % 4) + 1;
        let mut now = snapshot(0, guests(&vec![0.0; count]), vfs("pf0", vf_count as u16));
        let turn_s = 60.0;
        let mut allocator = allocator(Settings {
            fair_turn_s: turn_s,
            interval_s: 10.0,
            max_moves: Some(most as u32),
            ..settings(PolicyKind::Fair)
        });
        // A turn lasts until somebody is a whole turn behind, and moves may have to queue.
        let pass =
            count.div_ceil(vf_count) as f64 * (turn_s + 10.0) + count.div_ceil(most) as f64 * 10.0;
        let passes = 12.0;
        let mut held_s = vec![0.0; count];
        let mut last_held_s = vec![0.0; count];
        while (now.now_ms as f64) < passes * pass * 1e3 {
            turn(&mut allocator, &mut now);
            now.now_ms += 10_000;
            let now_s = now.now_ms as f64 / 1e3;
            for (at, guest) in now.guests.iter().enumerate() {
                if guest.holds.is_some() {
                    held_s[at] += 10.0;
                    last_held_s[at] = now_s;
                } else {
                    let waited_s = now_s - last_held_s[at];
                    assert!(waited_s <= 2.0 * pass + turn_s, "{} waited {waited_s} s", guest.id);
                }
            }
        }
        let (low, high) = held_s
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), &held| (low.min(held), high.max(held)));
        assert!(high - low <= 3.0 * (turn_s + 10.0 * count.div_ceil(most) as f64), "{held_s:?}");
    });
}

#[test]
fn a_newcomer_has_no_turns_to_catch_up_on() {
    let mut now = snapshot(0, guests(&[0.0, 0.0]), vfs("pf0", 1));
    let mut allocator = allocator(Settings { fair_turn_s: 10.0, ..settings(PolicyKind::Fair) });
    for _ in 0..100 {
        turn(&mut allocator, &mut now);
        now.now_ms += 10_000;
    }
    now.guests.push(guest("late", 0.0));
    let mut late = 0;
    for _ in 0..30 {
        turn(&mut allocator, &mut now);
        now.now_ms += 10_000;
        late += usize::from(holds(&now, "late"));
    }
    assert!((9..=12).contains(&late), "{late} of 30 turns");
}

#[test]
fn a_guest_that_flaps_at_the_cut_moves_no_more_often_than_its_residency_allows() {
    pw_cases::check!(40).with_type::<Vec<bool>>().for_each(|flaps| {
        for policy in [PolicyKind::Activity, PolicyKind::Benefit] {
            let mut allocator = allocator(Settings {
                min_residency_s: 30.0,
                interval_s: 1.0,
                max_moves: Some(1),
                ..settings(policy)
            });
            let mut now = snapshot(0, guests(&[1000.0, 1000.0, 1000.0]), vfs("pf0", 1));
            let mut moves = 0;
            let seconds = 600;
            for second in 0..seconds {
                now.now_ms = second * 1000;
                let high = flaps.get(second as usize % flaps.len().max(1)).copied();
                let high = high.unwrap_or(second % 2 == 0);
                now.guests[1].rate = rate(if high { 900_000.0 } else { 2.0 });
                moves += turn(&mut allocator, &mut now);
            }
            assert!(moves as u64 <= 1 + seconds / 30, "{policy:?}: {moves} moves");
        }
    });
}

#[test]
fn the_guests_word_takes_no_vf_from_a_guest_that_the_host_sees() {
    let word = |pps| Some(Rate { origin: Origin::GuestReported, ..rate(pps).expect("some") });
    for policy in [PolicyKind::Activity, PolicyKind::Benefit] {
        let mut allocator = allocator(settings(policy));
        let mut now = snapshot(0, guests(&[10.0, 0.0, 0.0]), vfs("pf0", 1));
        now.guests[1].rate = word(1e9);
        for _ in 0..300 {
            turn(&mut allocator, &mut now);
            now.now_ms += 1000;
            assert!(holds(&now, "g000"), "{policy:?}");
        }
        // From an idle one it does.
        now.guests[0].rate = rate(0.0);
        for _ in 0..300 {
            turn(&mut allocator, &mut now);
            now.now_ms += 1000;
        }
        assert!(holds(&now, "g001"), "{policy:?}");
    }
}

#[test]
fn unknown_traffic_is_not_taken_for_silence() {
    let mut allocator = allocator(settings(PolicyKind::Activity));
    let mut now = snapshot(0, guests(&[0.0, 0.0]), vfs("pf0", 1));
    now.guests[1].rate = None;
    turn(&mut allocator, &mut now);
    assert!(holds(&now, "g001"));
    // A holder that went out of sight keeps its rank for a while, and not for ever.
    let blind = |blind_ms| rate(10_000.0).map(|rate| Rate { blind_ms, ..rate });
    now.guests[1].rate = blind(30_000);
    now.guests[0].rate = rate(5_000.0);
    now.now_ms += 1000;
    turn(&mut allocator, &mut now);
    assert!(holds(&now, "g001"));
    now.guests[1].rate = blind(400_000);
    now.now_ms += 1000;
    turn(&mut allocator, &mut now);
    assert!(holds(&now, "g000"));
}

#[test]
fn a_higher_class_goes_first_unless_it_is_idle() {
    for policy in [PolicyKind::Activity, PolicyKind::Benefit, PolicyKind::Fair] {
        let mut allocator = allocator(settings(policy));
        let mut now = snapshot(0, guests(&[50_000.0, 10.0]), vfs("pf0", 1));
        turn(&mut allocator, &mut now);
        now.guests[1].wish.class = 3;
        now.now_ms += 1000;
        turn(&mut allocator, &mut now);
        assert!(holds(&now, "g001"), "{policy:?}");
        if policy != PolicyKind::Fair {
            now.guests[1].rate = rate(0.0);
            for _ in 0..300 {
                now.now_ms += 1000;
                turn(&mut allocator, &mut now);
            }
            assert!(holds(&now, "g000"), "{policy:?}");
        }
    }
}

/// If the class of an idle holder counted, a waiter of a lower class would wait for what a guest without
/// any class takes by its regret, only to take it from that one in the next interval.
#[test]
fn the_class_of_an_idle_holder_keeps_nobody_waiting() {
    let mut allocator = allocator(settings(PolicyKind::Benefit));
    let mut now = snapshot(0, guests(&[10.0, 0.0, 0.0]), vfs("pf0", 1));
    now.guests[0].wish.class = 2;
    turn(&mut allocator, &mut now);
    assert!(holds(&now, "g000"));
    now.guests[0].rate = rate(0.0);
    now.guests[1].rate = rate(50_000.0);
    now.now_ms += 60_000;
    allocator.observe(&now);
    now.guests[2].rate = rate(10.0);
    now.guests[2].wish.class = 1;
    for _ in 0..2 {
        now.now_ms += 1;
        turn(&mut allocator, &mut now);
        assert!(holds(&now, "g002"));
    }
}

#[test]
fn a_guaranteed_share_is_kept_whatever_the_traffic() {
    for policy in [PolicyKind::Activity, PolicyKind::Benefit] {
        let mut allocator =
            allocator(Settings { min_residency_s: 30.0, interval_s: 10.0, ..settings(policy) });
        let mut now = snapshot(0, guests(&[50_000.0, 40_000.0, 10.0]), vfs("pf0", 1));
        now.guests[2].wish.min_share = 0.25;
        let (mut held, steps) = (0, 2_000);
        for _ in 0..steps {
            turn(&mut allocator, &mut now);
            now.now_ms += 10_000;
            held += usize::from(holds(&now, "g002"));
        }
        let share = held as f64 / f64::from(steps);
        assert!((0.245..0.30).contains(&share), "{policy:?}: {share}");
    }
}

#[test]
fn holders_on_a_pf_without_link_fall_back_and_go_to_another() {
    let mut allocator = allocator(settings(PolicyKind::Activity));
    let mut pool = vfs("pf0", 2);
    let mut now = snapshot(0, guests(&[100.0, 90.0, 80.0]), pool.clone());
    turn(&mut allocator, &mut now);
    pool.iter_mut().for_each(|vf| vf.state = VfState::LinkDown);
    pool.extend(vfs("pf1", 1));
    now.vfs = pool;
    now.now_ms += 1000;
    turn(&mut allocator, &mut now);
    assert_eq!(holders(&now), ["g000"]);
    let held = now.guests[0].holds.as_ref().expect("held").to_string();
    assert_eq!(held, "pf1/0");
}

#[test]
fn whoever_made_room_on_one_pf_keeps_what_it_got_on_another() {
    let mut now = snapshot(1_000, guests(&[200.0, 100.0, 50.0, 50.0]), vfs("pf0", 1));
    now.vfs.extend(vfs("pf1", 2));
    for (at, class, index) in [(0, 0, Some(0)), (1, 0, Some(1)), (2, 2, None), (3, 1, None)] {
        let guest = &mut now.guests[at];
        guest.wish.class = class;
        guest.wish.pfs = if at == 1 { Vec::new() } else { vec!["pf1".into()] };
        guest.holds = index.map(|index| VfId::new("pf1", index));
    }
    assert_eq!(turn(&mut allocator(settings(PolicyKind::Activity)), &mut now), 3);
    assert_eq!(holders(&now), ["g001", "g002", "g003"]);
}

#[test]
fn a_vf_that_two_guests_claim_is_given_to_nobody() {
    let mut now = snapshot(0, guests(&[100.0, 90.0, 80.0]), vfs("pf0", 2));
    turn(&mut allocator(settings(PolicyKind::Activity)), &mut now);
    now.guests[1].holds = now.guests[0].holds.clone();
    let mut watching = allocator(settings(PolicyKind::Activity));
    watching.observe(&now);
    let decision = watching.decide(&now);
    assert_eq!(decision.plan.moves.len(), 1);
    assert_eq!(decision.plan.moves[0].guest.as_str(), "g002");
    assert_eq!(decision.verdicts[0].reason, Reason::DoubtfulVf);
}

#[test]
fn ten_thousand_guests_at_once_are_served_within_the_bound() {
    let rates: Vec<f64> = (0..10_000).map(f64::from).collect();
    let mut now = snapshot(0, guests(&rates), vfs("pf0", 63));
    let mut allocator =
        allocator(Settings { max_moves: Some(8), ..settings(PolicyKind::Activity) });
    for round in 0..8 {
        let given = turn(&mut allocator, &mut now);
        assert_eq!(given, if round < 7 { 8 } else { 7 });
        now.now_ms += 1000;
    }
    assert_eq!(holders(&now).len(), 63);
    assert!(now.guests.iter().skip(9_937).all(|guest| guest.holds.is_some()));
}

#[test]
fn a_guest_that_cannot_be_given_a_vf_is_tried_ever_more_seldom_up_to_a_bound() {
    let bounded = Settings { retry_most_s: 10.0, ..settings(PolicyKind::Activity) };
    let mut allocator = allocator(bounded);
    let mut now = snapshot(0, guests(&[100.0, 90.0]), vfs("pf0", 1));
    let (g000, vf) = (now.guests[0].id.clone(), now.vfs[0].id.clone());
    // Every give to the first guest fails; the second one has the VF meanwhile.
    let mut tried_s = Vec::new();
    for second in 0..60 {
        now.now_ms = second * 1000;
        allocator.observe(&now);
        let decision = allocator.decide(&now);
        let tries = decision
            .plan
            .moves
            .iter()
            .any(|change| change.direction == Direction::Give && change.guest == g000);
        let after = decision.plan.try_on(&now).expect("a plan that can be performed");
        allocator.commit(&decision.plan, now.now_ms);
        if tries {
            tried_s.push(second);
            allocator.undone(&g000, &vf, now.now_ms);
            now.guests.iter_mut().for_each(|guest| guest.holds = None);
        } else {
            assert!(matches!(decision.verdicts[0].reason, Reason::BackingOff { .. }));
            now = after;
            assert!(holds(&now, "g001"), "at {second} s");
        }
    }
    assert_eq!(tried_s, [0, 1, 3, 7, 15, 25, 35, 45, 55]);
    // The operator need not wait, and what came off is forgotten.
    now.now_ms = 60_000;
    allocator.retry(Some(&g000));
    turn(&mut allocator, &mut now);
    assert_eq!(holders(&now), ["g000"]);
    allocator.given(&g000, &vf);
    assert_eq!(allocator.histories().refusals(&vf), 0);
}

#[test]
fn a_vf_that_could_not_be_given_comes_after_the_others() {
    let mut allocator = allocator(settings(PolicyKind::Activity));
    let now = snapshot(0, guests(&[100.0, 90.0]), vfs("pf0", 3));
    allocator.observe(&now);
    allocator.undone(&now.guests[0].id, &now.vfs[0].id, 0);
    allocator.retry(None);
    let given: Vec<String> =
        allocator.decide(&now).plan.moves.iter().map(|change| change.vf.to_string()).collect();
    assert_eq!(given, ["pf0/1", "pf0/2"]);
}
