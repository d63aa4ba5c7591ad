//! Parses numbers with units from the command line.

use std::time::Duration;

/// A duration in seconds, as `0.5` or `10`: finite, above zero, at most ten years.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 3.2e8 => Ok(Duration::from_secs_f64(s)),
        _ => Err("give a number of seconds above zero, for example 0.5 or 10".into()),
    }
}

/// A rate in packets per second, as `1000`, `0.5`, `1e6`, `10k` or `1.5M`: finite, above zero, at
/// most 1e9.
pub fn pps(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(n) if n * factor > 0.0 && n * factor <= 1e9 => Ok(n * factor),
        _ => {
            Err("give a number of packets per second above zero, for example 1000, 10k or 1M"
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_read() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(pps("10k"), Ok(10_000.0));
        assert_eq!(pps("1.5M"), Ok(1_500_000.0));
        assert_eq!(pps("1e6"), Ok(1_000_000.0));
    }

    #[test]
    fn whatever_is_read_is_a_usable_number() {
        for text in ["", "k", "0", "-1", "nan", "inf", "1e400", "1s"] {
            assert!(seconds(text).is_err() && pps(text).is_err(), "{text:?}");
        }
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Ok(rate) = pps(text) {
                assert!(rate > 0.0 && rate <= 1e9);
            }
            if let Ok(duration) = seconds(text) {
                assert!(duration.as_secs_f64() <= 3.3e8);
            }
        });
    }
}
