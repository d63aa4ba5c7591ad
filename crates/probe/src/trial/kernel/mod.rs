//! Generator and sink inside the kernel: loads bpf/trial.bpf.o and maps its arrays.
//!
//! Nothing is pinned: programs, maps and links belong to file descriptors of this process and go when
//! it ends, however it ends.

pub mod features;
pub mod live;
mod raw;
pub mod xdp;

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::Map;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use memmap2::{MmapOptions, MmapRaw};

use crate::error::{Error, Result};
use crate::histogram::{BUCKETS, LatencyRecorder};

/// The compiled bpf/trial.bpf.c.
pub const OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/trial.bpf.o");

/// The histograms of the map `buckets`, in its order.
#[derive(Debug, Clone, Copy)]
enum Distribution {
    Slip,
    Departure,
    Delay,
}

const DISTRIBUTIONS: usize = 3;

/// Loads the object with these sizes of its maps.
fn load(sizes: &[(&'static str, u32)]) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    for (name, entries) in sizes {
        loader.map_max_entries(name, *entries);
    }
    loader.load(OBJECT).map_err(refused)
}

/// The error for an interface that takes no XDP frames.
fn takes_no_xdp_frames(interface: impl std::fmt::Display) -> Error {
    Error::failed(
        format!(
            "{interface} takes no XDP frames now: a veth's peer has neither XDP nor GRO, or a NIC's driver \
             no XDP program"
        ),
        "veth: switch GRO on at the peer (ethtool -K PEER gro on), or attach a native XDP sink there; \
         NIC: attach one to it; or use the backend live-skb",
    )
}

/// The errno among an error's causes.
pub fn os_reason(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        cause = error.source();
    }
    None
}

/// The error for a program or a map that the kernel refuses.
fn refused(error: impl std::error::Error + 'static) -> Error {
    match os_reason(&error) {
        Some(libc::EPERM | libc::EACCES) => Error::failed(
            "this user may not load BPF programs",
            "run as root, not in a user namespace: the generator is then several times as fast",
        ),
        Some(libc::ENOMEM) => Error::failed(
            "the kernel has no memory left for the trial's BPF maps",
            "measure for a shorter time: each frame takes a bit; on Linux before 5.11 raise \
             RLIMIT_MEMLOCK (ulimit -l)",
        ),
        Some(libc::EOPNOTSUPP) => Error::failed(
            "the interface's driver does not support this kind of XDP",
            "the sinks tc-ingress and af_packet do without",
        ),
        Some(libc::EBUSY | libc::EEXIST) => Error::failed(
            "another XDP program is attached to the interface",
            "detach it (ip link set IF xdp off), or wait until the other trial has ended",
        ),
        _ => Error::failed(
            format!("the kernel does not take the trial's BPF program: {}", chain(&error)),
            "Linux 6.6 or newer is needed; AF_PACKET works everywhere",
        ),
    }
}

/// An error and its causes, without the verifier's log.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(200).collect()
}

/// Attaches the classifier `name` to the ingress hook of an interface of the calling thread's
/// namespace, by a link that ends with this process (TCX); a queueing discipline would outlive it.
fn attach_to_ingress(ebpf: &mut Ebpf, name: &str, interface: &str) -> Result<()> {
    let program = ebpf.program_mut(name).ok_or_else(|| absent(name))?;
    let classifier: &mut SchedClassifier = program.try_into().map_err(refused)?;
    classifier.load().map_err(refused)?;
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    classifier.attach_with_options(interface, TcAttachType::Ingress, options).map_err(refused)?;
    Ok(())
}

/// The error for a missing part of the object, which then is of another version than this code.
fn absent(name: &str) -> Error {
    Error::failed(format!("the BPF object has no {name}"), "this is a bug; report it")
}

/// The values of a BPF array, mapped into this process. The kernel's programs write to them
/// concurrently: each access is volatile, and a value may be read torn.
#[derive(Debug)]
struct Mapped<T> {
    mapping: MmapRaw,
    entries: usize,
    values: PhantomData<T>,
}

impl<T: Copy> Mapped<T> {
    /// Maps the array `name`, whose values are `T` of the C source.
    fn of(ebpf: &Ebpf, name: &str, entries: usize) -> Result<Self> {
        let Some(Map::Array(map)) = ebpf.map(name) else { return Err(absent(name)) };
        let page = 4096;
        let bytes = (entries * size_of::<T>()).next_multiple_of(page);
        let failed =
            |what: &str| Error::failed(format!("cannot map the BPF array {name}: {what}"), "");
        // The kernel refuses a mapping that is longer than the array.
        let mapping = MmapOptions::new()
            .len(bytes)
            .map_raw(map.fd().as_fd().as_raw_fd())
            .map_err(|error| failed(&error.to_string()))?;
        Ok(Self { mapping, entries, values: PhantomData })
    }

    /// Pointer to value `index`.
    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "array index {index} of {}", self.entries);
        // SAFETY: the mapping has `entries` values, and the index is below that.
        unsafe { self.mapping.as_mut_ptr().cast::<T>().add(index) }
    }

    fn read(&self, index: usize) -> T {
        // SAFETY: `at` is inside the mapping and aligned as the kernel's arrays are, to 8 bytes.
        unsafe { self.at(index).read_volatile() }
    }

    fn write(&self, index: usize, value: T) {
        // SAFETY: as in `read`; the mapping is writable.
        unsafe { self.at(index).write_volatile(value) }
    }
}

impl Mapped<u64> {
    fn buckets(ebpf: &Ebpf) -> Result<Self> {
        Self::of(ebpf, "buckets", DISTRIBUTIONS * BUCKETS)
    }

    fn clear(&self) {
        (0..self.entries).for_each(|index| self.write(index, 0));
    }

    /// The samples of a histogram, with their exact sum, smallest and largest.
    fn distribution(&self, kind: Distribution, exact: (i64, i64, i64)) -> LatencyRecorder {
        let first = kind as usize * BUCKETS;
        let counts: Vec<u64> = (0..BUCKETS).map(|index| self.read(first + index)).collect();
        LatencyRecorder::from_buckets(&counts, exact)
    }
}
