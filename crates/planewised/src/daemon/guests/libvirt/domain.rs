//! The network of a domain by its live XML (https://libvirt.org/formatdomain.html), and the XML of a VF that
//! is plugged into it. Pure: no I/O.

use std::fmt::Write as _;

use pw_alloc::model::{Mac, PfId, Stance, Wish};
use pw_sriov::address::PciAddress;
use roxmltree::{Document, Node, ParsingOptions};

/// The XML namespace of the element `managed` in a domain's metadata.
pub const NAMESPACE: &str = "urn:planewise:libvirt:1";
/// The alias of VFs that this daemon plugs in. The same for every VF: QEMU remembers the first
/// partner of a failover NIC by it, and refuses others. libvirt keeps aliases that begin with `ua-`.
pub const ALIAS: &str = "ua-planewise-vf";
/// The guest agent's port.
const AGENT: &str = "org.qemu.guest_agent.0";

/// A domain, as its live XML describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// Its mark, if it is to be managed.
    pub mark: Option<Mark>,
    /// The NIC that is its paravirtual path; or why there is none.
    pub nic: Result<Nic, String>,
    /// PCI functions of the host that are plugged into it.
    pub functions: Vec<Function>,
    /// An agent in the guest has opened its port.
    pub agent: bool,
}

/// The element `managed` in a domain's metadata.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mark {
    /// Its wishes for the guest.
    pub wish: Wish,
    /// Why it is invalid: the domain is not managed then.
    pub wrong: Option<String>,
}

/// A virtio NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Its address.
    pub mac: Mac,
    /// Its tap on the host.
    pub tap: String,
    /// Its alias, when it is the persistent half of a pair; none when the guest itself joins its NICs.
    pub teams: Option<String>,
    /// Its link is not set down (`<link state='down'/>`).
    pub plugged: bool,
    /// The VLAN that its frames belong to.
    pub vlan: Option<u16>,
    /// The nwfilter that its frames pass on the host.
    pub filter: Option<String>,
}

/// A PCI function that is plugged into a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Where it is on the host.
    pub address: PciAddress,
    /// The name by which it is detached.
    pub alias: Option<String>,
}

/// Reads a domain's live XML; an error is a sentence.
pub fn read(xml: &str) -> Result<Described, String> {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: 100_000, ..Default::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| error.to_string())?;
    let domain = document.root_element();
    if !domain.has_tag_name("domain") {
        return Err("it describes no domain".into());
    }
    let mark = child(domain, "metadata").and_then(|metadata| {
        metadata.children().find(|node| node.has_tag_name((NAMESPACE, "managed")))
    });
    let devices = child(domain, "devices");
    let all = |name: &'static str| {
        devices
            .into_iter()
            .flat_map(move |devices| devices.children())
            .filter(move |node| node.has_tag_name(name))
    };
    let functions = all("hostdev").chain(all("interface")).filter_map(read_function).collect();
    let agent = all("channel").filter_map(|channel| child(channel, "target")).any(|target| {
        target.attribute("name") == Some(AGENT) && target.attribute("state") == Some("connected")
    });
    let name = mark.and_then(|mark| mark.attribute("interface"));
    let joined_by_guest = mark.and_then(|mark| mark.attribute("join")) == Some("guest");
    let nic = find_nic(&all("interface").collect::<Vec<_>>(), name, joined_by_guest);
    Ok(Described { mark: mark.map(read_mark), nic, functions, agent })
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn read_mark(mark: Node<'_, '_>) -> Mark {
    let mut read = Mark::default();
    for attribute in mark.attributes() {
        let value = attribute.value();
        let wish = &mut read.wish;
        let is_valid = match attribute.name() {
            "class" => value.parse().map(|class| wish.class = class).is_ok(),
            "min-share" => value
                .parse()
                .ok()
                .filter(|share| (0.0..=1.0).contains(share))
                .map(|share| wish.min_share = share)
                .is_some(),
            "numa" => value.parse().map(|node| wish.numa = Some(node)).is_ok(),
            "pfs" => {
                wish.pfs = value.split_whitespace().map(PfId::from).collect();
                true
            }
            "stance" => {
                let stances = [Stance::Free, Stance::Pinned, Stance::Excluded];
                let named = ["free", "pinned", "excluded"].iter().position(|name| *name == value);
                named.map(|index| wish.stance = stances[index]).is_some()
            }
            "interface" => true,
            "join" => matches!(value, "host" | "guest"),
            _ => false,
        };
        if !is_valid {
            let name = attribute.name();
            let what = format!("its mark says {name}={value:?}, which is not understood");
            read.wrong.get_or_insert(what);
        }
    }
    read
}

