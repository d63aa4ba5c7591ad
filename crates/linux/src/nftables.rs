//! The rules of nftables for frames that pass a bridge or a device: those of ebtables (which nftables
//! holds), nwfilter and its own. Reads only.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NlasIterator};
use netlink_sys::protocols::NETLINK_NETFILTER;
use pw_error::{Error, Result};

use crate::rtnetlink::{Answer, Errno, collect, errno_text, message, open, uninterrupted};

/// Bytes of `struct nlmsghdr` and of `struct nfgenmsg` behind it.
const HEADERS_BYTES: usize = 20;
const SUBSYSTEM: u16 = 10 << 8;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const FAMILY_BRIDGE: u8 = 7;
/// Of bridges, of devices, and of IP, whose chains may be a device's, too.
const FAMILIES: [u8; 3] = [FAMILY_BRIDGE, 5, 1];
/// The names of attributes, from linux/netfilter/nf_tables.h: of chains, of rules, of lists, of
/// expressions, of `meta` and of `cmp`.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_DEVICE: u16 = 3;
const HOOK_DEVICES: u16 = 4;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const META_KEY: u16 = 2;
const CMP_OPERATION: u16 = 2;
const CMP_DATA: u16 = 3;
const DATA_VALUE: u16 = 1;
const NF_DROP: u32 = 0;
const CMP_EQUAL: u32 = 0;
/// Keys of `meta` that are names: of the port and of the bridge, on the way in and on the way out.
const META_NAMES: [u32; 4] = [6, 7, 17, 18];
/// Bytes of an interface's name in a comparison; a shorter value is a prefix of the name.
const NAME_BYTES: usize = 16;

/// A rule, or a chain's policy, for frames on a bridge or a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeFilter {
    /// Its table and chain, as `filter FORWARD`.
    pub place: String,
    /// The interfaces to which it is limited: names, or prefixes that end in `*`. Empty: it is not limited.
    pub interfaces: Vec<String>,
}

impl BridgeFilter {
    /// Does it apply to frames of one of these interfaces?
    pub fn concerns(&self, interfaces: &[&str]) -> bool {
        let matches = |limit: &str, name: &str| match limit.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == limit,
        };
        self.interfaces.is_empty()
            || self
                .interfaces
                .iter()
                .any(|limit| interfaces.iter().any(|name| matches(limit, name)))
    }
}

/// All filters of frames on bridges and devices of the calling thread's namespace; none on a kernel
/// without nftables.
pub fn bridge_filters() -> Result<Vec<BridgeFilter>> {
    let failed = |error| Error::failed("cannot read the rules of nftables", "").caused_by(error);
    let socket = match open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(Vec::new()),
        socket => socket.map_err(failed)?,
    };
    let mut sequence = 0;
    let mut dump = |family, kind| -> Result<Vec<Answer>> {
        let answers = uninterrupted(|| {
            sequence += 1;
            let head = [family, 0, 0, 0];
            let request = message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, head, &[]);
            socket.send(&request, 0).map_err(failed)?;
            collect(&socket, sequence, NLM_F_DUMP)
        })?;
        match answers {
            // No nftables, or none for this family.
            Err(libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => Ok(Vec::new()),
            answers => answers.map_err(refused),
        }
    };
    let mut all = Vec::new();
    for family in FAMILIES {
        let chains = dump(family, GET_CHAIN)?;
        // The kernel may leave the answer to a dump empty that it has nothing for.
        let rules = if chains.is_empty() { Vec::new() } else { dump(family, GET_RULE)? };
        all.extend(filters(family, &chains, &rules));
    }
    Ok(all)
}

fn refused(code: Errno) -> Error {
    Error::failed(format!("nftables does not list its rules: {}", errno_text(code)), "run as root")
}

