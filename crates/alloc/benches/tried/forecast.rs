//! Model-predictive choice over a short horizon: gains are forecast, and a waiter takes a holder's VF where that is
//! best for the two over the horizon, price and residency counted; a second later all is forecast anew. Forecasts
//! are the last gain, an exponential mean, or the season: the gains of a period ago.

use crate::game::Policy;
use crate::rental::SkiRental;

/// Periods that are looked for [s].
const LAGS: std::ops::RangeInclusive<usize> = 2..=120;
/// What is this old weighs 1/e in telling how well gains repeat [s].
const WINDOW_S: f64 = 240.0;
/// So often are periods looked for [s].
const LOOK_S: usize = 5;
/// So much of the largest error of a lag below it a period's may be at most.
const BETTER: f64 = 0.25;

/// How gains are forecast.
#[derive(Clone, Copy)]
pub enum Forecast {
    /// As in the last second.
    Persistence,
    /// The exponential mean of this half-life [s].
    HalfLife(f64),
    /// As a period ago, where the guest's past repeats clearly better after some lag than after those below it;
    /// otherwise as in the last second.
    Seasonal,
}

/// The policy.
pub struct Predictive {
    forecast: Forecast,
    horizon: usize,
    guests: usize,
    switch_s: f64,
    residency: usize,
    /// By guest: its gains in the seconds to come, as forecast.
    ahead: Vec<f64>,
    /// By guest: what a VF given now brings while it must stay.
    worth: Vec<f64>,
    mean: Vec<f64>,
    seasons: Seasons,
    /// Who decides where nothing repeats.
    otherwise: Option<SkiRental>,
}

impl Predictive {
    pub fn new(
        forecast: Forecast,
        horizon: usize,
        guests: usize,
        switch_s: f64,
        residency: usize,
    ) -> Self {
        Self {
            forecast,
            horizon,
            guests,
            switch_s,
            residency,
            ahead: vec![0.0; guests * horizon],
            worth: vec![0.0; guests],
            mean: Vec::new(),
            seasons: Seasons::default(),
            otherwise: None,
        }
    }

    /// Where the gains of the two do not repeat, this policy decides.
    pub fn or(mut self, otherwise: SkiRental) -> Self {
        self.otherwise = Some(otherwise);
        self
    }

    fn of(&self, guest: usize) -> &[f64] {
        &self.ahead[guest * self.horizon..(guest + 1) * self.horizon]
    }

    /// What a guest gains that is given a VF then, until it may lose it.
    fn given(&self, guest: usize, from: usize) -> f64 {
        let ahead = self.of(guest);
        let until = (from + self.residency).min(self.horizon);
        let lost = ahead[from..until].iter().zip(0_u32..);
        let lost =
            lost.map(|(gain, second)| gain * (self.switch_s - f64::from(second)).clamp(0.0, 1.0));
        ahead[from..until].iter().sum::<f64>() - lost.sum::<f64>()
    }
}

impl Policy for Predictive {
    fn observe(&mut self, gains: &[f64], held: &[bool]) {
        if let Some(otherwise) = &mut self.otherwise {
            otherwise.observe(gains, held);
        }
        match self.forecast {
            Forecast::Persistence => self.mean = gains.to_vec(),
            Forecast::HalfLife(half_life_s) if !self.mean.is_empty() => {
                let keep = (-1.0 / half_life_s).exp2();
                for (mean, gain) in self.mean.iter_mut().zip(gains) {
                    *mean = keep * *mean + (1.0 - keep) * gain;
                }
            }
            Forecast::HalfLife(_) => self.mean = gains.to_vec(),
            Forecast::Seasonal => self.seasons.observe(gains),
        }
        for guest in 0..self.guests {
            let ahead = &mut self.ahead[guest * self.horizon..(guest + 1) * self.horizon];
            match self.forecast {
                Forecast::Seasonal => self.seasons.forecast(guest, ahead),
                _ => ahead.fill(self.mean[guest]),
            }
        }
        for guest in 0..self.guests {
            self.worth[guest] = self.of(guest)[..self.residency.min(self.horizon)].iter().sum();
        }
    }

    fn worth(&self) -> &[f64] {
        &self.worth
    }

