//! The result of a ping as a table, for a terminal.

use super::Report;

/// The table.
pub fn text(report: &Report) -> String {
    let (load, counts) = (&report.load, &report.counts);
    let mut lines = vec![
        format!(
            "{} from {} by {} ({}), {} bytes, {:.0} of {:.0} packets/s",
            report.target,
            report.source,
            report.interface,
            report.path,
            report.size_bytes,
            load.achieved_pps,
            load.intended_pps,
        ),
        format!(
            "sent {}, received {}, lost {}, late {}, duplicate {}, reordered {}",
            counts.sent,
            counts.received,
            counts.lost,
            counts.late,
            counts.duplicate,
            counts.reordered,
        ),
        String::new(),
    ];
    let heads = ["min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let head: String = heads.iter().map(|head| format!("{head:>9}")).collect();
    lines.push(format!("{:<11}{head}", "time [us]"));
    let times = [
        ("rtt user", &report.rtt_user),
        ("rtt kernel", &report.rtt_kernel),
        ("reflector", &report.reflector),
        ("slip", &report.slip),
    ];
    for (name, times) in times {
        if let Some(t) = times {
            let (min, max) = (t.min_ns as f64, t.max_ns as f64);
            let values = [min, t.mean_ns, t.p50_ns, t.p90_ns, t.p99_ns, t.p999_ns, max];
            let row: String =
                values.iter().map(|value| format!("{:>9.2}", value / 1000.0)).collect();
            lines.push(format!("{name:<11}{row}"));
        }
    }
    lines.extend(report.warnings.iter().map(|warning| wrapped(&format!("warning: {warning}"))));
    lines.join("\n") + "\n"
}

/// The text in lines of at most 80 columns, after an empty one.
fn wrapped(text: &str) -> String {
    let (mut out, mut column) = (String::new(), usize::MAX);
    for word in text.split_whitespace() {
        let joint = if column.saturating_add(word.len()) < 80 { ' ' } else { '\n' };
        column = if joint == ' ' { column + 1 + word.len() } else { word.len() };
        out.extend([joint]);
        out.push_str(word);
    }
    out
}
