// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The generator and the sink of a trial inside the kernel (Linux 6.6 or newer).
// trial/kernel/ loads it and reads its maps.
// The committed object is made from this file by `make -C crates/probe/bpf`.
//
// The generator is run by BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, over and over. A run before
// the next frame is due drops its page, which the kernel gives back at once: that is the wait. A
// run at or after that moment makes the page the next frame. Pages come back with what the last
// receiver left in them, so that all headers are written anew each time.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETHERNET 14
#define UDP 8
#define PAYLOAD 18
#define TAIL (UDP + PAYLOAD)
#define ECHO_TAIL 20
#define MAGIC 0x5750 // "PW" as a little-endian number
#define ECHO_MAGIC 0x31505750 // "PWP1": src/wire.rs
#define IPV4 20
#define IPV6 40
// The coarse clock stands still for a tick, of 10 ms at most.
#define COARSE_NS 20000000

#include "trial.bpf.h"

static __always_inline __u32 log2_of(__u64 value)
{
	__u32 log = 0;

	if (value >> 32) { log += 32; value >>= 32; }
	if (value >> 16) { log += 16; value >>= 16; }
	if (value >> 8) { log += 8; value >>= 8; }
	if (value >> 4) { log += 4; value >>= 4; }
	if (value >> 2) { log += 2; value >>= 2; }
	return log + (value >> 1);
}

static __always_inline void record(enum histogram histogram, __u64 ns, int shared)
{
	__u32 key = BUCKETS - 1;
	__u64 *bucket;

	if (ns < SATURATED) {
		__u32 shift = log2_of(ns | ((2 << SUB_BITS) - 1)) - SUB_BITS;

		key = (shift << SUB_BITS) + (__u32)(ns >> shift);
	}
	key += histogram * BUCKETS;
	bucket = bpf_map_lookup_elem(&buckets, &key);
	if (!bucket)
		return;
	if (shared)
		__sync_fetch_and_add(bucket, 1);
	else
		*bucket += 1;
}

// Whether the times of this frame are left out: reading the clock costs as much as counting the
// frame.
static __always_inline int is_left_out(__u64 number, __u32 mask)
{
	return (((__u32)number * 0x9e3779b1U) >> 16) & mask;
}

static __always_inline __u32 words(__u64 value)
{
	return (value & 0xffff) + ((value >> 16) & 0xffff) + ((value >> 32) & 0xffff) + (value >> 48);
}

