//! The PCI functions in sysfs, below a root that is a parameter. Reads only.

use std::fs;
use std::path::{Path, PathBuf};

use pw_error::{Error, Result};

use crate::address::PciAddress;

/// A sysfs, or a made-up tree of the same shape.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

/// The directory of a PCI function, relative to the root.
pub fn device(address: PciAddress) -> PathBuf {
    Path::new("bus/pci/devices").join(address.to_string())
}

impl Tree {
    /// The tree below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file below the root.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// The PCI functions that can have VFs, by address.
    pub fn pfs(&self) -> Result<Vec<PciAddress>> {
        let directory = self.path("bus/pci/devices");
        if !directory.is_dir() {
            if self.path("bus").is_dir() {
                return Ok(Vec::new());
            }
            return Err(Error::bad_input(
                format!("{} is not sysfs: it has no directory bus", self.root.display()),
                "sysfs is usually mounted at /sys",
            ));
        }
        let pf = |name: &str| {
            directory.join(name).join("sriov_totalvfs").exists().then(|| name.parse().ok())?
        };
        listed(&directory, pf).map_err(|error| {
            Error::failed(format!("cannot list {}", directory.display()), "").caused_by(error)
        })
    }

    /// Whether there is a function at this address.
    pub fn has(&self, address: PciAddress) -> bool {
        self.path(device(address)).exists()
    }

    /// The text in a file of a function, without the closing newline; none without such a file.
    pub fn text(&self, address: PciAddress, file: &str) -> Option<String> {
        let content = fs::read(self.path(device(address)).join(file)).ok()?;
        Some(String::from_utf8_lossy(&content).trim().to_owned())
    }

    /// A number in a file of a function.
    pub fn number(&self, address: PciAddress, file: &str) -> Option<u32> {
        number(&self.text(address, file)?)
    }

    /// The last part of what a link of a function points to.
    pub fn link(&self, address: PciAddress, file: &str) -> Option<String> {
        let target = fs::read_link(self.path(device(address)).join(file)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The IOMMU group of a function; none without an IOMMU.
    pub fn iommu_group(&self, address: PciAddress) -> Option<u32> {
        number(&self.link(address, "iommu_group")?)
    }

    /// The VFs of a PF: index and address, by index.
    pub fn vfs(&self, pf: PciAddress) -> Vec<(u32, PciAddress)> {
        let vf = |name: &str| Some((vf_index(name)?, self.link(pf, name)?.parse().ok()?));
        listed(&self.path(device(pf)), vf).unwrap_or_default()
    }

    /// The other functions of a function's IOMMU group, by address; none without an IOMMU.
    pub fn group_mates(&self, address: PciAddress) -> Option<Vec<PciAddress>> {
        let directory = self.path(device(address)).join("iommu_group/devices");
        let mate = |name: &str| name.parse().ok().filter(|mate| *mate != address);
        listed(&directory, mate).ok()
    }

    /// The PF that a VF belongs to; none when it is not a VF.
    pub fn pf_of(&self, vf: PciAddress) -> Option<PciAddress> {
        self.link(vf, "physfn")?.parse().ok()
    }

    /// Whether a driver is loaded.
    pub fn has_driver(&self, driver: &str) -> bool {
        self.path("bus/pci/drivers").join(driver).is_dir()
    }

    /// The interfaces of a function as this tree shows them, by name.
    pub fn interfaces(&self, address: PciAddress) -> Vec<String> {
        let directory = self.path(device(address)).join("net");
        listed(&directory, |name| Some(name.to_owned())).unwrap_or_default()
    }

    /// A file of an interface of a function, without the closing newline.
    pub fn interface_text(&self, address: PciAddress, name: &str, file: &str) -> Option<String> {
        self.text(address, &format!("net/{name}/{file}"))
    }

    /// The interfaces that lie directly below `name` (ports of a bridge, slaves of a bond, the
    /// parent of a VLAN).
    pub fn lower(&self, name: &str) -> Vec<String> {
        self.related(name, "lower_")
    }

    /// The interfaces that lie directly upon `name`.
    pub fn upper(&self, name: &str) -> Vec<String> {
        self.related(name, "upper_")
    }

    fn related(&self, name: &str, prefix: &str) -> Vec<String> {
        let directory = self.path("class/net").join(name);
        listed(&directory, |name| Some(name.strip_prefix(prefix)?.to_owned())).unwrap_or_default()
    }
}

/// The names in a directory as `read` parses them, sorted.
fn listed<T: Ord>(directory: &Path, read: impl Fn(&str) -> Option<T>) -> std::io::Result<Vec<T>> {
    let names = fs::read_dir(directory)?.flatten().map(|entry| entry.file_name());
    let mut entries: Vec<T> = names.filter_map(|name| read(name.to_str()?)).collect();
    entries.sort_unstable();
    Ok(entries)
}

/// A number as sysfs writes it: decimal, or hexadecimal after `0x`; negative ones mean none.
pub fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        _ if text.starts_with('+') => None,
        _ => text.parse().ok(),
    }
}

/// A driver_override as sysfs writes it: `(null)` and nothing mean none.
pub fn driver_override(text: &str) -> Option<String> {
    (!text.is_empty() && text != "(null)").then(|| text.to_owned())
}

/// The index in the name of a PF's link to a VF.
pub fn vf_index(name: &str) -> Option<u32> {
    number(name.strip_prefix("virtfn")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_sysfs_are_read() {
        assert_eq!((number("7"), number("0x10c9"), number("-1")), (Some(7), Some(0x10c9), None));
        assert_eq!(
            (number(""), number("+7"), number("0x+7"), number("7x")),
            (None, None, None, None)
        );
        assert_eq!(
            (vf_index("virtfn12"), vf_index("virtfn"), vf_index("physfn")),
            (Some(12), None, None)
        );
        assert_eq!((driver_override("(null)"), driver_override("")), (None, None));
        assert_eq!(driver_override("igbvf"), Some("igbvf".into()));
    }

    #[test]
    fn no_value_is_read_as_another_number() {
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Some(value) = number(text) {
                let plain = text.trim_start_matches("0x").trim_start_matches('0').to_lowercase();
                let zero = if plain.is_empty() { "0".into() } else { plain };
                assert!(zero == value.to_string() || zero == format!("{value:x}"), "{text:?}");
            }
        });
    }

    #[test]
    fn a_directory_that_is_no_sysfs_is_refused() {
        let directory = tempfile::tempdir().expect("made");
        let error = Tree::new(directory.path()).pfs().expect_err("none");
        assert!(error.what.contains("is not sysfs"), "{}", error.what);
    }
}
