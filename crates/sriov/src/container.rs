//! Asks Docker, or another engine with its API, for the process of a container. Changes nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use pw_error::{Error, Result};
use serde_json::Value;

/// Longest answer that is read [bytes].
const LONGEST: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// The process id of a running container.
pub fn pid(name: &str) -> Result<u32> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(Error::bad_input(
            format!("'{name}' is not a name or id of a container"),
            "list them with `docker ps`",
        ));
    }
    let socket = socket();
    let failed = |error: std::io::Error| {
        Error::failed(
            format!("Docker does not answer at {}", socket.display()),
            "start it, or name its socket in DOCKER_HOST (unix:///…)",
        )
        .caused_by(error)
    };
    let mut stream = UnixStream::connect(&socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    // HTTP/1.0: the answer ends with the connection and comes in one piece.
    let request = format!("GET /containers/{name}/json HTTP/1.0\r\nHost: docker\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).map_err(failed)?;
    read(&answer, name)
}

fn socket() -> PathBuf {
    std::env::var("DOCKER_HOST")
        .ok()
        .and_then(|host| Some(host.strip_prefix("unix://")?.into()))
        .unwrap_or_else(|| "/var/run/docker.sock".into())
}

/// The process id in an HTTP answer about the container `name`.
fn read(answer: &[u8], name: &str) -> Result<u32> {
    let wrong = |why: String| {
        Error::failed(format!("Docker's answer about {name} cannot be read: {why}"), "")
    };
    let text = String::from_utf8_lossy(answer);
    let (head, body) =
        text.split_once("\r\n\r\n").ok_or_else(|| wrong("it ends too early".into()))?;
    match head.split(' ').nth(1) {
        Some("200") => {}
        Some("404") => {
            return Err(Error::bad_input(
                format!("there is no container {name}"),
                "list them with `docker ps`",
            ));
        }
        status => return Err(wrong(format!("status {}", status.unwrap_or("unknown")))),
    }
    let container: Value = serde_json::from_str(body).map_err(|error| wrong(error.to_string()))?;
    let state = &container["State"];
    match state["Pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) {
        None => Err(wrong("it has no process id".into())),
        Some(0) => Err(Error::failed(
            format!(
                "the container {name} does not run: it is {}",
                state["Status"].as_str().unwrap_or("stopped")
            ),
            format!("start it: docker start {name}"),
        )),
        Some(pid) => Ok(pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n";

    #[test]
    fn the_process_of_a_running_container_is_read() {
        let body = r#"{"Id":"x","State":{"Status":"running","Running":true,"Pid":42}}"#;
        assert_eq!(read(format!("{HEAD}{body}").as_bytes(), "x").expect("runs"), 42);
    }

    #[test]
    fn a_container_that_is_not_there_or_does_not_run_is_said() {
        let ended = r#"{"State":{"Status":"exited","Pid":0}}"#;
        let error = read(format!("{HEAD}{ended}").as_bytes(), "x").expect_err("ended");
        assert!(error.what.contains("does not run: it is exited"), "{}", error.what);
        let error = read(b"HTTP/1.0 404 Not Found\r\n\r\n{}", "x").expect_err("none");
        assert_eq!(
            (error.kind, error.what.as_str()),
            (pw_error::Kind::BadInput, "there is no container x")
        );
        assert_eq!(pid("../images").map_err(|error| error.kind), Err(pw_error::Kind::BadInput));
    }

    #[test]
    fn no_answer_ends_in_a_panic() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _ = read(bytes, "x");
            let _ = read(&[HEAD.as_bytes(), bytes].concat(), "x");
        });
    }
}
