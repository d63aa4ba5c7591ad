//! The memory that the generator's programs share with the process; crates/probe/bpf/trial.bpf.h
//! describes each field.

/// `struct order` of the C source.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawOrder {
    pub start_ns: i64,
    pub realtime_offset_ns: i64,
    pub first_sequence: u64,
    pub count: u64,
    pub gap: u64,
    pub burst_period: u64,
    pub burst: u32,
    pub flows: u32,
    pub ifindex: u32,
    pub header_bytes: u32,
    pub constant_sum: u32,
    pub source_port: u16,
    pub way: u16,
    pub sample_mask: u32,
    pub kind: u32,
    pub headers: [u8; 80],
    pub carrier: u32,
    pub port_id: u32,
    pub reserved: [u32; 6],
    pub next: u64,
    pub due: u64,
    pub burst_start: u64,
    pub in_burst: u64,
    pub late: u64,
    pub last_ns: i64,
    pub refused: u64,
    pub slip_ns: [i64; 3],
    pub lost: u64,
    pub reserved_too: [u64; 5],
    pub left: u64,
    pub departures: u64,
    pub departure_ns: [i64; 3],
    pub reserved_last: [u64; 3],
}

impl RawOrder {
    /// All fields are zero.
    // SAFETY: integers and arrays of them may be zero.
    pub const EMPTY: Self = unsafe { std::mem::zeroed() };
}

/// Departure of a ping's packet: `struct departed` of the C source.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Departed {
    /// When it was made [CLOCK_REALTIME, ns]; 0 while it was not.
    pub made_ns: i64,
    /// When it was handed to the interface [CLOCK_REALTIME, ns]; 0 while it was not.
    pub left_ns: i64,
}