    /// By dynamic programming, backwards: what is left of the horizon brings the one who holds, when the two may
    /// exchange the VF as often as residency allows.
    fn takes(&mut self, waiter: usize, holder: usize) -> bool {
        let pair = [waiter, holder];
        if let Some(otherwise) = &mut self.otherwise
            && !self.seasons.foresee(pair)
        {
            return otherwise.takes(waiter, holder);
        }
        if !matches!(self.forecast, Forecast::Seasonal) {
            // Nothing changes over the horizon: at once or never.
            let [takes, stays] = pair.map(|guest| self.ahead[guest * self.horizon]);
            let seconds = self.horizon as f64;
            return takes * (seconds - self.switch_s) > stays * seconds;
        }
        let mut left = vec![[0.0; 2]; self.horizon + 1];
        let mut better = false;
        for from in (0..self.horizon).rev() {
            let until = (from + self.residency).min(self.horizon);
            left[from] = [0, 1].map(|who| {
                let stays = self.of(pair[who])[from] + left[from + 1][who];
                let gives = self.given(pair[1 - who], from) + left[until][1 - who];
                better = gives > stays;
                f64::max(stays, gives)
            });
        }
        // The last that was asked: at once, by the holder.
        better
    }

    fn taken(&mut self, waiter: usize, holder: usize) {
        if let Some(otherwise) = &mut self.otherwise {
            otherwise.taken(waiter, holder);
        }
    }
}

/// How well each guest's gains repeat after each lag.
#[derive(Default)]
struct Seasons {
    /// By second, in it by guest.
    past: Vec<Vec<f64>>,
    /// By lag, from 1; in it by guest: the mean square of how much gains differed over the lag.
    error: Vec<Vec<f64>>,
    /// By lag, from 1: what has gone into these means, of 1.
    weight: Vec<f64>,
    /// By guest: the lag after which its gains repeat best, 1 for a steady guest; none where they do not repeat.
    lag: Vec<Option<usize>>,
    /// By guest: the means of its gains and of their squares.
    mean: Vec<f64>,
    square: Vec<f64>,
}

impl Seasons {
    fn observe(&mut self, gains: &[f64]) {
        let keep = (-1.0 / WINDOW_S).exp();
        self.error.resize(*LAGS.end(), vec![0.0; gains.len()]);
        self.weight.resize(*LAGS.end(), 0.0);
        let lags = self.error.iter_mut().zip(&mut self.weight).zip(self.past.iter().rev());
        for ((errors, weight), before) in lags {
            *weight = keep * *weight + 1.0 - keep;
            for ((error, gain), before) in errors.iter_mut().zip(gains).zip(before) {
                *error = keep * *error + (1.0 - keep) * (gain - before).powi(2);
            }
        }
        let weight = (1.0 - keep) / (1.0 - keep.powf(self.past.len() as f64 + 1.0));
        self.mean.resize(gains.len(), 0.0);
        self.square.resize(gains.len(), 0.0);
        for ((mean, square), gain) in self.mean.iter_mut().zip(&mut self.square).zip(gains) {
            *mean += weight * (gain - *mean);
            *square += weight * (gain.powi(2) - *square);
        }
        self.past.push(gains.to_vec());
        if self.past.len() % LOOK_S == 1 {
            self.lag = (0..gains.len()).map(|guest| self.season(guest)).collect();
        }
    }

    fn error(&self, guest: usize, lag: usize) -> f64 {
        self.error[lag - 1][guest] / self.weight[lag - 1]
    }

    fn season(&self, guest: usize) -> Option<usize> {
        let error = |lag: usize| self.error(guest, lag);
        // A lag counts once it has been seen twice.
        let lags = LAGS.filter(|lag| 2 * lag <= self.past.len());
        let best = lags.min_by(|&a, &b| error(a).total_cmp(&error(b)))?;
        // What changes slowly differs least after the shortest lag; what repeats differs more in between.
        let between = (1..best).map(error).fold(0.0, f64::max);
        if between == 0.0 { Some(1) } else { Some(best).filter(|_| error(best) < BETTER * between) }
    }

    /// A period ago, drawn towards the mean as far as the gains do not repeat, anew with each period.
    fn forecast(&self, guest: usize, ahead: &mut [f64]) {
        let (now, mean) = (self.past.len(), self.mean[guest]);
        let Some(lag) = self.lag[guest].filter(|lag| *lag > 1) else {
            return ahead.fill(self.past[now - 1][guest]);
        };
        let variance = (self.square[guest] - mean.powi(2)).max(f64::MIN_POSITIVE);
        let alike = (1.0 - self.error(guest, lag) / (2.0 * variance)).clamp(0.0, 1.0);
        for (second, ahead) in ahead.iter_mut().enumerate() {
            let past = self.past[now - lag + second % lag][guest];
            *ahead = mean + alike.powf((second / lag + 1) as f64) * (past - mean);
        }
    }

    /// Do both repeat, and not only because they are steady?
    fn foresee(&self, pair: [usize; 2]) -> bool {
        let lags = pair.map(|guest| self.lag[guest]);
        lags.iter().all(Option::is_some) && lags.iter().any(|lag| *lag > Some(1))
    }
}
