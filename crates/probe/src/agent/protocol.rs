//! Requests and answers of the QEMU guest agent's protocol (qemu-ga-ref(7)) as bytes: JSON objects
//! one after another. Runs nothing.

use serde::Deserialize;
use serde_json::{Value, json};

/// What a client may send to throw away a half request before it, and what the answer to
/// `guest-sync-delimited` begins with. No UTF-8 text has it.
const SENTINEL: u8 = 0xff;

/// No request of ours comes near; a longer one is refused, so that memory stays bounded [bytes].
pub const MAX_REQUEST: usize = 4 << 20;

/// One request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Request {
    /// The command's name.
    pub execute: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Value,
    /// Sent back with the answer.
    pub id: Option<Value>,
}

/// What was received: a request, or why it is none.
pub type ParsedRequest = std::result::Result<Request, String>;

/// Cuts a stream of bytes into requests.
#[derive(Debug, Default)]
pub struct Requests {
    pending: Vec<u8>,
    /// The rest of a request that was refused for its length is passed over.
    skipping: bool,
}

impl Requests {
    /// Takes the next bytes of the stream; returns the requests that are complete now.
    ///
    /// A request ends with a newline: libvirt, virsh and QEMU's own tools all send one.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<ParsedRequest> {
        let mut found = Vec::new();
        for &byte in bytes {
            match byte {
                SENTINEL => {
                    self.pending.clear();
                    self.skipping = false;
                }
                b'\n' => {
                    let line = std::mem::take(&mut self.pending);
                    if !std::mem::take(&mut self.skipping) && !line.trim_ascii().is_empty() {
                        found.push(parse(&line));
                    }
                }
                _ if self.skipping => {}
                _ if self.pending.len() >= MAX_REQUEST => {
                    self.pending = Vec::new();
                    self.skipping = true;
                    found.push(Err(format!("a request is longer than {MAX_REQUEST} bytes")));
                }
                _ => self.pending.push(byte),
            }
        }
        found
    }
}

fn parse(line: &[u8]) -> ParsedRequest {
    serde_json::from_slice(line).map_err(|error| format!("this is not a request: {error}"))
}

/// The bytes of an answer: what a command returned, or why it could not be done.
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

/// The same with the sentinel that `guest-sync-delimited` promises.
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
            let found: Vec<_> = stream.chunks(size).flat_map(|part| requests.feed(part)).collect();
            let names: Vec<_> = found.iter().flatten().map(|one| one.execute.as_str()).collect();
            assert_eq!(names, ["guest-ping", "a"], "in pieces of {size}");
        }
    }

    #[test]
    fn the_sentinel_throws_half_a_request_away() {
        let mut requests = Requests::default();
        assert!(requests.feed(b"{\"execute\":\"gu").is_empty());
        let found = requests.feed(b"\xff{\"execute\":\"guest-ping\"}\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].as_ref().map(|one| one.execute.as_str()), Ok("guest-ping"));
    }

    #[test]
    fn a_request_without_end_takes_bounded_memory() {
        let mut requests = Requests::default();
        let piece = vec![b'x'; 1 << 20];
        let refused: usize = (0..8).map(|_| requests.feed(&piece).len()).sum();
        assert_eq!(refused, 1);
        assert!(requests.pending.len() <= MAX_REQUEST);
        let found = requests.feed(b"\n{\"execute\":\"guest-ping\"}\n");
        assert!(matches!(found.as_slice(), [Ok(_)]));
    }

    #[test]
    fn any_stream_is_cut_the_same_in_one_piece_or_byte_by_byte() {
        pw_cases::check!().for_each(|stream| {
            let whole = Requests::default().feed(stream);
            let mut requests = Requests::default();
            let bytes: Vec<_> = stream.iter().flat_map(|one| requests.feed(&[*one])).collect();
            assert_eq!(whole, bytes);
        });
    }
}
