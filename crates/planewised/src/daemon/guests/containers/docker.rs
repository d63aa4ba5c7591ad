//! Docker's containers to be managed, by label. A thread of its own lists them at Docker's events, so that
//! a Docker that hangs blocks nothing. Starts and stops nothing.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, ContainerSummary};
use bollard::query_parameters::{EventsOptionsBuilder, ListContainersOptionsBuilder};
use bollard::{API_DEFAULT_VERSION, Docker as Client};
use futures_util::StreamExt;
use pw_alloc::model::{GuestId, PfId, Stance, Wish};

use crate::daemon::guests::source::{Container, KnownContainers, Source, SourceState};

/// The label that makes a container a guest.
const LABEL: &str = "planewise.managed=true";
/// Time limit of Docker's answer to a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to reach Docker, and two listings without an event.
const PAUSE: Duration = Duration::from_secs(5);

/// A watched Docker daemon.
#[derive(Debug)]
pub struct Docker {
    state: Arc<Mutex<SourceState>>,
    socket: PathBuf,
}

impl Docker {
    /// Watches the Docker that listens at `socket`; none where that is empty.
    pub fn watch(socket: &Path) -> Option<Self> {
        if socket.as_os_str().is_empty() {
            return None;
        }
        let unanswered = KnownContainers::Unknown("Docker has not answered yet".to_owned());
        let state = Arc::new(Mutex::new(SourceState { containers: unanswered, trouble: None }));
        let (weak, path) = (Arc::downgrade(&state), socket.to_path_buf());
        let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(watch(&weak, &path)),
            Err(error) => tracing::error!("Docker is not watched: {error}"),
        };
        if let Err(error) = std::thread::Builder::new().name("docker".into()).spawn(run) {
            tracing::error!("Docker is not watched: {error}");
        }
        Some(Self { state, socket: socket.to_path_buf() })
    }
}

impl Source for Docker {
    fn state(&self) -> SourceState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_present(&self) -> bool {
        self.socket.exists()
    }
}

/// Lists the containers at every event, until the last [`Docker`] is dropped.
async fn watch(state: &Weak<Mutex<SourceState>>, socket: &Path) {
    while state.strong_count() > 0 {
        if let Err(why) = follow(state, socket).await {
            let Some(state) = state.upgrade() else { return };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            // Its containers may run without it, but are unknown from now on.
            let why = format!("Docker does not answer at {}: {why}", socket.display());
            state.trouble = socket.exists().then(|| why.clone());
            state.containers = KnownContainers::Unknown(why);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One connection to Docker, until it breaks.
async fn follow(state: &Weak<Mutex<SourceState>>, socket: &Path) -> Result<(), String> {
    let client = connect(socket).await?;
    let filters = HashMap::from([
        ("type", vec!["container"]),
        ("event", vec!["start", "die", "rename", "pause", "unpause"]),
    ]);
    let options = EventsOptionsBuilder::default().filters(&filters).build();
    let mut events = std::pin::pin!(client.events(Some(options)));
    loop {
        let containers = list(&client).await?;
        {
            let Some(state) = state.upgrade() else { return Ok(()) };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            *state = SourceState { containers: KnownContainers::All(containers), trouble: None };
        }
        match tokio::time::timeout(PAUSE, events.next()).await {
            Ok(None) => return Err("its events end".to_owned()),
            Ok(Some(Err(error))) => return Err(error.to_string()),
            Ok(Some(Ok(_))) | Err(_) => {}
        }
    }
}

async fn connect(socket: &Path) -> Result<Client, String> {
    let path = socket.to_str().ok_or("its path is no text")?;
    let client = Client::connect_with_unix(path, PATIENCE.as_secs(), API_DEFAULT_VERSION)
        .map_err(|error| error.to_string())?;
    within(client.negotiate_version()).await
}

async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("nothing came within {} s", PATIENCE.as_secs())),
    }
}

/// All running containers to be managed, or why they are unknown.
async fn list(client: &Client) -> Result<Vec<Container>, String> {
    let filters = HashMap::from([("label", vec![LABEL])]);
    let options = ListContainersOptionsBuilder::default().filters(&filters).build();
    let mut containers = Vec::new();
    for listed in within(client.list_containers(Some(options))).await? {
        let Some(id) = &listed.id else { return Err("it lists a container without id".into()) };
        // It may have ended meanwhile.
        let inspected = inspect(client, id).await?;
        containers.extend(inspected.and_then(|inspected| container(&listed, &inspected)));
    }
    Ok(containers)
}

