//! A Perfetto trace as a picture: its tracks with their slices and instants, and its flows, as Perfetto's
//! own trace processor reads them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use trace_processor::{Row, TraceProcessorError, query};

/// All slices with their tracks, those of CPUs first.
const SLICES: &str = "\
    select slice.id, slice.ts, slice.dur, slice.name, \
    ifnull(thread.name || ' ' || tid, track.name) as track, tid is not null as is_task \
    from slice join track on track.id = track_id \
    left join thread_track on thread_track.id = track_id left join thread using (utid) \
    order by is_task, track, slice.ts, slice.id";
const FLOWS: &str = "select slice_out, slice_in from flow";

/// Events that are drawn, those closest together in time: more couldn't be distinguished.
const SHOWN: usize = 36;
/// Pixels.
const WIDTH: f64 = 1200.0;
const LABELS: f64 = 130.0;
const ROW: f64 = 44.0;
const BAR: f64 = 20.0;
const TOP: f64 = 34.0;
/// Pixels of a letter, on average.
const LETTER: f64 = 6.5;
/// Times on the axis.
const TICKS: u32 = 8;

struct Slice {
    id: u64,
    start: f64,
    length: f64,
    name: String,
    track: String,
}

/// Draws the part of a trace with the most events.
///
/// # Errors
/// If it can't be read.
pub fn draw(trace: &Path) -> Result<String, TraceProcessorError> {
    let answers = query(trace, &[SLICES, FLOWS])?;
    let rows = |at: usize| answers.get(at).map(Vec::as_slice).unwrap_or_default();
    let slices = rows(0).iter().map(slice).collect();
    let flows: Vec<_> = rows(1)
        .iter()
        .map(|row| {
            (
                number(row, "slice_out") as u64,
                number(row, "slice_in") as u64,
            )
        })
        .collect();
    Ok(picture(slices, &flows))
}

fn slice(row: &Row) -> Slice {
    Slice {
        id: number(row, "id") as u64,
        start: number(row, "ts"),
        length: number(row, "dur"),
        name: text(row, "name"),
        track: text(row, "track"),
    }
}

fn number(row: &Row, column: &str) -> f64 {
    let value = row.get(column);
    value
        .and_then(serde_json::Value::as_f64)
        .unwrap_or_default()
}

fn text(row: &Row, column: &str) -> String {
    let value = row.get(column).and_then(serde_json::Value::as_str);
    value.unwrap_or_default().to_owned()
}

