//! The daemon's configuration: TOML, checked, with the line of an error.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use pw_alloc::gain::GainCurve;
use pw_alloc::model::{Mac, PfId, Wish};
use pw_alloc::settings::Settings;
#[cfg(feature = "simulated")]
use pw_alloc::traffic::Traffic;
use pw_error::{Error, Result};
use pw_linux::netns::Netns;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::http::log::Log;

/// The whole file (docs/reference/alloc.md).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the API listens.
    pub socket: PathBuf,
    /// Members of this group may use the API, besides root and the daemon's own user.
    pub group: Option<String>,
    /// The API by TCP, too.
    pub tcp: Option<Tcp>,
    /// The log.
    pub log: Log,
    /// Directory of journal and records.
    pub state_directory: PathBuf,
    /// Time between two readings of all counters [s].
    pub sample_s: f64,
    /// Time limit of a step of a move [s].
    pub step_timeout_s: f64,
    /// Which VFs are given.
    pub pool: PoolConfig,
    /// Containers and namespaces as guests.
    pub containers: Containers,
    /// Virtual machines as guests.
    pub machines: Machines,
    /// Pods as guests, on a node of a Kubernetes cluster.
    pub kubernetes: Option<Kubernetes>,
    /// How decisions are made.
    pub alloc: Settings,
    /// Gain profile of `planewise boost`, which takes the place of `alloc.benefit.curve`.
    pub gain_profile: Option<PathBuf>,
    /// File that records the allocator's input and decisions.
    pub recording: Option<PathBuf>,
    /// Wishes for guests, by name.
    pub guests: BTreeMap<String, Wish>,
    /// A simulated host instead of this one.
    #[cfg(feature = "simulated")]
    pub simulated: Option<Simulated>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: "/run/planewise/planewised.sock".into(),
            group: None,
            tcp: None,
            log: Log::default(),
            state_directory: "/var/lib/planewise".into(),
            sample_s: 1.0,
            step_timeout_s: 30.0,
            pool: PoolConfig::default(),
            containers: Containers::default(),
            machines: Machines::default(),
            kubernetes: None,
            alloc: Settings::default(),
            gain_profile: None,
            recording: None,
            guests: BTreeMap::new(),
            #[cfg(feature = "simulated")]
            simulated: None,
        }
    }
}

impl Config {
    /// Does a simulated host take the place of this one?
    pub const fn is_simulated(&self) -> bool {
        #[cfg(feature = "simulated")]
        return self.simulated.is_some();
        #[cfg(not(feature = "simulated"))]
        false
    }
}

/// Which VFs are given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// The VFs of these PFs; empty: of all PFs that have VFs.
    pub pfs: Vec<PfId>,
    /// Most addresses learned behind one port of a bridge that are added to a PF's filter.
    pub learned_per_port: usize,
    /// The same for all ports, and one PF.
    pub learned_per_pf: usize,
    /// Guests get VFs although the host filters their frames (VLAN filtering of the bridge, libvirt's
    /// nwfilter, nftables on bridges, tc on the port), which a VF bypasses.
    pub bypass_filters: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        // An 82576 has filters for 16 addresses beside those of its 7 VFs; guests need one each.
        Self { pfs: Vec::new(), learned_per_port: 4, learned_per_pf: 8, bypass_filters: false }
    }
}

/// Containers and namespaces as guests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Containers {
    /// Docker's socket; empty: Docker is not asked. Containers with the label
    /// `planewise.managed=true` are managed.
    pub docker: PathBuf,
    /// VFs in guests can only have the address that their PF sets.
    pub enforce_mac: bool,
    /// Namespaces, by the guest's name.
    pub namespaces: BTreeMap<String, Namespace>,
}

impl Default for Containers {
    fn default() -> Self {
        let docker = "/var/run/docker.sock".into();
        Self { docker, enforce_mac: true, namespaces: BTreeMap::new() }
    }
}

/// Virtual machines as guests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machines {
    /// libvirt's sockets: the first that answers is used; empty: the usual ones. Machines with the
    /// mark in their metadata are managed.
    pub sockets: Vec<PathBuf>,
}

/// The cluster that this host is a node of.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// The node's name; none: the environment variable NODE_NAME.
    pub node: Option<String>,
    /// Kubeconfig; none: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The host's /proc.
    pub proc: PathBuf,
    /// The kubelet's checkpoint of device plugins.
    pub device_plugins: PathBuf,
    /// Publish the node's PFs as a ResourceSlice.
    pub resource_slices: bool,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            node: None,
            kubeconfig: None,
            proc: "/proc".into(),
            device_plugins: "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint".into(),
            resource_slices: false,
        }
    }
}

/// A namespace that is a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Namespace {
    /// Its name in `ip netns list`, a path that contains a '/', or pid:N; none: the guest's name.
    pub netns: Option<String>,
    /// Its interface to the host's bridge, one end of a veth pair.
    pub interface: Option<String>,
    /// MAC address assigned to this interface; another one is refused. None: any.
    pub mac: Option<Mac>,
}

/// The API by TCP: with TLS and tokens, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// Where it listens, as `192.0.2.1:8443`.
    pub listen: SocketAddr,
    /// The certificate chain [PEM].
    #[serde(default)]
    pub certificate: PathBuf,
    /// Its key [PEM].
    #[serde(default)]
    pub key: PathBuf,
    /// Tokens: lines of a name and a token.
    #[serde(default)]
    pub tokens: PathBuf,
}

/// A simulated host.
#[cfg(feature = "simulated")]
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulated {
    /// VFs of its one PF.
    pub vfs: u16,
    /// Its guests' traffic, by name.
    #[serde(default)]
    pub guests: BTreeMap<String, Traffic>,
    /// What each pod of the node sends; none: nothing.
    #[serde(default)]
    pub pods: Option<Traffic>,
}

