//! Requests and answers of the QEMU guest agent's protocol (qemu-ga-ref(7)) as bytes: JSON objects
//! one after another. Runs nothing.

use serde::Deserialize;
use serde_json::{Value, json};

/// Discards the half request before it in a stream, and begins the answer to `guest-sync-delimited`.
/// Never a byte of UTF-8 text.
const SENTINEL: u8 = 0xff;

/// Longest request that is accepted, so that memory stays bounded [bytes].
pub const MAX_REQUEST: usize = 4 << 20;

/// One request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Request {
    /// The command's name.
    pub execute: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Value,
    /// Identifier, repeated in the answer.
    pub id: Option<Value>,
}

/// A request, or why a line is none.
pub type ParsedRequest = std::result::Result<Request, String>;

/// Cuts a stream of bytes into requests.
#[derive(Debug, Default)]
pub struct Requests {
    pending: Vec<u8>,
    /// Whether the rest of the line belongs to a request that was too long.
    skipping: bool,
}

impl Requests {
    /// Takes the next bytes of the stream; returns the requests that are complete now.
    ///
    /// A request ends with a newline: libvirt, virsh and QEMU's own tools all send one.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<ParsedRequest> {
        let mut requests = Vec::new();
        for &byte in bytes {
            match byte {
                SENTINEL => {
                    self.pending.clear();
                    self.skipping = false;
                }
                b'\n' => {
                    let line = std::mem::take(&mut self.pending);
                    if !std::mem::take(&mut self.skipping) && !line.trim_ascii().is_empty() {
                        requests.push(parse(&line));
                    }
                }
                _ if self.skipping => {}
                _ if self.pending.len() >= MAX_REQUEST => {
                    self.pending = Vec::new();
                    self.skipping = true;
                    requests.push(Err(format!("a request is longer than {MAX_REQUEST} bytes")));
                }
                _ => self.pending.push(byte),
            }
        }
        requests
    }
}

fn parse(line: &[u8]) -> ParsedRequest {
    serde_json::from_slice(line).map_err(|error| format!("this is not a request: {error}"))
}

/// Encodes an answer: what a command returned, or why it failed.
pub fn answer(result: std::result::Result<Value, String>, id: Option<&Value>) -> Vec<u8> {
    let mut object = match result {
        Ok(value) => json!({ "return": value }),
        Err(desc) => json!({ "error": { "class": "GenericError", "desc": desc } }),
    };
    if let Some(id) = id {
        object["id"] = id.clone();
    }
    let mut bytes = object.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

/// Prepends the sentinel that `guest-sync-delimited` promises.
pub fn delimited(answer: Vec<u8>) -> Vec<u8> {
    let mut bytes = vec![SENTINEL];
    bytes.extend(answer);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_may_come_in_pieces_of_any_size() {
        let stream = b"{\"execute\":\"guest-ping\"}\n\xff{\"execute\":\"a\",\"id\":7}\r\n";
        for size in 1..stream.len() {
            let mut requests = Requests::default();
            let parsed: Vec<_> = stream.chunks(size).flat_map(|part| requests.feed(part)).collect();
            let names: Vec<_> =
                parsed.iter().flatten().map(|request| request.execute.as_str()).collect();
            assert_eq!(names, ["guest-ping", "a"], "in pieces of {size}");
        }
    }

    #[test]
    fn the_sentinel_throws_half_a_request_away() {
        let mut requests = Requests::default();
        assert!(requests.feed(b"{\"execute\":\"gu").is_empty());
        let parsed = requests.feed(b"\xff{\"execute\":\"guest-ping\"}\n");
        assert_eq!(parsed.len(), 1);
        assert_eq!(parsed[0].as_ref().map(|request| request.execute.as_str()), Ok("guest-ping"));
    }

    #[test]
    fn a_request_without_end_takes_bounded_memory() {
        let mut requests = Requests::default();
        let piece = vec![b'x'; 1 << 20];
        let refused: usize = (0..8).map(|_| requests.feed(&piece).len()).sum();
        assert_eq!(refused, 1);
        assert!(requests.pending.len() <= MAX_REQUEST);
        let parsed = requests.feed(b"\n{\"execute\":\"guest-ping\"}\n");
        assert!(matches!(parsed.as_slice(), [Ok(_)]));
    }

    #[test]
    fn any_stream_is_cut_the_same_in_one_piece_or_byte_by_byte() {
        pw_cases::check!().for_each(|stream| {
            let at_once = Requests::default().feed(stream);
            let mut requests = Requests::default();
            let bytewise: Vec<_> = stream.iter().flat_map(|byte| requests.feed(&[*byte])).collect();
            assert_eq!(at_once, bytewise);
        });
    }
}
