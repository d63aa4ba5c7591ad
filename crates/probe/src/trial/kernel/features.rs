//! The XDP features of an interface, by the `netdev` family of generic netlink
//! (Documentation/netlink/specs/netdev.yaml, Linux 6.3).

use netlink_packet_core::NLM_F_REQUEST;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;
use pw_linux::nftables::{self, put_attribute};
use pw_linux::rtnetlink::{message, open};

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NDO_XMIT: u64 = 4;
/// Length of the netlink and the generic netlink header [bytes].
const HEADERS: usize = 20;

/// Whether the interface of the calling thread's namespace sends XDP frames now; none when this
/// kernel does not tell. A veth does while its peer has a native XDP program or GRO.
pub fn sends_xdp_frames(index: u32) -> Option<bool> {
    let socket = open(NETLINK_GENERIC).ok()?;
    let name = (CTRL_ATTR_FAMILY_NAME, b"netdev\0".as_slice());
    let answer = request(&socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, name)?;
    let family = attribute(&answer, CTRL_ATTR_FAMILY_ID)?;
    let family = u16::from_ne_bytes(family.get(..2)?.try_into().ok()?);
    let interface = index.to_ne_bytes();
    let answer =
        request(&socket, family, NETDEV_CMD_DEV_GET, (NETDEV_A_DEV_IFINDEX, interface.as_slice()))?;
    let features = attribute(&answer, NETDEV_A_DEV_XDP_FEATURES)?;
    Some(u64::from_ne_bytes(features.get(..8)?.try_into().ok()?) & NDO_XMIT != 0)
}

/// Sends a request with one attribute; returns its answer, none when that is an error.
fn request(
    socket: &Socket,
    kind: u16,
    command: u8,
    (name, value): (u16, &[u8]),
) -> Option<Vec<u8>> {
    let mut attributes = Vec::new();
    put_attribute(&mut attributes, name, value);
    let bytes = message(kind, NLM_F_REQUEST, 0, [command, 1, 0, 0], &attributes);
    socket.send(&bytes, 0).ok()?;
    let (answer, _) = socket.recv_from_full().ok()?;
    let answer_kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    (answer_kind == kind).then_some(answer)
}

/// The contents of the first attribute of this type.
fn attribute(answer: &[u8], name: u16) -> Option<&[u8]> {
    nftables::attribute(answer.get(HEADERS..)?, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_any_bytes_is_read_or_left() {
        pw_cases::check!().with_type::<(Vec<u8>, u16)>().for_each(|(answer, name)| {
            let _ = attribute(answer, *name);
        });
        let mut answer = vec![0; HEADERS];
        answer.extend([5, 0, 9, 0, 1, 0, 0, 0, 6, 0, 1, 0, 7, 7, 0, 0]);
        assert_eq!(attribute(&answer, 1), Some([7, 7].as_slice()));
        assert_eq!(attribute(&answer, 2), None);
    }
}