/// Reads a value from TOML text of that name; an error names the line.
pub fn read<T: DeserializeOwned>(text: &str, name: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| {
            let preceding = text.get(..span.start).unwrap_or(text);
            preceding.matches('\n').count() + 1
        });
        let place = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
        let what: Vec<&str> = error.message().lines().map(str::trim).collect();
        Error::bad_input(
            format!("{place}: {}", what.join("; ")),
            "docs/reference/alloc.md has every key, with an example",
        )
    })
}

/// Reads and checks a configuration.
pub fn parse(text: &str, name: &str) -> Result<Config> {
    let config: Config = read(text, name)?;
    let wrong =
        |what: String, remedy: &str| Err(Error::bad_input(format!("{name}: {what}"), remedy));
    config.alloc.check().map_err(|error| error.at("alloc").at(name))?;
    if config.gain_profile.is_some() && config.alloc.benefit.curve != GainCurve::default() {
        return wrong(
            "both gain_profile and alloc.benefit.curve say what a VF saves".into(),
            "leave one of them out: the profile is measured",
        );
    }
    if let Some(tcp) = &config.tcp {
        let needed =
            [("certificate", &tcp.certificate), ("key", &tcp.key), ("tokens", &tcp.tokens)];
        if let Some((key, _)) = needed.iter().find(|(_, path)| path.as_os_str().is_empty()) {
            return wrong(
                format!("tcp has no {key}: by TCP the API is offered with TLS and a token only"),
                "name certificate, key and tokens, or leave [tcp] out: the socket serves this host",
            );
        }
    }
    if !(0.05..=3600.0).contains(&config.sample_s) {
        return wrong(
            format!("sample_s = {} is out of range", config.sample_s),
            "give a number of seconds from 0.05 to 3600",
        );
    }
    if !(0.1..=3600.0).contains(&config.step_timeout_s) {
        return wrong(
            format!("step_timeout_s = {} is out of range", config.step_timeout_s),
            "give a number of seconds from 0.1 to 3600",
        );
    }
    for (guest, namespace) in &config.containers.namespaces {
        let netns = namespace.netns.as_deref().unwrap_or(guest);
        let key = || format!("{name}: containers.namespaces.{guest}");
        netns.parse::<Netns>().map_err(|error| error.at(key()))?;
        if let Some(interface) = &namespace.interface
            && let Err(error) = pw_sriov::lookup::interface_name(interface)
        {
            return wrong(
                format!("containers.namespaces.{guest}: {}", error.what),
                "name the guest's interface as it is called inside, as eth0",
            );
        }
    }
    for (guest, wish) in &config.guests {
        if !(0.0..=1.0).contains(&wish.min_share) {
            return wrong(
                format!("guests.{guest}: min_share = {} is no share", wish.min_share),
                "give a number from 0 to 1",
            );
        }
        if wish.pfs.contains(&PfId::from("")) {
            return wrong(format!("guests.{guest}: a PF without a name"), "name its interface");
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use pw_alloc::settings::PolicyKind;

    use super::*;

    /// The commented example of the reference.
    const EXAMPLE: &str = include_str!("../../example.toml");

    #[test]
    fn the_example_is_read_and_says_the_defaults() {
        let read = parse(EXAMPLE, "example.toml").expect("the example");
        assert_eq!(read, Config::default());
        let policies = PolicyKind::ALL.map(PolicyKind::as_str).join(" | ");
        assert!(EXAMPLE.contains(&format!("# {policies}\n")), "it does not list {policies}");
        // Whatever is commented out in it is right, too.
        let all: String = EXAMPLE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n")
            .collect();
        let read = parse(&all, "example.toml").expect("the example with everything set");
        assert_eq!(read.guests.len(), 2);
    }

    #[test]
    fn an_error_names_file_and_line() {
        for (text, what) in [
            ("socket = 1", "x.toml:1: "),
            ("\n\nnosuch = 1", "x.toml:3: unknown field `nosuch`"),
            ("[alloc]\npolicy = 'best'", "x.toml:2: unknown variant `best`"),
            ("[alloc]\nmax_moves = 0", "max_moves = 0 would let nobody"),
            ("[guests.a]\nmin_share = 2.0", "guests.a: min_share = 2 is no share"),
            ("[tcp]\nlisten = '127.0.0.1:0'\ncertificate = 'c'\ntokens = 't'", "tcp has no key"),
            ("[tcp]\nlisten = 'here'", "x.toml:2: "),
            ("[log]\nformat = 'xml'", "x.toml:2: unknown variant `xml`"),
            ("sample_s = nan", "sample_s = NaN is out of range"),
            ("[alloc.benefit]\ncurve = []", "the gain curve has no points"),
            (
                "gain_profile = \"g\"\n[alloc.benefit]\ncurve = [{ pps = 1, saved_us = 2 }]",
                "both gain_profile and alloc.benefit.curve",
            ),
            ("step_timeout_s = 0.0", "step_timeout_s = 0 is out of range"),
            ("[containers.namespaces.'']", "containers.namespaces.: '' names no network namespace"),
            ("[containers.namespaces.a]\ninterface = 'a b'", "'a b' cannot be the name"),
        ] {
            let error = parse(text, "x.toml").expect_err(text);
            assert!(error.what.contains(what), "{}", error.what);
            assert!(!error.remedy.is_empty() && error.kind == pw_error::Kind::BadInput);
        }
    }

    #[test]
    fn no_text_stops_the_reader() {
        pw_cases::check!().with_type::<String>().for_each(|text| drop(parse(text, "x")));
    }
}
