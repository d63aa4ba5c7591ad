//! The agent's commands: start processes and report how they ended, read and write files.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::protocol::{ParsedRequest, Request, answer, delimited};
use crate::network::Settings;

/// Output of a process that is kept, as in QEMU's agent [bytes].
const MAX_OUTPUT: usize = 16 << 20;

/// Most bytes that one read returns, so that the answer is within libvirt's limit.
const MAX_READ: usize = 1 << 20;

/// Most processes that ended and whose status nobody asked for; older ones are forgotten.
const MAX_ENDED: usize = 1024;

const COMMANDS: [&str; 11] = [
    "guest-exec",
    "guest-exec-status",
    "guest-file-close",
    "guest-file-open",
    "guest-file-write",
    "guest-info",
    "guest-ping",
    "guest-sync",
    "guest-sync-delimited",
    "pw-network",
    "pw-read",
];

type Outcome = std::result::Result<Value, String>;

/// The processes and files of a client.
#[derive(Debug, Default)]
pub struct Service {
    processes: BTreeMap<u32, Process>,
    started: VecDeque<u32>,
    files: BTreeMap<u64, File>,
    last_handle: u64,
}

#[derive(Debug)]
struct Process {
    child: Child,
    out: Option<Capture>,
    err: Option<Capture>,
}

/// Reads a pipe to its end; returns its bytes, and whether there were more than are kept.
type Capture = JoinHandle<(Vec<u8>, bool)>;

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
    #[serde(default)]
    env: Vec<String>,
    input_data: Option<String>,
    #[serde(default)]
    capture_output: Value,
}

#[derive(Deserialize)]
struct ExecStatus {
    pid: u32,
}

