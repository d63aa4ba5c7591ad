//! Weighted caching with rejection: Landlord with bypass (Young: On-line file caching, Algorithmica 33, 2002).
//!
//! VFs are the cache, guests are files of size 1, and what it costs to fetch one is the price of giving it a VF now.
//! A second on the VF is a hit: the guest's credit becomes its price again. A guest without a VF forgoes its gain;
//! when that has come to its price, it is requested, as whoever is served elsewhere (rejected) pays as much then as
//! for fetching it. A request gives it its price as credit; then all, the requested one and those in the cache, pay
//! the least of these credits as rent. Whoever has none left goes: the requested one, which is then rejected, or one
//! of the cache, whose place it takes.
//!
//! That takes turns wherever more guests are busy than there are VFs, however unlike they are. So it is also played with
//! a rent that goes by time: each second costs what the first guest would gain that has no VF when those who gain most
//! have them all (the cut). Whoever gains more than that saves the difference up to its price, in the cache or to get
//! in; whoever gains less uses it up.
//!
//! VFs follow the cache as fast as the daemon's limits let them.

use crate::game::Policy;

/// What those in the cache pay.
#[derive(Clone, Copy)]
pub enum Rent {
    /// At a request, the least credit.
    Request,
    /// In each second, the gain at the cut.
    Cut,
}

/// The policy.
pub struct Landlord {
    rent: Rent,
    vfs: usize,
    switch_s: f64,
    cached: Vec<bool>,
    /// By guest: in the cache what it has to pay rent with, outside what it has forgone or saved [µs].
    credit: Vec<f64>,
    /// By guest: what it gains in the cache, nothing outside.
    worth: Vec<f64>,
}

impl Landlord {
    pub fn new(rent: Rent, guests: usize, vfs: usize, switch_s: f64) -> Self {
        let (cached, credit) = (vec![false; guests], vec![0.0; guests]);
        Self { rent, vfs, switch_s, cached, credit, worth: vec![0.0; guests] }
    }

    /// Whoever in the cache has least to pay with.
    fn poorest(&self) -> Option<usize> {
        let cached = (0..self.cached.len()).filter(|&guest| self.cached[guest]);
        cached.min_by(|&a, &b| self.credit[a].total_cmp(&self.credit[b]))
    }

    fn request(&mut self, guest: usize, price_us: f64) {
        let Some(poorest) = self.poorest() else { return };
        let rent = self.credit[poorest].min(price_us);
        for (credit, cached) in self.credit.iter_mut().zip(&self.cached) {
            *credit -= if *cached { rent } else { 0.0 };
        }
        self.credit[guest] = 0.0;
        if rent < price_us {
            self.replace(poorest, guest, price_us - rent);
        }
    }

    fn replace(&mut self, out: usize, guest: usize, credit: f64) {
        (self.cached[out], self.credit[out]) = (false, 0.0);
        (self.cached[guest], self.credit[guest]) = (true, credit);
    }
}

impl Policy for Landlord {
    fn observe(&mut self, gains: &[f64], _held: &[bool]) {
        let mut order: Vec<usize> = (0..gains.len()).collect();
        order.sort_by(|&a, &b| gains[b].total_cmp(&gains[a]));
        let cut = order.get(self.vfs).map_or(0.0, |&guest| gains[guest]);
        let mut free = self.vfs.saturating_sub(self.cached.iter().filter(|c| **c).count());
        for &guest in order.iter().filter(|&&guest| self.cached[guest]) {
            let price_us = self.switch_s * gains[guest];
            self.credit[guest] = match self.rent {
                Rent::Request => price_us,
                Rent::Cut => (self.credit[guest] + gains[guest] - cut).min(price_us),
            };
        }
        for guest in order {
            let (gain, price_us) = (gains[guest], self.switch_s * gains[guest]);
            if self.cached[guest] || gain <= 0.0 {
                continue;
            }
            if free > 0 {
                free -= 1;
                (self.cached[guest], self.credit[guest]) = (true, price_us);
                continue;
            }
            match self.rent {
                Rent::Request => {
                    self.credit[guest] += gain;
                    if self.credit[guest] >= price_us {
                        self.request(guest, price_us);
                    }
                }
                Rent::Cut => {
                    self.credit[guest] = (self.credit[guest] + gain - cut).max(0.0);
                    let poor = self.poorest().filter(|&poor| self.credit[poor] <= 0.0);
                    if let Some(poor) =
                        poor.filter(|&p| self.credit[guest] >= price_us && gains[p] < gain)
                    {
                        self.replace(poor, guest, price_us);
                    }
                }
            }
        }
        for (worth, (cached, gain)) in self.worth.iter_mut().zip(self.cached.iter().zip(gains)) {
            *worth = if *cached { *gain } else { 0.0 };
        }
    }

    fn worth(&self) -> &[f64] {
        &self.worth
    }

    fn takes(&mut self, waiter: usize, holder: usize) -> bool {
        self.cached[waiter] && !self.cached[holder]
    }
}
