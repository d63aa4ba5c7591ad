//! The sink inside the kernel: a program that accounts for each frame and drops it, by XDP in the
//! driver or at the interface's ingress hook.

use std::time::Duration;

use aya::Ebpf;
use aya::programs::{Xdp, XdpMode};

use super::{Distribution, Mapped, absent, attach_to_ingress, load, refused};
use crate::capture::RingStats;
use crate::clock;
use crate::error::{Error, Result};
use crate::frame::FrameKind;
use crate::netlink::Netlink;
use crate::netns::{IfSpec, run_in};
use crate::trial::account::Counted;
use crate::trial::order::{Expectation, Sink};
use crate::trial::packet::down_or_gone;

/// `struct expected` of the C source.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawExpected {
    first_sequence: u64,
    planned: u64,
    late_after_ns: i64,
    realtime_offset_ns: i64,
    flows: u32,
    port: [u8; 2],
    ipv6: u8,
    timed: u8,
    kind: u32,
    sample_mask: u32,
}

/// `struct counts` of the C source.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawCounts {
    received: u64,
    duplicates: u64,
    reordered: u64,
    late: u64,
    foreign: u64,
    warmup: u64,
    timed: u64,
    sum_ns: i64,
    min_ns: i64,
    max_ns: i64,
    reserved: [u64; 6],
}

/// The hook of the sink's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkHook {
    /// XDP in the driver, before there is a socket buffer.
    Native,
    /// The ingress hook of traffic control, with a socket buffer, on any interface.
    Ingress,
}

/// Loaded programs and maps, attached or not.
#[derive(Debug)]
struct Program {
    ebpf: Ebpf,
    counts: Mapped<RawCounts>,
    buckets: Mapped<u64>,
    arrivals: Mapped<Arrived>,
}

/// The answer to a ping's packet: `struct arrived` of the C source.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// Time of the first copy [CLOCK_REALTIME, ns]; 0 before it.
    pub first_ns: i64,
    /// Number of further copies.
    pub duplicates: u32,
    /// 1 when it came after the answer to a later packet.
    pub reordered: u32,
}

impl Program {
    fn load(expected: &Expectation) -> Result<Self> {
        let frames = u32::try_from(expected.planned).unwrap_or(u32::MAX);
        let words = u32::try_from(expected.planned.div_ceil(64)).map_err(|_| {
            Error::bad_input("more frames than one map counts", "measure for a shorter time")
        })?;
        let echo = expected.kind == FrameKind::Echo;
        let raw = RawExpected {
            first_sequence: expected.first_sequence,
            planned: expected.planned,
            late_after_ns: expected.late_after_ns.unwrap_or(0),
            realtime_offset_ns: clock::realtime_offset().0,
            flows: u32::from(expected.flows.max(1)),
            port: expected.port.to_be_bytes(),
            ipv6: u8::from(expected.ipv6),
            timed: u8::from(expected.late_after_ns.is_some()),
            kind: u32::from(echo),
            sample_mask: expected.sample_mask,
        };
        let answers = if echo { frames } else { 1 };
        let cpus = aya::util::nr_cpus().map_err(|(path, error)| {
            Error::failed(format!("cannot read {path}"), "").caused_by(error)
        })?;
        let ebpf = load(&[
            ("seen", words),
            ("next_of_flow", raw.flows),
            ("counted", cpus as u32),
            ("arrivals", answers),
        ])?;
        Mapped::of(&ebpf, "expectation", 1)?.write(0, raw);
        let (counts, buckets) = (Mapped::of(&ebpf, "counted", cpus)?, Mapped::buckets(&ebpf)?);
        let arrivals = Mapped::of(&ebpf, "arrivals", answers as usize)?;
        Ok(Self { ebpf, counts, buckets, arrivals })
    }

    fn attach(&mut self, interface: &str, index: u32, mode: SinkHook) -> Result<()> {
        match mode {
            SinkHook::Native => self.attach_native("sink", index),
            SinkHook::Ingress => attach_to_ingress(&mut self.ebpf, "sink_skb", interface),
        }
    }