#[derive(Deserialize)]
struct FileOpen {
    path: String,
    #[serde(default)]
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct FileWrite {
    handle: u64,
    buf_b64: String,
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

#[derive(Deserialize)]
struct Handle {
    handle: u64,
}

impl Service {
    /// Performs a request; returns the bytes of the answer.
    pub fn answer(&mut self, received: &ParsedRequest) -> Vec<u8> {
        match received {
            Ok(request) => {
                let bytes = answer(self.perform(request), request.id.as_ref());
                if request.execute == "guest-sync-delimited" { delimited(bytes) } else { bytes }
            }
            Err(why) => answer(Err(why.clone()), None),
        }
    }

    fn perform(&mut self, request: &Request) -> Outcome {
        let arguments = &request.arguments;
        match request.execute.as_str() {
            "guest-ping" => Ok(json!({})),
            "guest-sync" | "guest-sync-delimited" => Ok(json!(read::<Sync>(arguments)?.id)),
            "guest-info" => Ok(json!({
                "version": env!("CARGO_PKG_VERSION"),
                "supported_commands": COMMANDS.map(
                    |name| json!({ "name": name, "enabled": true, "success-response": true })
                ),
            })),
            "guest-exec" => self.exec(read(arguments)?),
            "guest-exec-status" => self.exec_status(read::<ExecStatus>(arguments)?.pid),
            "guest-file-open" => self.file_open(&read(arguments)?),
            "guest-file-write" => self.file_write(&read(arguments)?),
            "guest-file-close" => {
                let handle = read::<Handle>(arguments)?.handle;
                self.files.remove(&handle).ok_or_else(|| no_handle(handle))?;
                Ok(json!({}))
            }
            // Not in QEMU's agent: as a process it would take an emulated guest many times as long.
            "pw-network" => {
                let Network { interface, words } = read(arguments)?;
                let settings = Settings::parse(&words).map_err(|error| error.what)?;
                settings.apply(&interface).map_err(|error| error.what)?;
                Ok(json!({}))
            }
            // Nor this: one request in place of three, for guests that are slow to answer.
            "pw-read" => read_part(&read(arguments)?),
            name => Err(format!("the agent has no command {name}")),
        }
    }

    fn exec(&mut self, exec: Exec) -> Outcome {
        let captures = match &exec.capture_output {
            Value::Null => false,
            Value::Bool(captures) => *captures,
            Value::String(mode) => match mode.as_str() {
                "none" => false,
                "separated" => true,
                mode => return Err(format!("capture-output {mode} is not supported")),
            },
            _ => return Err("capture-output is neither a boolean nor a mode".into()),
        };
        let input = exec.input_data.as_deref().map(decode).transpose()?;
        let output = || if captures { Stdio::piped() } else { Stdio::null() };
        let mut command = Command::new(&exec.path);
        command
            .args(&exec.arg)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(output())
            .stderr(output())
            .process_group(0);
        if !exec.env.is_empty() {
            command.env_clear();
            command.envs(exec.env.iter().filter_map(|variable| variable.split_once('=')));
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("{} could not be started: {error}", exec.path))?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // On a thread: a process that does not read its input must not stop the agent.
            std::thread::spawn(move || drop(stdin.write_all(&input)));
        }
        let pid = child.id();
        let out = child.stdout.take().map(capture);
        let err = child.stderr.take().map(capture);
        self.forget_old();
        self.processes.insert(pid, Process { child, out, err });
        self.started.push_back(pid);
        Ok(json!({ "pid": pid }))
    }

    fn exec_status(&mut self, pid: u32) -> Outcome {
        let process = self.processes.get_mut(&pid).ok_or_else(|| {
            format!("the agent started no process {pid}, or has reported its end already")
        })?;
        let status = process.child.try_wait().map_err(|error| error.to_string())?;
        // A grandchild may hold a pipe open: like QEMU's agent, wait for its end.
        let reading = [&process.out, &process.err]
            .into_iter()
            .flatten()
            .any(|capture| !capture.is_finished());
        let Some(status) = status.filter(|_| !reading) else {
            return Ok(json!({ "exited": false }));
        };
        let mut report = json!({ "exited": true });
        if let Some(code) = status.code() {
            report["exitcode"] = json!(code);
        }
        if let Some(signal) = status.signal() {
            report["signal"] = json!(signal);
        }
        if let Some(process) = self.processes.remove(&pid) {
            for (capture, name) in [(process.out, "out"), (process.err, "err")] {
                if let Some(Ok((bytes, truncated))) = capture.map(JoinHandle::join) {
                    if !bytes.is_empty() {
                        report[format!("{name}-data")] = json!(BASE64.encode(bytes));
                    }
                    if truncated {
                        report[format!("{name}-truncated")] = json!(true);
                    }
                }
            }
        }
        self.started.retain(|started| *started != pid);
        Ok(report)
    }

    /// Reaps and forgets the oldest processes that ended and whose status nobody asked for.
    fn forget_old(&mut self) {
        while self.started.len() >= MAX_ENDED {
            let processes = &mut self.processes;
            let ended = self.started.iter().position(|pid| {
                let process = processes.get_mut(pid);
                process.is_none_or(|process| !matches!(process.child.try_wait(), Ok(None)))
            });
            let Some(oldest) = ended.and_then(|index| self.started.remove(index)) else { return };
            self.processes.remove(&oldest);
        }
    }

    fn file_open(&mut self, open: &FileOpen) -> Outcome {
        let mut options = OpenOptions::new();
        match open.mode.as_deref().unwrap_or("r") {
            "r" => options.read(true),
            "w" => options.write(true).create(true).truncate(true),
            mode => return Err(format!("there is no mode {mode} to open a file in")),
        };
        let file = options
            .open(&open.path)
            .map_err(|error| format!("{} cannot be opened: {error}", open.path))?;
        self.last_handle += 1;
        self.files.insert(self.last_handle, file);
        Ok(json!(self.last_handle))
    }

    fn file_write(&mut self, request: &FileWrite) -> Outcome {
        let bytes = decode(&request.buf_b64)?;
        let file = self.files.get_mut(&request.handle).ok_or_else(|| no_handle(request.handle))?;
        let written = file.write_all(&bytes);
        written.map_err(|error| format!("the file cannot be written: {error}"))?;
        Ok(json!({ "count": bytes.len(), "eof": false }))
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

fn no_handle(handle: u64) -> String {
    format!("no file has the handle {handle}")
}

fn read<T: DeserializeOwned>(arguments: &Value) -> std::result::Result<T, String> {
    T::deserialize(arguments).map_err(|error| format!("wrong arguments: {error}"))
}

fn decode(text: &str) -> std::result::Result<Vec<u8>, String> {
    BASE64.decode(text).map_err(|error| format!("this is not base64: {error}"))
}

fn capture(mut pipe: impl Read + Send + 'static) -> Capture {
    std::thread::spawn(move || {
        let (mut output, mut truncated) = (Vec::new(), false);
        let mut buffer = [0; 4096];
        // A read error is the pipe's end.
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            let room = (MAX_OUTPUT - output.len()).min(count);
            output.extend_from_slice(&buffer[..room]);
            truncated |= room < count;
        }
        (output, truncated)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ask(service: &mut Service, execute: &str, arguments: Value) -> Value {
        let request = Request { execute: execute.into(), arguments, id: None };
        let bytes = service.answer(&Ok(request));
        serde_json::from_slice(&bytes).expect("an answer is JSON")
    }

    fn finish(service: &mut Service, arguments: Value) -> Value {
        let pid = ask(service, "guest-exec", arguments)["return"]["pid"].clone();
        for _ in 0..1000 {
            let status = ask(service, "guest-exec-status", json!({ "pid": pid }))["return"].clone();
            if status["exited"] == json!(true) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the process did not end");
    }

    #[test]
    fn a_process_tells_what_it_wrote_and_how_it_ended() {
        let mut service = Service::default();
        let status = finish(
            &mut service,
            json!({
                "path": "/bin/sh", "arg": ["-c", "cat; echo oops >&2; exit 3"],
                "input-data": BASE64.encode("hello"), "capture-output": true,
            }),
        );
        assert_eq!(status["exitcode"], 3);
        assert_eq!(status["out-data"], BASE64.encode("hello"));
        assert_eq!(status["err-data"], BASE64.encode("oops\n"));
    }

    #[test]
    fn a_process_that_a_signal_ended_says_which() {
        let mut service = Service::default();
        let killed = json!({ "path": "/bin/sh", "arg": ["-c", "kill -TERM $$"] });
        let status = finish(&mut service, killed);
        assert_eq!(status["signal"], 15);
        assert_eq!(status.get("exitcode"), None);
    }

    #[test]
    fn a_file_is_written_in_pieces() {
        let mut service = Service::default();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        let handle = ask(&mut service, "guest-file-open", json!({ "path": path, "mode": "w" }));
        for part in ["abc", "def"] {
            let arguments = json!({ "handle": handle["return"], "buf-b64": BASE64.encode(part) });
            assert_eq!(ask(&mut service, "guest-file-write", arguments)["return"]["count"], 3);
        }
        ask(&mut service, "guest-file-close", json!({ "handle": handle["return"] }));
        assert_eq!(std::fs::read(&path).expect("a file"), b"abcdef");
    }

    #[test]
    fn a_file_is_read_by_its_path_in_parts_that_an_answer_can_hold() {
        let mut service = Service::default();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("f");
        std::fs::write(&path, vec![b'x'; MAX_READ + 3]).expect("a file");
        for (offset, length, eof) in [(0, MAX_READ, false), (MAX_READ, 3, true)] {
            let arguments = json!({ "path": path, "offset": offset });
            let answer = ask(&mut service, "pw-read", arguments)["return"].clone();
            let bytes = BASE64.decode(answer["buf-b64"].as_str().expect("text")).expect("base64");
            assert_eq!((bytes.len(), &answer["eof"]), (length, &json!(eof)));
        }
        let version = ask(&mut service, "pw-read", json!({ "path": "/proc/version" }));
        assert_eq!(version["return"]["eof"], true);
    }

    #[test]
    fn what_cannot_be_done_is_said_in_a_sentence() {
        let mut service = Service::default();
        for (execute, arguments, words) in [
            ("guest-fly", json!({}), "no command guest-fly"),
            ("guest-exec", json!({ "path": "/nonexistent" }), "could not be started"),
            ("guest-exec", json!({}), "missing field `path`"),
            ("guest-exec-status", json!({ "pid": 1 }), "no process 1"),
            ("guest-file-open", json!({ "path": "/nonexistent/x" }), "cannot be opened"),
            ("pw-read", json!({ "path": "/nonexistent/x" }), "/nonexistent/x cannot be read"),
            ("guest-file-close", json!({ "handle": 9 }), "no file has the handle 9"),
        ] {
            let error = ask(&mut service, execute, arguments)["error"]["desc"].to_string();
            assert!(error.contains(words), "{execute}: {error}");
        }
    }

    #[test]
    fn a_sync_gives_its_number_back() {
        let mut service = Service::default();
        assert_eq!(ask(&mut service, "guest-sync", json!({ "id": 42 }))["return"], 42);
        let request = Request {
            execute: "guest-sync-delimited".into(),
            arguments: json!({ "id": 7 }),
            id: Some(json!("x")),
        };
        let bytes = service.answer(&Ok(request));
        assert_eq!(bytes[0], 0xff);
        let answer: Value = serde_json::from_slice(&bytes[1..]).expect("an answer is JSON");
        assert_eq!(answer, json!({ "return": 7, "id": "x" }));
    }
}
