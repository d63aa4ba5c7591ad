//! The generator inside the kernel: BPF_PROG_RUN with live frames, paced by the program itself.
//!
//! One thread is in one system call for the whole trial, as each costs 8 to 24 ms; another checks on it
//! from time to time and ends it by a signal. A timer ends it where the other is not run.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::Map;
use aya::maps::xdp::{CpuMap, DevMap};
use aya::programs::{ProgramError, RawTracePoint, TestRun, TestRunAttrs, TestRunOptions, Xdp};
use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

use super::raw::{Departed, RawOrder};
use super::{
    Distribution, Mapped, absent, attach_to_ingress, features, load, refused, takes_no_xdp_frames,
};
use crate::affinity;
use crate::clock::{self, Schedule};
use crate::error::{Error, Result};
use crate::frame::{FrameKind, SOURCE_PORT, Template};
use crate::netlink::{Netlink, must_be_up};
use crate::netns::{IfSpec, run_in};
use crate::stop;
use crate::threads;
use crate::trial::order::{GRACE_NS, Generated, Generator, Order, sample_mask};
use crate::trial::packet::down_or_gone;

/// Name in results: XDP frames, by ndo_xdp_xmit.
pub const LIVE: &str = "live";
/// Name in results: socket buffers, by the ordinary transmit path.
pub const LIVE_SKB: &str = "live-skb";
/// Name in results: the same, on another CPU than the generator's.
pub const LIVE_CARRIED: &str = "live-carried";

/// The longest frame that fits into a page of BPF_PROG_RUN [bytes without FCS]: a page of 4096 less
/// headroom, the page's own data and `skb_shared_info` (net/bpf/test_run.c).
pub const MOST_BYTES: usize = 3_300;
/// The longest trial in the program's clock of 2⁻²⁰ ns [ns].
pub const MOST_NS: i64 = 1 << 43;
/// Largest batch: more overrun the ring of a veth, which has 256 slots.
pub const MOST_BATCH: u16 = 64;
/// Runs in one call of BPF_PROG_RUN, whose count is a signed 32-bit number.
const REPEAT: u32 = i32::MAX as u32;
/// Time for the thread to start and the kernel to allocate its pages [ns].
const START_NS: i64 = 20_000_000;

/// A CPU that carried no frame for this long has none left.
const SETTLING: Duration = Duration::from_millis(10);

/// The transmit path of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Egress {
    /// Redirected to the interface as XDP frames.
    Redirect,
    /// By the loopback interface of its namespace, whose ingress hook forwards them: for interfaces
    /// that take no XDP frames, and planes whose own path must not change.
    Stack,
    /// The same on this CPU, so that the generator's only makes frames.
    Carried(usize),
}

/// Queue of the CPU that carries frames, as long as a CPU's backlog (net.core.netdev_max_backlog).
const CARRIER_QUEUE: u32 = 1024;

/// Sends live frames.
#[derive(Debug)]
pub struct LiveGenerator {
    ebpf: Ebpf,
    orders: Mapped<RawOrder>,
    buckets: Mapped<u64>,
    departures: Mapped<Departed>,
    template: Template,
    tx: IfSpec,
    index: u32,
    port_id: u32,
    egress: Egress,
    cpu: Option<usize>,
    requested_batch: Option<u16>,
    batch: u16,
}

