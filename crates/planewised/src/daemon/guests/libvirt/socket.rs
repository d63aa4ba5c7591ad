//! The real libvirt, by its socket. Each user has a connection of its own, so that a call waits for no other's,
//! and reads it itself: events come in between.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::api::{Answer, Domain, Event, Libvirt, Refusal, Why};
use super::packet::{self, ACTIVE, INACTIVE, Kind, LIVE, QEMU, REMOTE, procedure};
use super::xdr::{Reader, Writer};

/// Sockets of libvirt's daemons: the modular one of QEMU, and the monolithic one.
pub const SOCKETS: [&str; 2] = ["/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"];

/// Time limit of connecting, and of sending a call.
const HELLO: Duration = Duration::from_secs(10);
/// The shortest time limit that a socket takes.
const MOMENT: Duration = Duration::from_millis(1);

/// Libvirt behind a socket.
#[derive(Debug)]
pub struct Socket {
    paths: Vec<PathBuf>,
    connection: Option<Connection>,
    /// The connection was made since the last [`Libvirt::connect`].
    is_new: bool,
}

impl Socket {
    /// The libvirt at the first of these paths that answers. Connects later.
    pub const fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, connection: None, is_new: false }
    }

    fn connection(&mut self) -> Answer<&mut Connection> {
        if self.connection.as_ref().is_none_or(|connection| connection.lost) {
            self.connection = Some(self.open()?);
            self.is_new = true;
        }
        self.connection.as_mut().ok_or_else(lost)
    }

    fn open(&self) -> Answer<Connection> {
        let mut last = Refusal::new(Why::Gone, "no socket of libvirt's is known");
        for path in &self.paths {
            match Connection::open(path) {
                Ok(connection) => return Ok(connection),
                // An answer of one socket takes precedence over the absence of another.
                Err(refusal) if refusal.why != Why::Gone || last.why == Why::Gone => last = refusal,
                Err(_) => {}
            }
        }
        Err(last)
    }

    fn ask(&mut self, number: i32, arguments: Writer, deadline: Instant) -> Answer<Vec<u8>> {
        self.connection()?.call(REMOTE, number, arguments, deadline)
    }

    fn list(&mut self, which: u32, deadline: Instant) -> Answer<Vec<Domain>> {
        let arguments = Writer::default().i32(1).u32(which);
        let body = self.ask(procedure::CONNECT_LIST_ALL_DOMAINS, arguments, deadline)?;
        packet::domains(&body).ok_or_else(unreadable)
    }
}

impl Libvirt for Socket {
    fn another(&self) -> Box<dyn Libvirt> {
        Box::new(Self::new(self.paths.clone()))
    }

    fn connect(&mut self) -> Answer<bool> {
        self.connection()?;
        Ok(std::mem::take(&mut self.is_new))
    }

    fn domains(&mut self, deadline: Instant) -> Answer<Vec<Domain>> {
        self.list(ACTIVE, deadline)
    }

    fn configured(&mut self, deadline: Instant) -> Answer<Vec<(String, String)>> {
        let mut configured = Vec::new();
        for domain in self.list(INACTIVE, deadline)? {
            match self.xml(&domain, deadline) {
                Ok(text) => configured.push((domain.name, text)),
                Err(refusal) if matches!(refusal.why, Why::Gone | Why::Late) => {
                    return Err(refusal);
                }
                Err(_) => {}
            }
        }
        Ok(configured)
    }

    fn xml(&mut self, domain: &Domain, deadline: Instant) -> Answer<String> {
        let arguments = packet::domain(Writer::default(), domain).u32(0);
        let body = self.ask(procedure::DOMAIN_GET_XML_DESC, arguments, deadline)?;
        Reader::new(&body).string().ok_or_else(unreadable)
    }

    fn attach(&mut self, domain: &Domain, device: &str, deadline: Instant) -> Answer<()> {
        let arguments = packet::domain(Writer::default(), domain).string(device).u32(LIVE);
        self.ask(procedure::DOMAIN_ATTACH_DEVICE_FLAGS, arguments, deadline).map(drop)
    }

    fn detach(&mut self, domain: &Domain, alias: &str, deadline: Instant) -> Answer<()> {
        let arguments = packet::domain(Writer::default(), domain).string(alias).u32(LIVE);
        self.ask(procedure::DOMAIN_DETACH_DEVICE_ALIAS, arguments, deadline).map(drop)
    }

    fn agent(&mut self, domain: &Domain, command: &str, deadline: Instant) -> Answer<String> {
        // In whole seconds; libvirt must report its timeout before the deadline.
        let remaining_s =
            deadline.saturating_duration_since(Instant::now()).as_secs().saturating_sub(1);
        let patience_s = i32::try_from(remaining_s).unwrap_or(i32::MAX).max(1);
        let arguments =
            packet::domain(Writer::default(), domain).string(command).i32(patience_s).u32(0);
        let number = procedure::QEMU_DOMAIN_AGENT_COMMAND;
        let body = self.connection()?.call(QEMU, number, arguments, deadline)?;
        Reader::new(&body).optional_string().flatten().ok_or_else(unreadable)
    }

