//! Discards a trial's frames at the sink's interface, before the rest of the host.
//!
//! Two means, neither of which is always available:
//! - a UDP socket that discards everything holds the port, so that no namespace answers frames to
//!   its own address with ICMP "port unreachable", which would load the path that is measured;
//! - where the kernel has nf_tables and the user may use it, a rule drops the frames behind the
//!   capture and before the IP stack, which on veth runs on the generator's CPU. The table belongs
//!   to a socket of this process (NFT_TABLE_F_OWNER, Linux 5.12): it goes when the process does.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use pw_linux::nftables::put_attribute;
use pw_linux::rtnetlink;

use crate::capture::attach_filter;
use crate::error::{Error, Result};
use crate::filter;
use crate::netns::{IfSpec, run_in};
use crate::wire;

/// Discards the frames of a trial until it is dropped.
pub struct Discard {
    _udp: OwnedFd,
    /// Owns the table.
    table: Option<Socket>,
}

impl Discard {
    /// Discards UDP datagrams to `port` that arrive on `rx`.
    ///
    /// # Errors
    /// The port is taken.
    pub fn begin(rx: &IfSpec, ipv6: bool, port: u16) -> Result<Self> {
        run_in(rx.netns.as_ref(), || {
            let udp = udp_socket(rx, ipv6, port)?;
            Ok(Self { _udp: udp, table: drop_at_ingress(&rx.interface, port).ok() })
        })
    }

    /// Whether the frames end before the IP stack.
    pub fn is_early(&self) -> bool {
        self.table.is_some()
    }
}

fn udp_socket(rx: &IfSpec, ipv6: bool, port: u16) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| {
        Error::failed(
            format!("cannot bind UDP port {port} in the namespace of {rx}"),
            "another program or trial uses it: give another --dst-port",
        )
        .caused_by(error)
    };
    let socket = OwnedFd::from(UdpSocket::bind((wire::unspecified(ipv6), port)).map_err(failed)?);
    attach_filter(&socket, &filter::nothing()).map_err(failed)?;
    Ok(socket)
}

// From linux/netfilter/nfnetlink.h and nf_tables.h.
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFPROTO_NETDEV: u8 = 5;
const NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const NEWCHAIN: u16 = NFNL_SUBSYS_NFTABLES << 8 | 3;
const NEWRULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 6;
const TABLE_F_OWNER: u32 = 2;
const NETDEV_INGRESS: u32 = 0;
const META_L4PROTO: u32 = 16;
const PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const REG_1: u32 = 1;
const REG_VERDICT: u32 = 0;
const CMP_EQ: u32 = 0;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NESTED: u16 = 0x8000;

/// Netlink attributes under construction.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn attribute(mut self, kind: u16, contents: &[u8]) -> Self {
        put_attribute(&mut self.0, kind, contents);
        self
    }

    fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn nest(self, kind: u16, contents: Self) -> Self {
        self.attribute(kind | NESTED, &contents.0)
    }

    /// One expression of a rule: NFTA_LIST_ELEM { NFTA_EXPR_NAME, NFTA_EXPR_DATA }.
    fn expression(self, name: &str, data: Self) -> Self {
        self.nest(1, Self::default().text(1, name).nest(2, data))
    }
}

fn message(kind: u16, flags: u16, sequence: u32, family: u8, contents: &Bytes) -> Vec<u8> {
    // nfgenmsg: family, version, resource (the subsystem, for the batch's ends).
    let resource = if kind < 0x100 { NFNL_SUBSYS_NFTABLES } else { 0 };
    let [high, low] = resource.to_be_bytes();
    rtnetlink::message(kind, NLM_F_REQUEST | flags, sequence, [family, 0, high, low], &contents.0)
}

/// Adds `table netdev … { chain … { type filter hook ingress device IF; meta l4proto udp udp dport
/// PORT drop } }`, owned by the returned socket.
fn drop_at_ingress(interface: &str, port: u16) -> std::io::Result<Socket> {
    let table = format!("pw-trial-{}-{port}", std::process::id());
    let new = Bytes::default;
    let hook = new().number(1, NETDEV_INGRESS).number(2, 0).text(3, interface);
    let compare =
        |value: &[u8]| new().number(1, REG_1).number(2, CMP_EQ).nest(3, new().attribute(1, value));
    let rule = new()
        .expression("meta", new().number(1, REG_1).number(2, META_L4PROTO))
        .expression("cmp", compare(&[libc::IPPROTO_UDP as u8]))
        .expression(
            "payload",
            new().number(1, REG_1).number(2, PAYLOAD_TRANSPORT_HEADER).number(3, 2).number(4, 2),
        )
        .expression("cmp", compare(&port.to_be_bytes()))
        .expression(
            "immediate",
            new().number(1, REG_VERDICT).nest(2, new().nest(2, new().number(1, NF_DROP))),
        );
    let batch = [
        message(NFNL_MSG_BATCH_BEGIN, 0, 1, 0, &new()),
        message(
            NEWTABLE,
            NLM_F_CREATE | NLM_F_ACK,
            2,
            NFPROTO_NETDEV,
            &new().text(1, &table).number(2, TABLE_F_OWNER),
        ),
        message(
            NEWCHAIN,
            NLM_F_CREATE | NLM_F_ACK,
            3,
            NFPROTO_NETDEV,
            &new()
                .text(1, &table)
                .text(3, "in")
                .nest(4, hook)
                .number(5, NF_ACCEPT)
                .text(7, "filter"),
        ),
        message(
            NEWRULE,
            NLM_F_CREATE | NLM_F_APPEND | NLM_F_ACK,
            4,
            NFPROTO_NETDEV,
            &new().text(1, &table).text(2, "in").nest(4, rule),
        ),
        message(NFNL_MSG_BATCH_END, 0, 5, 0, &new()),
    ]
    .concat();

    let socket = rtnetlink::open(NETLINK_NETFILTER)?;
    socket.send(&batch, 0)?;
    // One answer each for table, chain and rule; after an error nothing of the batch stays.
    for _ in 0..3 {
        let (answer, _) = socket.recv_from_full()?;
        let word = |at: usize| -> Option<i32> {
            answer.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes)
        };
        match word(16) {
            Some(0) => {}
            Some(errno) => return Err(std::io::Error::from_raw_os_error(-errno)),
            None => return Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
    Ok(socket)
}
