//! The charts of the page: lines over a logarithmic axis, each named at its end.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use pvlock_bench_protocol::{LockName, Metric};

use super::results::Results;
use crate::report::{duration, quantity};

const SIZE: (u32, u32) = (900, 480);
/// Room on the right for the names of lines.
const NAMES: i32 = 128;
/// Least distance of two names.
const NAME_HEIGHT: i32 = 17;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(60, 64, 72);

/// How a lock is drawn: ours in blues, spinning ones in warm colours, sleeping ones in greys. Colours that people with any
/// kind of colour vision tell apart (Okabe and Ito); what is alike in colour differs in its dashes.
fn style(lock: LockName) -> (RGBColor, u32, Dash) {
    match lock {
        LockName::Pvlock => (RGBColor(0, 94, 170), 4, Dash::None),
        LockName::PvlockNoHalt => (RGBColor(60, 150, 215), 2, Dash::Long),
        LockName::PvlockUnaware => (RGBColor(60, 150, 215), 2, Dash::Short),
        LockName::PvlockPlain => (RGBColor(120, 190, 235), 2, Dash::None),
        LockName::Spin => (RGBColor(222, 140, 0), 2, Dash::None),
        LockName::SpinThreads => (RGBColor(222, 140, 0), 2, Dash::Short),
        LockName::Ticket => (RGBColor(204, 100, 160), 2, Dash::None),
        LockName::Hermit => (RGBColor(213, 70, 0), 2, Dash::None),
        LockName::Mcs => (RGBColor(0, 148, 105), 2, Dash::None),
        LockName::ParkingLot => (RGBColor(105, 105, 105), 2, Dash::None),
        LockName::Std => (RGBColor(150, 150, 150), 2, Dash::Long),
        LockName::PvlockMutex | LockName::PvlockRwLock => (RGBColor(0, 94, 170), 4, Dash::None),
        LockName::SpinRwLock => (RGBColor(222, 140, 0), 2, Dash::None),
        LockName::ParkingLotRwLock => (RGBColor(105, 105, 105), 2, Dash::None),
        LockName::StdRwLock => (RGBColor(150, 150, 150), 2, Dash::Long),
    }
}

#[derive(Clone, Copy)]
enum Dash {
    None,
    Short,
    Long,
}

/// A line of a chart.
struct Curve {
    lock: LockName,
    points: Vec<(f64, f64)>,
}

/// A vertical line with its meaning.
struct Mark {
    at: f64,
    meaning: String,
}

/// What a chart shows; both axes are logarithmic unless the vertical one ends at 1.
struct Chart<'a> {
    curves: Vec<Curve>,
    marks: Vec<Mark>,
    x_name: &'a str,
    y_name: &'a str,
    x: std::ops::Range<f64>,
    y: std::ops::Range<f64>,
    y_is_linear: bool,
    x_base: f64,
    show_x: &'a dyn Fn(&f64) -> String,
    show_y: &'a dyn Fn(&f64) -> String,
}

/// Throughput against overcommit, of all locks; `None` when it was not measured.
pub fn throughput(results: &Results) -> Option<Result<String>> {
    let curves = swept(results, |contended| contended.ops_per_s.max(1.0))?;
    let rates = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let y = rates().fold(f64::MAX, f64::min) / 1.6..rates().fold(1.0, f64::max) * 1.6;
    Some(by_degree(curves, "acquisitions per second", y, false, &|rate| quantity(*rate)))
}

/// Fairness against overcommit, of all locks.
pub fn fairness(results: &Results) -> Option<Result<String>> {
    let curves = swept(results, |contended| contended.fairness)?;
    Some(by_degree(curves, "least over best served vCPU", 0.0..1.0, true, &|share| format!("{share:.1}")))
}

fn swept(results: &Results, value: impl Fn(&super::row::Contended) -> f64) -> Option<Vec<Curve>> {
    let degrees = results.degrees(Metric::Overcommit);
    let curve = |lock| {
        let points = degrees.iter().filter_map(|&degree| Some((degree as f64, value(results.swept(lock, degree)?))));
        Curve { lock, points: points.collect() }
    };
    let curves: Vec<Curve> = results.locks(Metric::Overcommit).into_iter().map(curve).collect();
    (!curves.is_empty()).then_some(curves)
}