/// The filters of these chains and rules. Only chains with a hook count, and those of other families than
/// bridges only with a device: frames reach every other one by a rule of theirs.
fn filters(family: u8, chains: &[Answer], rules: &[Answer]) -> Vec<BridgeFilter> {
    let mut hooked: Vec<(String, Vec<String>)> = Vec::new();
    let mut filters = Vec::new();
    for chain in chains {
        let text = |kind| attribute(body(chain), kind).map(name_of);
        let (Some(table), Some(name)) = (text(CHAIN_TABLE), text(CHAIN_NAME)) else { continue };
        let Some(hook) = attribute(body(chain), CHAIN_HOOK) else { continue };
        let many = attribute(hook, HOOK_DEVICES).unwrap_or_default();
        let many = attributes(many).map(|(_, name)| name_of(name));
        let devices: Vec<String> =
            attribute(hook, HOOK_DEVICE).map(name_of).into_iter().chain(many).collect();
        if family != FAMILY_BRIDGE && devices.is_empty() {
            continue;
        }
        let place = format!("{table} {name}");
        if attribute(body(chain), CHAIN_POLICY).and_then(number) == Some(NF_DROP) {
            filters.push(BridgeFilter { place: place.clone(), interfaces: devices.clone() });
        }
        hooked.push((place, devices));
    }
    for rule in rules {
        let text = |kind| attribute(body(rule), kind).map(name_of);
        let (Some(table), Some(chain)) = (text(RULE_TABLE), text(RULE_CHAIN)) else { continue };
        let place = format!("{table} {chain}");
        if let Some((_, devices)) = hooked.iter().find(|(hooked, _)| *hooked == place) {
            let expressions = attribute(body(rule), RULE_EXPRESSIONS).unwrap_or_default();
            let on_bridge = || limits(expressions);
            let interfaces = if devices.is_empty() { on_bridge() } else { devices.clone() };
            filters.push(BridgeFilter { place, interfaces });
        }
    }
    filters
}

/// The interfaces to which a rule is limited: names that `meta` loads and `cmp` compares for equality.
fn limits(expressions: &[u8]) -> Vec<String> {
    let mut limits = Vec::new();
    let mut loaded_name = false;
    for (_, element) in attributes(expressions).filter(|(kind, _)| *kind == LIST_ELEMENT) {
        let name = attribute(element, EXPRESSION_NAME).map(name_of).unwrap_or_default();
        let data = attribute(element, EXPRESSION_DATA).unwrap_or_default();
        let value = |kind| attribute(data, kind).and_then(number);
        if name == "cmp" && loaded_name && value(CMP_OPERATION) == Some(CMP_EQUAL) {
            let value = attribute(data, CMP_DATA).and_then(|data| attribute(data, DATA_VALUE));
            limits.extend(value.map(limit));
        }
        loaded_name =
            name == "meta" && value(META_KEY).is_some_and(|key| META_NAMES.contains(&key));
    }
    limits
}

fn limit(value: &[u8]) -> String {
    let name = name_of(value);
    let complete = value.len() >= NAME_BYTES || value.contains(&0);
    if complete { name } else { format!("{name}*") }
}

fn body(answer: &[u8]) -> &[u8] {
    answer.get(HEADERS_BYTES..).unwrap_or_default()
}

/// Text up to the first zero.
fn name_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A number of nftables: 32 bits, big-endian.
fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

/// The value of the first netlink attribute of this kind.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(other, _)| *other == kind).map(|(_, value)| value)
}

/// Appends a netlink attribute, padded to 4 bytes.
pub fn put_attribute(buffer: &mut Vec<u8>, kind: u16, value: &[u8]) {
    buffer.extend((value.len() as u16 + 4).to_ne_bytes());
    buffer.extend(kind.to_ne_bytes());
    buffer.extend(value);
    buffer.resize(buffer.len().next_multiple_of(4), 0);
}

/// Kinds and values of netlink attributes, up to the first that does not fit.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|nla| {
        let nla = nla.ok()?;
        let (kind, end) = (nla.kind(), usize::from(nla.length()));
        Some((kind, nla.into_inner().get(4..end)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_concerns_whom_it_names_and_without_a_name_everybody() {
        let filter = |interfaces: &[&str]| BridgeFilter {
            place: "filter FORWARD".into(),
            interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(filter(&[]).concerns(&["veth0", "br0"]));
        assert!(filter(&["veth0"]).concerns(&["veth0", "br0"]));
        assert!(filter(&["veth*"]).concerns(&["veth0", "br0"]));
        assert!(filter(&["vnet7", "br0"]).concerns(&["veth0", "br0"]));
        assert!(!filter(&["vnet7"]).concerns(&["veth0", "br0"]));
        assert!(!filter(&["veth"]).concerns(&["veth0", "br0"]));
    }

    #[test]
    fn no_answer_can_be_read_past_its_end() {
        pw_cases::check!().with_type::<(Vec<Answer>, Vec<Answer>)>().for_each(|(chains, rules)| {
            let _ = filters(FAMILY_BRIDGE, chains, rules);
            rules.iter().for_each(|rule| drop(limits(rule)));
        });
    }
}
