// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Sits between generator and sink and plants losses, duplicates and reordering by sequence number,
// so that how many there must be follows from the numbers that were sent. benches/exact.py attaches
// it; OUT is the index of the interface that frames go on by, PORT their UDP port.
//
// Of every EVERY sequence numbers: 3 is dropped; 5 becomes a second 4; 7 and 8 change places.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define UDP_AT 34
#define SEQUENCE_AT (UDP_AT + 10)

SEC("xdp")
int plant(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 *at = data + SEQUENCE_AT, sequence;

	if (data + SEQUENCE_AT + 16 > end || *(__u16 *)(data + 12) != bpf_htons(0x0800) ||
	    *(__u16 *)(data + UDP_AT + 2) != bpf_htons(PORT))
		return bpf_redirect(OUT, 0);
	sequence = bpf_be64_to_cpu(*at);
	switch (sequence % EVERY) {
	case 3:
		return XDP_DROP;
	case 5:
	case 8:
		*at = bpf_cpu_to_be64(sequence - 1);
		break;
	case 7:
		*at = bpf_cpu_to_be64(sequence + 1);
		break;
	}
	return bpf_redirect(OUT, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