fn by_degree(
    curves: Vec<Curve>,
    y_name: &str,
    y: std::ops::Range<f64>,
    y_is_linear: bool,
    show_y: &dyn Fn(&f64) -> String,
) -> Result<String> {
    let widest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).fold(2.0, f64::max);
    svg(&Chart {
        curves,
        marks: vec![],
        x_name: "vCPUs per physical CPU",
        y_name,
        x: 1.0..widest,
        y,
        y_is_linear,
        x_base: 2.0,
        show_x: &|degree| format!("{degree:.0}x"),
        show_y,
    })
}

/// How many waits are how long, at `degree` vCPUs per CPU.
pub fn waits(results: &Results, degree: usize) -> Option<Result<String>> {
    let curves: Vec<Curve> = results
        .locks(Metric::Overcommit)
        .into_iter()
        .filter_map(|lock| {
            let contended = results.swept(lock, degree)?;
            Some(Curve { lock, points: tail(&contended.wait_buckets, contended.max_wait_us * 1e3) })
        })
        .filter(|curve| !curve.points.is_empty())
        .collect();
    if curves.is_empty() {
        return None;
    }
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (longest, rarest) = (points().map(|p| p.0).fold(1e3, f64::max), points().map(|p| p.1).fold(0.1, f64::min));
    let slice_ns = results.options.quantum_us as f64 * 1e3;
    let mark = |slices: usize, meaning: &str| Mark {
        at: slice_ns * slices as f64,
        meaning: format!("{meaning}: {}", duration(slice_ns * slices as f64 / 1e3)),
    };
    Some(svg(&Chart {
        curves,
        marks: vec![mark(1, "one slice"), mark(4 * degree, "bound")],
        x_name: "length of a wait",
        y_name: "share of waits that are longer",
        x: 16.0..longest * 1.5,
        y: rarest / 2.0..1.0,
        y_is_linear: false,
        x_base: 10.0,
        show_x: &|ns| duration_ns(*ns),
        show_y: &|share| percent(*share),
    }))
}

/// For each bucket's lower end, the share of waits above it; at last the longest wait itself.
fn tail(buckets: &[u64], longest_ns: f64) -> Vec<(f64, f64)> {
    let all: u64 = buckets.iter().sum();
    let mut longer = all;
    let mut points = Vec::new();
    for (i, count) in buckets.iter().enumerate() {
        let ns = (1u64 << i) as f64;
        if longer > 0 && ns >= 16.0 && ns < longest_ns {
            points.push((ns, longer as f64 / all as f64));
        }
        longer -= count;
    }
    if all > 0 {
        points.push((longest_ns.max(16.0), 1.0 / all as f64));
    }
    points
}

/// A round time, as ticks are.
fn duration_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.0 => (ns, "ns"),
        ns if ns < 999e3 => (ns / 1e3, "µs"),
        ns if ns < 999e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{value:.0} {unit}")
}

/// A share that is a power of ten.
fn percent(share: f64) -> String {
    let decimals = (-(share * 100.0).log10()).ceil().max(0.0) as usize;
    format!("{:.decimals$} %", share * 100.0)
}

