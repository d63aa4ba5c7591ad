//! The file that records the allocator's input and decisions (`pw_alloc::recording`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use pw_alloc::Allocator;
use pw_alloc::model::{GuestId, Snapshot};
use pw_alloc::plan::Plan;
use pw_alloc::recording::Entry;
use pw_error::{Error, Result};

use super::Core;

/// An open recording.
pub(super) struct File {
    path: PathBuf,
    file: fs::File,
}

impl File {
    /// Begins a new recording in the allocator and on disk; none: nothing is recorded.
    pub(super) fn open(path: Option<&Path>, allocator: &mut Allocator) -> Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let file = fs::File::create(path).map_err(|error| {
            Error::bad_input(
                format!("the recording {} cannot be written", path.display()),
                "let `recording` name a file in a directory that the daemon may write to",
            )
            .caused_by(error)
        })?;
        allocator.record();
        Ok(Some(Self { path: path.to_owned(), file }))
    }

    fn write(&mut self, entries: &[Entry]) -> std::io::Result<()> {
        let mut lines = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        self.file.write_all(&lines)
    }
}

impl Core {
    pub(super) fn record_decision(&mut self, now: &Snapshot, plan: &Plan) {
        if let Some(recorder) = self.allocator.recorder() {
            recorder.snapshot(now);
            recorder.push(Entry::Decided(now.now_ms, plan.clone()));
        }
    }

    pub(super) fn record_restart(&mut self, guest: &GuestId) {
        if let Some(recorder) = self.allocator.recorder() {
            recorder.push(Entry::Anew(guest.clone()));
        }
    }

    /// Writes the entries since the last tick. A recording that cannot be written ends, as decisions do not
    /// depend on it.
    pub(super) fn write_recording(&mut self) {
        let (Some(file), Some(recorder)) = (&mut self.recording, self.allocator.recorder()) else {
            return;
        };
        if let Err(error) = file.write(&recorder.drain()) {
            let what = format!("the recording {} ends here", file.path.display());
            let remedy = "make room and restart the daemon to record again";
            self.recording = None;
            self.allocator.stop_recording();
            self.report_once(&Error::failed(what, remedy).caused_by(error));
        }
    }
}
