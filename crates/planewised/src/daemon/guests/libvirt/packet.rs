//! Libvirt's messages on its socket: packets, procedures and what they carry
//! (https://libvirt.org/kbase/internals/rpc.html; remote_protocol.x and qemu_protocol.x of its
//! source, whose numbers libvirt never changes). Opens no socket.

use super::api::{Domain, Event, Refusal, Uuid, Why};
use super::xdr::{Reader, Writer};

/// The program of most procedures.
pub const REMOTE: u32 = 0x2000_8086;
/// The program of QEMU's own.
pub const QEMU: u32 = 0x2000_8087;
/// Both programs' version.
const VERSION: u32 = 1;

/// Bytes of a packet's length and header.
pub const HEADER_BYTES: usize = 28;
/// A longer packet is none (`VIR_NET_MESSAGE_MAX` and the length itself) [bytes].
pub const LONGEST_BYTES: usize = (32 << 20) + 4;

/// Procedures and events, by their numbers.
#[expect(missing_docs, reason = "libvirt's names")]
pub mod procedure {
    pub const CONNECT_OPEN: i32 = 1;
    pub const DOMAIN_GET_XML_DESC: i32 = 14;
    pub const AUTH_LIST: i32 = 66;
    pub const DOMAIN_ATTACH_DEVICE_FLAGS: i32 = 160;
    pub const CONNECT_LIST_ALL_DOMAINS: i32 = 273;
    pub const CONNECT_DOMAIN_EVENT_CALLBACK_REGISTER_ANY: i32 = 316;
    pub const DOMAIN_EVENT_CALLBACK_LIFECYCLE: i32 = 318;
    pub const DOMAIN_EVENT_CALLBACK_DEVICE_REMOVED: i32 = 333;
    pub const DOMAIN_EVENT_CALLBACK_DEVICE_ADDED: i32 = 354;
    pub const DOMAIN_EVENT_CALLBACK_DEVICE_REMOVAL_FAILED: i32 = 367;
    pub const DOMAIN_EVENT_CALLBACK_METADATA_CHANGE: i32 = 379;
    pub const DOMAIN_DETACH_DEVICE_ALIAS: i32 = 392;
    /// Of the program [`super::QEMU`].
    pub const QEMU_DOMAIN_AGENT_COMMAND: i32 = 3;
}

/// Events that are asked for (`virDomainEventID`).
pub const EVENT_IDS: [i32; 5] = [0, 15, 19, 22, 23];

/// `VIR_CONNECT_LIST_DOMAINS_ACTIVE`
pub const ACTIVE: u32 = 1;
/// `VIR_CONNECT_LIST_DOMAINS_INACTIVE`
pub const INACTIVE: u32 = 2;
/// `VIR_DOMAIN_AFFECT_LIVE`
pub const LIVE: u32 = 1;
/// Root needs none, and is not asked for any.
const AUTH_NONE: u32 = 0;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The answer to a call; `false`: a refusal.
    Reply {
        /// It was done.
        done: bool,
    },
    /// Something happened.
    Event,
    /// Nothing that we asked for.
    Other,
}

/// A packet's header, without its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The program.
    pub program: u32,
    /// The procedure.
    pub procedure: i32,
    /// What it is.
    pub kind: Kind,
    /// The call that it answers.
    pub serial: u32,
}

/// A call's packet.
pub fn call(program: u32, procedure: i32, serial: u32, arguments: Writer) -> Vec<u8> {
    let arguments = arguments.into_bytes();
    let length = u32::try_from(HEADER_BYTES + arguments.len()).unwrap_or(u32::MAX);
    let mut packet = Writer::default()
        .u32(length)
        .u32(program)
        .u32(VERSION)
        .i32(procedure)
        .u32(0)
        .u32(serial)
        .u32(0)
        .into_bytes();
    packet.extend(arguments);
    packet
}

/// Number of bytes that follow a packet's length; none when the length is invalid.
pub fn remaining_bytes(length: [u8; 4]) -> Option<usize> {
    let length = u32::from_be_bytes(length) as usize;
    (HEADER_BYTES..=LONGEST_BYTES).contains(&length).then(|| length - 4)
}

/// Header and body of a packet without its length.
pub fn split(packet: &[u8]) -> Option<(Header, &[u8])> {
    let mut reader = Reader::new(packet);
    let (program, _version, procedure) = (reader.u32()?, reader.u32()?, reader.i32()?);
    let (kind, serial, status) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let kind = match (kind, status) {
        (1, 0) => Kind::Reply { done: true },
        (1, 1) => Kind::Reply { done: false },
        (2, 0) => Kind::Event,
        _ => Kind::Other,
    };
    Some((Header { program, procedure, kind, serial }, reader.remaining()))
}

/// A domain, as arguments have it.
pub fn domain(writer: Writer, domain: &Domain) -> Writer {
    writer.string(&domain.name).fixed(&domain.uuid).i32(domain.id)
}

fn read_domain(reader: &mut Reader<'_>) -> Option<Domain> {
    let name = reader.string()?;
    let uuid: Uuid = reader.fixed(16)?.try_into().ok()?;
    Some(Domain { uuid, name, id: reader.i32()? })
}

/// The answer to `CONNECT_LIST_ALL_DOMAINS`.
pub fn domains(body: &[u8]) -> Option<Vec<Domain>> {
    let mut reader = Reader::new(body);
    let count = reader.u32()? as usize;
    // A domain has 28 bytes at least: a larger count is refused before memory is allocated for it.
    (count <= body.len() / 28).then_some(())?;
    (0..count).map(|_| read_domain(&mut reader)).collect()
}