    fn attach_native(&mut self, name: &str, index: u32) -> Result<()> {
        let program = self.xdp(name)?;
        program.load().map_err(refused)?;
        program.attach_to_if_index(index, XdpMode::Driver).map_err(refused)?;
        Ok(())
    }

    fn xdp(&mut self, name: &str) -> Result<&mut Xdp> {
        self.ebpf.program_mut(name).ok_or_else(|| absent(name))?.try_into().map_err(refused)
    }

    fn total(&self) -> RawCounts {
        let mut total = RawCounts { min_ns: i64::MAX, max_ns: i64::MIN, ..RawCounts::default() };
        for index in 0..self.counts.entries {
            let cpu = self.counts.read(index);
            total.received += cpu.received;
            total.duplicates += cpu.duplicates;
            total.reordered += cpu.reordered;
            total.late += cpu.late;
            total.foreign += cpu.foreign;
            total.warmup += cpu.warmup;
            if cpu.timed > 0 {
                total.timed += cpu.timed;
                total.sum_ns = total.sum_ns.wrapping_add(cpu.sum_ns);
                total.min_ns = total.min_ns.min(cpu.min_ns);
                total.max_ns = total.max_ns.max(cpu.max_ns);
            }
        }
        total
    }

    fn counted(&self) -> Counted {
        let total = self.total();
        let exact = (total.sum_ns, total.min_ns, total.max_ns);
        let latency = self.buckets.distribution(Distribution::Delay, exact);
        Counted {
            received: total.received,
            duplicates: total.duplicates,
            reordered: total.reordered,
            late: total.late,
            foreign: total.foreign,
            warmup: total.warmup,
            latency,
        }
    }
}

/// Accounts for frames by XDP.
#[derive(Debug)]
pub struct XdpSink {
    program: Program,
    netlink: Netlink,
    rx: IfSpec,
    index: u32,
    mode: SinkHook,
    polled: u64,
    look_ns: i64,
}

impl XdpSink {
    /// Attaches the sink to `rx`.
    ///
    /// # Errors
    /// The user may not, or the interface does not take the program in this mode.
    pub fn open(rx: &IfSpec, expected: &Expectation, mode: SinkHook) -> Result<Self> {
        run_in(rx.netns.as_ref(), || {
            let mut netlink = Netlink::open()?;
            let index = netlink.link_at(&rx.interface, rx)?.index;
            let mut program = Program::load(expected)?;
            program.attach(&rx.interface, index, mode)?;
            let rx = rx.clone();
            Ok(Self { program, netlink, rx, index, mode, polled: 0, look_ns: 0 })
        })
    }

    /// The answer to packet `index` of a ping.
    pub fn answer(&self, index: usize) -> Arrived {
        self.program.arrivals.read(index)
    }

    fn frames(&self) -> u64 {
        let total = self.program.total();
        total.received + total.late + total.duplicates + total.foreign + total.warmup
    }
}

impl Sink for XdpSink {
    fn backend(&self) -> &'static str {
        if self.mode == SinkHook::Native { "xdp-native" } else { "tc-ingress" }
    }

    fn poll(&mut self, timeout: Duration) -> Result<u64> {
        const LOOK_NS: i64 = 50_000_000;
        clock::pause(timeout.min(Duration::from_millis(10)));
        let now = clock::monotonic_ns();
        if now > self.look_ns {
            self.look_ns = now + LOOK_NS;
            let link = self.netlink.link(&self.rx.interface)?;
            if !link.is_some_and(|link| link.up && link.index == self.index) {
                return Err(down_or_gone(&self.rx.to_string()));
            }
        }
        let frames = self.frames();
        Ok(frames - std::mem::replace(&mut self.polled, frames))
    }

    fn arrived(&self) -> u64 {
        let total = self.program.total();
        total.received + total.late
    }

    fn warmed_up(&self) -> u64 {
        self.program.total().warmup
    }

    fn stats(&mut self) -> RingStats {
        RingStats { packets: self.frames(), dropped: 0 }
    }

    fn counted(&self) -> Counted {
        self.program.counted()
    }
}

#[cfg(test)]
mod tests {
    use aya::programs::{TestRun, TestRunOptions};

