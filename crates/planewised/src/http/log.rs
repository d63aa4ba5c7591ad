//! The log: lines on stderr, for people or as JSON.

use serde::Deserialize;
use tracing::Level;

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Form of the lines.
    pub format: Form,
    /// Least severity.
    pub level: Weight,
}

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// For people; without the time where the journal of systemd writes it itself.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

/// Least severity that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// Failures.
    Error,
    /// And warnings.
    Warn,
    /// And events: moves, changes of guests, requests that change something.
    #[default]
    Info,
    /// And every step, every request.
    Debug,
}

impl Weight {
    const fn level(self) -> Level {
        match self {
            Self::Error => Level::ERROR,
            Self::Warn => Level::WARN,
            Self::Info => Level::INFO,
            Self::Debug => Level::DEBUG,
        }
    }
}

/// Sends the log of this process to stderr from now on; a second call changes nothing.
pub fn start(log: Log) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(log.level.level())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    // systemd's journal writes time and name itself.
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    drop(match log.format {
        Form::Json => {
            let lines =
                lines.json().flatten_event(true).with_span_list(false).with_current_span(false);
            tracing::subscriber::set_global_default(lines.finish())
        }
        Form::Plain if in_journal => {
            tracing::subscriber::set_global_default(lines.without_time().finish())
        }
        Form::Plain => tracing::subscriber::set_global_default(lines.finish()),
    });
}
