//! Writes the classic BPF programs that filter captures in the kernel. Knows nothing of sockets.
//!
//! The programs address the packet from its network header on (SKF_NET_OFF), so that they fit
//! every kind of interface, and need no link layer.

use crate::capture::Filter;
use crate::error::{Error, Result};

/// Bytes kept of a packet: the longest headers and payload that any reader parses.
pub const SNAP_BYTES: u32 = 144;

/// The packets to capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// ICMP and ICMPv6 echo requests and replies, of one identifier or of all.
    Echo {
        /// The identifier.
        id: Option<u16>,
    },
    /// UDP from or to a port.
    Udp {
        /// The port.
        port: u16,
    },
    /// Nothing at all.
    Nothing,
}

/// The target of a jump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    Label(&'static str),
}

const REJECT: To = To::Label("reject");
const ACCEPT: To = To::Label("accept");

#[derive(Default)]
struct Program {
    code: Vec<(libc::sock_filter, To, To)>,
    labels: Vec<(&'static str, usize)>,
}

impl Program {
    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.code.len()));
    }

    fn op(&mut self, code: u32, k: u32) {
        let instruction = libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        self.code.push((instruction, To::Next, To::Next));
    }

    fn jump(&mut self, condition: u32, k: u32, then: To, otherwise: To) {
        let code = (libc::BPF_JMP | condition | libc::BPF_K) as u16;
        self.code.push((libc::sock_filter { code, jt: 0, jf: 0, k }, then, otherwise));
    }

    fn jeq(&mut self, k: u32, then: To, otherwise: To) {
        self.jump(libc::BPF_JEQ, k, then, otherwise);
    }

    /// Loads from the network header on.
    fn load(&mut self, size: u32, offset: u32) {
        self.op(libc::BPF_LD | size | libc::BPF_ABS, net(offset));
    }

    /// Loads from the network header on, at an offset of X more.
    fn load_x(&mut self, size: u32, offset: u32) {
        self.op(libc::BPF_LD | size | libc::BPF_IND, net(offset));
    }

    /// Resolves the labels. All programs of this module are short enough for 8-bit jumps, and all
    /// their labels lie ahead, which a test checks for each.
    fn link(self) -> Filter {
        let distance = |to: To, from: usize| match to {
            To::Next => 0,
            To::Label(name) => self
                .labels
                .iter()
                .find(|(label, _)| *label == name)
                .map_or(u8::MAX, |(_, at)| (at - from - 1) as u8),
        };
        let resolve = |(index, &(op, then, otherwise)): (usize, &(libc::sock_filter, To, To))| {
            let (jt, jf) = (distance(then, index), distance(otherwise, index));
            libc::sock_filter { jt, jf, ..op }
        };
        self.code.iter().enumerate().map(resolve).collect()
    }
}

fn net(offset: u32) -> u32 {
    (libc::SKF_NET_OFF as u32).wrapping_add(offset)
}

/// The program that keeps [`SNAP_BYTES`] of each packet of `traffic`.
pub fn program(traffic: Traffic) -> Filter {
    let mut p = Program::default();
    if traffic != Traffic::Nothing {
        let protocol = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
        p.op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, protocol);
        p.jeq(libc::ETH_P_IP as u32, To::Label("v4"), To::Next);
        p.jeq(libc::ETH_P_IPV6 as u32, To::Label("v6"), REJECT);

        p.label("v4");
        let udp = !matches!(traffic, Traffic::Echo { .. });
        let number = if udp { libc::IPPROTO_UDP } else { libc::IPPROTO_ICMP };
        p.load(libc::BPF_B, 9);
        p.jeq(number as u32, To::Next, REJECT);
        // Later fragments have no ports.
        p.load(libc::BPF_H, 6);
        p.jump(libc::BPF_JSET, 0x1fff, REJECT, To::Next);
        // X = length of the IPv4 header.
        p.load(libc::BPF_B, 0);
        p.op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0x0f);
        p.op(libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K, 2);
        p.op(libc::BPF_MISC | libc::BPF_TAX, 0);
        transport(&mut p, traffic, (8, 0), "v4-id", |p, size, offset| p.load_x(size, offset));

        p.label("v6");
        let number = if udp { libc::IPPROTO_UDP } else { libc::IPPROTO_ICMPV6 };
        p.load(libc::BPF_B, 6);
        p.jeq(number as u32, To::Next, REJECT);
        transport(&mut p, traffic, (128, 129), "v6-id", |p, size, offset| {
            p.load(size, 40 + offset)
        });

        p.label("accept");
        p.op(libc::BPF_RET | libc::BPF_K, SNAP_BYTES);
    }
    p.label("reject");
    p.op(libc::BPF_RET | libc::BPF_K, 0);
    p.link()
}

