//! Docker's containers that are to be managed, by their labels. A thread of its own waits for
//! Docker's events, so that a Docker that hangs holds nobody up. Starts and stops nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pw_alloc::model::{GuestId, PfId, Stance, Wish};
use serde::Deserialize;

/// The label that makes a container a guest.
const LABEL: &str = "planewise.managed=true";
/// Answers that are longer are none [bytes].
const LONGEST: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reach Docker, and two looks without an event.
const PAUSE: Duration = Duration::from_secs(5);

/// A container that is to be managed.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Its name.
    pub id: GuestId,
    /// Its first process.
    pub pid: u32,
    /// Its interface, if a label names it.
    pub interface: Option<String>,
    /// What its labels wish for.
    pub wish: Wish,
}

/// What was seen last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The containers.
    pub containers: Vec<Container>,
    /// What is amiss.
    pub trouble: Option<String>,
}

/// Docker, watched.
#[derive(Debug)]
pub struct Docker {
    seen: Arc<Mutex<Seen>>,
}

impl Docker {
    /// Watches the Docker that listens at `socket`; none: nobody is to be asked.
    pub fn watch(socket: &Path) -> Option<Self> {
        if socket.as_os_str().is_empty() {
            return None;
        }
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (weak, socket) = (Arc::downgrade(&seen), socket.to_path_buf());
        std::thread::Builder::new()
            .name("docker".into())
            .spawn(move || watch(&weak, &socket))
            .ok()?;
        Some(Self { seen })
    }

    /// What was seen last.
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Looks at every event, until nobody wants to know any more.
fn watch(seen: &Weak<Mutex<Seen>>, socket: &Path) {
    let mut events: Option<UnixStream> = None;
    loop {
        // No socket, no Docker: that is no trouble.
        let now = if socket.exists() {
            if events.is_none() {
                events = subscribe(socket).ok();
            }
            list(socket)
        } else {
            events = None;
            Ok(Vec::new())
        };
        {
            let Some(seen) = seen.upgrade() else { return };
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match now {
                Ok(containers) => *seen = Seen { containers, trouble: None },
                // Those that are known stay: Docker restarting ends no container.
                Err(why) => {
                    seen.trouble =
                        Some(format!("Docker does not answer at {}: {why}", socket.display()));
                }
            }
        }
        let wait = |stream: &mut UnixStream| -> bool {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(0) => false,
                Ok(_) => true,
                Err(error) => matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ),
            }
        };
        match &mut events {
            Some(stream) => {
                if !wait(stream) {
                    events = None;
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// A stream that something comes by whenever a container starts, ends or is renamed.
fn subscribe(socket: &Path) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PAUSE))?;
    let filters = escaped(r#"{"type":["container"],"event":["start","die","rename"]}"#);
    let request = format!("GET /events?filters={filters} HTTP/1.1\r\nHost: docker\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Id")]
    id: String,
    #[serde(rename = "Names", default)]
    names: Vec<String>,
    #[serde(rename = "Labels", default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Inspected {
    #[serde(rename = "State")]
    state: InspectedState,
}

#[derive(Deserialize)]
struct InspectedState {
    #[serde(rename = "Pid", default)]
    pid: u32,
}

fn list(socket: &Path) -> Result<Vec<Container>, String> {
    let filters = escaped(&format!(r#"{{"label":["{LABEL}"]}}"#));
    let answer = get(socket, &format!("/containers/json?filters={filters}"))?;
    let listed: Vec<Listed> =
        serde_json::from_slice(&answer).map_err(|error| format!("its list: {error}"))?;
    let mut found = Vec::new();
    for one in listed {
        if !one.id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            continue;
        }
        // One that has ended since is not there any more.
        let Ok(answer) = get(socket, &format!("/containers/{}/json", one.id)) else { continue };
        let Ok(inspected) = serde_json::from_slice::<Inspected>(&answer) else { continue };
        if inspected.state.pid > 0 {
            found.push(container(&one, inspected.state.pid));
        }
    }
    Ok(found)
}

fn container(listed: &Listed, pid: u32) -> Container {
    let name = listed.names.first().map(|name| name.trim_start_matches('/'));
    let labels = listed.labels.clone().unwrap_or_default();
    let label = |name: &str| labels.get(&format!("planewise.{name}")).map(String::as_str);
    let wish = Wish {
        stance: match label("stance") {
            Some("pinned") => Stance::Pinned,
            Some("excluded") => Stance::Excluded,
            _ => Stance::Free,
        },
        class: label("class").and_then(|text| text.parse().ok()).unwrap_or(0),
        min_share: label("min-share")
            .and_then(|text| text.parse().ok())
            .filter(|share| (0.0..=1.0).contains(share))
            .unwrap_or(0.0),
        pfs: label("pfs")
            .map(|text| text.split(',').filter(|pf| !pf.is_empty()).map(PfId::from).collect())
            .unwrap_or_default(),
        numa: label("numa").and_then(|text| text.parse().ok()),
    };
    Container {
        id: GuestId::from(name.filter(|name| !name.is_empty()).unwrap_or(&listed.id)),
        pid,
        interface: label("interface").map(str::to_owned),
        wish,
    }
}

/// The body of an answer. HTTP/1.0: it ends with the connection and comes in one piece.
fn get(socket: &Path, path: &str) -> Result<Vec<u8>, String> {
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("nothing came within {} s", PATIENCE.as_secs())
        }
        _ => error.to_string(),
    };
    let mut stream = UnixStream::connect(socket).map_err(said)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(said)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(said)?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).map_err(said)?;
    body(&answer).map(<[u8]>::to_vec)
}

fn body(answer: &[u8]) -> Result<&[u8], String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(answer).map_err(|error| error.to_string())? {
        httparse::Status::Complete(length) if response.code == Some(200) => Ok(&answer[length..]),
        httparse::Status::Complete(_) => Err(format!("status {}", response.code.unwrap_or(0))),
        httparse::Status::Partial => Err("its answer ends too early".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_say_what_is_wished_and_bad_ones_say_nothing() {
        let text = r#"{"Id":"0a1b","Names":["/web"],"Labels":{"planewise.managed":"true",
            "planewise.stance":"pinned","planewise.class":"3","planewise.min-share":"7",
            "planewise.pfs":"pf0,pf1","planewise.interface":"eth1","planewise.numa":"x"}}"#;
        let listed: Listed = serde_json::from_str(text).expect("Docker's form");
        let read = container(&listed, 42);
        assert_eq!((read.id.as_str(), read.pid), ("web", 42));
        assert_eq!(read.interface.as_deref(), Some("eth1"));
        let wish = read.wish;
        assert_eq!((wish.stance, wish.class, wish.min_share), (Stance::Pinned, 3, 0.0));
        assert_eq!((wish.pfs.len(), wish.numa), (2, None));
    }

    #[test]
    fn no_answer_ends_in_a_panic() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _ = body(bytes);
            let _ = serde_json::from_slice::<Vec<Listed>>(bytes)
                .map(|listed| listed.iter().map(|one| container(one, 1)).collect::<Vec<_>>());
        });
        assert_eq!(body(b"HTTP/1.0 200 OK\r\n\r\n[]"), Ok(b"[]".as_slice()));
        assert_eq!(body(b"HTTP/1.0 500 No\r\n\r\n[]"), Err("status 500".to_owned()));
    }

    #[test]
    fn a_host_without_docker_has_no_containers_and_no_trouble() {
        assert!(Docker::watch(Path::new("")).is_none());
        let docker = Docker::watch(Path::new("/nonexistent/docker.sock")).expect("watched");
        assert_eq!(docker.seen(), Seen::default());
    }
}
