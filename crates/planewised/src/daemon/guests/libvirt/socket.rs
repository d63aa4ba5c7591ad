//! The real libvirt, by its socket. Calls are answered in any order, each within a time limit, with events
//! in between.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::api::{Answer, Domain, Event, Libvirt, Refusal, Why};
use super::packet::{self, ACTIVE, INACTIVE, Kind, LIVE, QEMU, REMOTE, procedure};
use super::watch::lock;
use super::xdr::{Reader, Writer};

/// Sockets of libvirt's daemons: the modular one of QEMU, and the monolithic one.
pub const SOCKETS: [&str; 2] = ["/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"];

/// Time limit of connecting.
const HELLO: Duration = Duration::from_secs(10);
/// Calls that may wait for their answers at a time; libvirt reads no more of one client at a time
/// (`max_client_requests`), and would not see a detach behind many of them.
const AT_A_TIME: usize = 4;

type Reply = Result<Vec<u8>, Refusal>;

/// Libvirt behind a socket.
#[derive(Debug)]
pub struct Socket {
    paths: Vec<PathBuf>,
    /// It subscribes to events.
    listens: bool,
    connection: Mutex<Option<Arc<Connection>>>,
    events: Sender<Event>,
    received: Mutex<Receiver<Event>>,
}

impl Socket {
    /// The libvirt at the first of these paths that answers. Connects later. With `listens` it subscribes to
    /// events.
    pub fn new(paths: Vec<PathBuf>, listens: bool) -> Self {
        let (events, received) = channel();
        Self {
            paths,
            listens,
            connection: Mutex::new(None),
            events,
            received: Mutex::new(received),
        }
    }

    fn connection(&self) -> Answer<Arc<Connection>> {
        let mut current = lock(&self.connection);
        if let Some(connection) = current.as_ref().filter(|connection| connection.works()) {
            return Ok(Arc::clone(connection));
        }
        *current = None;
        let mut last = Refusal::new(Why::Gone, "no socket of libvirt's is known");
        for path in &self.paths {
            match Connection::open(path, self.listens.then(|| self.events.clone())) {
                Ok(connection) => {
                    if self.listens {
                        let _ = self.events.send(Event::Connected);
                    }
                    *current = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                // An answer of one socket takes precedence over the absence of another.
                Err(refusal) if refusal.why != Why::Gone => last = refusal,
                Err(refusal) if last.why == Why::Gone => last = refusal,
                Err(_) => {}
            }
        }
        Err(last)
    }

    fn list(&self, which: u32, deadline: Instant) -> Answer<Vec<Domain>> {
        let arguments = Writer::default().i32(1).u32(which);
        let body = self.ask(procedure::CONNECT_LIST_ALL_DOMAINS, arguments, deadline)?;
        packet::domains(&body).ok_or_else(unreadable)
    }

    fn ask(&self, number: i32, arguments: Writer, deadline: Instant) -> Reply {
        self.connection()?.call(REMOTE, number, arguments, deadline)
    }
}

impl Libvirt for Socket {
    fn domains(&self, deadline: Instant) -> Answer<Vec<Domain>> {
        self.list(ACTIVE, deadline)
    }

    fn configured(&self, deadline: Instant) -> Answer<Vec<(String, String)>> {
        let domains = self.list(INACTIVE, deadline)?;
        let texts = self.xml(&domains, deadline)?;
        let named = domains.into_iter().zip(texts);
        Ok(named.filter_map(|(domain, text)| Some((domain.name, text.ok()?))).collect())
    }