fn find_nic(
    interfaces: &[Node<'_, '_>],
    name: Option<&str>,
    joined_by_guest: bool,
) -> Result<Nic, String> {
    let persistent = |node: &Node<'_, '_>| {
        child(*node, "teaming").and_then(|team| team.attribute("type")) == Some("persistent")
    };
    let virtio = |node: &Node<'_, '_>| {
        child(*node, "model")
            .and_then(|model| model.attribute("type"))
            .is_some_and(|kind| kind.starts_with("virtio"))
    };
    let named = |node: &Node<'_, '_>, name: &str| {
        let value = |tag: &str, attribute: &str| {
            child(*node, tag).and_then(|child| child.attribute(attribute))
        };
        value("alias", "name") == Some(name)
            || value("target", "dev") == Some(name)
            || value("mac", "address").is_some_and(|mac| mac.eq_ignore_ascii_case(name))
    };
    let suits = |node: &Node<'_, '_>| virtio(node) && (joined_by_guest || persistent(node));
    let mut suitable = interfaces.iter().filter(|node| suits(node));
    let nic = match name {
        Some(name) => match interfaces.iter().find(|node| named(node, name)) {
            None => return Err(format!("it has no interface {name}")),
            Some(node) if !suits(node) => {
                return Err(format!(
                    "its interface {name} is no virtio NIC with <teaming type='persistent'/>"
                ));
            }
            node => node,
        },
        None => suitable.next(),
    };
    let Some(nic) = nic else {
        return Err("it has no virtio NIC with <teaming type='persistent'/>".into());
    };
    if name.is_none() && suitable.next().is_some() {
        return Err("it has several suitable NICs: name one in its mark (interface='…')".into());
    }
    let text =
        |tag: &str, attribute: &str| child(*nic, tag).and_then(|node| node.attribute(attribute));
    let mac = text("mac", "address").and_then(|mac| mac.parse().ok());
    let tap = text("target", "dev").filter(|tap| !tap.is_empty());
    let (Some(mac), Some(tap)) = (mac, tap) else {
        return Err("its virtio NIC has no address or no tap".into());
    };
    let alias = text("alias", "name");
    let teams = if joined_by_guest { None } else { alias.map(str::to_owned) };
    if teams.is_none() && !joined_by_guest {
        return Err("its virtio NIC has no alias".into());
    }
    let plugged = text("link", "state") != Some("down");
    let vlan = child(*nic, "vlan")
        .filter(|vlan| vlan.attribute("trunk") != Some("yes"))
        .and_then(|vlan| child(vlan, "tag"))
        .and_then(|tag| tag.attribute("id"))
        .and_then(|id| id.parse().ok());
    let filter = child(*nic, "filterref").and_then(|filter| filter.attribute("filter"));
    let filter = filter.map(str::to_owned);
    Ok(Nic { mac, tap: tap.to_owned(), teams, plugged, vlan, filter })
}

