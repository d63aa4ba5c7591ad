//! Second after second under the daemon's limits: a policy that knows the past says who takes whose VF. Knows no
//! policy.

use pw_alloc::optimum::Gains;

/// Who decides. All amounts are gains of a second [µs].
pub trait Policy {
    /// Takes in what a VF gained each guest in the second that has passed, or would have, and who held one.
    fn observe(&mut self, gains: &[f64], held: &[bool]);

    /// By guest: waiters are heard by it, the greatest first, and holders lose their VFs, the least first.
    fn worth(&self) -> &[f64];

    /// Should this waiter have the VF of this holder?
    fn takes(&mut self, waiter: usize, holder: usize) -> bool;

    /// The waiter has it now.
    fn taken(&mut self, _waiter: usize, _holder: usize) {}
}

/// What binds all policies alike.
pub struct Game {
    pub vfs: usize,
    /// Seconds for which a guest keeps what it has, VF or not, once that has changed.
    pub residency: usize,
    /// VFs given in a second at most.
    pub gives: usize,
}

impl Game {
    /// What the policy collects, switches paid [µs], and how many VFs it gives.
    pub fn play(&self, gains: &Gains, policy: &mut dyn Policy) -> (f64, usize) {
        let guests = gains.guests();
        let mut held = vec![false; guests];
        let mut changed: Vec<Option<usize>> = vec![None; guests];
        let (mut collected_us, mut given, mut free) = (0.0, 0, self.vfs.min(guests));
        for at in 0..gains.intervals() {
            // Nothing is known in the first second: whoever comes first has a VF, as in the product.
            let nothing = vec![1.0; guests];
            let worth = if at == 0 {
                &nothing
            } else {
                policy.observe(gains.held(at - 1), &held);
                policy.worth()
            };
            let mut order: Vec<usize> = (0..guests)
                .filter(|&guest| changed[guest].is_none_or(|then| at - then >= self.residency))
                .collect();
            order.sort_by(|&a, &b| worth[b].total_cmp(&worth[a]));
            let waiters: Vec<usize> =
                order.iter().copied().filter(|&guest| !held[guest] && worth[guest] > 0.0).collect();
            let mut holders = order.into_iter().rev().filter(|&guest| held[guest]).peekable();
            let mut takers: Vec<(usize, Option<usize>)> = Vec::new();
            for waiter in waiters {
                if takers.len() == self.gives {
                    break;
                }
                if free > 0 {
                    free -= 1;
                    takers.push((waiter, None));
                } else if let Some(holder) = holders.next_if(|&holder| policy.takes(waiter, holder))
                {
                    takers.push((waiter, Some(holder)));
                }
            }
            for &(waiter, holder) in &takers {
                (held[waiter], changed[waiter]) = (true, Some(at));
                collected_us -= gains.price(at)[waiter];
                if let Some(holder) = holder {
                    (held[holder], changed[holder]) = (false, Some(at));
                    policy.taken(waiter, holder);
                }
            }
            given += takers.len();
            collected_us +=
                gains.held(at).iter().zip(&held).filter(|(_, h)| **h).map(|(g, _)| g).sum::<f64>();
        }
        (collected_us, given)
    }
}