/// The program of a trial's sink: keeps the headers and stamps of frames to `port`.
///
/// Runs once a frame at a million frames a second, on veth on the generator's CPU. So it reads at
/// fixed offsets, which the kernel compiles to plain loads: Ethernet without a tag in the frame, no
/// IP options, as this tool sends them.
pub fn to_sink(ipv6: bool, port: u16) -> Filter {
    const ETHERNET: u32 = 14;
    let (ethertype, protocol_at, header, bytes) =
        if ipv6 { (libc::ETH_P_IPV6, 6, 40, 80) } else { (libc::ETH_P_IP, 9, 20, 60) };
    let mut p = Program::default();
    for (size, offset, value) in [
        (libc::BPF_H, ETHERNET + header + 2, u32::from(port)),
        (libc::BPF_H, 12, ethertype as u32),
        (libc::BPF_B, ETHERNET + protocol_at, libc::IPPROTO_UDP as u32),
    ] {
        p.op(libc::BPF_LD | size | libc::BPF_ABS, offset);
        p.jeq(value, To::Next, REJECT);
    }
    p.op(libc::BPF_RET | libc::BPF_K, bytes);
    p.label("reject");
    p.op(libc::BPF_RET | libc::BPF_K, 0);
    p.link()
}

/// As [`program`], for whole Ethernet frames without a tag and of one IP version.
///
/// Runs on every probe and answer while their times are taken. Reads at offsets in the frame, which
/// the kernel compiles to plain loads; those from the network header on are calls.
pub fn in_frames(ipv6: bool, traffic: Traffic) -> Filter {
    const ETHERNET: u32 = 14;
    let udp = matches!(traffic, Traffic::Udp { .. });
    let (ethertype, protocol_at, icmp, kinds) = if ipv6 {
        (libc::ETH_P_IPV6, 6, libc::IPPROTO_ICMPV6, (128, 129))
    } else {
        (libc::ETH_P_IP, 9, libc::IPPROTO_ICMP, (8, 0))
    };
    let mut p = Program::default();
    p.op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 12);
    p.jeq(ethertype as u32, To::Next, REJECT);
    p.op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, ETHERNET + protocol_at);
    p.jeq(if udp { libc::IPPROTO_UDP } else { icmp } as u32, To::Next, REJECT);
    if ipv6 {
        p.op(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, 40);
    } else {
        p.op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, ETHERNET + 6);
        p.jump(libc::BPF_JSET, 0x1fff, REJECT, To::Next);
        p.op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, ETHERNET);
    }
    transport(&mut p, traffic, kinds, "id", |p, size, offset| {
        p.op(libc::BPF_LD | size | libc::BPF_IND, ETHERNET + offset);
    });
    p.label("accept");
    p.op(libc::BPF_RET | libc::BPF_K, SNAP_BYTES);
    p.label("reject");
    p.op(libc::BPF_RET | libc::BPF_K, 0);
    p.link()
}

/// Appends the checks of the ICMP or UDP header, which `load` reads.
fn transport(
    p: &mut Program,
    traffic: Traffic,
    (request, reply): (u32, u32),
    id_label: &'static str,
    load: impl Fn(&mut Program, u32, u32),
) {
    match traffic {
        Traffic::Echo { id } => {
            let matched = if id.is_some() { To::Label(id_label) } else { ACCEPT };
            load(p, libc::BPF_B, 0);
            p.jeq(request, matched, To::Next);
            p.jeq(reply, matched, REJECT);
            if let Some(id) = id {
                p.label(id_label);
                load(p, libc::BPF_H, 4);
                p.jeq(u32::from(id), ACCEPT, REJECT);
            }
        }
        Traffic::Udp { port } => {
            load(p, libc::BPF_H, 0);
            p.jeq(u32::from(port), ACCEPT, To::Next);
            load(p, libc::BPF_H, 2);
            p.jeq(u32::from(port), ACCEPT, REJECT);
        }
        Traffic::Nothing => {}
    }
}