fn svg(chart: &Chart<'_>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(chart, &area).map_err(|error| anyhow!("cannot draw a chart: {error}"))?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(chart: &Chart<'_>, area: &Area<'_>) -> Drawn {
    let mut builder = ChartBuilder::on(area);
    builder.margin(10).margin_right(NAMES).x_label_area_size(44).y_label_area_size(74);
    let x = chart.x.clone().log_scale().base(chart.x_base);
    // The two kinds of axis are two types, but what is done with them is the same.
    macro_rules! draw_on {
        ($y:expr) => {{
            let mut drawn = builder.build_cartesian_2d(x, $y)?;
            drawn
                .configure_mesh()
                .x_desc(chart.x_name)
                .y_desc(chart.y_name)
                .x_label_formatter(chart.show_x)
                .y_label_formatter(chart.show_y)
                .label_style((FONT, 13, &INK))
                .axis_desc_style((FONT, 14, &INK))
                .axis_style(INK.mix(0.5))
                .bold_line_style(INK.mix(0.12))
                .light_line_style(TRANSPARENT)
                .draw()?;
            for mark in &chart.marks {
                let ends = [(mark.at, chart.y.start), (mark.at, chart.y.end)];
                drawn.draw_series(DashedLineSeries::new(ends, 2, 4, INK.mix(0.6).stroke_width(1)))?;
                let (x, y) = drawn.backend_coord(&ends[1]);
                let style = (FONT, 12, &INK).into_text_style(area);
                area.draw(&Text::new(mark.meaning.clone(), (x + 5, y + 4), style))?;
            }
            // Ours last, on top of the others.
            for curve in chart.curves.iter().rev() {
                let (colour, width, dash) = style(curve.lock);
                let stroke = colour.stroke_width(width);
                let points = curve.points.iter().copied();
                match dash {
                    Dash::None => drop(drawn.draw_series(LineSeries::new(points, stroke))?),
                    Dash::Short => drop(drawn.draw_series(DashedLineSeries::new(points, 3, 3, stroke))?),
                    Dash::Long => drop(drawn.draw_series(DashedLineSeries::new(points, 8, 4, stroke))?),
                }
                let dot = if chart.marks.is_empty() { width + 1 } else { 0 };
                drawn.draw_series(curve.points.iter().map(|&point| Circle::new(point, dot, colour.filled())))?;
            }
            chart.curves.iter().filter_map(|c| Some((c.lock, drawn.backend_coord(c.points.last()?)))).collect()
        }};
    }
    let ends = if chart.y_is_linear { draw_on!(chart.y.clone()) } else { draw_on!(chart.y.clone().log_scale()) };
    name_lines(area, ends)
}

/// Writes each line's name beside its end, where it is not too near to another, and joins them by a thin line.
fn name_lines(area: &Area<'_>, mut ends: Vec<(LockName, (i32, i32))>) -> Drawn {
    ends.sort_by_key(|&(lock, (_, y))| (y, lock));
    let (x, places) = (SIZE.0 as i32 - NAMES + 18, spread(&ends.iter().map(|end| end.1.1).collect::<Vec<_>>()));
    for (&(lock, end), y) in ends.iter().zip(places) {
        let (colour, ..) = style(lock);
        area.draw(&PathElement::new([(end.0 + 5, end.1), (x - 4, y)], colour.mix(0.5)))?;
        let size = if lock == LockName::Pvlock { 16 } else { 13 };
        let style = (FONT, size, &colour).into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(lock.name(), (x, y), style))?;
    }
    area.present()?;
    Ok(())
}

/// Moves ascending heights apart until each is [`NAME_HEIGHT`] from the next, as little as that takes, and within the chart.
fn spread(heights: &[i32]) -> Vec<i32> {
    let mut places: Vec<i32> = Vec::with_capacity(heights.len());
    for &height in heights {
        let least = places.last().map_or(NAME_HEIGHT, |above| above + NAME_HEIGHT);
        places.push(height.max(least));
    }
    let mut most = SIZE.1 as i32 - NAME_HEIGHT;
    for place in places.iter_mut().rev() {
        *place = (*place).min(most);
        most = *place - NAME_HEIGHT;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_overlap() {
        assert_eq!(spread(&[100, 101, 300]), [100, 117, 300]);
        let crowded = spread(&[470, 471, 472]);
        assert!(crowded.windows(2).all(|pair| pair[1] - pair[0] >= NAME_HEIGHT) && crowded[2] < SIZE.1 as i32);
    }

    #[test]
    fn the_tail_falls_from_all_to_the_longest_one() {
        let mut buckets = vec![0; 40];
        (buckets[5], buckets[6], buckets[20]) = (6, 3, 1);
        let points = tail(&buckets, 1.5e6);
        assert_eq!(points[0], (16.0, 1.0));
        assert_eq!(points.iter().find(|point| point.0 == 64.0).unwrap().1, 0.4);
        assert_eq!(*points.last().unwrap(), (1.5e6, 0.1));
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1), "{points:?}");
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!([100.0, 1e4, 1e8, 1e9].map(duration_ns), ["100 ns", "10 µs", "100 ms", "1 s"]);
        assert_eq!([1.0, 0.1, 0.01, 1e-3, 1e-7].map(percent), ["100 %", "10 %", "1 %", "0.1 %", "0.00001 %"]);
    }
}
