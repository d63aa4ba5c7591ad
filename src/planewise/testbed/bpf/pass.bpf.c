// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Leaves every frame to the kernel. A veth interface that has a program polls, and only then takes
// what the program of its peer sends (drivers/net/veth.c of Linux).
// The committed object is made from this file by `make -C src/planewise/testbed/bpf`.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pw_pass(struct xdp_md *context)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
