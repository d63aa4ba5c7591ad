//! Runs commands in a guest for a client at the host's end of a virtio-serial port.
//!
//! Speaks a part of the QEMU guest agent's protocol (qemu-ga-ref(7)), so that the same client (libvirt)
//! reaches this agent in our tiny guests and QEMU's own in any other image.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::network::Settings;
use crate::stop::{self, Lifetime};

/// Serves the QEMU guest agent's protocol on a virtio-serial port: its exec, sync and ping commands.
///
/// For guests that have nothing but pw-probe. Prints `ready` on stderr once the port is open.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe agent\n  \
    pw-probe agent --port /dev/ttyS1")]
pub struct Args {
    /// Name of a virtio-serial port, or the path of a character device
    #[arg(long, value_name = "NAME", default_value = "org.qemu.guest_agent.0")]
    pub port: String,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Where Linux lists virtio-serial ports by device, each with its name.
const PORTS: &str = "/sys/class/virtio-ports";
/// How often the port is read while the host's end is closed, which reads as the end of a file.
const CLOSED_POLL: Duration = Duration::from_millis(100);
/// Longest wait for requests, so that a signal is seen [ms].
const WAIT_MS: u16 = 1000;
/// Discards the half request before it in a stream, and begins the answer to `guest-sync-delimited`.
/// Never a byte of UTF-8 text.
const SENTINEL: u8 = 0xff;
/// Longest request that is accepted [bytes].
const MAX_REQUEST: usize = 4 << 20;
/// Most bytes that one read returns, so that the answer is within libvirt's limit.
const MAX_READ: usize = 1 << 20;
/// Most processes that are kept until their status is asked for; the oldest that ended are forgotten.
const MAX_PROCESSES: usize = 1024;

/// Runs the command.
///
/// # Errors
/// There is no such port, or it cannot be opened.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let path = device(&args.port, Path::new(PORTS))?;
    let mut port = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => "run it as root",
            ErrorKind::ResourceBusy => "another agent has it open: end that first",
            _ => "",
        };
        Error::failed(format!("cannot open {}", path.display()), remedy).caused_by(error)
    })?;
    eprintln!("ready");
    serve(&mut port).map_err(|error| {
        Error::failed(format!("cannot read {}", path.display()), "").caused_by(error)
    })
}