static __always_inline __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// Makes the page the frame `sequence`, as Template::stamp of src/frame.rs does.
static __always_inline int write_frame(void *data, void *end, struct order *order, const __u32 ip,
				       __u64 sequence, __u64 tx_ns)
{
	__u8 *udp = data + ETHERNET + ip;
	__u16 source_port = order->source_port;
	__u32 sum;

	if (data + ETHERNET + ip + ECHO_TAIL > end)
		return -1;
	if (order->flows > 1)
		source_port += sequence % order->flows;
	__builtin_memcpy(data, order->headers, ETHERNET + IPV4);
	if (ip == IPV6)
		__builtin_memcpy(data + ETHERNET + IPV4, order->headers + ETHERNET + IPV4, IPV6 - IPV4);
	if (order->kind == ECHO) {
		*(__u64 *)udp = *(__u64 *)(order->headers + ETHERNET + ip);
		*(__u16 *)(udp + 6) = bpf_htons(sequence);
		*(__u32 *)(udp + 8) = ECHO_MAGIC;
		*(__u64 *)(udp + 12) = bpf_cpu_to_be64(sequence);
		sum = order->constant_sum + (sequence & 0xffff) + words(sequence);
		*(__u16 *)(udp + 2) = bpf_htons(~folded(sum));
		return 0;
	}
	if (data + ETHERNET + ip + TAIL > end)
		return -1;
	sum = order->constant_sum + source_port + words(sequence) + words(tx_ns);
	sum = ~folded(sum) & 0xffff;
	*(__u16 *)udp = bpf_htons(source_port);
	*(__u16 *)(udp + 2) = *(__u16 *)(order->headers + ETHERNET + ip + 2);
	*(__u16 *)(udp + 4) = *(__u16 *)(order->headers + ETHERNET + ip + 4);
	*(__u16 *)(udp + 6) = bpf_htons(sum ? sum : 0xffff);
	*(__u16 *)(udp + 8) = MAGIC;
	*(__u64 *)(udp + 10) = bpf_cpu_to_be64(sequence);
	*(__u64 *)(udp + 18) = bpf_cpu_to_be64(tx_ns);
	return 0;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct order *order = bpf_map_lookup_elem(&orders, &zero);
	__u64 now, index, slip;
	__s64 since;
	int failed, action;

	if (!order)
		return XDP_ABORTED;
	index = order->next;
	if (index >= order->count)
		return XDP_DROP;
	now = bpf_ktime_get_ns();
	since = now - order->start_ns;
	if (since < (__s64)((order->due + order->late) >> POINT))
		return XDP_DROP;
	slip = since - (order->due >> POINT);
	if (order->header_bytes == ETHERNET + IPV6)
		failed = write_frame(data, end, order, IPV6, order->first_sequence + index,
				     now + order->realtime_offset_ns);
	else
		failed = write_frame(data, end, order, IPV4, order->first_sequence + index,
				     now + order->realtime_offset_ns);
	if (failed)
		return XDP_ABORTED;
	order->last_ns = now;
	// A burst that begins late is not shortened: its frames do not leave faster than ordered.
	if (order->burst > 1 && !order->in_burst)
		order->late = slip << POINT;
	order->in_burst += 1;
	if (order->in_burst >= order->burst) {
		order->in_burst = 0;
		order->late = 0;
		order->burst_start += order->burst_period;
		order->due = order->burst_start;
	} else {
		order->due += order->gap;
	}
	order->slip_sum_ns += slip;
	if (slip < order->slip_min_ns)
		order->slip_min_ns = slip;
	if (slip > order->slip_max_ns)
		order->slip_max_ns = slip;
	record(SLIP, slip, 0);
	if (order->kind == ECHO) {
		__u32 key = index;
		struct departed *departed = bpf_map_lookup_elem(&departures, &key);

		if (departed)
			departed->made_ns = now + order->realtime_offset_ns;
	}
	order->next = index + 1;
	if (order->way == STACK)
		return XDP_PASS;
	if (order->way == CARRIER)
		action = bpf_redirect_map(&carriers, order->carrier, XDP_ABORTED);
	else
		// Sixteen at a time leave together, by the entry of the first of them.
		action = bpf_redirect_map(&port, order->kind == TRIAL &&
					  is_left_out(index >> 4, order->sample_mask), XDP_ABORTED);
	if (action != XDP_REDIRECT)
		order->refused += 1;
	return action;
}

// Measures how long after its due time a frame leaves, which is later than its stamp: frames of a
// batch leave together.
static __always_inline void measure_departure(struct order *order, void *data, void *end,
					      __u32 mask)
{
	__u64 index, due, now;
	__s64 late;
	void *upper;
	__u32 key;

	if (order->header_bytes == ETHERNET + IPV6)
		upper = data + ETHERNET + IPV6;
	else
		upper = data + ETHERNET + IPV4;
	if (upper + ECHO_TAIL > end)
		return;
	if (order->kind == ECHO) {
		struct departed *departed;

		if (*(__u32 *)(upper + 8) != ECHO_MAGIC)
			return;
		index = bpf_be64_to_cpu(*(__u64 *)(upper + 12)) - order->first_sequence;
		now = bpf_ktime_get_ns();
		key = index;
		departed = index < order->count ? bpf_map_lookup_elem(&departures, &key) : 0;
		if (departed)
			departed->left_ns = now + order->realtime_offset_ns;
		order->left += 1;
	} else {
		if (upper + TAIL > end || *(__u16 *)(upper + 8) != MAGIC)
			return;
		order->left += 1;
		index = bpf_be64_to_cpu(*(__u64 *)(upper + 10)) - order->first_sequence;
	}
	if (index >= order->count || is_left_out(index, mask))
		return;
	if (order->burst > 1)
		due = index / order->burst * order->burst_period + index % order->burst * order->gap;
	else
		due = index * order->burst_period;
	late = bpf_ktime_get_ns() - order->start_ns - (due >> POINT);
	if (late < 0)
		late = 0;
	order->departures += 1;
	order->departure_sum_ns += late;
	if ((__u64)late < order->departure_min_ns)
		order->departure_min_ns = late;
	if ((__u64)late > order->departure_max_ns)
		order->departure_max_ns = late;
	record(DEPARTURE, late, 0);
}

