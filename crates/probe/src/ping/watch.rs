//! A thread that watches a capture ring and notes when each slot is filled.
//!
//! On a short path the kernel handles the answer inside the system call that sent the request: the
//! answer is in the ring before the call returns, while the kernel still carries it through its IP
//! stack. Only another thread can see it before the call returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crate::capture::Slots;
use crate::clock;

/// State that the watching thread and the ring's owner share.
#[derive(Debug)]
struct Shared {
    /// Whether to watch now.
    armed: AtomicBool,
    end: AtomicBool,
    /// How many slots the owner has read.
    read: AtomicUsize,
    /// When each slot was found filled [CLOCK_REALTIME ns]; 0 when it was not.
    filled_ns: Vec<AtomicI64>,
}

/// The watching thread.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread, disarmed; none where there is only one CPU, or no further thread.
    pub fn start(slots: Slots) -> Option<Self> {
        if thread::available_parallelism().map_or(1, usize::from) < 2 {
            return None;
        }
        let shared = Arc::new(Shared {
            armed: AtomicBool::new(false),
            end: AtomicBool::new(false),
            read: AtomicUsize::new(0),
            filled_ns: (0..slots.count()).map(|_| AtomicI64::new(0)).collect(),
        });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().spawn(move || watch(&watched, &slots)).ok()?;
        Some(Self { shared, thread: Some(thread) })
    }

    /// Watches from now on, or sleeps.
    pub fn arm(&self, on: bool) {
        if !self.shared.armed.swap(on, Ordering::Release)
            && on
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// When the slot after `read` others was found filled; marks it as read.
    ///
    /// A noted time counts between `kernel_ns` and `now_ns` only, else `now_ns`: a thread that was
    /// interrupted may have noted the slot's previous packet.
    #[inline]
    pub fn take(&self, read: usize, kernel_ns: i64, now_ns: i64) -> i64 {
        self.shared.read.store(read + 1, Ordering::Release);
        let slot = read % self.shared.filled_ns.len();
        let filled_ns = self.shared.filled_ns[slot].swap(0, Ordering::AcqRel);
        if (kernel_ns..=now_ns).contains(&filled_ns) { filled_ns } else { now_ns }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, slots: &Slots) {
    let mut cursor = 0;
    while !shared.end.load(Ordering::Acquire) {
        if !shared.armed.load(Ordering::Acquire) {
            thread::park();
            continue;
        }
        cursor = shared.read.load(Ordering::Acquire).max(cursor);
        let slot = cursor % slots.count();
        if slots.is_filled(slot) {
            shared.filled_ns[slot].store(clock::realtime_ns(), Ordering::Release);
            cursor += 1;
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_from_before_the_packet_is_not_believed() {
        let shared = Arc::new(Shared {
            armed: AtomicBool::new(false),
            end: AtomicBool::new(false),
            read: AtomicUsize::new(0),
            filled_ns: vec![AtomicI64::new(50), AtomicI64::new(150)],
        });
        let watcher = Watcher { shared, thread: None };
        assert_eq!(watcher.take(0, 100, 200), 200);
        assert_eq!(watcher.take(1, 100, 200), 150);
        assert_eq!(watcher.take(3, 100, 200), 200, "a slot that was not seen");
    }
}
