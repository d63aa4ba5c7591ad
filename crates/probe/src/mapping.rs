//! Memory that is shared with the kernel: a mapped ring or array.

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

// SAFETY: this value alone owns the mapping, which any thread can reach; its contents are accessed by
// raw pointers only, whose users say why that is sound.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `fd`; with MAP_POPULATE all pages at once.
    ///
    /// # Errors
    /// The kernel refuses: there is less than that, or no memory.
    pub fn of(fd: impl AsFd, bytes: usize, flags: MapFlags) -> nix::Result<Self> {
        let bytes = NonZeroUsize::new(bytes).ok_or(nix::Error::EINVAL)?;
        let (protection, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | flags);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { mmap(None, bytes, protection, flags, fd, 0) }?;
        Ok(Self { at: at.cast(), bytes })
    }

    /// Its first byte.
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
