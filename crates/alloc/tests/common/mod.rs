//! Snapshots for tests.
#![allow(dead_code, reason = "each test file uses a part")]

use pw_alloc::model::{GuestId, GuestView, Health, Origin, Rate, Stance, VfId, VfState, VfView};
use pw_alloc::settings::{PolicyKind, Settings};
use pw_alloc::{Allocator, Snapshot};

pub fn rate(pps: f64) -> Option<Rate> {
    Some(Rate { pps, bytes_per_s: pps * 100.0, origin: Origin::HostSide, blind_ms: 0 })
}

pub fn guest(id: &str, pps: f64) -> GuestView {
    GuestView { rate: rate(pps), ..GuestView::new(id) }
}

/// Guests g000, g001 … with these rates.
pub fn guests(rates: &[f64]) -> Vec<GuestView> {
    rates.iter().enumerate().map(|(at, pps)| guest(&format!("g{at:03}"), *pps)).collect()
}

/// `count` VFs of the PF `name`.
pub fn vfs(name: &str, count: u16) -> Vec<VfView> {
    (0..count)
        .map(|index| VfView {
            id: VfId::new(name, index),
            numa: Some(u16::from(name.ends_with('1'))),
            state: VfState::Usable,
        })
        .collect()
}

pub fn snapshot(now_ms: u64, guests: Vec<GuestView>, vfs: Vec<VfView>) -> Snapshot {
    Snapshot { now_ms, guests, vfs }
}

pub fn holders(now: &Snapshot) -> Vec<&str> {
    let holds = now.guests.iter().filter(|guest| guest.holds.is_some());
    let mut names: Vec<&str> = holds.map(|guest| guest.id.as_str()).collect();
    names.sort_unstable();
    names
}

pub fn holds(now: &Snapshot, name: &str) -> bool {
    now.guest(&GuestId::from(name)).is_some_and(|guest| guest.holds.is_some())
}

/// A guest from three random bytes and a rate: any stance, class, affinity, health and path. `vf`
/// says which VF it holds, if that is free.
pub fn any_guest(
    at: usize,
    pps: u16,
    bits: [u8; 3],
    all: &[VfView],
    taken: &mut Vec<VfId>,
) -> GuestView {
    let mut made = guest(&format!("g{at:03}"), f64::from(pps));
    made.wish.stance = match bits[0] % 8 {
        0 => Stance::Pinned,
        1 => Stance::Excluded,
        _ => Stance::Free,
    };
    made.wish.class = (bits[0] >> 3) % 3;
    made.wish.min_share = if bits[0] > 240 { 0.2 } else { 0.0 };
    made.wish.pfs = match bits[1] % 5 {
        0 => vec!["pf0".into()],
        1 => vec!["pf1".into()],
        _ => Vec::new(),
    };
    made.wish.numa = (bits[1] & 16 != 0).then_some(u16::from(bits[1] >> 7));
    made.paravirtual_up = bits[1] & 96 != 0;
    made.health = match bits[2] % 16 {
        0 => Health::Stuck("kept its VF".into()),
        1 => Health::Busy,
        _ => Health::Ready,
    };
    match bits[2] >> 4 {
        0 => made.rate = None,
        1 => made.rate = made.rate.map(|rate| Rate { origin: Origin::GuestReported, ..rate }),
        2 => made.rate = made.rate.map(|rate| Rate { blind_ms: 60_000, ..rate }),
        _ => {}
    }
    let wanted = all.get(usize::from(bits[2] ^ bits[0]) % (2 * all.len()).max(1));
    if let Some(vf) = wanted.filter(|vf| !taken.contains(&vf.id)) {
        taken.push(vf.id.clone());
        made.holds = Some(vf.id.clone());
    }
    made
}

/// A snapshot in a few lines.
pub fn brief(now: &Snapshot) -> String {
    let vfs: Vec<String> = now.vfs.iter().map(|vf| format!("{} {:?}", vf.id, vf.state)).collect();
    let guests: Vec<String> = now
        .guests
        .iter()
        .map(|guest| {
            let held = guest.holds.as_ref().map_or("-".to_owned(), |held| held.to_string());
            let rate = guest.rate.map(|rate| (rate.pps, rate.origin, rate.blind_ms));
            let wish = &guest.wish;
            let pfs: Vec<&str> = wish.pfs.iter().map(|pf| pf.as_str()).collect();
            format!(
                "{} {held} {rate:?} {:?} class {} share {} on {pfs:?} {:?} up {}",
                guest.id,
                wish.stance,
                wish.class,
                wish.min_share,
                guest.health,
                guest.paravirtual_up
            )
        })
        .collect();
    format!("{vfs:?}\n{}", guests.join("\n"))
}

pub fn settings(policy: PolicyKind) -> Settings {
    Settings {
        policy,
        max_moves: None,
        min_residency_s: 0.0,
        interval_s: 1.0,
        ..Settings::default()
    }
}

pub fn allocator(settings: Settings) -> Allocator {
    Allocator::new(settings).expect("sound settings")
}

/// Observes, decides and performs at once.
pub fn turn(allocator: &mut Allocator, now: &mut Snapshot) -> usize {
    allocator.observe(now);
    let plan = allocator.decide(now).plan;
    *now = plan.try_on(now).expect("a plan that can be performed");
    allocator.commit(&plan, now.now_ms);
    plan.given()
}