fn picture(mut slices: Vec<Slice>, flows: &[(u64, u64)]) -> String {
    let (begin, end) = closest(&slices);
    slices.retain(|slice| (begin..=end).contains(&slice.start));
    let mut tracks: Vec<&str> = Vec::new();
    for slice in &slices {
        if tracks.last() != Some(&slice.track.as_str()) {
            tracks.push(&slice.track);
        }
    }
    let end = slices.iter().map(|slice| slice.start + slice.length);
    let length = (end.fold(begin, f64::max) - begin).max(1.0);
    let x = |time: f64| LABELS + (time - begin) / length * (WIDTH - LABELS - 10.0);
    let y = |track: usize| TOP + track as f64 * ROW;

    let height = y(tracks.len()) + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut line = |line: std::fmt::Arguments<'_>| {
        // A string takes any text.
        let _ = writeln!(svg, "{line}");
    };
    for tick in 0..=TICKS {
        let time = length * f64::from(tick) / f64::from(TICKS);
        let at = x(begin + time);
        line(format_args!(
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{height}\" stroke=\"#eee\"/>"
        ));
        let anchor = if tick == TICKS { "end" } else { "middle" };
        line(format_args!(
            "<text x=\"{at:.1}\" y=\"20\" fill=\"#666\" text-anchor=\"{anchor}\">{:.2} ms</text>",
            time / 1e6
        ));
    }
    for (track, name) in tracks.iter().enumerate() {
        let (top, middle) = (y(track), y(track) + ROW / 2.0 + 4.0);
        line(format_args!(
            "<line x1=\"0\" y1=\"{top}\" x2=\"{WIDTH}\" y2=\"{top}\" stroke=\"#ccc\"/>"
        ));
        line(format_args!(
            "<text x=\"8\" y=\"{middle}\">{}</text>",
            escaped(name)
        ));
    }
    let mut places = BTreeMap::new();
    for slice in &slices {
        let Some(track) = tracks.iter().position(|track| *track == slice.track) else {
            continue;
        };
        let (left, right) = (x(slice.start), x(slice.start + slice.length));
        let (top, color) = (y(track) + (ROW - BAR) / 2.0, color(&slice.name));
        places.insert(slice.id, (left, y(track) + ROW / 2.0));
        let name = escaped(&slice.name);
        let title = format!("<title>{name}, {:.1} us</title>", slice.length / 1e3);
        if slice.length == 0.0 {
            let (low, near, far) = (top + BAR, left - 4.0, left + 4.0);
            line(format_args!(
                "<path d=\"M{left:.1} {top} L{far:.1} {low} L{near:.1} {low} Z\" fill=\"{color}\">{title}</path>"
            ));
            continue;
        }
        let width = (right - left).max(1.0);
        line(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{color}\" \
             stroke=\"#fff\" stroke-width=\"0.5\">{title}</rect>"
        ));
        if width > slice.name.len() as f64 * LETTER {
            let (at, low) = (left + 3.0, top + BAR - 6.0);
            line(format_args!(
                "<text x=\"{at:.1}\" y=\"{low}\" fill=\"#fff\">{name}</text>"
            ));
        }
    }
    for (from, to) in flows {
        if let (Some((x1, y1)), Some((x2, y2))) = (places.get(from), places.get(to)) {
            line(format_args!(
                "<path d=\"M{x1:.1} {y1} Q{:.1} {:.1} {x2:.1} {y2}\" fill=\"none\" stroke=\"#333\"/>",
                (x1 + x2) / 2.0,
                y1.min(*y2) - BAR
            ));
        }
    }
    svg + "</svg>\n"
}

/// Returns the time span of the events that are drawn.
fn closest(slices: &[Slice]) -> (f64, f64) {
    let mut starts: Vec<f64> = slices.iter().map(|slice| slice.start).collect();
    starts.sort_by(f64::total_cmp);
    let span = |some: &[f64]| (some.first().copied(), some.last().copied());
    let length = |some: &&[f64]| match span(some) {
        (Some(first), Some(last)) => last - first,
        _ => 0.0,
    };
    let windows = starts.windows(SHOWN.clamp(1, starts.len().max(1)));
    let closest = windows.min_by(|a, b| length(a).total_cmp(&length(b)));
    let (first, last) = closest.map_or((None, None), span);
    (first.unwrap_or_default(), last.unwrap_or_default())
}

/// Returns a color for a name: a different one for each, as long as there are enough.
fn color(name: &str) -> &'static str {
    const COLORS: [&str; 6] = [
        "#3367d6", "#0b8043", "#c53929", "#8430ce", "#b06000", "#00796b",
    ];
    let sum: usize = name.bytes().map(usize::from).sum();
    COLORS[sum % COLORS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_slices_instants_and_flows_are_drawn() {
        let slice = |id, start, length, name: &str, track: &str| Slice {
            id,
            start,
            length,
            name: name.to_owned(),
            track: track.to_owned(),
        };
        let slices = vec![
            slice(1, 1000.0, 0.0, "in", "CPU 0"),
            slice(2, 5000.0, 0.0, "out", "CPU 0"),
            slice(3, 1000.0, 4000.0, "read<", "cat 7"),
        ];
        let svg = picture(slices, &[(1, 2)]);
        for part in [
            ">CPU 0</text>",
            ">cat 7</text>",
            ">read&lt;</text>",
            ">0.00 ms<",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        let count = |part: &str| svg.matches(part).count();
        assert_eq!(
            (count("<rect x="), count("Z\" fill"), count(" Q")),
            (1, 2, 1)
        );
    }

    #[test]
    fn a_trace_without_events_is_an_empty_picture() {
        assert!(picture(Vec::new(), &[]).ends_with("</svg>\n"));
    }
}
