//! The bound within limits that `cargo bench --bench policies` prints, against brute force.

#[path = "../benches/bound/limited.rs"]
mod limited;

use std::collections::HashMap;

use limited::{Limits, bound_us};
use pw_alloc::optimum::{Gains, best};
use pw_alloc::traffic::Random;

/// The best within the limits, by trying who holds next from every state: for how many intervals each
/// guest has held, 0 for not at all.
fn brute_force(rows: &[[Vec<f64>; 2]], limits: Limits) -> f64 {
    let guests = rows[0][0].len();
    let mut states = HashMap::from([(vec![0; guests], 0.0)]);
    for [held, price] in rows {
        let mut next: HashMap<Vec<usize>, f64> = HashMap::new();
        for (ages, value) in &states {
            for set in 0_usize..1 << guests {
                let holds = |guest: &usize| set >> guest & 1 == 1;
                let given = (0..guests).filter(|guest| holds(guest) && ages[*guest] == 0);
                let early =
                    |guest: &usize| !holds(guest) && (1..limits.residency).contains(&ages[*guest]);
                if set.count_ones() as usize > limits.vfs
                    || limits.gives.is_some_and(|gives| given.clone().count() > gives)
                    || (0..guests).any(|guest| early(&guest))
                {
                    continue;
                }
                let earned: f64 = (0..guests).filter(holds).map(|guest| held[guest]).sum();
                let paid: f64 = given.map(|guest| price[guest]).sum();
                let aged = |guest: usize| (ages[guest] + 1).min(limits.residency);
                let to = (0..guests).map(|at| if holds(&at) { aged(at) } else { 0 }).collect();
                let reached = next.entry(to).or_insert(f64::NEG_INFINITY);
                *reached = reached.max(value + earned - paid);
            }
        }
        states = next;
    }
    states.into_values().fold(0.0, f64::max)
}

fn made_up(random: &mut Random) -> (Vec<[Vec<f64>; 2]>, Gains) {
    let below = |end: f64, random: &mut Random| (random.share() * end).floor();
    let guests = 1 + below(3.0, random) as usize;
    let rows: Vec<[Vec<f64>; 2]> = (0..1 + below(8.0, random) as usize)
        .map(|_| [9.0, 6.0].map(|end| (0..guests).map(|_| below(end, random)).collect()))
        .collect();
    let mut gains = Gains::new(guests);
    for [held, price] in &rows {
        gains.push(held, price);
    }
    (rows, gains)
}

#[test]
fn is_never_below_and_mostly_equal_to_brute_force_on_a_thousand_small_cases() {
    let (mut equal, mut most) = (0, 0.0_f64);
    for case in 0..1_000 {
        let mut random = Random::new(case);
        let (rows, gains) = made_up(&mut random);
        let limits = Limits {
            vfs: 1 + (random.share() * 2.0) as usize,
            residency: 1 + (random.share() * 4.0) as usize,
            gives: (random.share() < 0.5).then_some(1),
        };
        let truth = brute_force(&rows, limits);
        let bound = bound_us(&gains, limits, 0.9 * truth);
        assert!(bound >= truth - 1e-6, "case {case}: {bound} is below {truth} ({limits:?})");
        equal += u32::from(bound <= truth * 1.001 + 1e-9);
        most = most.max(bound / truth.max(1.0));
    }
    println!("equal in {equal} of 1000 cases, at most {most:.3} times the truth");
    assert!(equal > 800, "{equal} of 1000, {most}");
}

#[test]
fn is_the_optimum_where_no_limit_binds() {
    for case in 0..200 {
        let (_, gains) = made_up(&mut Random::new(case));
        let limits = Limits { vfs: 2, residency: 1, gives: None };
        let optimum = best(&gains, limits.vfs).gain_us;
        let bound = bound_us(&gains, limits, 0.9 * optimum);
        assert!(bound >= optimum - 1e-6);
        assert!(bound <= optimum * 1.05 + 0.5, "case {case}: {bound}, {optimum}");
    }
}