impl LiveGenerator {
    /// Loads the programs for the interface `tx`. Departures of the first `packets` echo requests
    /// are kept.
    ///
    /// # Errors
    /// The user may not, the kernel or the interface cannot, the frame is too long.
    pub fn open(
        tx: &IfSpec,
        template: &Template,
        egress: Egress,
        batch: Option<u16>,
        cpu: Option<usize>,
        packets: u32,
    ) -> Result<Self> {
        if template.frame_bytes() > MOST_BYTES {
            return Err(Error::bad_input(
                format!("frames of {} bytes do not fit into a page", template.frame_bytes()),
                "the backend af_packet sends longer ones",
            ));
        }
        let generator = run_in(tx.netns.as_ref(), || {
            let link = Netlink::open()?.link_at(&tx.interface, tx)?;
            must_be_up(&link, tx)?;
            if egress == Egress::Redirect && features::sends_xdp_frames(link.index) != Some(true) {
                return Err(takes_no_xdp_frames(tx));
            }
            let packets = packets.max(1);
            let carriers = if let Egress::Carried(cpu) = egress { cpu as u32 + 1 } else { 1 };
            let mut ebpf = load(&[("departures", packets), ("carriers", carriers)])?;
            xdp(&mut ebpf, "generate")?.load().map_err(refused)?;
            match egress {
                Egress::Redirect => {
                    let depart = xdp(&mut ebpf, "depart")?;
                    depart.load().map_err(refused)?;
                    let depart = depart.fd().map_err(refused)?.try_clone().map_err(refused)?;
                    let map = ebpf.map_mut("port").ok_or_else(|| absent("port"))?;
                    let mut port = DevMap::try_from(map).map_err(refused)?;
                    for (entry, program) in [(0, Some(&depart)), (1, None)] {
                        port.set(entry, link.index, program, 0).map_err(|error| {
                            match super::os_reason(&error) {
                                Some(libc::EINVAL) => down_or_gone(&tx.to_string()),
                                _ => refused(error),
                            }
                        })?;
                    }
                    let lose = ebpf.program_mut("lose").ok_or_else(|| absent("lose"))?;
                    let lose: &mut RawTracePoint = lose.try_into().map_err(refused)?;
                    lose.load().map_err(refused)?;
                    lose.attach("xdp_redirect_err").map_err(refused)?;
                }
                Egress::Stack => attach_to_ingress(&mut ebpf, "forward", "lo")?,
                Egress::Carried(cpu) => {
                    attach_to_ingress(&mut ebpf, "forward", "lo")?;
                    let map = ebpf.map_mut("carriers").ok_or_else(|| absent("carriers"))?;
                    let mut carriers = CpuMap::try_from(map).map_err(refused)?;
                    carriers.set(cpu as u32, CARRIER_QUEUE, None, 0).map_err(refused)?;
                    let Some(Map::CpuMap(data)) = ebpf.map("carriers") else {
                        return Err(absent("carriers"));
                    };
                    let id = data.info().map_err(refused)?.id();
                    prefer_kernel_thread(&format!("cpumap/{cpu}/map:{id}"));
                }
            }
            let Some(Map::DevMap(port)) = ebpf.map("port") else {
                return Err(absent("port"));
            };
            let port_id = port.info().map_err(refused)?.id();
            let orders = Mapped::of(&ebpf, "orders", 1)?;
            let buckets = Mapped::buckets(&ebpf)?;
            let departures = Mapped::of(&ebpf, "departures", packets as usize)?;
            Ok(Self {
                ebpf,
                orders,
                buckets,
                departures,
                template: template.clone(),
                tx: tx.clone(),
                index: link.index,
                port_id,
                egress,
                cpu,
                requested_batch: batch,
                batch: batch.unwrap_or(1).min(MOST_BATCH),
            })
        })?;
        // A run without frames: a kernel that has no live frames fails here.
        generator.drive_once()?;
        Ok(generator)
    }

    /// The departure of packet `index` of the last order.
    pub fn departed(&self, index: usize) -> Departed {
        self.departures.read(index)
    }

    /// When the first frame of the last order was due [CLOCK_REALTIME, ns].
    pub fn start_ns(&self) -> i64 {
        let order = self.orders.read(0);
        order.start_ns + order.realtime_offset_ns
    }

