//! Memory that is shared with the kernel: a mapped ring or array. Knows nothing of what lies in it.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping for reading and writing, until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: the mapping belongs to this value alone and is reachable from any thread; what it holds is
// reached by raw pointers only, whose users say why that is sound.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of what `fd` stands for, page by page as they are used or, by
    /// MAP_POPULATE, at once.
    ///
    /// # Errors
    /// The kernel refuses: there is less than that, or no memory.
    pub fn of(fd: impl AsFd, bytes: usize, flags: MapFlags) -> nix::Result<Self> {
        let bytes = NonZeroUsize::new(bytes).ok_or(nix::Error::EINVAL)?;
        let (protection, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | flags);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap(None, bytes, protection, flags, fd, 0) }?;
        Ok(Self { at: at.cast(), bytes })
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no pointer into it outlives the value.
        let _ = unsafe { munmap(self.at.cast(), self.bytes.get()) };
    }
}
