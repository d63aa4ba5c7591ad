//! The result of a ping as a table, for a terminal.

use serde_json::Value;

/// The table of a result.
pub fn text(result: &Value) -> String {
    let word = |key: &str| result[key].as_str().unwrap_or_default();
    let rate = |key: &str| result["load"][key].as_f64().unwrap_or_default();
    let counts = ["sent", "received", "lost", "late", "duplicate", "reordered"];
    let counts = counts.map(|count| format!("{count} {}", result["counts"][count]));
    let heads = ["min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let head: String = heads.iter().map(|head| format!("{head:>9}")).collect();
    let mut lines = vec![
        format!(
            "{} from {} by {} ({}), {} bytes, {:.0} of {:.0} packets/s",
            word("target"),
            word("source"),
            word("interface"),
            word("path"),
            result["size_bytes"],
            rate("achieved_pps"),
            rate("intended_pps"),
        ),
        counts.join(", "),
        String::new(),
        format!("{:<11}{head}", "time [us]"),
    ];
    for key in ["rtt_user", "rtt_kernel", "reflector", "slip"] {
        let times = &result[key];
        if times.is_object() {
            let quantiles =
                ["min_ns", "mean_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"];
            let us = quantiles.map(|name| times[name].as_f64().unwrap_or_default() / 1000.0);
            let row: String = us.iter().map(|us| format!("{us:>9.2}")).collect();
            lines.push(format!("{:<11}{row}", key.replace('_', " ")));
        }
    }
    let warnings = result["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.extend(warnings.map(|warning| wrapped(&format!("warning: {warning}"))));
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
