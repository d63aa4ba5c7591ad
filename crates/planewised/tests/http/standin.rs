//! A core that does as it is told and knows two guests; and HTTP by hand, so that a test can say
//! anything.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use planewised::daemon::config::Config;
use planewised::daemon::request::{Answer, CoreEnds, Envelope, Refused, Request, ends};
use planewised::daemon::status::{
    Guest, GuestKind, Planned, Pool, Rate, Source, Status, Vf, VfState, unix_ms,
};
use planewised::http::{Server, start};
use pw_alloc::model::{GuestId, Stance, VfId};
use pw_alloc::settings::PolicyKind;

/// A server, and what stands in for the core behind it.
pub struct StandIn {
    pub directory: tempfile::TempDir,
    pub http: Option<Server>,
    pub asked: Arc<Mutex<Vec<(Request, String)>>>,
    pub events: tokio::sync::broadcast::Sender<planewised::daemon::request::Event>,
    core: Option<JoinHandle<()>>,
}

pub fn guest(name: &str, vf: Option<VfId>, pps: Option<f64>) -> Guest {
    Guest {
        id: name.into(),
        kind: GuestKind::Simulated,
        mac: Some("52:54:00:12:34:56".parse().expect("an address")),
        vf,
        since_unix_ms: unix_ms(),
        why: "came first".into(),
        rate: Rate {
            pps,
            bytes_per_s: pps.map(|pps| pps * 100.0),
            source: if pps.is_some() { Source::HostSide } else { Source::Unsupported },
            blind_ms: 0,
        },
        stance: Stance::Free,
        class: 0,
        moving: false,
        paravirtual_up: true,
        marked: None,
    }
}

pub fn status() -> Status {
    let mut status = Status::new(PolicyKind::Benefit, 10.0, 1.0);
    let vf = VfId::new("pf0", 0);
    status.guests = vec![
        guest("web", Some(vf.clone()), Some(1000.0)),
        guest("a \"b\"\\\n<i>ü/%2f", None, None),
    ];
    status.vfs = vec![Vf { id: vf, place: VfState::Held, holder: Some("web".into()), why: None }];
    status.pools =
        vec![Pool { pf: "pf0".into(), vfs: 1, free: 0, quarantined: 0, link_up: true, numa: None }];
    status
}

fn answer(request: &Request) -> Result<Answer, Refused> {
    if let Some(guest) = request.guest()
        && status().guests.iter().all(|known| known.id != *guest)
    {
        return Err(Refused::unknown_guest(guest));
    }
    Ok(match request {
        Request::Plan => Answer::Plan(Planned::default()),
        Request::Rebalance => Answer::Plan(Planned { performed: true, ..Planned::default() }),
        other => Answer::Done(format!("{} is done", other.name())),
    })
}

fn run(core: &CoreEnds, asked: &Mutex<Vec<(Request, String)>>) {
    while let Ok(envelope) = core.requests.recv() {
        let Envelope { request, caller, .. } = &envelope;
        asked.lock().expect("a list").push((request.clone(), caller.to_string()));
        let answer = answer(request);
        envelope.answer(answer);
    }
}

impl StandIn {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (core, http) = ends(status());
        let socket = directory.path().join("planewised.sock");
        let config = Config { socket, ..Config::default() };
        let http = start(&config, http).expect("a server");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (events, told) = (core.events.clone(), asked.clone());
        let core = Some(std::thread::spawn(move || run(&core, &told)));
        Self { directory, http: Some(http), asked, events, core }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("planewised.sock")
    }

    pub fn get(&self, path: &str) -> Answered {
        self.send("GET", path, b"")
    }

    pub fn send(&self, method: &str, path: &str, body: &[u8]) -> Answered {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: planewised\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        Answered::parse(&exchange(&self.socket(), &request))
    }

    /// What the core was asked for since the last time.
    pub fn requests(&self) -> Vec<Request> {
        self.asked.lock().expect("a list").drain(..).map(|(request, _)| request).collect()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // The core ends when nobody can ask any more.
        drop(self.http.take());
        if let Some(core) = self.core.take() {
            core.join().expect("the core ended well");
        }
    }
}

/// A connection that gives up after a long while instead of never.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    stream
}

/// Sends these bytes, and reads until the other side has nothing more to say.
pub fn exchange(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    read_all(&mut say(socket, bytes))
}

/// Sends these bytes and nothing more, whatever they announce.
pub fn say_all(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = say(socket, bytes);
    drop(stream.shutdown(std::net::Shutdown::Write));
    read_all(&mut stream)
}

fn say(socket: &Path, bytes: &[u8]) -> UnixStream {
    let mut stream = connect(socket);
    // Whoever is refused early cannot say all.
    drop(stream.write_all(bytes));
    stream
}

fn read_all(stream: &mut UnixStream) -> Vec<u8> {
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer));
    answer
}

/// An answer, taken apart.
#[derive(Debug)]
pub struct Answered {
    pub code: u16,
    pub head: String,
    pub body: String,
}

impl Answered {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Self { code, head: head.to_lowercase(), body: body.to_owned() }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// It was refused like this: a sentence that says what, and what to do.
    pub fn refused(&self, code: u16, what: &str) {
        assert_eq!(self.code, code, "{self:?}");
        let said = self.json();
        assert!(said["what"].as_str().is_some_and(|said| said.contains(what)), "{said}");
        assert!(said["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{said}");
        assert!(said["fault"].is_string(), "{said}");
    }
}

/// A name as it stands in a path.
pub fn encoded(name: &GuestId) -> String {
    name.as_str().bytes().map(|byte| format!("%{byte:02X}")).collect()
}