fn read_function(device: Node<'_, '_>) -> Option<Function> {
    let pci = match device.tag_name().name() {
        "hostdev" => device.attribute("type") == Some("pci"),
        _ => device.attribute("type") == Some("hostdev"),
    };
    let address = child(child(device, "source").filter(|_| pci)?, "address")?;
    let number = |name: &str| {
        let text = address.attribute(name)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let address = format!(
        "{:04x}:{:02x}:{:02x}.{:x}",
        number("domain").unwrap_or(0),
        number("bus")?,
        number("slot")?,
        number("function")?
    );
    let alias = child(device, "alias").and_then(|alias| alias.attribute("name"));
    Some(Function { address: address.parse().ok()?, alias: alias.map(str::to_owned) })
}

/// The XML that plugs a function in, beside the NIC of the alias `teams` if the host joins them.
/// A plain `hostdev` (libvirt 7.1): address and VLAN of the VF are ours to set, and a detach does not
/// set back what we did not set there.
pub fn hostdev(address: PciAddress, teams: Option<&str>) -> String {
    let text = address.to_string();
    let mut parts = text.split([':', '.']);
    let mut part = || parts.next().unwrap_or_default();
    let mut xml = format!(
        "<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x{}' \
         bus='0x{}' slot='0x{}' function='0x{}'/></source>",
        part(),
        part(),
        part(),
        part()
    );
    if let Some(persistent) = teams {
        let _ = write!(xml, "<teaming type='transient' persistent='{}'/>", escaped(persistent));
    }
    // No ROM, which is for booting from the network.
    let _ = write!(xml, "<alias name='{ALIAS}'/><rom enabled='no'/></hostdev>");
    xml
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "<domain type='kvm' id='3'>
      <name>web</name>
      <metadata>
        <other:thing xmlns:other='urn:other'/>
        <planewise:managed xmlns:planewise='urn:planewise:libvirt:1' class='2' min-share='0.25'
            stance='pinned' pfs='enp1s0f0 enp1s0f1' numa='1'/>
      </metadata>
      <devices>
        <interface type='bridge'>
          <mac address='52:54:00:00:00:01'/>
          <target dev='vnet0'/>
          <model type='virtio'/>
          <vlan><tag id='42'/></vlan>
          <teaming type='persistent'/>
          <alias name='ua-net0'/>
        </interface>
        <interface type='bridge'>
          <mac address='52:54:00:00:00:02'/><target dev='vnet1'/><model type='e1000e'/>
        </interface>
        <interface type='hostdev' managed='yes'>
          <source><address type='pci' domain='0x0000' bus='0x01' slot='0x10' function='0x4'/></source>
          <alias name='hostdev0'/>
        </interface>
        <hostdev mode='subsystem' type='usb'><source><vendor id='1'/></source></hostdev>
        <hostdev mode='subsystem' type='pci' managed='yes'>
          <source><address domain='0x0000' bus='0x01' slot='0x10' function='0x0'/></source>
          <alias name='ua-planewise-vf'/>
          <address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/>
        </hostdev>
        <channel type='unix'>
          <target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>
        </channel>
      </devices>
    </domain>";

    #[test]
    fn a_marked_domain_is_understood() {
        let read = read(DOMAIN).expect("a domain");
        let mark = read.mark.expect("a mark");
        assert_eq!(mark.wrong, None);
        assert_eq!((mark.wish.class, mark.wish.min_share, mark.wish.numa), (2, 0.25, Some(1)));
        assert_eq!(mark.wish.stance, Stance::Pinned);
        assert_eq!(mark.wish.pfs.len(), 2);
        let nic = read.nic.expect("a NIC");
        assert_eq!(nic.mac.to_string(), "52:54:00:00:00:01");
        assert_eq!((nic.tap.as_str(), nic.teams.as_deref()), ("vnet0", Some("ua-net0")));
        assert_eq!((nic.vlan, nic.plugged), (Some(42), true));
        assert_eq!(nic.filter, None);
        let filtered = DOMAIN.replace(
            "<alias name='ua-net0'/>",
            "<alias name='ua-net0'/><filterref filter='clean-traffic'/>",
        );
        let filtered = super::read(&filtered).expect("a domain").nic.expect("a NIC");
        assert_eq!(filtered.filter.as_deref(), Some("clean-traffic"));
        assert!(read.agent);
        let functions: Vec<String> =
            read.functions.iter().map(|one| one.address.to_string()).collect();
        assert_eq!(functions, ["0000:01:10.0", "0000:01:10.4"]);
    }

    #[test]
    fn what_is_plugged_in_is_read_as_what_it_is() {
        for (text, teams) in [("0000:01:10.0", Some("ua-'n<et&")), ("10000:ff:1f.7", None)] {
            let address: PciAddress = text.parse().expect("an address");
            let device = hostdev(address, teams);
            let xml = format!("<domain><devices>{device}</devices></domain>");
            let read = read(&xml).expect("a domain");
            assert_eq!(
                read.functions,
                [Function { address, alias: Some(ALIAS.to_owned()) }],
                "{xml}"
            );
            let document = Document::parse(&device).expect("XML");
            let teaming = document.descendants().find(|one| one.has_tag_name("teaming"));
            assert_eq!(teaming.and_then(|one| one.attribute("persistent")), teams);
        }
    }

    #[test]
    fn what_a_domain_lacks_is_said() {
        let without = |from: &str, to: &str| read(&DOMAIN.replace(from, to)).expect("a domain");
        assert_eq!(without("urn:planewise:libvirt:1", "urn:another").mark, None);
        let nic = without("<teaming type='persistent'/>", "").nic.expect_err("no team");
        assert!(nic.contains("no virtio NIC with <teaming"), "{nic}");
        let mark = |words: &str| without("class='2'", words);
        let wrong = mark("klass='2'").mark.expect("a mark").wrong.expect("wrong");
        assert_eq!(wrong, "its mark says klass=\"2\", which is not understood");
        assert!(mark("class='-1'").mark.expect("a mark").wrong.is_some());
        assert!(without("0.25", "NaN").mark.expect("a mark").wrong.is_some());
        assert_eq!(mark("interface='vnet9'").nic, Err("it has no interface vnet9".into()));
        assert!(mark("interface='vnet1'").nic.is_err());
        assert_eq!(mark("interface='52:54:00:00:00:01'").nic.expect("named").tap, "vnet0");
        // The guest joins them itself: no team is needed, and the VF is plugged in without one.
        let own = without("<teaming type='persistent'/>", "").mark;
        assert!(own.is_some());
        let own =
            DOMAIN.replace("<teaming type='persistent'/>", "").replace("class='2'", "join='guest'");
        assert_eq!(read(&own).expect("a domain").nic.expect("a NIC").teams, None);
        let two = DOMAIN.replace("e1000e", "virtio").replace("class='2'", "join='guest'");
        assert!(read(&two).expect("a domain").nic.expect_err("two").contains("several"));
        for none in ["", "<a/>", "<domain>", "<!DOCTYPE d [<!ENTITY a 'b'>]><domain/>"] {
            assert!(read(none).is_err(), "{none}");
        }
    }

    #[test]
    fn no_text_stops_the_reader() {
        let parts: Vec<&str> = DOMAIN.split_inclusive(['<', '\'', '>', ' ']).collect();
        pw_cases::check!().with_type::<(String, Vec<(u16, u8)>)>().for_each(|(text, changes)| {
            let _ = read(text);
            // Domains with pieces left out, doubled, and swapped.
            let mut pieces = parts.clone();
            for (place, what) in changes {
                let place = usize::from(*place) % pieces.len();
                match what % 3 {
                    0 => pieces[place] = "",
                    1 => pieces.insert(place, parts[usize::from(*what) % parts.len()]),
                    _ => pieces.swap(place, parts.len() / 2),
                }
                if pieces.len() > 4 * parts.len() {
                    break;
                }
            }
            if let Ok(found) = read(&pieces.concat()) {
                for function in found.functions {
                    let again = format!(
                        "<domain><devices>{}</devices></domain>",
                        hostdev(function.address, None)
                    );
                    assert_eq!(read(&again).map(|read| read.functions.len()), Ok(1));
                }
            }
        });
    }
}