    fn xml(&self, domains: &[Domain], deadline: Instant) -> Answer<Vec<Answer<String>>> {
        let connection = self.connection()?;
        let mut answers = Vec::with_capacity(domains.len());
        let mut waiting = std::collections::VecDeque::new();
        let mut remaining = domains.iter();
        loop {
            while waiting.len() < AT_A_TIME {
                let Some(domain) = remaining.next() else { break };
                let arguments = packet::domain(Writer::default(), domain).u32(0);
                waiting.push_back(connection.start(
                    REMOTE,
                    procedure::DOMAIN_GET_XML_DESC,
                    arguments,
                )?);
            }
            let Some((serial, answer)) = waiting.pop_front() else { return Ok(answers) };
            match connection.finish(serial, &answer, deadline) {
                Ok(body) => {
                    answers.push(Ok(Reader::new(&body).string().ok_or_else(unreadable)?));
                }
                Err(refusal) if matches!(refusal.why, Why::Gone | Why::Late) => {
                    return Err(refusal);
                }
                Err(refusal) => answers.push(Err(refusal)),
            }
        }
    }

    fn attach(&self, domain: &Domain, device: &str, deadline: Instant) -> Answer<()> {
        let arguments = packet::domain(Writer::default(), domain).string(device).u32(LIVE);
        self.ask(procedure::DOMAIN_ATTACH_DEVICE_FLAGS, arguments, deadline).map(drop)
    }

    fn detach(&self, domain: &Domain, alias: &str, deadline: Instant) -> Answer<()> {
        let arguments = packet::domain(Writer::default(), domain).string(alias).u32(LIVE);
        self.ask(procedure::DOMAIN_DETACH_DEVICE_ALIAS, arguments, deadline).map(drop)
    }

    fn agent(&self, domain: &Domain, command: &str, deadline: Instant) -> Answer<String> {
        // In whole seconds; libvirt must report its timeout before the deadline.
        let remaining_s =
            deadline.saturating_duration_since(Instant::now()).as_secs().saturating_sub(1);
        let patience_s = i32::try_from(remaining_s).unwrap_or(i32::MAX).max(1);
        let arguments =
            packet::domain(Writer::default(), domain).string(command).i32(patience_s).u32(0);
        let connection = self.connection()?;
        let body =
            connection.call(QEMU, procedure::QEMU_DOMAIN_AGENT_COMMAND, arguments, deadline)?;
        Reader::new(&body).optional_string().flatten().ok_or_else(unreadable)
    }

    fn events(&self, wait: Duration) -> Vec<Event> {
        let received = lock(&self.received);
        let first = received.recv_timeout(wait).ok();
        first.into_iter().chain(received.try_iter()).collect()
    }

    fn installed(&self) -> bool {
        // Its sockets come and go with it, their directory stays while its machines run.
        self.paths.iter().any(|path| path.parent().is_some_and(std::path::Path::is_dir))
    }

