//! The demo's chart: throughput against overcommit, one line per lock.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::series::DashedLineSeries;

use crate::report::{BASES, OURS, Report, Row, quantity};

const SIZE: (u32, u32) = (820, 520);

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito), ours first.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(204, 121, 167), RGBColor(0, 158, 115)];

/// The chart as SVG text.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| anyhow!("cannot draw the chart: {error}"))?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rates = || report.rows.iter().map(|row| row.ops_per_s.max(1.0));
    let (low, high) = (rates().fold(f64::MAX, f64::min), rates().fold(1.0, f64::max));
    let widest = report.rows.iter().map(|row| row.overcommit).max().unwrap_or(1) as f64;

    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("One contended lock, more vCPUs than CPUs (back end {})", report.backend), ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(78)
        .build_cartesian_2d((1.0..widest.max(2.0) * 1.06).log_scale().base(2.0), (low / 2.0..high * 2.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("vCPUs per physical CPU")
        .y_desc("acquisitions per second, all vCPUs")
        .x_label_formatter(&|degree| format!("{degree:.0}x"))
        .y_label_formatter(&|rate| quantity(*rate))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    for (lock, colour) in [OURS].into_iter().chain(BASES).zip(COLOURS) {
        let mut rows: Vec<&Row> = report.rows.iter().filter(|row| row.lock == lock).collect();
        rows.sort_by_key(|row| row.overcommit);
        let points: Vec<(f64, f64)> = rows.iter().map(|row| (row.overcommit as f64, row.ops_per_s.max(1.0))).collect();
        let style = colour.stroke_width(if lock == OURS { 4 } else { 2 });
        if lock == OURS {
            chart.draw_series(LineSeries::new(points.clone(), style))?
        } else {
            chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, style))?
        }
        .label(lock)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .label_font(("sans-serif", 15))
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Kind, KvmCounters};

    #[test]
    fn every_lock_is_drawn_even_one_that_collapsed_to_nothing() {
        let row = |lock: &str, overcommit, ops_per_s| Row {
            lock: lock.to_owned(),
            vcpus: overcommit * 2,
            cpus: 2,
            overcommit,
            ops_per_s,
            stdev: 0.0,
            runs: 1,
            set_aside: 0,
            foreign_cpus: 0.0,
            fairness: 1.0,
            min_vcpu_ops_per_s: 0.0,
            max_wait_us: 0.0,
            counters: Default::default(),
        };
        let locks = [OURS].into_iter().chain(BASES);
        let rows = locks.flat_map(|lock| [row(lock, 1, 3e6), row(lock, 2, 2e6), row(lock, 4, 0.0)]).collect();
        let kvm = KvmCounters::default();
        let report = Report { backend: Kind::Nested, valid: true, objections: vec![], rows, kvm, boots: vec![] };
        let svg = svg(&report).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!([OURS].into_iter().chain(BASES).all(|lock| svg.contains(lock)));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