/// A container; none: there is none of that name or id.
async fn inspect(client: &Client, id: &str) -> Result<Option<ContainerInspectResponse>, String> {
    match tokio::time::timeout(PATIENCE, client.inspect_container(id, None)).await {
        Ok(Ok(inspected)) => Ok(Some(inspected)),
        Ok(Err(Error::DockerResponseServerError { status_code: 404, .. })) => Ok(None),
        Ok(Err(error)) => Err(format!("{id}: {error}")),
        Err(_) => Err(format!("{id}: nothing came within {} s", PATIENCE.as_secs())),
    }
}

/// The process of a running container of Docker, or of another engine with its API.
pub fn process(name: &str) -> pw_error::Result<u32> {
    let named = std::env::var("DOCKER_HOST").ok();
    let socket = named.as_deref().and_then(|host| host.strip_prefix("unix://"));
    process_at(Path::new(socket.unwrap_or("/var/run/docker.sock")), name)
}

fn process_at(socket: &Path, name: &str) -> pw_error::Result<u32> {
    let bad = |what: String| pw_error::Error::bad_input(what, "list them with `docker ps`");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(bad(format!("'{name}' is not a name or id of a container")));
    }
    let failed = |why: String| {
        pw_error::Error::failed(
            format!("Docker does not answer at {}: {why}", socket.display()),
            "start it, or name its socket in DOCKER_HOST (unix:///…)",
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    let asked = async { inspect(&connect(socket).await?, name).await };
    let Some(found) = runtime.block_on(asked).map_err(failed)? else {
        return Err(bad(format!("there is no container {name}")));
    };
    let state = found.state.unwrap_or_default();
    let pid = state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    pid.ok_or_else(|| {
        let status = state.status.map_or_else(|| "stopped".to_owned(), |is| is.to_string());
        pw_error::Error::failed(
            format!("the container {name} does not run: it is {status}"),
            format!("start it: docker start {name}"),
        )
    })
}

/// A running container; none where it does not run.
fn container(listed: &ContainerSummary, inspected: &ContainerInspectResponse) -> Option<Container> {
    let state = inspected.state.as_ref()?;
    let pid = state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)?;
    let id = listed.id.as_deref()?;
    let name = listed.names.iter().flatten().next().map(|name| name.trim_start_matches('/'));
    let label = |name: &str| {
        let labels = listed.labels.as_ref()?;
        labels.get(&format!("planewise.{name}")).map(String::as_str)
    };
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
    let networks =
        inspected.network_settings.iter().flat_map(|settings| &settings.networks).flatten();
    let macs = networks.filter_map(|(_, network)| network.mac_address.as_deref()?.parse().ok());
    Some(Container {
        id: GuestId::from(name.filter(|name| !name.is_empty()).unwrap_or(id)),
        run: format!("{id} {}", state.started_at.as_deref().unwrap_or_default()),
        pid,
        interface: label("interface").map(str::to_owned),
        macs: macs.collect(),
        wish,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use pw_alloc::model::Mac;

    use super::*;

    const LISTED: &str = r#"{"Id":"0a1b","Names":["/web"],"Labels":{"planewise.managed":"true",
        "planewise.stance":"pinned","planewise.class":"3","planewise.min-share":"7",
        "planewise.pfs":"pf0,pf1","planewise.interface":"eth1","planewise.numa":"x"}}"#;
    const INSPECTED: &str = r#"{"Id":"0a1b","State":{"Pid":42,"StartedAt":"2026-01-01T00:00:00.5Z"},
        "NetworkSettings":{"Networks":{"pw":{"MacAddress":"02:42:c6:12:08:0a"},"none":{}}}}"#;

    #[test]
    fn labels_say_what_is_wished_and_bad_ones_say_nothing() {
        let listed = serde_json::from_str(LISTED).expect("Docker's form");
        let inspected = serde_json::from_str(INSPECTED).expect("Docker's form");
        let read = container(&listed, &inspected).expect("it runs");
        assert_eq!((read.id.as_str(), read.pid), ("web", 42));
        assert_eq!(read.interface.as_deref(), Some("eth1"));
        assert_eq!(read.run, "0a1b 2026-01-01T00:00:00.5Z");
        assert_eq!(read.macs, [Mac([2, 0x42, 0xc6, 0x12, 8, 0xa])]);
        let wish = read.wish;
        assert_eq!((wish.stance, wish.class, wish.min_share), (Stance::Pinned, 3, 0.0));
        assert_eq!((wish.pfs.len(), wish.numa), (2, None));
        let stopped = serde_json::from_str(r#"{"State":{"Pid":0}}"#).expect("Docker's form");
        assert_eq!(container(&listed, &stopped), None);
    }

    /// A made-up Docker that answers each request by its path.
    fn made_up(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("sock")).expect("a socket");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut text = Vec::new();
                let mut byte = [0];
                while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
                    text.push(byte[0]);
                }
                let text = String::from_utf8_lossy(&text).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default();
                if path.contains("/events") {
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    let _ = stream.write_all(head.as_bytes());
                    std::mem::forget(stream);
                    continue;
                }
                let (status, body) = answer(path);
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes());
            }
        });
        directory
    }

    fn answer(path: &str, inspect: (u16, &str)) -> (u16, String) {
        if path.contains("/containers/json") {
            (200, format!("[{LISTED}]"))
        } else if path.contains("/containers/") {
            (inspect.0, inspect.1.to_owned())
        } else {
            (200, r#"{"ApiVersion":"1.41"}"#.to_owned())
        }
    }

    /// What is seen once it is no longer the first answer.
    fn state(directory: &tempfile::TempDir) -> SourceState {
        let docker = Docker::watch(&directory.path().join("sock")).expect("watched");
        let first = docker.state();
        assert!(
            matches!(first.containers, KnownContainers::Unknown(_)),
            "nothing is known at first"
        );
        let begun = Instant::now();
        while docker.state() == first && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        docker.state()
    }

    #[test]
    fn a_container_is_gone_only_when_docker_says_404() {
        let there = made_up(|path| answer(path, (200, INSPECTED)));
        let KnownContainers::All(all) = state(&there).containers else { panic!("it answers") };
        assert_eq!(all.len(), 1);
        let gone = made_up(|path| answer(path, (404, r#"{"message":"no such container"}"#)));
        assert_eq!(state(&gone).containers, KnownContainers::All(Vec::new()));
        let broken = made_up(|path| answer(path, (500, r#"{"message":"out of memory"}"#)));
        let state = state(&broken);
        assert!(matches!(state.containers, KnownContainers::Unknown(_)), "{state:?}");
        assert!(state.trouble.is_some());
    }

    #[test]
    fn the_process_of_a_running_container_is_told_and_why_another_has_none() {
        let process = |status, body: &'static str, name: &str| {
            let docker = made_up(move |path| answer(path, (status, body)));
            process_at(&docker.path().join("sock"), name)
        };
        assert_eq!(process(200, INSPECTED, "web").expect("it runs"), 42);
        let ended = r#"{"State":{"Status":"exited","Pid":0}}"#;
        let error = process(200, ended, "web").expect_err("ended");
        assert!(error.what.contains("does not run: it is exited"), "{}", error.what);
        let error = process(404, r#"{"message":"no such container"}"#, "x").expect_err("none");
        assert_eq!(
            (error.kind, error.what.as_str()),
            (pw_error::Kind::BadInput, "there is no container x")
        );
        let error = process(200, INSPECTED, "../images").expect_err("no name");
        assert_eq!(error.kind, pw_error::Kind::BadInput);
        let error = process_at(Path::new("/nonexistent/docker.sock"), "x").expect_err("nobody");
        assert!(error.what.starts_with("Docker does not answer at /nonexistent"));
    }

    #[test]
    fn a_host_without_docker_has_no_trouble_and_nothing_is_known_of_its_containers() {
        assert!(Docker::watch(Path::new("")).is_none());
        let docker = Docker::watch(Path::new("/nonexistent/docker.sock")).expect("watched");
        let state = docker.state();
        assert!(matches!(state.containers, KnownContainers::Unknown(_)) && state.trouble.is_none());
        assert!(!docker.is_present());
    }
}