SEC("xdp/devmap")
int depart(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct order *order = bpf_map_lookup_elem(&orders, &zero);

	if (order)
		measure_departure(order, (void *)(long)ctx->data, (void *)(long)ctx->data_end, 0);
	return XDP_PASS;
}

// Counts redirects that fail after the program: the peer of a veth has no NAPI. No counter of an
// interface has these frames.
SEC("raw_tp/xdp_redirect_err")
int lose(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct order *order = bpf_map_lookup_elem(&orders, &zero);

	if (order && (__u32)ctx->args[5] == order->port_id) // TP_PROTO: dev, prog, tgt, err, type, map_id
		order->lost += 1;
	return 0;
}

// For interfaces that take no XDP frames: forwards frames from the loopback interface of the
// namespace to the interface's ordinary transmit path. Other traffic passes.
SEC("classifier")
int forward(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 zero = 0;
	struct order *order = bpf_map_lookup_elem(&orders, &zero);

	if (!order || data + ETHERNET + IPV4 + TAIL > end)
		return TCX_NEXT;
	// Both MAC addresses: frames of the loopback interface itself have none.
	if (*(__u64 *)data != *(__u64 *)order->headers ||
	    *(__u32 *)(data + 8) != *(__u32 *)(order->headers + 8))
		return TCX_NEXT;
	measure_departure(order, data, end, order->sample_mask);
	// As a socket's frames have one, of their flow: else receive packet steering dissects each frame
	// on the generator's CPU.
	if (order->header_bytes == ETHERNET + IPV4)
		bpf_set_hash(skb, *(__u16 *)(data + ETHERNET + IPV4) * 0x9e3779b1U | 1);
	else if (data + ETHERNET + IPV6 + TAIL <= end)
		bpf_set_hash(skb, *(__u16 *)(data + ETHERNET + IPV6) * 0x9e3779b1U | 1);
	return bpf_redirect(order->ifindex, 0);
}