    fn raw(&self, order: &Order, start_ns: i64) -> RawOrder {
        let Schedule { burst, gap_ns, period_ns } = order.schedule;
        let fixed = |ns: f64| (ns * f64::from(1 << 20)).round() as u64;
        let mut headers = [0; 80];
        let length = headers.len().min(self.template.frame_bytes());
        headers[..length].copy_from_slice(&self.template.bytes()[..length]);
        RawOrder {
            start_ns,
            realtime_offset_ns: clock::realtime_offset().0,
            first_sequence: order.first_sequence,
            count: order.count,
            gap: fixed(gap_ns),
            burst_period: fixed(period_ns),
            burst: burst.min(u64::from(u32::MAX)) as u32,
            flows: u32::from(self.template.flows),
            ifindex: self.index,
            header_bytes: self.template.upper_at as u32,
            constant_sum: self.template.constant_sum,
            source_port: SOURCE_PORT,
            way: match self.egress {
                Egress::Redirect => 0,
                Egress::Stack => 1,
                Egress::Carried(_) => 2,
            },
            // Within a burst frames follow one another at any rate.
            sample_mask: sample_mask(if burst > 1 {
                f64::INFINITY
            } else {
                order.schedule.mean_pps()
            }),
            kind: u32::from(self.template.kind == FrameKind::Echo),
            headers,
            carrier: if let Egress::Carried(cpu) = self.egress { cpu as u32 } else { 0 },
            port_id: self.port_id,
            last_ns: start_ns,
            slip_ns: [0, i64::MAX, 0],
            departure_ns: [0, i64::MAX, 0],
            ..RawOrder::EMPTY
        }
    }

    /// Waits until the frames that another CPU carries have left; returns the order.
    fn settle(&self) -> RawOrder {
        let mut raw = self.orders.read(0);
        while let Egress::Carried(_) = self.egress {
            clock::pause(SETTLING);
            let before = std::mem::replace(&mut raw, self.orders.read(0)).left;
            if raw.left == before {
                break;
            }
        }
        raw
    }

    /// Runs the program once, in a thread of its own: the caller must not be pinned to the generator's
    /// CPU, which has no time for it.
    fn drive_once(&self) -> Result<()> {
        let begin = || clock::monotonic_ns() + GRACE_NS;
        threads::run(|| self.drive(1, begin, &AtomicBool::new(false), &AtomicI32::new(0)))
    }

    /// Runs the program until `done` is set and a signal comes, at the latest at the time that `begin`
    /// returns. Sets `thread` once it runs.
    fn drive(
        &self,
        repeat: u32,
        begin: impl FnOnce() -> i64 + Send,
        done: &AtomicBool,
        thread: &AtomicI32,
    ) -> Result<()> {
        let program = self.ebpf.program("generate").ok_or_else(|| absent("generate"))?;
        let program: &Xdp = program.try_into().map_err(refused)?;
        run_in(self.tx.netns.as_ref(), || {
            affinity::pin(self.cpu)?;
            let end_ns = begin();
            let _alarm = alarm(end_ns)?;
            thread.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            while !done.load(Ordering::Acquire) && clock::monotonic_ns() < end_ns {
                let run = program.test_run(TestRunOptions {
                    data_in: Some(self.template.bytes()),
                    repeat,
                    attrs: TestRunAttrs::new().xdp_live_frames(u32::from(self.batch)),
                    ..TestRunOptions::new()
                });
                match run {
                    Ok(_) if repeat == 1 => break,
                    Ok(_) => {}
                    Err(ProgramError::SyscallError(error))
                        if error.io_error.raw_os_error() == Some(libc::EINTR) => {}
                    Err(error) => return Err(no_live_frames(error)),
                }
            }
            Ok(())
        })
    }

    /// Checks on the generator until it has sent all frames, is out of time or is to stop.
    fn watch(
        &self,
        order: &Order,
        end_ns: i64,
        sent: &AtomicU64,
        ended: impl Fn() -> bool,
    ) -> Result<()> {
        const LOOK_NS: i64 = 50_000_000;
        let mut netlink = run_in(self.tx.netns.as_ref(), Netlink::open)?;
        let mut look_ns = clock::monotonic_ns() + LOOK_NS;
        loop {
            let next = self.orders.read(0).next;
            sent.store(next, Ordering::Release);
            let now = clock::monotonic_ns();
            if next >= order.count || now > end_ns + GRACE_NS || stop::requested() || ended() {
                return Ok(());
            }
            if now > look_ns {
                look_ns = now + LOOK_NS;
                let link = netlink.link(&self.tx.interface)?;
                if !link.is_some_and(|link| link.up && link.index == self.index) {
                    return Err(down_or_gone(&self.tx.to_string()));
                }
            }
            let nap_ns = ((end_ns - now) / 2).clamp(1_000_000, 20_000_000);
            clock::sleep_until(now + nap_ns);
        }
    }
}

