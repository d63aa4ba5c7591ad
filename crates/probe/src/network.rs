//! Configures the network interface of a tiny virtual machine, in one process: each further one
//! takes a second where the guest's CPU is emulated twice.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use pw_linux::links::Cidr;

use crate::error::{Error, Result};
use crate::netlink::{Change, Mac, Netlink};
use crate::stop::{self, Lifetime};

/// Gives an interface addresses and neighbours that it need not ask for, and sets it up.
///
/// Waits until there is such an interface, and then until it has a link: an emulated e1000 takes a
/// while to see that, and a machine that cannot send yet is not ready.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe network address=198.18.0.2/15 neighbour=198.19.0.2,02:00:00:00:00:01\n  \
    pw-probe network --interface eth1 mtu=9000 address=198.18.0.2/15 address=2001:2::2/48")]
pub struct Args {
    /// Interface
    #[arg(long, value_name = "IF", default_value = "eth0")]
    pub interface: String,
    /// How long to wait for the interface, and again for its link [s]
    #[arg(long, value_name = "S", value_parser = crate::units::seconds, default_value = "60")]
    pub patience: Duration,
    /// `mtu=BYTES`, `address=IP/PREFIX` and `neighbour=IP,MAC`, the latter two any number of times
    #[arg(value_name = "KEY=VALUE")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Settings of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    mtu_bytes: Option<u32>,
    addresses: Vec<Cidr>,
    neighbours: Vec<(IpAddr, Mac)>,
}

const POLL: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// A word that is no setting, no such interface, or the kernel refuses.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let settings = Settings::parse(&args.words)?;
    let directory = PathBuf::from("/sys/class/net").join(&args.interface);
    let name = &args.interface;
    wait(args.patience, || directory.exists(), || format!("there is no network interface {name}"))?;
    settings.apply(name)?;
    let carrier = directory.join("carrier");
    let linked = || fs::read_to_string(&carrier).is_ok_and(|text| text.starts_with('1'));
    wait(args.patience, linked, || format!("the network interface {name} has no link"))
}

fn wait(patience: Duration, done: impl Fn() -> bool, why: impl Fn() -> String) -> Result<()> {
    let begun = std::time::Instant::now();
    while !done() {
        if begun.elapsed() > patience || stop::requested() {
            return Err(Error::failed(why(), "is it plugged in? `ip link` lists what is there"));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

impl Settings {
    /// Reads `mtu=BYTES`, `address=IP/PREFIX`, `neighbour=IP,MAC`.
    ///
    /// # Errors
    /// A word is none of these.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self> {
        let mut settings = Self::default();
        for word in words.iter().map(AsRef::as_ref) {
            settings.add(word).ok_or_else(|| {
                Error::bad_input(
                    format!("`{word}` is not a setting of a network interface"),
                    "write mtu=BYTES, address=IP/PREFIX or neighbour=IP,MAC",
                )
            })?;
        }
        Ok(settings)
    }

    fn add(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=')?;
        match key {
            "mtu" => self.mtu_bytes = Some(value.parse().ok()?),
            "address" => {
                self.addresses.push(value.parse().ok()?);
            }
            "neighbour" => {
                let (address, mac) = value.split_once(',')?;
                self.neighbours.push((address.parse().ok()?, mac.parse().ok()?));
            }
            _ => return None,
        }
        Some(())
    }

    /// Applies the settings to an interface and sets it up.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses.
    pub fn apply(&self, interface: &str) -> Result<()> {
        let mut netlink = Netlink::open()?;
        let link = netlink.link_at(interface, &interface)?;
        // Only the given addresses, at once: no router advertisements, duplicate detection or
        // link-local address. A kernel without IPv6 has none of these files.
        for (key, value) in [("accept_ra", "0"), ("accept_dad", "0"), ("addr_gen_mode", "1")] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{key}"), value);
        }
        if let Some(mtu_bytes) = self.mtu_bytes.filter(|&bytes| bytes != link.mtu_bytes) {
            netlink.change(link.index, &Change::MtuBytes(mtu_bytes))?;
        }
        netlink.change(link.index, &Change::Up(true))?;
        for &address in &self.addresses {
            netlink.change(link.index, &Change::AddAddress(address))?;
        }
        for &(address, mac) in &self.neighbours {
            netlink.add_neighbour(link.index, address, mac)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_what_is_none_is_named() {
        let words = ["mtu=9000", "address=198.18.0.2/15", "neighbour=198.19.0.2,02:00:00:00:00:01"];
        let settings = Settings::parse(&words).expect("all are right");
        assert_eq!(settings.mtu_bytes, Some(9000));
        assert_eq!(settings.addresses, ["198.18.0.2/15".parse().expect("one")]);
        assert_eq!(settings.neighbours[0].1, Mac([2, 0, 0, 0, 0, 1]));
        for word in ["", "mtu", "mtu=x", "address=198.18.0.2", "address=198.18.0.2/33", "dns=x/1"] {
            let error = Settings::parse(&[word]).expect_err("no setting");
            assert!(error.what.contains(&format!("`{word}`")), "{error}");
        }
        assert!(Settings::parse(&["neighbour=198.18.0.2,rx"]).is_err());
    }

    #[test]
    fn any_words_are_settings_or_a_sentence() {
        pw_cases::check!().with_type::<Vec<String>>().for_each(|words| {
            let _ = Settings::parse(words);
        });
    }
}