// Account::record of src/trial/account.rs. Returns whether the frame is one of a trial on this port,
// or an answer to this ping; all others go on to the stack.
static __always_inline int account(void *data, void *end, struct expected *expected, const __u32 ip)
{
	__u8 *upper = data + ETHERNET + ip;
	__u64 sequence, index, *word, bit, *next;
	__u32 cpu = bpf_get_smp_processor_id(), key, place;
	struct arrived *arrived = 0;
	struct counts *counts;
	__s64 sent_ns, delay_ns;
	int left_out;

	if (data + ETHERNET + ip + ECHO_TAIL > end)
		return 0;
	if (expected->kind == ECHO) {
		if (upper[0] != (ip == IPV6 ? 129 : 0) || *(__u16 *)(upper + 4) != expected->port ||
		    *(__u32 *)(upper + 8) != ECHO_MAGIC)
			return 0;
		sequence = bpf_be64_to_cpu(*(__u64 *)(upper + 12));
	} else {
		if (data + ETHERNET + ip + TAIL > end || *(__u16 *)(upper + 2) != expected->port ||
		    *(__u16 *)(upper + 8) != MAGIC)
			return 0;
		sequence = bpf_be64_to_cpu(*(__u64 *)(upper + 10));
	}
	counts = bpf_map_lookup_elem(&counted, &cpu);
	if (!counts)
		return 0;
	index = sequence - expected->first_sequence;
	if (index >= expected->planned) {
		if (index == ~0ULL)
			counts->warmup += 1;
		else
			counts->foreign += 1;
		return 1;
	}
	place = index;
	if (expected->kind == ECHO)
		arrived = bpf_map_lookup_elem(&arrivals, &place);
	key = index >> 6;
	bit = 1ULL << (index & 63);
	word = bpf_map_lookup_elem(&seen, &key);
	if (!word)
		return 1;
	// Queues of one interface may be served by several CPUs at once.
	if (__sync_fetch_and_or(word, bit) & bit) {
		counts->duplicates += 1;
		if (arrived)
			arrived->duplicates += 1;
		return 1;
	}
	key = expected->flows > 1 ? sequence % expected->flows : 0;
	next = bpf_map_lookup_elem(&next_of_flow, &key);
	if (!next)
		return 1;
	if (index < *next)
		counts->reordered += 1;
	else
		*next = index + 1;
	if (arrived) {
		arrived->reordered = index + 1 < *next;
		arrived->first_ns = bpf_ktime_get_ns() + expected->realtime_offset_ns;
	}
	if (!expected->timed || expected->kind == ECHO || data + ETHERNET + ip + TAIL > end) {
		counts->received += 1;
		return 1;
	}
	sent_ns = bpf_be64_to_cpu(*(__u64 *)(upper + 18)) - expected->realtime_offset_ns;
	left_out = is_left_out(index, expected->sample_mask);
	if (left_out &&
	    (__s64)bpf_ktime_get_coarse_ns() - sent_ns < expected->late_after_ns - COARSE_NS) {
		counts->received += 1;
		return 1;
	}
	delay_ns = bpf_ktime_get_ns() - sent_ns;
	if (delay_ns > expected->late_after_ns) {
		counts->late += 1;
		return 1;
	}
	counts->received += 1;
	if (left_out)
		return 1;
	if (!counts->timed || delay_ns < counts->min_ns)
		counts->min_ns = delay_ns;
	if (!counts->timed || delay_ns > counts->max_ns)
		counts->max_ns = delay_ns;
	counts->timed += 1;
	counts->sum_ns += delay_ns;
	record(DELAY, delay_ns < 0 ? 0 : delay_ns, 1);
	return 1;
}

static __always_inline int is_ours(void *data, void *end)
{
	__u32 zero = 0;
	struct expected *expected = bpf_map_lookup_elem(&expectation, &zero);

	// No IPv4 options, no IPv6 extension headers, no VLAN tag: as this tool sends them.
	if (!expected || data + ETHERNET + IPV4 + TAIL > end)
		return 0;
	if (expected->ipv6) {
		if (*(__u16 *)(data + 12) != bpf_htons(0x86dd) || *(__u8 *)(data + ETHERNET) >> 4 != 6 ||
		    *(__u8 *)(data + ETHERNET + 6) != (expected->kind == ECHO ? 58 : 17))
			return 0;
		return account(data, end, expected, IPV6);
	}
	if (*(__u16 *)(data + 12) != bpf_htons(0x0800) || *(__u8 *)(data + ETHERNET) != 0x45 ||
	    *(__u8 *)(data + ETHERNET + 9) != (expected->kind == ECHO ? 1 : 17) ||
	    *(__u16 *)(data + ETHERNET + 6) & bpf_htons(0x1fff))
		return 0;
	return account(data, end, expected, IPV4);
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	return is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_DROP : XDP_PASS;
}

// For interfaces that take no native XDP. Generic XDP would not do: it lets frames pass that were
// redirected on their way, as those of `forward` are.
SEC("classifier")
int sink_skb(struct __sk_buff *skb)
{
	// Headers may lie in fragments.
	if (skb->data + ETHERNET + IPV6 + TAIL > skb->data_end)
		bpf_skb_pull_data(skb, skb->len < ETHERNET + IPV6 + TAIL ? skb->len :
									   ETHERNET + IPV6 + TAIL);
	return is_ours((void *)(long)skb->data, (void *)(long)skb->data_end) ? TCX_DROP : TCX_NEXT;
}

// bpf_ktime_get_ns is for programs under a licence that the GPL goes with.
char LICENSE[] SEC("license") = "Dual MIT/GPL";
