//! How much a waiter forgoes before it takes a VF.
//!
//! A waiter that gains more than a holder forgoes the difference second by second, or pays a switch. All
//! amounts here are in prices of that switch. If the whole lead will come to more than the price, the
//! switch should be made at once, if to less, never; which is unknown. Waiting until what is forgone
//! equals what the switch and the one back would sink costs at most three times what knowing would
//! (Borodin, Linial, Saks: An optimal on-line algorithm for metrical task systems, J. ACM 39, 1992, for two
//! states). Where past leads lasted, taking the VF at once is cheaper, and where they passed, waiting for
//! longer: of the three rules the one is used that would have cost least on the leads of all guests so far.

/// Weight of a lead relative to its next younger one: some two hundred are remembered.
const KEEP: f64 = 0.995;
/// Fewer leads than these teach nothing.
const FEW: f64 = 3.0;

/// What a switch and the one that undoes it cost [prices of the first].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Switches {
    /// The part of the lead that is forgone while the VF moves and until the switch is seen: a lead that
    /// ends meanwhile costs no more than its remainder.
    pub passing: f64,
    /// The part that is paid in any case.
    pub sunk: f64,
}

impl Switches {
    /// Both cost the same, and all of it is paid in any case.
    pub const ALIKE: Self = Self { passing: 0.0, sunk: 2.0 };

    /// The cost of a lead for a guest that switches at this threshold [prices].
    fn cost(self, threshold: f64, lead: f64) -> f64 {
        if lead < threshold {
            lead
        } else {
            threshold + (lead - threshold).min(self.passing) + self.sunk
        }
    }
}

/// The regret at which the most patient rule takes a VF [prices].
const LONG: f64 = 4.0;

/// What the rules would have cost on past leads [prices].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Leads {
    count: f64,
    at_once: f64,
    waiting: f64,
    waiting_long: f64,
}

impl Leads {
    /// Takes in a lead that has ended [prices], and what the switches cost then.
    pub fn ended(&mut self, lead: f64, switches: Switches) {
        if lead > 0.0 && lead.is_finite() {
            self.count = KEEP * self.count + 1.0;
            self.at_once = KEEP * self.at_once + switches.cost(0.0, lead);
            self.waiting = KEEP * self.waiting + switches.cost(switches.sunk, lead);
            self.waiting_long = KEEP * self.waiting_long + switches.cost(LONG, lead);
        }
    }

    /// The regret at which a waiter takes a VF now [prices].
    pub fn threshold(&self, switches: Switches) -> f64 {
        if self.count < FEW || self.waiting <= self.at_once.min(self.waiting_long) {
            switches.sunk
        } else if self.at_once < self.waiting_long {
            0.0
        } else {
            LONG
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(leads: &[f64], switches: Switches) -> f64 {
        let mut past = Leads::default();
        leads.iter().cycle().take(40).for_each(|lead| past.ended(*lead, switches));
        past.threshold(switches)
    }

    #[test]
    fn leads_that_last_are_taken_at_once_and_passing_ones_are_let_pass() {
        assert_eq!(Leads::default().threshold(Switches::ALIKE), 2.0, "nothing is known");
        assert_eq!(after(&[30.0, 8.0, 12.0], Switches::ALIKE), 0.0);
        assert_eq!(after(&[0.3, 0.5, 0.2], Switches::ALIKE), 2.0, "both let them pass");
        assert_eq!(after(&[2.5], Switches::ALIKE), 0.0);
        assert_eq!(after(&[2.5], Switches { passing: 1.0, sunk: 2.0 }), LONG);
        // What pays where the way back costs next to nothing does not where it costs as much.
        assert_eq!(after(&[1.5], Switches { passing: 0.0, sunk: 1.1 }), 0.0);
        assert_eq!(after(&[1.5], Switches::ALIKE), 2.0);
        // Two of three end before the VF has moved: nothing is lost by having tried.
        assert_eq!(after(&[0.5, 0.5, 3.0], Switches { passing: 0.9, sunk: 0.2 }), 0.0);
        assert_eq!(after(&[f64::NAN, f64::INFINITY, -1.0], Switches::ALIKE), 2.0);
    }
}