fn xdp<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    ebpf.program_mut(name).ok_or_else(|| absent(name))?.try_into().map_err(refused)
}

/// Gives a kernel thread real-time priority, so that it runs at once when it is woken, not after the
/// time slice of another program. Without effect where the thread is not visible, as in a container.
fn prefer_kernel_thread(name: &str) {
    /// Length to which kernels before 5.17 cut a thread's name [bytes].
    const SHORT: usize = 15;
    let matches = |comm: &str| comm == name || comm == name.get(..SHORT).unwrap_or(name);
    let Ok(entries) = fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (true, Some(pid)) = (matches(comm.trim_end()), pid) {
            let lowest = libc::sched_param { sched_priority: 1 };
            // SAFETY: reads the parameter, which lives through the call.
            unsafe { libc::sched_setscheduler(pid, libc::SCHED_FIFO, &raw const lowest) };
        }
    }
}

fn no_live_frames(error: ProgramError) -> Error {
    match super::os_reason(&error) {
        // 524 is the kernel's own ENOTSUPP, which the C library does not know.
        Some(libc::EINVAL | libc::EOPNOTSUPP | 524) => Error::failed(
            "this kernel's BPF_PROG_RUN has no live frames",
            "Linux 5.18 or newer has them; the backend af_packet works everywhere",
        ),
        _ => refused(error),
    }
}

const WAKE: Signal = Signal::SIGUSR1;

/// Ends the calling thread's system calls at `end_ns` [CLOCK_MONOTONIC], and again every 10 ms.
///
/// The kernel does not take a CPU away from a thread that is in BPF_PROG_RUN, even where its control
/// group has used up its quota. The thread that watches it is then not run, so that only a timer ends
/// the call in time.
fn alarm(end_ns: i64) -> Result<Timer> {
    let failed = |errno: nix::Error| {
        Error::failed("cannot set a timer for the generator", "").caused_by(errno)
    };
    // SAFETY: the handler does nothing, which is async-signal-safe.
    unsafe {
        let action =
            SigAction::new(SigHandler::Handler(ignore_signal), SaFlags::empty(), SigSet::empty());
        sigaction(WAKE, &action).map_err(failed)?;
    }
    let thread_id = nix::unistd::gettid().as_raw();
    let notify = SigevNotify::SigevThreadId { signal: WAKE, thread_id, si_value: 0 };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify)).map_err(failed)?;
    let (first, again) = (clock::to_timespec(end_ns), clock::to_timespec(10_000_000));
    let times = Expiration::IntervalDelayed(first, again);
    timer.set(times, TimerSetTimeFlags::TFD_TIMER_ABSTIME).map_err(failed)?;
    Ok(timer)
}

extern "C" fn ignore_signal(_signal: libc::c_int) {}

/// Ends the system call that the thread is in.
fn interrupt(thread: i32) {
    if thread != 0 {
        // SAFETY: sends a signal that has a handler to a thread of this process; touches no memory.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, WAKE as libc::c_int) };
    }
}

/// Batch by rate: the smallest that keeps the rate on an ordinary core, as larger ones leave later.
fn batch_for(egress: Egress, rate_pps: f64) -> u16 {
    match (egress, rate_pps) {
        (Egress::Redirect, rate) if rate <= 1.0e6 => 1,
        (Egress::Redirect, rate) if rate <= 2.5e6 => 8,
        (Egress::Redirect, rate) if rate <= 3.2e6 => 16,
        (Egress::Redirect, _) => 32,
        (Egress::Carried(_), rate) if rate <= 1.0e6 => 1,
        (Egress::Carried(_), _) => 16,
        (Egress::Stack, rate) if rate <= 3.0e5 => 1,
        (Egress::Stack, rate) if rate <= 7.0e5 => 8,
        (Egress::Stack, _) => 32,
    }
}

