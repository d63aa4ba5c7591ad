//! The optimum of a simulation, with the future known.

use super::outcome::Hindsight;
use crate::optimum::Network;

/// Guest-intervals beyond which the optimum is not computed: it takes about 120 bytes for each.
pub const MOST_CELLS: usize = 20_000_000;

/// Gains of all guests, interval by interval, as long as there are not too many.
#[derive(Debug, Default)]
pub struct Record {
    rows: Vec<Vec<f32>>,
    cells: usize,
    /// There were too many.
    full: bool,
}

impl Record {
    /// Keeps one interval's gains [µs/s].
    pub fn push(&mut self, gain: &[f64]) {
        self.cells += gain.len();
        self.full |= self.cells > MOST_CELLS;
        if self.full {
            self.rows = Vec::new();
        } else {
            // 24 bits of each are enough: the error is 6e-8 of a gain.
            self.rows.push(gain.iter().map(|gain| *gain as f32).collect());
        }
    }

    /// The most that `vfs` VFs could have saved, when each interval lasts `seconds`, each switch takes
    /// `switch_s`, and besides costs `fixed_us`. None when there were too many intervals to tell.
    ///
    /// A guest that is not there gains nothing, but may keep its VF: where guests come and go this is
    /// an upper bound.
    pub fn hindsight(
        &self,
        vfs: usize,
        seconds: f64,
        switch_s: f64,
        fixed_us: f64,
    ) -> Option<Hindsight> {
        if self.full {
            return None;
        }
        let guests = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut network = Network::new(guests);
        let (mut held, mut price) = (vec![0.0; guests], vec![0.0; guests]);
        // Of a guest that holds from the first second to the last.
        let mut alone = vec![0.0; guests];
        for at in 0..self.rows.len() {
            held.fill(0.0);
            price.fill(fixed_us);
            for (held, gain) in held.iter_mut().zip(&self.rows[at]) {
                *held = f64::from(*gain) * seconds;
            }
            // What the switch costs of this interval and of those after it.
            let mut remaining_s = switch_s;
            for row in self.rows[at..].iter().take((switch_s / seconds).ceil() as usize) {
                let part_s = remaining_s.min(seconds);
                for (price, gain) in price.iter_mut().zip(row) {
                    *price += part_s * f64::from(*gain);
                }
                remaining_s -= part_s;
            }
            for ((alone, held), price) in alone.iter_mut().zip(&held).zip(&price) {
                *alone += if at == 0 { held - price } else { *held };
            }
            network.push(&held, &price);
        }
        alone.sort_unstable_by(|a, b| b.total_cmp(a));
        let static_us = alone.iter().take(vfs).filter(|gain| **gain > 0.0).sum();
        Some(Hindsight { optimum_us: network.optimum(vfs), static_us })
    }
}
