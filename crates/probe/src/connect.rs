//! Measures how long TCP connections take to be made, and a request on each; accepts them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::json;

use crate::clock::{self, Schedule};
use crate::error::Result;
use crate::histogram::LatencyRecorder;
use crate::output;
use crate::sockets;
use crate::stop::{self, Lifetime};
use crate::units;

/// Makes TCP connections one after another, and times each until the kernel has it.
///
/// A connection that is due while the one before is still being made counts from when it was due. Each
/// is reset at once, so that no port waits. Needs a listener: `pw-probe accept`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe accept --listen 198.18.0.2:7000                       on the other host\n  \
    pw-probe connect 198.18.0.2:7000 --rate 100 --count 500")]
pub struct Args {
    /// Where to
    #[arg(value_name = "ADDR:PORT")]
    pub to: SocketAddr,
    /// Connections to make
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub count: u32,
    /// Connections due per second
    #[arg(long, value_name = "N", default_value = "100", value_parser = units::pps)]
    pub rate: f64,
    /// Give a connection up after this time [s]
    #[arg(long, value_name = "S", default_value = "5", value_parser = units::seconds)]
    pub timeout: Duration,
    /// Also send a request of this size and wait for one back (`pw-probe accept --echo BYTES`)
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=1_048_576))]
    pub request: u32,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Accepts TCP connections on a port, answers a request on each if asked to, and closes them.
///
/// Prints `ready` on stderr once it listens, and how many there were when it ends.
#[derive(Debug, clap::Args)]
pub struct AcceptArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Read this many bytes from each connection and send them back, one connection at a time
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=1_048_576))]
    pub echo: u32,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Runs `pw-probe connect`.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    clock::tighten_timers();
    let schedule = Schedule::steady(args.rate);
    let mut times = LatencyRecorder::default();
    let (mut failed, mut why) = (0_u64, None);
    let mut request = vec![0; args.request as usize];
    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    let mut free_ns = start_ns;
    for index in 0..u64::from(args.count) {
        if stop::requested() {
            break;
        }
        let due_ns = start_ns + schedule.due_ns(index);
        let begun_ns = begun_ns(free_ns, due_ns, clock::wait_until(due_ns));
        let stream = TcpStream::connect_timeout(&args.to, args.timeout);
        free_ns = clock::monotonic_ns();
        let answered = stream.and_then(|stream| {
            exchange(&stream, &mut request, args.timeout)?;
            reset(&stream)
        });
        match answered {
            Ok(()) => times.record(free_ns - begun_ns),
            Err(error) => {
                failed += 1;
                why.get_or_insert_with(|| error.to_string());
            }
        }
    }
    let body = json!({
        "to": args.to,
        "started_ns": started_ns,
        "duration_s": (clock::monotonic_ns() - start_ns) as f64 / 1e9,
        "made": times.count(),
        "failed": failed,
        "why": why,
        "time": times.summary(),
        "interrupted": stop::requested(),
    });
    output::print("connect", body)
}

/// The beginning of a connection's time: when it was due if the connection before delayed it, else the
/// wake-up, so that a late timer does not count.
const fn begun_ns(free_ns: i64, due_ns: i64, woken_ns: i64) -> i64 {
    if free_ns > due_ns { due_ns } else { woken_ns }
}

/// Sends a request and waits for its answer, of the same length; nothing of an empty one.
fn exchange(mut stream: &TcpStream, request: &mut [u8], timeout: Duration) -> io::Result<()> {
    if request.is_empty() {
        return Ok(());
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(request)?;
    stream.read_exact(request)
}

/// Reads a request and sends it back; nothing of an empty one.
fn echo(mut stream: &TcpStream, request: &mut [u8]) -> io::Result<()> {
    if request.is_empty() {
        return Ok(());
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_exact(request)?;
    stream.write_all(request)
}

/// How long a request may take to arrive: the next connection waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the connection end by a reset when it is dropped, which frees its port at once.
fn reset(stream: &TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    Ok(setsockopt(stream, sockopt::Linger, &linger)?)
}

/// Runs `pw-probe accept`.
pub fn accept(args: &AcceptArgs) -> Result<()> {
    args.lifetime.begin()?;
    let failed = |error: io::Error| sockets::cannot_listen(args.listen, error);
    let listener = TcpListener::bind(args.listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    eprintln!("ready");
    let mut accepted = 0_u64;
    let mut request = vec![0; args.echo as usize];
    while !stop::requested() {
        match listener.accept() {
            Ok((stream, _)) => {
                accepted += 1;
                let _ = echo(&stream, &mut request); // the client counts it as failed
            }
            // Reset by the client before it was accepted: it was made all the same.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => accepted += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for(&listener),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    output::print("accept", json!({ "listen": args.listen, "accepted": accepted }))
}

/// Waits for a connection, or 50 ms: a signal ends the wait.
fn wait_for(listener: &TcpListener) {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::from(50_u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_one_before_counts_from_when_it_was_due() {
        assert_eq!(begun_ns(50, 100, 103), 103);
        assert_eq!(begun_ns(100, 100, 103), 103);
        assert_eq!(begun_ns(140, 100, 141), 100);
    }

    #[test]
    fn a_request_comes_back_whole() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        let server = std::thread::spawn(move || echo(&accepted, &mut [0; 100]));
        let mut request: Vec<u8> = (0..100).collect();
        exchange(&stream, &mut request, Duration::from_secs(5))?;
        assert!(server.join().is_ok_and(|answered| answered.is_ok()));
        assert_eq!(request, (0..100).collect::<Vec<u8>>());
        Ok(())
    }

    #[test]
    fn a_connection_ends_by_a_reset() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut accepted, _) = listener.accept()?;
        reset(&stream)?;
        drop(stream);
        let read = accepted.read(&mut [0; 1]);
        assert!(read.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
        Ok(())
    }
}