impl Generator for LiveGenerator {
    fn backend(&self) -> &'static str {
        match self.egress {
            Egress::Redirect => LIVE,
            Egress::Stack => LIVE_SKB,
            Egress::Carried(_) => LIVE_CARRIED,
        }
    }

    fn batch(&self) -> u16 {
        self.batch
    }

    fn send_one(&mut self, sequence: u64) -> Result<u64> {
        let order = Order {
            first_sequence: sequence,
            count: 1,
            schedule: Schedule::steady(1.0),
            refusals: crate::trial::order::Refusals::Lost,
        };
        self.orders.write(0, self.raw(&order, clock::monotonic_ns()));
        self.drive_once()?;
        Ok(self.orders.read(0).next)
    }

    fn run(&mut self, order: &Order, sent: &AtomicU64) -> Generated {
        let Schedule { burst, gap_ns, period_ns } = order.schedule;
        // An answer costs this CPU as much as the request.
        let weight = if self.template.kind == FrameKind::Echo { 2.0 } else { 1.0 };
        let rate_pps = weight * 1e9 / if burst > 1 { gap_ns } else { period_ns };
        self.batch = self
            .requested_batch
            .unwrap_or_else(|| batch_for(self.egress, rate_pps))
            .min(MOST_BATCH);
        self.buckets.clear();
        let (done, thread) = (AtomicBool::new(false), AtomicI32::new(0));
        let generator = &*self;
        let length_ns = order.schedule.due_ns(order.count);
        // The schedule starts once the thread runs, which may take long on a busy machine.
        let begin = || {
            let start_ns = clock::monotonic_ns() + START_NS;
            generator.orders.write(0, generator.raw(order, start_ns));
            // Somewhat later than the watching thread, which looks whether all frames are sent.
            start_ns + length_ns + GRACE_NS + GRACE_NS / 10
        };
        let error = std::thread::scope(|scope| {
            let worker =
                match threads::spawn(scope, || generator.drive(REPEAT, begin, &done, &thread)) {
                    Ok(worker) => worker,
                    Err(error) => return Some(error),
                };
            if let Some(cpu) = generator.cpu {
                affinity::keep_off(cpu);
            }
            while thread.load(Ordering::Acquire) == 0 && !worker.is_finished() {
                clock::pause(Duration::from_millis(1));
            }
            let end_ns = generator.orders.read(0).start_ns + length_ns;
            let watched = generator.watch(order, end_ns, sent, || worker.is_finished());
            // SAFETY: inside the mapping; the program reads this field and does not write it.
            unsafe { (&raw mut (*generator.orders.at(0)).count).write_volatile(0) };
            done.store(true, Ordering::Release);
            while !worker.is_finished() {
                interrupt(thread.load(Ordering::Acquire));
                clock::pause(Duration::from_millis(1));
            }
            threads::join(worker).and(watched).err()
        });
        let raw = self.settle();
        let (start_ns, end_ns) = (raw.start_ns, raw.start_ns + length_ns);
        sent.store(raw.next, Ordering::Release);
        let complete = raw.next >= order.count;
        let last_ns = if complete { raw.last_ns.max(end_ns) } else { clock::monotonic_ns() };
        let distribution =
            |kind, parts: [i64; 3]| self.buckets.distribution(kind, (parts[0], parts[1], parts[2]));
        let undeparted = raw.next.saturating_sub(raw.refused + raw.left);
        Generated {
            sent: raw.next,
            refused: raw.refused,
            lost_before_interface: match self.egress {
                Egress::Redirect => (raw.lost, "xdp_redirect_err"),
                Egress::Stack => (undeparted, "xdp_redirect_err"),
                Egress::Carried(_) => (undeparted, "xdp_cpumap_enqueue"),
            },
            elapsed_ns: last_ns - start_ns,
            slip: distribution(Distribution::Slip, raw.slip_ns),
            departure: distribution(Distribution::Departure, raw.departure_ns),
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;
    use crate::frame::tests::ends;
    use crate::trial::order::Refusals;

    fn template(ipv6: bool, flows: u16) -> Template {
        let [source, destination] = ends(ipv6);
        Template::of_trial(source, destination, 9, 100, flows).expect("possible")
    }

    /// None, and the reason on stderr, where this user may not load programs.
    fn generator(ipv6: bool, flows: u16) -> Option<LiveGenerator> {
        let tx = IfSpec { interface: "lo".into(), netns: None };
        match LiveGenerator::open(&tx, &template(ipv6, flows), Egress::Stack, None, None, 0) {
            Ok(generator) => Some(generator),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn a_kernel_without_live_frames_is_named_with_the_versions_that_have_them() {
        for code in [libc::EINVAL, libc::EOPNOTSUPP, 524] {
            let io_error = std::io::Error::from_raw_os_error(code);
            let refused = SyscallError { call: "bpf_prog_test_run", io_error };
            let error = no_live_frames(ProgramError::SyscallError(refused));
            assert_eq!(error.what, "this kernel's BPF_PROG_RUN has no live frames");
            assert!(error.remedy.contains("Linux 5.18 or newer"), "{}", error.remedy);
        }
    }

    /// The action of one run, on a page that is not this trial's.
    fn run_once(generator: &LiveGenerator, out: &mut [u8]) -> u32 {
        let program: &Xdp =
            generator.ebpf.program("generate").expect("there").try_into().expect("XDP");
        let page = [0xaa_u8; 96];
        let test =
            TestRunOptions { data_in: Some(&page), data_out: Some(out), ..TestRunOptions::new() };
        program.test_run(test).expect("runs").return_value
    }

    #[test]
    fn a_burst_that_begins_late_does_not_catch_up() {
        let Some(generator) = generator(false, 1) else { return };
        let order = Order {
            first_sequence: 1,
            count: 4,
            schedule: Schedule::bursts(2, 0.1, Duration::from_secs(20)),
            refusals: Refusals::Lost,
        };
        let begun_ns = clock::monotonic_ns() - 15_000_000_000;
        generator.orders.write(0, generator.raw(&order, begun_ns));
        let mut out = [0_u8; 96];
        // The first frame is 15 s late; the second was due 5 s ago, and now is in 10 s.
        assert_eq!(run_once(&generator, &mut out), 2, "XDP_PASS");
        assert_eq!(run_once(&generator, &mut out), 1, "XDP_DROP: it waits");
    }

    #[test]
    fn the_kernels_frames_are_those_of_the_template() {
        for (ipv6, flows) in [(false, 1), (false, 7), (true, 7)] {
            let Some(generator) = generator(ipv6, flows) else { return };
            let order = Order {
                first_sequence: 0xfedc_ba98_7654_3210,
                count: 50,
                schedule: Schedule::steady(1e9),
                refusals: Refusals::Lost,
            };
            generator.orders.write(0, generator.raw(&order, clock::monotonic_ns() - 1_000_000));
            for index in 0..order.count {
                // What a receiver left in the page is overwritten.
                let mut out = [0_u8; 96];
                assert_eq!(run_once(&generator, &mut out), 2, "XDP_PASS");
                let at = generator.template.upper_at + 8;
                let (sequence, tx_ns) =
                    crate::frame::read_payload(&out[at..]).expect("a trial's payload");
                assert_eq!(sequence, order.first_sequence.wrapping_add(index));
                let mut expected = generator.template.bytes().to_vec();
                generator.template.stamp(&mut expected, sequence, tx_ns);
                assert_eq!(out[..at + 18], expected[..at + 18]);
            }
        }
    }
}