/// Parses the output of `tcpdump -ddd EXPRESSION`: the number of instructions, then one instruction a
/// line (or, as a shell's `$(…)` leaves them unquoted, all in one line) as four decimal numbers.
pub fn parse_ddd(text: &str) -> Result<Filter> {
    let wrong = |why: String| {
        Error::bad_input(
            format!("the BPF program cannot be read: {why}"),
            "give it as --bpf \"$(tcpdump -ddd -i IF EXPRESSION)\"",
        )
    };
    let mut numbers = text.split_ascii_whitespace().map(|word| {
        word.parse::<u32>()
            .map_err(|_| wrong(format!("'{word}' is not a number from 0 to 2^32 − 1")))
    });
    let count = numbers.next().ok_or_else(|| wrong("it is empty".into()))??;
    // BPF_MAXINSNS of the kernel.
    if !(1..=4096).contains(&count) {
        return Err(wrong(format!("it announces {count} instructions; 1 to 4096 are possible")));
    }
    let mut program = Filter::new();
    while let Some(code) = numbers.next() {
        let line = program.len() + 1;
        let mut field = |limit: u32| {
            let value = numbers
                .next()
                .unwrap_or_else(|| Err(wrong(format!("instruction {line} is cut off"))))?;
            if value > limit {
                return Err(wrong(format!(
                    "instruction {line} has {value} where {limit} is the most"
                )));
            }
            Ok(value)
        };
        let (jt, jf, k) = (field(255)? as u8, field(255)? as u8, field(u32::MAX)?);
        let code = u16::try_from(code?)
            .map_err(|_| wrong(format!("instruction {line} has no 16-bit code")))?;
        program.push(libc::sock_filter { code, jt, jf, k });
    }
    if program.len() != count as usize {
        return Err(wrong(format!("it announces {count} instructions and has {}", program.len())));
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Traffic; 4] = [
        Traffic::Echo { id: None },
        Traffic::Echo { id: Some(0xbeef) },
        Traffic::Udp { port: 862 },
        Traffic::Nothing,
    ];

    #[test]
    fn every_jump_lands_inside_its_program_and_ahead() {
        let programs = ALL.map(program).into_iter();
        let frames = ALL[..3]
            .iter()
            .flat_map(|&traffic| [in_frames(false, traffic), in_frames(true, traffic)]);
        for code in programs.chain([to_sink(false, 9), to_sink(true, 9)]).chain(frames) {
            for (index, op) in code.iter().enumerate() {
                if u32::from(op.code) & 7 == libc::BPF_JMP {
                    assert!(index + 1 + usize::from(op.jt) < code.len(), "{index}");
                    assert!(index + 1 + usize::from(op.jf) < code.len(), "{index}");
                }
            }
            let last = code.last().expect("never empty");
            assert_eq!((u32::from(last.code), last.k), (libc::BPF_RET | libc::BPF_K, 0));
        }
    }

    #[test]
    fn tcpdumps_programs_are_read_with_and_without_line_breaks() {
        let lines = "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n";
        let program = parse_ddd(lines).expect("valid");
        assert_eq!(program.len(), 4);
        assert_eq!((program[1].code, program[1].jt, program[1].jf, program[1].k), (21, 0, 1, 2048));
        assert_eq!(parse_ddd(&lines.replace('\n', " ")).map(|p| p.len()).ok(), Some(4));
    }

    #[test]
    fn a_broken_program_is_refused_with_its_instruction() {
        for (text, expected) in [
            ("", "empty"),
            ("2\n6 0 0 0\n", "announces 2"),
            ("1\n6 0 300 0\n", "instruction 1"),
            ("1\n6 0\n", "cut off"),
            ("1\nret 0 0 0\n", "'ret'"),
            ("0\n", "announces 0"),
        ] {
            let error = parse_ddd(text).expect_err(text);
            assert!(error.what.contains(expected), "{text:?}: {}", error.what);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic() {
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Ok(program) = parse_ddd(text) {
                assert!((1..=4096).contains(&program.len()));
            }
        });
    }

    /// Runs a classic BPF program on a frame, as the kernel does; the bytes to keep.
    fn run(program: &[libc::sock_filter], frame: &[u8]) -> u32 {
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
        loop {
            let instruction = program[at];
            let k = instruction.k as usize;
            let byte = |at: usize| frame.get(at).map(|&byte| u32::from(byte));
            let half = |at: usize| Some(byte(at)? << 8 | byte(at + 1)?);
            let mut skip = 0;
            let loaded = match instruction.code {
                0x30 => byte(k).map(|value| a = value),
                0x28 => half(k).map(|value| a = value),
                0x50 => byte(x as usize + k).map(|value| a = value),
                0x48 => half(x as usize + k).map(|value| a = value),
                0xb1 => byte(k).map(|value| x = 4 * (value & 0xf)),
                0x01 => {
                    x = instruction.k;
                    Some(())
                }
                0x15 | 0x45 => {
                    let yes = match instruction.code {
                        0x15 => a == instruction.k,
                        _ => a & instruction.k != 0,
                    };
                    skip = usize::from(if yes { instruction.jt } else { instruction.jf });
                    Some(())
                }
                0x06 => return instruction.k,
                code => panic!("no such instruction {code:#x}"),
            };
            if loaded.is_none() {
                return 0;
            }
            at += 1 + skip;
        }
    }

    fn frame(ethertype: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend(ethertype.to_be_bytes());
        if ethertype == 0x0800 {
            let mut header = [0; 20];
            header[0] = 0x45;
            header[9] = protocol;
            frame.extend(header);
        } else {
            let mut header = [0; 40];
            header[0] = 0x60;
            header[6] = protocol;
            frame.extend(header);
        }
        frame.extend(upper);
        frame
    }

    #[test]
    fn the_filter_keeps_our_requests_and_their_answers_alone() {
        let echo = |kind, identifier: u16| {
            let [high, low] = identifier.to_be_bytes();
            [kind, 0, 0, 0, high, low, 0, 0]
        };
        for (ipv6, ethertype, protocol, request, reply) in
            [(false, 0x0800, 1, 8, 0), (true, 0x86dd, 58, 128, 129)]
        {
            let program = in_frames(ipv6, Traffic::Echo { id: Some(7) });
            let kept = |upper: &[u8]| run(&program, &frame(ethertype, protocol, upper)) > 0;
            assert!(kept(&echo(request, 7)) && kept(&echo(reply, 7)));
            assert!(!kept(&echo(reply, 8)), "another run's");
            assert!(!kept(&echo(3, 7)), "another message");
            assert!(!kept(&[]), "a packet cut short");
            assert_eq!(run(&program, &frame(ethertype, 17, &echo(reply, 7))), 0, "UDP");
            assert_eq!(run(&program, &frame(0x0806, protocol, &echo(reply, 7))), 0, "ARP");
        }
        let udp = |source: u16, destination: u16| {
            [source.to_be_bytes(), destination.to_be_bytes(), [0, 52], [0, 0]].concat()
        };
        for (ipv6, ethertype) in [(false, 0x0800), (true, 0x86dd)] {
            let program = in_frames(ipv6, Traffic::Udp { port: 5_000 });
            let kept = |upper: &[u8]| run(&program, &frame(ethertype, 17, upper)) > 0;
            assert!(kept(&udp(5_000, 862)) && kept(&udp(862, 5_000)));
            assert!(!kept(&udp(862, 5_001)) && !kept(&udp(5_001, 862)), "another run's");
            assert!(!kept(&udp(862, 862)));
        }
    }

    #[test]
    fn fragments_are_not_kept() {
        let program = in_frames(false, Traffic::Echo { id: Some(0) });
        let mut fragment = frame(0x0800, 1, &[0; 8]);
        assert!(run(&program, &fragment) > 0);
        fragment[21] = 1;
        assert_eq!(run(&program, &fragment), 0);
    }
}