fn serve(port: &mut File) -> std::io::Result<()> {
    let (mut requests, mut processes) = (Requests::default(), Processes::default());
    let mut buffer = vec![0; 64 * 1024];
    while !stop::requested() {
        let mut fds = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(WAIT_MS)) {
            Ok(0) | Err(nix::Error::EINTR) => continue,
            other => other?,
        };
        match port.read(&mut buffer) {
            Ok(0) => std::thread::sleep(CLOSED_POLL),
            Ok(count) => {
                for request in requests.feed(&buffer[..count]) {
                    let answer = processes.answer(request);
                    // A client that is gone is no reason to end: the next one syncs.
                    if port.write_all(&answer).and_then(|()| port.flush()).is_err() {
                        std::thread::sleep(CLOSED_POLL);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The character device of a port, which `port` names or, with a slash, is.
fn device(port: &str, ports: &Path) -> Result<PathBuf> {
    if port.contains('/') {
        return Ok(port.into());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(ports).into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim_end() == port {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
        names.push(name.trim_end().to_owned());
    }
    let names = if names.is_empty() { "no port at all".into() } else { names.join(", ") };
    Err(Error::failed(
        format!("there is no virtio-serial port {port} (there is {names})"),
        "give the virtual machine a channel of that name, or name another with --port",
    ))
}

/// Cuts a stream of bytes into requests: JSON objects, each with a newline behind it, as libvirt, virsh
/// and QEMU's own tools send them.
#[derive(Debug, Default)]
struct Requests(Vec<u8>);

impl Requests {
    /// Takes the next bytes of the stream; returns the requests that are complete now.
    fn feed(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut complete = Vec::new();
        for &byte in bytes {
            match byte {
                SENTINEL => self.0.clear(),
                b'\n' => complete.push(std::mem::take(&mut self.0)),
                // A request without end takes bounded memory, and is none.
                _ if self.0.len() <= MAX_REQUEST => self.0.push(byte),
                _ => {}
            }
        }
        complete.retain(|line| !line.trim_ascii().is_empty());
        complete
    }
}

#[derive(Deserialize)]
struct Request {
    execute: String,
    #[serde(default)]
    arguments: Value,
    id: Option<Value>,
}

#[derive(Deserialize)]
struct Sync {
    id: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Exec {
    path: String,
    #[serde(default)]
    arg: Vec<String>,
    input_data: Option<String>,
}

#[derive(Deserialize)]
struct ExecStatus {
    pid: u32,
}

#[derive(Deserialize)]
struct Network {
    interface: String,
    words: Vec<String>,
}

#[derive(Deserialize)]
struct Part {
    path: String,
    #[serde(default)]
    offset: u64,
}

type Outcome = std::result::Result<Value, String>;

/// The processes that clients started, the oldest first.
#[derive(Debug, Default)]
struct Processes(Vec<Child>);

impl Processes {
    /// Performs a request; returns the bytes of the answer.
    fn answer(&mut self, line: Vec<u8>) -> Vec<u8> {
        let request = serde_json::from_slice::<Request>(&line);
        let (delimited, id) = request.as_ref().map_or((false, None), |request| {
            (request.execute == "guest-sync-delimited", request.id.clone())
        });
        let result = match request {
            _ if line.len() > MAX_REQUEST => {
                Err(format!("a request is longer than {MAX_REQUEST} bytes"))
            }
            Ok(request) => self.perform(&request.execute, request.arguments),
            Err(error) => Err(format!("this is not a request: {error}")),
        };
        let mut object = match result {
            Ok(value) => json!({ "return": value }),
            Err(desc) => json!({ "error": { "class": "GenericError", "desc": desc } }),
        };
        if let Some(id) = id {
            object["id"] = id;
        }
        let mut bytes = if delimited { vec![SENTINEL] } else { Vec::new() };
        bytes.extend(object.to_string().into_bytes());
        bytes.push(b'\n');
        bytes
    }

    fn perform(&mut self, command: &str, arguments: Value) -> Outcome {
        match command {
            "guest-ping" => Ok(json!({})),
            "guest-sync" | "guest-sync-delimited" => Ok(json!(read::<Sync>(arguments)?.id)),
            "guest-exec" => self.exec(read(arguments)?),
            "guest-exec-status" => self.exec_status(read::<ExecStatus>(arguments)?.pid),
            // Not in QEMU's agent: as a process it would take an emulated guest many times as long.
            "pw-network" => {
                let Network { interface, words } = read(arguments)?;
                let settings = Settings::parse(&words).map_err(|error| error.what)?;
                settings.apply(&interface).map_err(|error| error.what)?;
                Ok(json!({}))
            }
            // Not in QEMU's agent either: one request instead of three, as slow guests take long to answer.
            "pw-read" => read_part(&read(arguments)?),
            name => Err(format!("the agent has no command {name}")),
        }
    }

    fn exec(&mut self, exec: Exec) -> Outcome {
        let input = exec.input_data.map(|text| BASE64.decode(text)).transpose();
        let input = input.map_err(|error| format!("this is not base64: {error}"))?;
        let mut child = Command::new(&exec.path)
            .args(&exec.arg)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{} could not be started: {error}", exec.path))?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // On a thread: a process that does not read its input must not stop the agent.
            std::thread::spawn(move || drop(stdin.write_all(&input)));
        }
        while self.0.len() >= MAX_PROCESSES {
            let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
            let Some(oldest) = self.0.iter_mut().position(ended) else { break };
            let _ = self.0.remove(oldest).wait();
        }
        let pid = child.id();
        self.0.push(child);
        Ok(json!({ "pid": pid }))
    }

    fn exec_status(&mut self, pid: u32) -> Outcome {
        let index = self.0.iter().position(|child| child.id() == pid).ok_or_else(|| {
            format!("the agent started no process {pid}, or has reported its end already")
        })?;
        if self.0[index].try_wait().map_err(|error| error.to_string())?.is_none() {
            return Ok(json!({ "exited": false }));
        }
        let status = self.0.remove(index).wait().map_err(|error| error.to_string())?;
        Ok(match status.signal() {
            Some(signal) => json!({ "exited": true, "signal": signal }),
            None => json!({ "exited": true, "exitcode": status.code() }),
        })
    }
}

fn read_part(part: &Part) -> Outcome {
    let mut bytes = Vec::new();
    let read = File::open(&part.path).and_then(|mut file| {
        if part.offset > 0 {
            file.seek(SeekFrom::Start(part.offset))?;
        }
        file.take(MAX_READ as u64).read_to_end(&mut bytes)
    });
    read.map_err(|error| format!("{} cannot be read: {error}", part.path))?;
    Ok(json!({ "buf-b64": BASE64.encode(&bytes), "eof": bytes.len() < MAX_READ }))
}

fn read<T: DeserializeOwned>(arguments: Value) -> std::result::Result<T, String> {
    T::deserialize(arguments).map_err(|error| format!("wrong arguments: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(processes: &mut Processes, execute: &str, arguments: Value) -> Value {
        let request = json!({ "execute": execute, "arguments": arguments });
        let bytes = processes.answer(request.to_string().into_bytes());
        serde_json::from_slice(&bytes).expect("an answer is JSON")
    }

    fn finish(processes: &mut Processes, arguments: Value) -> Value {
        let pid = ask(processes, "guest-exec", arguments)["return"]["pid"].clone();
        for _ in 0..1000 {
            let status =
                ask(processes, "guest-exec-status", json!({ "pid": pid }))["return"].clone();
            if status["exited"] == json!(true) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the process did not end");
    }

    #[test]
    fn a_port_is_found_by_its_name_or_is_a_path() {
        let ports = tempfile::tempdir().expect("a directory");
        for (port, name) in [("vport1p1", "other"), ("vport1p2", "wanted")] {
            fs::create_dir(ports.path().join(port)).expect("a directory");
            fs::write(ports.path().join(port).join("name"), format!("{name}\n")).expect("a file");
        }
        let path = device("wanted", ports.path()).expect("a port");
        assert_eq!(path, Path::new("/dev/vport1p2"));
        let error = device("missing", ports.path()).expect_err("no port");
        assert!(error.what.contains("wanted"), "{error}");
        assert!(device("missing", Path::new("/nonexistent")).is_err());
        assert_eq!(device("/dev/ttyS1", Path::new("")).expect("a path"), Path::new("/dev/ttyS1"));
    }

    #[test]
    fn requests_may_come_in_pieces_of_any_size_and_the_sentinel_throws_half_of_one_away() {
        let stream = b"{\"execute\":\"a\"}\n{\"exe\xff{\"execute\":\"b\",\"id\":7}\r\n";
        for size in 1..stream.len() {
            let mut requests = Requests::default();
            let lines: Vec<_> = stream.chunks(size).flat_map(|part| requests.feed(part)).collect();
            let names: Vec<_> = lines
                .iter()
                .map(|line| serde_json::from_slice::<Request>(line).expect("a request").execute)
                .collect();
            assert_eq!(names, ["a", "b"], "in pieces of {size}");
        }
        pw_cases::check!().for_each(|stream| {
            let at_once = Requests::default().feed(stream);
            let mut requests = Requests::default();
            let bytewise: Vec<_> = stream.iter().flat_map(|byte| requests.feed(&[*byte])).collect();
            assert_eq!(at_once, bytewise);
        });
    }

    #[test]
    fn a_request_without_end_takes_bounded_memory() {
        let mut requests = Requests::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..8).all(|_| requests.feed(&piece).is_empty()));
        let lines = requests.feed(b"\n{\"execute\":\"guest-ping\"}\n");
        assert_eq!((lines.len(), lines[0].len()), (2, MAX_REQUEST + 1));
        let answer = Processes::default().answer(lines[0].clone());
        assert!(String::from_utf8_lossy(&answer).contains("longer than"));
    }

    #[test]
    fn a_process_reads_its_input_and_tells_how_it_ended() {
        let mut processes = Processes::default();
        let input = BASE64.encode("3");
        let exits = json!({ "path": "/bin/sh", "arg": ["-c", "exit $(cat)"], "input-data": input });
        let status = finish(&mut processes, exits);
        assert_eq!((&status["exitcode"], status.get("signal")), (&json!(3), None));
        let killed = json!({ "path": "/bin/sh", "arg": ["-c", "kill -TERM $$"] });
        let status = finish(&mut processes, killed);
        assert_eq!((&status["signal"], status.get("exitcode")), (&json!(15), None));
    }

    #[test]
    fn a_file_is_read_by_its_path_in_parts_that_an_answer_can_hold() {
        let mut processes = Processes::default();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        fs::write(&path, vec![b'x'; MAX_READ + 3]).expect("a file");
        for (offset, length, eof) in [(0, MAX_READ, false), (MAX_READ, 3, true)] {
            let arguments = json!({ "path": path, "offset": offset });
            let answer = ask(&mut processes, "pw-read", arguments)["return"].clone();
            let bytes = BASE64.decode(answer["buf-b64"].as_str().expect("text")).expect("base64");
            assert_eq!((bytes.len(), &answer["eof"]), (length, &json!(eof)));
        }
        let version = ask(&mut processes, "pw-read", json!({ "path": "/proc/version" }));
        assert_eq!(version["return"]["eof"], true);
    }

    #[test]
    fn what_cannot_be_done_is_said_in_a_sentence() {
        let mut processes = Processes::default();
        for (execute, arguments, words) in [
            ("guest-fly", json!({}), "no command guest-fly"),
            ("guest-exec", json!({ "path": "/nonexistent" }), "could not be started"),
            ("guest-exec", json!({}), "missing field `path`"),
            ("guest-exec-status", json!({ "pid": 1 }), "no process 1"),
            ("pw-read", json!({ "path": "/nonexistent/x" }), "/nonexistent/x cannot be read"),
        ] {
            let error = ask(&mut processes, execute, arguments)["error"]["desc"].to_string();
            assert!(error.contains(words), "{execute}: {error}");
        }
    }

    #[test]
    fn a_sync_gives_its_number_back() {
        let mut processes = Processes::default();
        assert_eq!(ask(&mut processes, "guest-sync", json!({ "id": 42 }))["return"], 42);
        let sync =
            json!({ "execute": "guest-sync-delimited", "arguments": { "id": 7 }, "id": "x" });
        let bytes = processes.answer(sync.to_string().into_bytes());
        assert_eq!(bytes[0], SENTINEL);
        let answer: Value = serde_json::from_slice(&bytes[1..]).expect("an answer is JSON");
        assert_eq!(answer, json!({ "return": 7, "id": "x" }));
    }
}
