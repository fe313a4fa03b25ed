//! Statistics of a handful of samples.

use serde::Serialize;

/// Median, spread and count of some samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    pub median: f64,
    /// Sample standard deviation (divisor n - 1); 0 for a single sample.
    pub stdev: f64,
    pub runs: usize,
}

impl Summary {
    /// The summary of `samples`, or `None` when there is none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let median = median(samples)?;
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let stdev = if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        Some(Self { median, stdev, runs: samples.len() })
    }
}

/// The middle sample, or the mean of the two in the middle.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_samples() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[5.0]), Some(Summary { median: 5.0, stdev: 0.0, runs: 1 }));
        let four = Summary::of(&[4.0, 1.0, 2.0, 9.0]).unwrap();
        assert_eq!((four.median, four.runs), (3.0, 4));
        assert!((four.stdev - (38.0_f64 / 3.0).sqrt()).abs() < 1e-12);
    }
}
