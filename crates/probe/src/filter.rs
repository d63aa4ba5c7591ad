//! Writes the classic BPF programs that filter captures in the kernel.
//!
//! They address a packet from its network header on (SKF_NET_OFF), so that they fit every kind of
//! interface.

use libc::{BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JSET, BPF_K, BPF_LD, BPF_W, sock_filter};

/// A classic BPF program; its return value is the number of bytes to keep.
pub type Filter = Vec<sock_filter>;

/// The longest headers and payload that any reader of a ring parses [bytes].
pub const SNAP_BYTES: u32 = 144;

/// The packets to capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// ICMP and ICMPv6 echo requests and replies, of one identifier or of all.
    Echo(Option<u16>),
    /// UDP from or to a port.
    Udp(u16),
}

fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips `skip` instructions where the condition holds.
fn skip_if(condition: u32, k: u32, skip: u8) -> sock_filter {
    sock_filter { jt: skip, ..op(libc::BPF_JMP | condition | BPF_K, k) }
}

const REJECT: sock_filter =
    sock_filter { code: (libc::BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: 0 };

/// Ends the program unless the loaded value is `k`.
fn require(k: u32) -> [sock_filter; 2] {
    [skip_if(BPF_JEQ, k, 1), REJECT]
}

/// Loads from the network header on; with `BPF_IND` at an offset of X more.
fn load(size: u32, mode: u32, offset: u32) -> sock_filter {
    op(BPF_LD | size | mode, (libc::SKF_NET_OFF as u32).wrapping_add(offset))
}

/// A program that keeps nothing.
pub fn nothing() -> Filter {
    vec![REJECT]
}

/// The program that keeps up to `snap_bytes` of each packet of `traffic`.
pub fn program(traffic: Traffic, snap_bytes: u32) -> Filter {
    let protocol = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
    let ipv4 = version(traffic, false, snap_bytes);
    let mut code = vec![op(BPF_LD | BPF_W | BPF_ABS, protocol)];
    code.push(sock_filter { jf: ipv4.len() as u8, ..skip_if(BPF_JEQ, libc::ETH_P_IP as u32, 0) });
    code.extend(ipv4);
    code.extend(require(libc::ETH_P_IPV6 as u32));
    code.extend(version(traffic, true, snap_bytes));
    code
}

/// The part for one IP version.
fn version(traffic: Traffic, ipv6: bool, snap_bytes: u32) -> Filter {
    let udp = matches!(traffic, Traffic::Udp(_));
    let (protocol_at, icmp, request, reply) =
        if ipv6 { (6, libc::IPPROTO_ICMPV6, 128, 129) } else { (9, libc::IPPROTO_ICMP, 8, 0) };
    let mut code = vec![load(BPF_B, BPF_ABS, protocol_at)];
    code.extend(require(if udp { libc::IPPROTO_UDP } else { icmp } as u32));
    if ipv6 {
        code.push(op(libc::BPF_LDX | BPF_W | libc::BPF_IMM, 40));
    } else {
        // Later fragments have no ports.
        let fragment = sock_filter { jf: 1, ..skip_if(BPF_JSET, 0x1fff, 0) };
        code.extend([load(BPF_H, BPF_ABS, 6), fragment, REJECT]);
        // X = length of the IPv4 header.
        code.push(load(BPF_B, BPF_ABS, 0));
        code.push(op(libc::BPF_ALU | libc::BPF_AND | BPF_K, 0x0f));
        code.push(op(libc::BPF_ALU | libc::BPF_LSH | BPF_K, 2));
        code.push(op(libc::BPF_MISC | libc::BPF_TAX, 0));
    }
    match traffic {
        Traffic::Echo(id) => {
            code.push(load(BPF_B, BPF_IND, 0));
            code.push(skip_if(BPF_JEQ, request, 2));
            code.extend(require(reply));
            if let Some(id) = id {
                code.push(load(BPF_H, BPF_IND, 4));
                code.extend(require(id.into()));
            }
        }
        Traffic::Udp(port) => {
            code.extend([load(BPF_H, BPF_IND, 0), skip_if(BPF_JEQ, port.into(), 3)]);
            code.push(load(BPF_H, BPF_IND, 2));
            code.extend(require(port.into()));
        }
    }
    code.push(op(libc::BPF_RET | BPF_K, snap_bytes));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on a packet from its IP header on, as the kernel does; the bytes to keep.
    fn run(program: &[sock_filter], ethertype: u16, packet: &[u8]) -> u32 {
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let from = |base: u32| {
                let begin = k.wrapping_sub(libc::SKF_NET_OFF as u32).wrapping_add(base) as usize;
                let byte = |at: usize| packet.get(at).map(|&byte| u32::from(byte));
                if code & 0x18 == 0x10 {
                    byte(begin)
                } else {
                    Some(byte(begin)? << 8 | byte(begin + 1)?)
                }
            };
            at += 1;
            match code {
                0x20 => a = ethertype.into(),
                0x28 | 0x30 | 0x48 | 0x50 => match from(if code & 0x40 == 0 { 0 } else { x }) {
                    Some(value) => a = value,
                    None => return 0,
                },
                0x54 => a &= k,
                0x64 => a <<= k,
                0x07 => x = a,
                0x01 => x = k,
                0x15 => at += usize::from(if a == k { jt } else { jf }),
                0x45 => at += usize::from(if a & k != 0 { jt } else { jf }),
                0x06 => return k,
                code => panic!("no such instruction {code:#x}"),
            }
        }
    }

    fn packet(ethertype: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; if ethertype == 0x0800 { 20 } else { 40 }];
        let (version, protocol_at) = if ethertype == 0x0800 { (0x45, 9) } else { (0x60, 6) };
        (packet[0], packet[protocol_at]) = (version, protocol);
        packet.extend(upper);
        packet
    }

    #[test]
    fn the_filter_keeps_requests_and_their_answers_alone() {
        let echo = |kind, identifier: u16| {
            let [high, low] = identifier.to_be_bytes();
            [kind, 0, 0, 0, high, low, 0, 0]
        };
        for (ethertype, protocol, request, reply) in [(0x0800, 1, 8, 0), (0x86dd, 58, 128, 129)] {
            let program = program(Traffic::Echo(Some(7)), SNAP_BYTES);
            let kept = |protocol, upper: &[u8]| {
                run(&program, ethertype, &packet(ethertype, protocol, upper)) > 0
            };
            assert!(kept(protocol, &echo(request, 7)) && kept(protocol, &echo(reply, 7)));
            assert!(!kept(protocol, &echo(reply, 8)), "another run's");
            assert!(!kept(protocol, &echo(3, 7)), "another message");
            assert!(!kept(protocol, &[]), "a packet cut short");
            assert!(!kept(17, &echo(reply, 7)), "UDP");
            assert_eq!(run(&program, 0x0806, &packet(ethertype, protocol, &echo(reply, 7))), 0);
        }
        let udp = |source: u16, destination: u16| {
            [source.to_be_bytes(), destination.to_be_bytes(), [0, 52], [0, 0]].concat()
        };
        for ethertype in [0x0800, 0x86dd] {
            let program = program(Traffic::Udp(5_000), SNAP_BYTES);
            let kept = |upper: &[u8]| run(&program, ethertype, &packet(ethertype, 17, upper)) > 0;
            assert!(kept(&udp(5_000, 862)) && kept(&udp(862, 5_000)));
            assert!(!kept(&udp(862, 5_001)) && !kept(&udp(5_001, 862)), "another run's");
        }
    }

    #[test]
    fn fragments_are_not_kept() {
        let program = program(Traffic::Echo(None), SNAP_BYTES);
        let mut fragment = packet(0x0800, 1, &[0; 8]);
        assert!(run(&program, 0x0800, &fragment) > 0);
        fragment[7] = 1;
        assert_eq!(run(&program, 0x0800, &fragment), 0);
    }
}