    fn events(&mut self, wait: Duration) -> Answer<Vec<Event>> {
        self.connection()?.events(wait)
    }

    fn installed(&self) -> bool {
        // Its sockets come and go with it, their directory stays while its machines run.
        self.paths.iter().any(|path| path.parent().is_some_and(Path::is_dir))
    }
}

fn unreadable() -> Refusal {
    Refusal::new(Why::Refused, "libvirt's answer cannot be read")
}

fn lost() -> Refusal {
    Refusal::new(Why::Gone, "the connection to libvirt was lost")
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// The last call's number.
    serial: u32,
    /// Bytes of packets that are not whole yet.
    received: Vec<u8>,
    /// The last reply, and the number of its call.
    reply: Option<(u32, Answer<Vec<u8>>)>,
    /// None: it has not subscribed to any.
    events: Option<Vec<Event>>,
    lost: bool,
}

impl Connection {
    fn open(path: &Path) -> Answer<Self> {
        let unreachable = |error: std::io::Error| {
            let words = format!("libvirt does not answer at {}: {error}", path.display());
            Refusal::new(Why::Gone, words)
        };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        stream.set_write_timeout(Some(HELLO)).map_err(unreachable)?;
        let (received, reply, events) = (Vec::new(), None, None);
        let mut opened = Self { stream, serial: 0, received, reply, events, lost: false };
        let deadline = Instant::now() + HELLO;
        let body = opened.call(REMOTE, procedure::AUTH_LIST, Writer::default(), deadline)?;
        if !packet::needs_no_authentication(&body).ok_or_else(unreadable)? {
            return Err(Refusal::new(Why::Refused, "libvirt asks for a password: run as root"));
        }
        let open = Writer::default().u32(1).string("qemu:///system").u32(0);
        opened.call(REMOTE, procedure::CONNECT_OPEN, open, deadline)?;
        Ok(opened)
    }

    /// The events since the last call; waits for one at most this long.
    fn events(&mut self, wait: Duration) -> Answer<Vec<Event>> {
        let deadline = Instant::now() + wait;
        if self.events.is_none() {
            self.events = Some(Vec::new());
            for event in packet::EVENT_IDS {
                // Of all domains.
                let arguments = Writer::default().i32(event).u32(0);
                let number = procedure::CONNECT_DOMAIN_EVENT_CALLBACK_REGISTER_ANY;
                let subscribed = self.call(REMOTE, number, arguments, Instant::now() + HELLO);
                self.lost |= subscribed.is_err();
                subscribed?;
            }
        }
        while self.events.as_ref().is_some_and(Vec::is_empty) && self.receive(deadline)? {}
        Ok(self.events.replace(Vec::new()).unwrap_or_default())
    }

    fn call(
        &mut self,
        program: u32,
        number: i32,
        arguments: Writer,
        deadline: Instant,
    ) -> Answer<Vec<u8>> {
        self.serial = self.serial.wrapping_add(1);
        let packet = packet::call(program, number, self.serial, arguments);
        if self.stream.write_all(&packet).is_err() {
            // After half a packet libvirt understands no other.
            self.lost = true;
            return Err(lost());
        }
        while self.receive(deadline)? {
            match self.reply.take() {
                Some((serial, reply)) if serial == self.serial => return reply,
                // Answers to calls that were given up come late.
                _ => {}
            }
        }
        Err(Refusal::new(Why::Late, "libvirt did not answer in time"))
    }

    /// Reads a packet, a reply or an event; false: there is none by the deadline.
    fn receive(&mut self, deadline: Instant) -> Answer<bool> {
        let received = self.packet(deadline).and_then(|packet| {
            let Some(packet) = packet else { return Ok(false) };
            let (header, body) = packet::split(&packet).ok_or_else(lost)?;
            match (header.kind, &mut self.events) {
                (Kind::Reply { done: true }, _) => {
                    self.reply = Some((header.serial, Ok(body.to_vec())));
                }
                (Kind::Reply { done: false }, _) => {
                    self.reply = Some((header.serial, Err(packet::refusal(body))));
                }
                (Kind::Event, Some(events)) if header.program == REMOTE => {
                    events.extend(packet::event(header.procedure, body));
                }
                _ => {}
            }
            Ok(true)
        });
        self.lost |= received.is_err();
        received
    }

    /// The next packet without its length.
    fn packet(&mut self, deadline: Instant) -> Answer<Option<Vec<u8>>> {
        loop {
            if let Some((length, rest)) = self.received.split_first_chunk::<4>() {
                let length = packet::remaining_bytes(*length).ok_or_else(lost)?;
                if rest.len() >= length {
                    let packet = rest[..length].to_vec();
                    self.received.drain(..4 + length);
                    return Ok(Some(packet));
                }
            }
            let wait = deadline.saturating_duration_since(Instant::now()).max(MOMENT);
            self.stream.set_read_timeout(Some(wait)).map_err(|_| lost())?;
            // Memory is allocated for received bytes alone, whatever the length says.
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(lost()),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(_) => return Err(lost()),
            }
        }
    }
}