/// The answer to `AUTH_LIST`: does libvirt need no authentication?
pub fn needs_no_authentication(body: &[u8]) -> Option<bool> {
    let mut reader = Reader::new(body);
    let count = reader.u32()?;
    Some(count == 0 || reader.u32()? == AUTH_NONE)
}

/// A refusal.
pub fn refusal(body: &[u8]) -> Refusal {
    let mut reader = Reader::new(body);
    let read = (|| {
        let (code, _domain) = (reader.i32()?, reader.i32()?);
        Some((code, reader.optional_string()??))
    })();
    match read {
        Some((code, words)) => Refusal::new(kind(code, &words), words),
        None => Refusal::new(Why::Refused, "libvirt refused without a word"),
    }
}

/// What kind of refusal a code of `virErrorNumber` and its words are.
fn kind(code: i32, words: &str) -> Why {
    // QEMU's messages come as an internal error, and only their text distinguishes them.
    let unplugging = ["already in the process of unplug", "rejected by the guest", "guest is busy"];
    if unplugging.iter().any(|part| words.contains(part)) {
        return Why::Unplugging;
    }
    match code {
        42 => Why::NoDomain, // VIR_ERR_NO_DOMAIN
        55 if words.contains("domain is not running") => Why::NoDomain, // VIR_ERR_OPERATION_INVALID
        99 => Why::NoDevice, // VIR_ERR_DEVICE_MISSING
        68 => Why::Unplugging, // VIR_ERR_OPERATION_TIMEOUT
        112 => Why::Late,    // VIR_ERR_AGENT_COMMAND_TIMEOUT
        _ => Why::Refused,
    }
}

/// Parses an event; none for one that was not subscribed to.
pub fn event(procedure: i32, body: &[u8]) -> Option<Event> {
    let mut reader = Reader::new(body);
    let _callback = reader.i32()?;
    let uuid = read_domain(&mut reader)?.uuid;
    let refused = match procedure {
        procedure::DOMAIN_EVENT_CALLBACK_LIFECYCLE
        | procedure::DOMAIN_EVENT_CALLBACK_DEVICE_ADDED
        | procedure::DOMAIN_EVENT_CALLBACK_DEVICE_REMOVED
        | procedure::DOMAIN_EVENT_CALLBACK_METADATA_CHANGE => None,
        procedure::DOMAIN_EVENT_CALLBACK_DEVICE_REMOVAL_FAILED => Some(reader.string()?),
        _ => return None,
    };
    Some(Event { uuid, refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_domain() -> Domain {
        Domain { uuid: *b"0123456789abcdef", name: "web".into(), id: 3 }
    }

    #[test]
    fn a_call_is_a_packet_whose_length_and_header_are_read_again() {
        let packet = call(REMOTE, procedure::CONNECT_OPEN, 7, Writer::default().u32(1));
        let (length, rest) = packet.split_first_chunk::<4>().expect("a length");
        assert_eq!(remaining_bytes(*length), Some(rest.len()));
        let (header, body) = split(rest).expect("a header");
        assert_eq!((header.program, header.procedure, header.serial), (REMOTE, 1, 7));
        assert_eq!(body, [0, 0, 0, 1]);
        for length in [0, 27, LONGEST_BYTES as u32 + 1, u32::MAX] {
            assert_eq!(remaining_bytes(length.to_be_bytes()), None, "{length}");
        }
    }

    #[test]
    fn a_list_an_event_and_a_refusal_are_read() {
        let body = domain(domain(Writer::default().u32(2), &some_domain()), &some_domain());
        let body = body.u32(2).into_bytes();
        assert_eq!(domains(&body), Some(vec![some_domain(), some_domain()]));
        let body = domain(Writer::default().i32(0), &some_domain()).string("ua-vf").into_bytes();
        let uuid = some_domain().uuid;
        let removal_failed = procedure::DOMAIN_EVENT_CALLBACK_DEVICE_REMOVAL_FAILED;
        let refused = Some("ua-vf".into());
        assert_eq!(event(removal_failed, &body), Some(Event { uuid, refused }));
        assert_eq!(
            event(procedure::DOMAIN_EVENT_CALLBACK_LIFECYCLE, &body),
            Some(Event { uuid, refused: None })
        );
        for (code, words, why) in [
            (42, "Domain not found", Why::NoDomain),
            (99, "device not found: no device found with alias ua-vf", Why::NoDevice),
            (
                1,
                "internal error: unable to execute QEMU command 'device_del': Device ua-vf is \
                 already in the process of unplug",
                Why::Unplugging,
            ),
            (9, "operation failed: unplug of device was rejected by the guest", Why::Unplugging),
            (38, "cannot open file", Why::Refused),
        ] {
            let body = Writer::default().i32(code).i32(10).u32(1).string(words);
            assert_eq!(refusal(&body.into_bytes()), Refusal::new(why, words));
        }
    }

    #[test]
    fn no_bytes_stop_the_readers() {
        pw_cases::check!().with_type::<(i32, Vec<u8>)>().for_each(|(number, bytes)| {
            let _ = split(bytes);
            let _ = domains(bytes);
            let _ = refusal(bytes);
            let _ = needs_no_authentication(bytes);
            let _ = event(*number, bytes);
            let _ = event(procedure::DOMAIN_EVENT_CALLBACK_DEVICE_REMOVAL_FAILED, bytes);
        });
    }
}