    use super::*;
    use crate::frame::{self, Template, tests::ends};
    use crate::trial::account::Account;

    const FIRST: u64 = 1_000;
    const PLANNED: u64 = 40;
    const PORT: u16 = 4862;
    const LATE_NS: i64 = 1_000_000_000;

    fn template(ipv6: bool, port: u16) -> Template {
        let [source, destination] = ends(ipv6);
        Template::of_trial(source, destination, port, 84, 3).expect("possible")
    }

    /// A frame of the trial, or with a fault that makes it none.
    fn frame_of(ipv6: bool, sequence: u64, tx_ns: i64, fault: u8) -> Vec<u8> {
        let port = if fault == 1 { PORT + 1 } else { PORT };
        let template = template(ipv6 ^ (fault == 2), port);
        let mut frame = template.bytes().to_vec();
        template.stamp(&mut frame, sequence, tx_ns);
        let udp_at = template.upper_at;
        match fault {
            3 => frame[udp_at + 8] = b'Q',
            4 => frame[if ipv6 { 20 } else { 23 }] = 6,
            5 if !ipv6 => frame[21] = 1,
            6 => frame.truncate(udp_at + 25),
            _ => {}
        }
        frame
    }

    /// A frame as the sink in user space parses it.
    fn read(frame: &[u8], ipv6: bool) -> Option<frame::Stamped> {
        let ethertype: [u8; 2] = if ipv6 { [0x86, 0xdd] } else { [8, 0] };
        let stamped = frame::read(&frame[14..])?;
        (frame[12..14] == ethertype && stamped.destination_port == PORT).then_some(stamped)
    }

    #[test]
    fn the_kernels_account_is_that_of_user_space() {
        let expected = |ipv6| Expectation {
            kind: FrameKind::Trial,
            first_sequence: FIRST,
            planned: PLANNED,
            flows: 3,
            late_after_ns: Some(LATE_NS),
            sample_mask: 0,
            ipv6,
            port: PORT,
        };
        let load = |ipv6| {
            let mut program = Program::load(&expected(ipv6))?;
            program.xdp("sink")?.load().map_err(refused)?;
            Ok::<_, Error>(program)
        };
        if let Err(error) = load(false) {
            eprintln!("skipped: {error}");
            return;
        }
        let arrivals = pw_cases::check!(12);
        arrivals.with_type::<(bool, Vec<(u8, u8, u8)>)>().for_each(|(ipv6, arrivals)| {
            let mut program = load(*ipv6).expect("loaded before");
            let mut account = Account::new(&expected(*ipv6));
            for &(index, fault, age) in arrivals {
                let sequence = FIRST + u64::from(index % (PLANNED as u8 + 3)) - 1;
                // In time, late, or stamped by a clock that is ahead.
                let age_ns = i64::from(age % 3 == 2) * 3_600 * 1_000_000_000
                    - i64::from(age % 3 == 1) * 5_000_000_000;
                let frame = frame_of(*ipv6, sequence, clock::realtime_ns() - age_ns, fault % 8);
                let before = program.total();
                let run = TestRunOptions { data_in: Some(&frame), ..TestRunOptions::new() };
                let verdict = program.xdp("sink").expect("there").test_run(run).expect("runs");
                let after = program.total();
                let stamped = read(&frame, *ipv6);
                // XDP_DROP and XDP_PASS.
                assert_eq!(verdict.return_value, if stamped.is_some() { 1 } else { 2 });
                if let Some(stamped) = stamped {
                    let delay_ns = after.sum_ns.wrapping_sub(before.sum_ns);
                    let late = after.late > before.late;
                    let delay_ns = if late { LATE_NS + 1 } else { delay_ns };
                    account.record(stamped, stamped.tx_ns + delay_ns);
                }
            }
            let (kernel, user) = (program.counted(), account.counted);
            assert_eq!(
                (kernel.received, kernel.duplicates, kernel.reordered),
                (user.received, user.duplicates, user.reordered)
            );
            assert_eq!(
                (kernel.late, kernel.foreign, kernel.warmup),
                (user.late, user.foreign, user.warmup)
            );
            assert_eq!(kernel.latency.summary(), user.latency.summary());
        });
    }
}
