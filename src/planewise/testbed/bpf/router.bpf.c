// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// A router in the driver: IPv4 and IPv6 by the kernel's own routes and neighbours, as
// samples/bpf/xdp_fwd_kern.c of Linux. What it has no route or neighbour for, fragments and packets
// whose time is over go up the stack, which answers or drops them.
// The committed object is made from this file by `make -C src/planewise/testbed/bpf`.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define INET 2 // AF_INET and AF_INET6 of Linux
#define INET6 10

static __always_inline void one_hop_less(struct iphdr *header)
{
	__u32 check = header->check;

	check += bpf_htons(0x0100); // RFC 1141
	header->check = (__u16)(check + (check >= 0xFFFF));
	header->ttl--;
}

static __always_inline long has_way(struct xdp_md *context, struct bpf_fib_lookup *wanted)
{
	wanted->ifindex = context->ingress_ifindex;
	return bpf_fib_lookup(context, wanted, sizeof(*wanted), 0) == BPF_FIB_LKUP_RET_SUCCESS;
}

SEC("xdp")
int pw_route(struct xdp_md *context)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	struct bpf_fib_lookup wanted = {};

	if (data + sizeof(*ethernet) > end)
		return XDP_DROP;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *four = data + sizeof(*ethernet);

		if ((void *)(four + 1) > end || four->ttl <= 1)
			return XDP_PASS;
		wanted.family = INET;
		wanted.tos = four->tos;
		wanted.l4_protocol = four->protocol;
		wanted.tot_len = bpf_ntohs(four->tot_len);
		wanted.ipv4_src = four->saddr;
		wanted.ipv4_dst = four->daddr;
		if (!has_way(context, &wanted))
			return XDP_PASS;
		one_hop_less(four);
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *six = data + sizeof(*ethernet);

		if ((void *)(six + 1) > end || six->hop_limit <= 1)
			return XDP_PASS;
		wanted.family = INET6;
		wanted.flowinfo = *(__be32 *)six & bpf_htonl(0x0FFFFFFF);
		wanted.l4_protocol = six->nexthdr;
		wanted.tot_len = bpf_ntohs(six->payload_len);
		__builtin_memcpy(wanted.ipv6_src, &six->saddr, sizeof(wanted.ipv6_src));
		__builtin_memcpy(wanted.ipv6_dst, &six->daddr, sizeof(wanted.ipv6_dst));
		if (!has_way(context, &wanted))
			return XDP_PASS;
		six->hop_limit--;
	} else {
		return XDP_PASS;
	}
	__builtin_memcpy(ethernet->h_dest, wanted.dmac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, wanted.smac, ETH_ALEN);
	return bpf_redirect(wanted.ifindex, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
