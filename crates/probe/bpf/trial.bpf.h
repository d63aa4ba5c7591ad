// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The memory that the trial's programs share with the process: orders, accounts, maps.

// Fixed point: times in units of 2^-20 ns.
#define POINT 20

// HdrHistogram with three significant digits from 1 ns to an hour: src/histogram.rs.
#define SUB_BITS 10
#define BUCKETS 33792
#define SATURATED (1ULL << 42)

#ifndef TCX_NEXT
// From linux/bpf.h of Linux 6.6.
#define TCX_NEXT -1
#define TCX_DROP 2
#endif

enum histogram { SLIP, DEPARTURE, DELAY, HISTOGRAMS };

// Frames of a trial or echo requests of a ping (src/frame.rs).
enum kind { TRIAL, ECHO };

// To the devmap, or to the stack of the loopback interface, there on the generator's CPU or another.
enum way { REDIRECT, STACK, CARRIER };

// The generator's order and its progress. Mapped into the process.
struct order {
	__u64 start_ns;		 // CLOCK_MONOTONIC
	__s64 realtime_offset_ns; // CLOCK_REALTIME - CLOCK_MONOTONIC
	__u64 first_sequence;
	__u64 count;	   // 0 stops it
	__u64 gap;	   // between frames of a burst [2^-20 ns]
	__u64 burst_period; // between first frames of bursts [2^-20 ns]
	__u32 burst;	   // frames
	__u32 flows;
	__u32 ifindex;
	__u32 header_bytes; // up to the UDP header: 34 or 54
	__u32 constant_sum; // of the UDP checksum, without port, sequence number and time
	__u16 source_port;
	__u16 way;	   // enum way
	__u32 sample_mask; // departures are measured of 1 frame in mask + 1
	__u32 kind;
	__u8 headers[80];
	__u32 carrier; // CPU that hands frames to the stack
	__u32 port_id; // of the map `port`
	__u32 reserved[6];

	// Written by the generator's CPU only.
	__u64 next;	   // index of the next frame
	__u64 due;	   // its time after start_ns [2^-20 ns]
	__u64 burst_start; // [2^-20 ns]
	__u64 in_burst;
	__u64 late;    // of the first frame of this burst [2^-20 ns]
	__u64 last_ns; // when the last frame was made, CLOCK_MONOTONIC
	__u64 refused; // frames that the interface could not be given
	__u64 slip_sum_ns, slip_min_ns, slip_max_ns;
	__u64 lost; // frames that got no further than the redirect
	__u64 reserved_too[5];

	// Written by the CPU where frames leave, in cache lines of their own.
	__u64 left; // frames that left the loopback interface; the kernel lost the others before
	__u64 departures, departure_sum_ns, departure_min_ns, departure_max_ns;
	__u64 reserved_last[3];
};

// The frames that the sink counts. Mapped into the process.
struct expected {
	__u64 first_sequence;
	__u64 planned;
	__s64 late_after_ns;
	__s64 realtime_offset_ns;
	__u32 flows;
	__u16 port; // UDP's destination, or the identifier of echoes; network byte order
	__u8 ipv6;
	__u8 timed; // sender and sink share a clock
	__u32 kind;
	__u32 sample_mask; // 1 frame in mask + 1 is timed
};

// When a packet of a ping was made and left its interface [CLOCK_REALTIME, ns].
struct departed {
	__u64 made_ns, left_ns;
};

// Time of its answer [CLOCK_REALTIME, ns], further copies, and whether it came after a later packet's.
struct arrived {
	__u64 first_ns;
	__u32 duplicates, reordered;
};

// The counts of one CPU.
struct counts {
	__u64 received, duplicates, reordered, late, foreign, warmup;
	__u64 timed; // frames with a delay
	__s64 sum_ns, min_ns, max_ns;
	__u64 reserved[6];
};

// An array that is mapped into the process.
#define MAPPED(name, entries, of)                    \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_ARRAY);    \
		__uint(map_flags, BPF_F_MMAPABLE);   \
		__uint(max_entries, entries);        \
		__type(key, __u32);                  \
		__type(value, of);                   \
	} name SEC(".maps")

MAPPED(orders, 1, struct order);

MAPPED(buckets, HISTOGRAMS * BUCKETS, __u64);

// The same interface twice: with the program `depart`, and without.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
} port SEC(".maps");

// By CPU, whose thread takes frames to the stack in place of the generator's CPU.
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_cpumap_val));
} carriers SEC(".maps");

MAPPED(expectation, 1, struct expected);

// By CPU number; the loader sets how many there are.
MAPPED(counted, 1, struct counts);

// One bit a frame: whether it has arrived.
MAPPED(seen, 1, __u64);

// By flow: one more than the largest index that has arrived.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} next_of_flow SEC(".maps");

MAPPED(departures, 1, struct departed);

MAPPED(arrivals, 1, struct arrived);