    fn connect(&self) -> Answer<()> {
        self.connection().map(drop)
    }
}

fn unreadable() -> Refusal {
    Refusal::new(Why::Refused, "libvirt's answer cannot be read")
}

/// Calls that wait for answers; none once the connection is lost.
type Waiting = Mutex<Option<BTreeMap<u32, Sender<Reply>>>>;

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// The next call's number, held while a packet is written.
    serial: Mutex<u32>,
    waiting: Arc<Waiting>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Ends the reading thread, too.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Connection {
    fn open(path: &std::path::Path, events: Option<Sender<Event>>) -> Answer<Arc<Self>> {
        let unreachable = |error: std::io::Error| {
            Refusal::new(
                Why::Gone,
                format!("libvirt does not answer at {}: {error}", path.display()),
            )
        };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        stream.set_write_timeout(Some(HELLO)).map_err(unreachable)?;
        let reading = stream.try_clone().map_err(unreachable)?;
        let waiting: Arc<Waiting> = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let waiters = Arc::clone(&waiting);
        let listens = events.is_some();
        std::thread::Builder::new()
            .name("libvirt".into())
            .spawn(move || {
                read_all(reading, &waiters, events.as_ref());
                *lock(&waiters) = None;
                if let Some(events) = events {
                    let _ = events.send(Event::Lost);
                }
            })
            .map_err(unreachable)?;
        let connection = Arc::new(Self { stream, serial: Mutex::new(0), waiting });
        connection.introduce(listens)?;
        Ok(connection)
    }

    fn introduce(&self, listens: bool) -> Answer<()> {
        let deadline = Instant::now() + HELLO;
        let body = self.call(REMOTE, procedure::AUTH_LIST, Writer::default(), deadline)?;
        if !packet::needs_no_authentication(&body).ok_or_else(unreadable)? {
            return Err(Refusal::new(Why::Refused, "libvirt asks for a password: run as root"));
        }
        let open = Writer::default().optional_string(Some("qemu:///system")).u32(0);
        self.call(REMOTE, procedure::CONNECT_OPEN, open, deadline)?;
        for event in packet::EVENT_IDS.into_iter().filter(|_| listens) {
            // Of all domains.
            let arguments = Writer::default().i32(event).u32(0);
            let number = procedure::CONNECT_DOMAIN_EVENT_CALLBACK_REGISTER_ANY;
            self.call(REMOTE, number, arguments, deadline)?;
        }
        Ok(())
    }

    fn works(&self) -> bool {
        lock(&self.waiting).is_some()
    }

    fn call(&self, program: u32, number: i32, arguments: Writer, deadline: Instant) -> Reply {
        let (serial, answer) = self.start(program, number, arguments)?;
        self.finish(serial, &answer, deadline)
    }

    fn start(
        &self,
        program: u32,
        number: i32,
        arguments: Writer,
    ) -> Answer<(u32, Receiver<Reply>)> {
        let (sender, receiver) = channel();
        let mut serial = lock(&self.serial);
        *serial = serial.wrapping_add(1);
        match lock(&self.waiting).as_mut() {
            Some(waiting) => waiting.insert(*serial, sender),
            None => return Err(lost()),
        };
        let packet = packet::call(program, number, *serial, arguments);
        if (&self.stream).write_all(&packet).is_err() {
            // After half a packet libvirt understands no other.
            let _ = self.stream.shutdown(Shutdown::Both);
            return Err(lost());
        }
        Ok((*serial, receiver))
    }

    fn finish(&self, serial: u32, answer: &Receiver<Reply>, deadline: Instant) -> Reply {
        let wait = deadline.saturating_duration_since(Instant::now());
        match answer.recv_timeout(wait) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(waiting) = lock(&self.waiting).as_mut() {
                    waiting.remove(&serial);
                }
                Err(Refusal::new(Why::Late, "libvirt did not answer in time"))
            }
        }
    }
}

fn lost() -> Refusal {
    Refusal::new(Why::Gone, "the connection to libvirt was lost")
}

/// Reads packets until the connection ends or one cannot be understood.
fn read_all(mut stream: UnixStream, waiting: &Waiting, events: Option<&Sender<Event>>) {
    let mut packet = Vec::new();
    loop {
        let mut length = [0; 4];
        if stream.read_exact(&mut length).is_err() {
            return;
        }
        let Some(length) = packet::remaining_bytes(length) else { return };
        packet.clear();
        // Memory is allocated for received bytes alone, whatever the length says.
        match Read::by_ref(&mut stream).take(length as u64).read_to_end(&mut packet) {
            Ok(read) if read == length => {}
            _ => return,
        }
        let Some((header, body)) = packet::split(&packet) else { return };
        match header.kind {
            Kind::Reply { done } => {
                let reply = if done { Ok(body.to_vec()) } else { Err(packet::refusal(body)) };
                let waiter = lock(waiting).as_mut().and_then(|all| all.remove(&header.serial));
                if let Some(waiter) = waiter {
                    let _ = waiter.send(reply);
                }
            }
            Kind::Event if header.program == REMOTE => {
                let event = packet::event(header.procedure, body);
                if let (Some(event), Some(events)) = (event, events) {
                    let _ = events.send(event);
                }
            }
            Kind::Event | Kind::Other => {}
        }
    }
}
