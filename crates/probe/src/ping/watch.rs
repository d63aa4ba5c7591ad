//! A thread that watches a receive ring and notes when each slot is filled.
//!
//! On a short path the kernel handles the answer inside the system call that sent the request: the
//! answer is in the ring before the call returns, while the kernel still carries it through its IP
//! stack. Only another thread can see it before the call returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::clock;

/// State that the watching thread and the ring's owner share.
#[derive(Debug)]
struct Shared {
    /// Whether to watch now.
    armed: AtomicBool,
    end: AtomicBool,
    /// How many slots the owner has read.
    read: AtomicU64,
    /// When each slot was found filled [CLOCK_REALTIME ns]; 0 when it was not.
    filled_ns: Vec<AtomicI64>,
}

/// The status words of a ring, which the kernel writes.
#[derive(Debug, Clone, Copy)]
pub struct Statuses {
    /// Status word of slot 0.
    pub first: *const u32,
    /// Distance between two slots [byte]; a multiple of 4.
    pub stride_bytes: usize,
    /// Number of slots.
    pub slots: usize,
}

// SAFETY: the words are only read, atomically, and outlive the watcher (see `Watcher::start`).
unsafe impl Send for Statuses {}

impl Statuses {
    fn filled(&self, slot: usize) -> bool {
        // SAFETY: `slot` is below `slots`; the word is aligned, mapped, and accessed whole by both
        // sides.
        let word = unsafe {
            AtomicU32::from_ptr(self.first.byte_add(slot * self.stride_bytes).cast_mut())
        };
        word.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }
}

/// The watching thread.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread, disarmed; none where there is only one CPU.
    ///
    /// # Safety
    /// The words of `statuses` stay mapped until the watcher is dropped.
    pub unsafe fn start(statuses: Statuses) -> Option<Self> {
        if thread::available_parallelism().map_or(1, usize::from) < 2 {
            return None;
        }
        let shared = Arc::new(Shared {
            armed: AtomicBool::new(false),
            end: AtomicBool::new(false),
            read: AtomicU64::new(0),
            filled_ns: (0..statuses.slots).map(|_| AtomicI64::new(0)).collect(),
        });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("pw-watch".into())
            .spawn(move || watch(&watched, statuses))
            .ok()?;
        Some(Self { shared, thread: Some(thread) })
    }

    /// Watches until [`Watcher::disarm`].
    pub fn arm(&self) {
        if !self.shared.armed.swap(true, Ordering::Release)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Lets the thread sleep.
    pub fn disarm(&self) {
        self.shared.armed.store(false, Ordering::Release);
    }

    /// When the slot after `read` others was found filled; marks it as read.
    ///
    /// A noted time counts between `kernel_ns` and `now_ns` only, else `now_ns`: a thread that was
    /// interrupted may have noted the slot's previous packet.
    #[inline]
    pub fn take(&self, read: u64, kernel_ns: i64, now_ns: i64) -> i64 {
        self.shared.read.store(read + 1, Ordering::Release);
        let slot = read as usize % self.shared.filled_ns.len();
        let filled_ns = self.shared.filled_ns[slot].swap(0, Ordering::AcqRel);
        if kernel_ns <= filled_ns && filled_ns <= now_ns { filled_ns } else { now_ns }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Release);
        self.arm();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, statuses: Statuses) {
    let mut cursor = 0;
    while !shared.end.load(Ordering::Acquire) {
        if !shared.armed.load(Ordering::Acquire) {
            thread::park();
            continue;
        }
        cursor = shared.read.load(Ordering::Acquire).max(cursor);
        let slot = cursor as usize % statuses.slots;
        if statuses.filled(slot) {
            shared.filled_ns[slot].store(clock::realtime_ns(), Ordering::Release);
            cursor += 1;
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Clock readings while a ring is emptied: one for two slots where both were filled before it (a
/// request and its answer often are).
///
/// Never for a third slot: filled while the thread was interrupted, it would seem to have been read
/// before it was there.
#[derive(Debug, Default)]
pub struct SlotClock {
    shared_ns: Option<i64>,
}

impl SlotClock {
    /// When the next slot was found filled, by the clock `now_ns`, which is read right after asking
    /// whether the `following` one is filled too.
    #[inline]
    pub fn read(&mut self, following: impl FnOnce() -> bool, now_ns: impl FnOnce() -> i64) -> i64 {
        if let Some(shared_ns) = self.shared_ns.take() {
            return shared_ns;
        }
        let filled = following();
        let now_ns = now_ns();
        self.shared_ns = filled.then_some(now_ns);
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn no_slot_is_read_before_it_was_filled_however_long_the_owner_is_interrupted() {
        // Slot by slot, when it was filled; the owner is interrupted after each slot.
        for filled_at in
            [[0, 0, 10, 10, 40], [0, 5, 15, 35, 35], [0, 0, 0, 0, 0], [0, 0, 9, 19, 20]]
        {
            let now = Cell::new(0_i64);
            let mut slot_clock = SlotClock::default();
            for (slot, &filled) in filled_at.iter().enumerate() {
                now.set(now.get().max(filled));
                let following =
                    || filled_at.get(slot + 1).is_some_and(|&filled| filled <= now.get());
                let read = slot_clock.read(following, || now.get());
                assert!(filled <= read && read <= now.get(), "slot {slot} of {filled_at:?}");
                now.set(now.get() + 10);
            }
        }
    }

    #[test]
    fn a_request_and_its_answer_that_lie_there_together_share_a_look() {
        let mut slot_clock = SlotClock::default();
        let readings = Cell::new(0);
        let clock = || readings.replace(readings.get() + 1);
        let times: Vec<i64> = (0..4).map(|_| slot_clock.read(|| true, clock)).collect();
        assert_eq!(times, [0, 0, 1, 1]);
    }

    #[test]
    fn a_filled_slot_is_seen_by_the_other_thread() {
        let words: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let statuses = Statuses { first: words[0].as_ptr(), stride_bytes: 4, slots: 4 };
        // SAFETY: `words` is dropped after the watcher, which was declared later.
        let Some(watcher) = (unsafe { Watcher::start(statuses) }) else { return };
        watcher.arm();
        let before = clock::realtime_ns();
        words[0].store(libc::TP_STATUS_USER, Ordering::Release);
        let end = clock::monotonic_ns() + 5_000_000_000;
        while watcher.shared.filled_ns[0].load(Ordering::Acquire) == 0 {
            assert!(clock::monotonic_ns() < end, "the other thread never looked");
            thread::yield_now();
        }
        let now = clock::realtime_ns();
        let filled = watcher.take(0, before, now);
        assert!(before <= filled && filled <= now);
        assert_eq!(watcher.take(1, before, now), now, "a slot that was not seen");
    }

    #[test]
    fn a_time_from_before_the_packet_is_not_believed() {
        let word = AtomicU32::new(0);
        let statuses = Statuses { first: word.as_ptr(), stride_bytes: 4, slots: 1 };
        // SAFETY: `word` is dropped after the watcher, which was declared later.
        let Some(watcher) = (unsafe { Watcher::start(statuses) }) else { return };
        watcher.shared.filled_ns[0].store(50, Ordering::Release);
        assert_eq!(watcher.take(0, 100, 200), 200);
    }
}
