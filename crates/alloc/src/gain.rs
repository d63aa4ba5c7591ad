//! What a VF is worth to a guest: a measured curve from packet rate to time saved.

use serde::{Deserialize, Serialize};

use pw_error::{Error, Result};

/// One point of a gain curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Packet rate [packets per second].
    pub pps: f64,
    /// By how much a packet is faster on a VF than on the paravirtual path [µs]: the difference of
    /// the medians under that rate.
    pub saved_us: f64,
}

/// Time saved per packet by packet rate: linear between its points, constant beyond them.
///
/// FlexVF's section 4.3 takes the gain to grow with the packet rate alone; so does the default, a
/// constant: until a curve has been measured, a packet gains the same at any rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Point>", into = "Vec<Point>")]
pub struct GainCurve(Vec<Point>);

impl Default for GainCurve {
    fn default() -> Self {
        Self(vec![Point { pps: 0.0, saved_us: 20.0 }])
    }
}

impl GainCurve {
    /// A curve through these points, in the order of their rates.
    pub fn new(points: Vec<Point>) -> Result<Self> {
        let remedy = "give points as { pps = 1000, saved_us = 20 }, in the order of rising pps, none below zero";
        if points.is_empty() {
            return Err(Error::bad_input("the gain curve has no points", remedy));
        }
        for (at, point) in points.iter().enumerate() {
            let sound = |value: f64| value.is_finite() && (0.0..=1e12).contains(&value);
            if !sound(point.pps) || !sound(point.saved_us) {
                return Err(Error::bad_input(
                    format!("point {} of the gain curve is out of range", at + 1),
                    remedy,
                ));
            }
            if at > 0 && points[at - 1].pps >= point.pps {
                return Err(Error::bad_input(
                    format!("point {} of the gain curve is not above the one before it", at + 1),
                    remedy,
                ));
            }
        }
        Ok(Self(points))
    }

    /// Time that a VF saves each packet at this rate [µs].
    pub fn saved_us(&self, pps: f64) -> f64 {
        let above = self.0.partition_point(|point| point.pps <= pps);
        match (above.checked_sub(1).map(|below| self.0[below]), self.0.get(above)) {
            (Some(low), Some(high)) => {
                let share = (pps - low.pps) / (high.pps - low.pps);
                low.saved_us + share * (high.saved_us - low.saved_us)
            }
            (Some(last), None) => last.saved_us,
            (None, Some(first)) => first.saved_us,
            (None, None) => 0.0,
        }
    }

    /// What a VF is worth at this rate: time saved by all packets of a second [µs/s].
    pub fn gain_us_per_s(&self, pps: f64) -> f64 {
        pps.max(0.0) * self.saved_us(pps)
    }
}

impl TryFrom<Vec<Point>> for GainCurve {
    type Error = Error;

    fn try_from(points: Vec<Point>) -> Result<Self> {
        Self::new(points)
    }
}

impl From<GainCurve> for Vec<Point> {
    fn from(curve: GainCurve) -> Self {
        curve.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Result<GainCurve> {
        GainCurve::new(points.iter().map(|&(pps, saved_us)| Point { pps, saved_us }).collect())
    }

    #[test]
    fn a_curve_is_linear_between_its_points_and_constant_beyond() {
        let curve = curve(&[(1000.0, 10.0), (3000.0, 30.0)]).expect("sound points");
        for (pps, saved_us) in
            [(0.0, 10.0), (1000.0, 10.0), (2000.0, 20.0), (3000.0, 30.0), (1e9, 30.0)]
        {
            assert_eq!(curve.saved_us(pps), saved_us, "{pps}");
        }
        assert_eq!(curve.gain_us_per_s(2000.0), 40_000.0);
    }

    #[test]
    fn a_curve_that_makes_no_sense_is_refused() {
        assert!(curve(&[]).is_err());
        assert!(curve(&[(1.0, f64::NAN)]).is_err());
        assert!(curve(&[(1.0, -1.0)]).is_err());
        let error = curve(&[(2.0, 1.0), (1.0, 2.0)]).expect_err("falling");
        assert_eq!(error.what, "point 2 of the gain curve is not above the one before it");
    }
}
