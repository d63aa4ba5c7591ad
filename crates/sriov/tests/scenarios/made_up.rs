//! A kernel that is made up: a sysfs tree in a directory, and interfaces in memory, which behave as
//! igb, igbvf and vfio-pci do in the lab.

use std::collections::BTreeMap;
use std::fs;
use std::io::Error as IoError;
use std::os::unix::fs::symlink;
use std::path::Path;

use pw_error::{Error, Result};
use pw_sriov::address::PciAddress;
use pw_sriov::kernel::{Holder, Kernel};
use pw_sriov::link::{Change, Link, Outcome, Setting};
use pw_sriov::mac::Mac;
use pw_sriov::model::{
    LinkState, Namespace, NetNs, Netdev, VfConfig, VfCounters, Vlan, VlanProtocol,
};
use pw_sriov::sysfs::Tree;
use pw_sriov::vfinfo::VfInfo;

pub const PF: &str = "0000:01:00.0";
const OFFSET: u32 = 128;
const STRIDE: u32 = 2;
const TOTAL: u32 = 7;

pub struct MadeUp {
    directory: tempfile::TempDir,
    tree: Tree,
    links: Vec<Link>,
    /// What the PF was told, and whether it was told a MAC.
    vfs: BTreeMap<u32, (VfInfo, bool)>,
    namespaces: Vec<Namespace>,
    next_index: u32,
    pub vital: Vec<(String, String)>,
    pub vfio_holder: Holder,
    pub counted: u64,
    /// What the kernel answers to a number of VFs.
    pub refuses_vfs: Option<i32>,
    /// How often the VFs' driver will not hear from the PF which MAC a VF has.
    pub deaf: u32,
}

impl MadeUp {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("made");
        let tree = Tree::new(directory.path());
        for driver in ["igb", "igbvf", "vfio-pci"] {
            fs::create_dir_all(tree.path("bus/pci/drivers").join(driver)).expect("made");
        }
        fs::write(tree.path("bus/pci/drivers_probe"), "").expect("written");
        let mut made = Self {
            directory,
            tree,
            links: Vec::new(),
            vfs: BTreeMap::new(),
            namespaces: Vec::new(),
            next_index: 1,
            vital: Vec::new(),
            vfio_holder: Holder::Nobody,
            counted: 0,
            refuses_vfs: None,
            deaf: 0,
        };
        let pf: PciAddress = PF.parse().expect("valid");
        made.function(pf, "igb_pf", 7);
        for (file, value) in [
            ("sriov_totalvfs", TOTAL.to_string()),
            ("sriov_numvfs", "0".into()),
            ("sriov_drivers_autoprobe", "1".into()),
            ("sriov_offset", OFFSET.to_string()),
            ("sriov_stride", STRIDE.to_string()),
        ] {
            made.put(pf, file, &value);
        }
        made.drive(pf, "igb");
        made.add_netdev(pf, "pf0", Mac([2, 0x70, 0x77, 0x6c, 0, 0]), true);
        let netdev = made.netdev(pf).expect("just made");
        netdev.up = true;
        netdev.carrier = Some(true);
        made
    }

    pub fn add_namespace(&mut self, name: &str) -> NetNs {
        let inode = 4_026_532_000 + self.namespaces.len() as u64;
        let namespace = Namespace { inode, path: format!("/run/netns/{name}") };
        self.namespaces.push(namespace.clone());
        NetNs::Other(namespace)
    }

    /// A namespace ends: what was in it comes home, under its name there if that is free.
    pub fn end_namespace(&mut self, place: &NetNs) {
        let taken: Vec<String> = self.names(&NetNs::Host);
        for link in self.links.iter_mut().filter(|link| link.netdev.netns == *place) {
            let netdev = &mut link.netdev;
            netdev.netns = NetNs::Host;
            netdev.up = false;
            netdev.addresses.clear();
            if taken.contains(&netdev.name) {
                netdev.name = format!("dev{}", netdev.index);
            }
        }
        self.namespaces.retain(|namespace| NetNs::Other(namespace.clone()) != *place);
    }

    pub fn netdev(&mut self, address: PciAddress) -> Option<&mut Netdev> {
        let link = self.links.iter_mut().find(|link| link.device == Some(address));
        link.map(|link| &mut link.netdev)
    }

    fn names(&self, place: &NetNs) -> Vec<String> {
        let there = self.links.iter().filter(|link| link.netdev.netns == *place);
        there.map(|link| link.netdev.name.clone()).collect()
    }

    fn put(&self, address: PciAddress, file: &str, value: &str) {
        let path = self.tree.path("bus/pci/devices").join(address.to_string()).join(file);
        fs::write(path, format!("{value}\n")).expect("written");
    }

    fn function(&self, address: PciAddress, kind: &str, group: u32) {
        let place = self.tree.path("bus/pci/devices").join(address.to_string());
        fs::create_dir_all(&place).expect("made");
        let groups = self.directory.path().join("kernel/iommu_groups").join(group.to_string());
        fs::create_dir_all(groups.join("devices")).expect("made");
        let member = groups.join("devices").join(address.to_string());
        if !member.is_symlink() {
            symlink(&place, member).expect("linked"); // a VF that comes back finds its own
        }
        symlink(groups, place.join("iommu_group")).expect("linked");
        let device = if kind == "igb_pf" { "0x10c9" } else { "0x10ca" };
        self.put(address, "vendor", "0x8086");
        self.put(address, "device", device);
        self.put(address, "numa_node", "-1");
        self.put(address, "driver_override", "(null)");
    }

    /// Takes the IOMMU away from a function.
    pub fn leave_iommu(&self, address: PciAddress) {
        let place = self.tree.path("bus/pci/devices").join(address.to_string());
        fs::remove_file(place.join("iommu_group")).expect("removed");
    }

    /// Puts another function, which a driver has, into the IOMMU group of this one.
    pub fn share_group(&self, address: PciAddress, other: PciAddress, driver: &str) {
        let devices = self.tree.path("bus/pci/devices");
        let mate = devices.join(other.to_string());
        fs::create_dir_all(&mate).expect("made");
        self.drive(other, driver);
        let group = devices.join(address.to_string()).join("iommu_group/devices");
        symlink(&mate, group.join(other.to_string())).expect("linked");
    }

    fn drive(&self, address: PciAddress, driver: &str) {
        let place = self.tree.path("bus/pci/devices").join(address.to_string()).join("driver");
        symlink(self.tree.path("bus/pci/drivers").join(driver), place).expect("linked");
    }

    fn add_netdev(&mut self, address: PciAddress, name: &str, mac: Mac, permanent: bool) {
        self.next_index += 1;
        let netdev = Netdev {
            name: name.into(),
            index: self.next_index,
            mac: Some(mac),
            mac_is_permanent: Some(permanent),
            mtu_bytes: 1500,
            carrier: Some(false),
            ..Netdev::default()
        };
        self.links.push(Link { device: Some(address), representor: false, netdev });
    }

    /// Makes the PF's switch forward by the host's rules.
    pub fn represent(&mut self, pf: PciAddress) {
        self.add_netdev(pf, "pf0vf0", Mac([2, 0x70, 0x77, 0x6c, 1, 0]), true);
        self.links.last_mut().expect("just made").representor = true;
    }

    fn vf_index(&self, address: PciAddress) -> Option<u32> {
        let pf = PF.parse().expect("valid");
        self.tree.vfs(pf).into_iter().find(|(_, vf)| *vf == address).map(|(index, _)| index)
    }

    fn set_numvfs(&mut self, pf: PciAddress, count: u32) -> std::result::Result<(), IoError> {
        if let Some(code) = self.refuses_vfs.filter(|_| count > 0) {
            return Err(IoError::from_raw_os_error(code));
        }
        let now = self.tree.number(pf, "sriov_numvfs").unwrap_or(0);
        if count > TOTAL {
            return Err(IoError::from_raw_os_error(34));
        }
        if count > 0 && now > 0 {
            return Err(IoError::from_raw_os_error(16));
        }
        for (index, vf) in self.tree.vfs(pf) {
            self.unbind(vf);
            let devices = self.tree.path("bus/pci/devices");
            fs::remove_dir_all(devices.join(vf.to_string())).expect("removed");
            let link = devices.join(pf.to_string()).join(format!("virtfn{index}"));
            fs::remove_file(link).expect("removed");
        }
        self.vfs.clear();
        self.put(pf, "sriov_numvfs", &count.to_string());
        for index in 0..count {
            let vf = pf.plus(OFFSET + STRIDE * index).expect("fits");
            self.function(vf, "igb_vf", 8 + index);
            let devices = self.tree.path("bus/pci/devices");
            let (up, down) = (devices.join(pf.to_string()), devices.join(vf.to_string()));
            symlink(&up, down.join("physfn")).expect("linked");
            symlink(&down, up.join(format!("virtfn{index}"))).expect("linked");
            let config = VfConfig {
                mac: Some(Mac::NONE),
                vlan: Some(Vlan { id: 0, qos: 0, protocol: VlanProtocol::Dot1q }),
                min_tx_mbps: Some(0),
                max_tx_mbps: Some(0),
                spoof_check: Some(true),
                trust: Some(false),
                link_state: Some(LinkState::Auto),
            };
            let info = VfInfo { index, config, counters: Some(VfCounters::default()) };
            self.vfs.insert(index, (info, false));
            if self.tree.number(pf, "sriov_drivers_autoprobe") == Some(1) {
                self.bind(vf, "igbvf");
            }
        }
        Ok(())
    }

    fn bind(&mut self, vf: PciAddress, driver: &str) {
        self.drive(vf, driver);
        if driver != "igbvf" {
            return;
        }
        let index = self.vf_index(vf).expect("a VF");
        let drawn = Mac([2, 0xaa, 0, 0, 0, self.next_index as u8]);
        let config = &mut self.vfs.get_mut(&index).expect("there").0.config;
        let mut told = config.mac.filter(|mac| *mac != Mac::NONE);
        if told.is_some() && self.deaf > 0 {
            self.deaf -= 1;
            told = None;
            if config.trust == Some(true) {
                config.mac = Some(drawn);
            }
        }
        let taken = self.names(&NetNs::Host);
        let name = (0..).map(|n| format!("eth{n}")).find(|name| !taken.contains(name));
        self.add_netdev(vf, &name.expect("one is free"), told.unwrap_or(drawn), told.is_some());
    }

    fn unbind(&mut self, vf: PciAddress) {
        let link = self.tree.path("bus/pci/devices").join(vf.to_string()).join("driver");
        let _ = fs::remove_file(link);
        self.links.retain(|link| link.device != Some(vf));
    }
}

impl Kernel for MadeUp {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn version(&self) -> (u32, u32) {
        (6, 12)
    }

    fn links(&mut self, place: &NetNs) -> Result<Vec<Link>> {
        if let NetNs::Other(namespace) = place
            && !self.namespaces.contains(namespace)
        {
            return Err(Error::failed(format!("{place} is gone"), ""));
        }
        Ok(self.links.iter().filter(|link| link.netdev.netns == *place).cloned().collect())
    }

    fn namespaces(&mut self, _thorough: bool) -> Vec<Namespace> {
        self.namespaces.clone()
    }

    fn vfs(&mut self, _pf: &Netdev) -> Result<Option<Vec<VfInfo>>> {
        let counters = VfCounters { rx_packets: self.counted, ..VfCounters::default() };
        let infos = self.vfs.values().map(|(info, _)| info.clone());
        Ok(Some(infos.map(|info| VfInfo { counters: Some(counters), ..info }).collect()))
    }

    fn holders(&mut self, vfs: &[PciAddress]) -> BTreeMap<PciAddress, Holder> {
        let held = |vf: &&PciAddress| self.tree.link(**vf, "driver").as_deref() == Some("vfio-pci");
        vfs.iter().filter(held).map(|vf| (*vf, self.vfio_holder.clone())).collect()
    }

    fn vital(&mut self) -> Result<Vec<(String, String)>> {
        Ok(self.vital.clone())
    }

    fn write(&mut self, file: &Path, value: &str) -> std::result::Result<(), IoError> {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let address = |text: &str| text.parse::<PciAddress>().expect("an address");
        match parts[..] {
            ["bus", "pci", "drivers_probe"] => {
                let vf = address(value);
                if self.tree.link(vf, "driver").is_some() {
                    return Ok(());
                }
                let wanted = self.tree.text(vf, "driver_override").unwrap_or_default();
                let wanted = pw_sriov::sysfs::driver_override(&wanted);
                let probes = self.tree.number(address(PF), "sriov_drivers_autoprobe") == Some(1);
                match wanted {
                    Some(driver) if self.tree.has_driver(&driver) => self.bind(vf, &driver),
                    None if probes => self.bind(vf, "igbvf"),
                    _ => {}
                }
            }
            ["bus", "pci", "devices", device, "driver", "unbind"] => {
                if self.tree.link(address(device), "driver").is_none() {
                    return Err(IoError::from_raw_os_error(2));
                }
                self.unbind(address(device));
            }
            ["bus", "pci", "devices", device, "sriov_numvfs"] => {
                self.set_numvfs(address(device), value.parse().expect("a number"))?;
            }
            ["bus", "pci", "devices", device, name] => {
                if self.tree.text(address(device), name).is_none() {
                    return Err(IoError::from_raw_os_error(2));
                }
                let value = if value.is_empty() { "(null)" } else { value };
                self.put(address(device), name, value);
            }
            _ => panic!("nobody writes into {}", file.display()),
        }
        Ok(())
    }

    fn set_vf(&mut self, _pf: &Netdev, vf: u32, setting: Setting) -> Result<Outcome> {
        let Some((info, told)) = self.vfs.get_mut(&vf) else { return Ok(Err(22)) };
        let config = &mut info.config;
        match setting {
            Setting::Mac(mac) => {
                config.mac = Some(mac);
                *told = mac != Mac::NONE;
            }
            Setting::Vlan(vlan) => config.vlan = Some(vlan),
            // igb's link has 1000 Mbit/s and no least rate.
            Setting::Rate { min_tx_mbps, max_tx_mbps } => {
                if min_tx_mbps > 0 || max_tx_mbps > 1000 {
                    return Ok(Err(22));
                }
                config.max_tx_mbps = Some(max_tx_mbps);
            }
            Setting::SpoofCheck(on) => config.spoof_check = Some(on),
            Setting::Trust(on) => config.trust = Some(on),
            Setting::LinkState(_) => return Ok(Err(95)),
        }
        Ok(Ok(()))
    }

    fn change(&mut self, netdev: &Netdev, change: &Change) -> Result<Outcome> {
        let taken = self.names(&netdev.netns);
        let Some(link) = self.links.iter_mut().find(|link| link.netdev.index == netdev.index)
        else {
            return Ok(Err(19));
        };
        let device = link.device;
        let now = &mut link.netdev;
        match change {
            Change::Up(up) => {
                now.up = *up;
                if !up {
                    now.addresses.retain(|address| !address.contains(':'));
                }
            }
            Change::Name(name) if taken.contains(name) => return Ok(Err(17)),
            Change::Name(_) if now.up => return Ok(Err(16)),
            Change::Name(name) => now.name.clone_from(name),
            Change::MtuBytes(mtu) => now.mtu_bytes = *mtu,
            Change::AddAddress(address) => now.addresses.push(address.to_string()),
            Change::DeleteAddress(address) => {
                now.addresses.retain(|other| *other != address.to_string());
            }
            Change::Mac(mac) => {
                let index = device.and_then(|vf| self.vf_index(vf)).expect("a VF");
                let (info, told) = self.vfs.get_mut(&index).expect("there");
                if *told {
                    return Ok(Err(99));
                }
                info.config.mac = Some(*mac);
                let link = self.links.iter_mut().find(|link| link.device == device);
                link.expect("there").netdev.mac = Some(*mac);
            }
        }
        Ok(Ok(()))
    }

    fn move_to_netns(&mut self, netdev: &Netdev, to: &NetNs, name: &str) -> Result<Outcome> {
        if let NetNs::Other(namespace) = to
            && !self.namespaces.contains(namespace)
        {
            return Err(Error::failed(format!("{to} is gone"), ""));
        }
        if self.names(to).iter().any(|taken| taken == name) {
            return Ok(Err(17));
        }
        let link = self.links.iter_mut().find(|link| link.netdev.index == netdev.index);
        let now = &mut link.expect("there").netdev;
        now.netns = to.clone();
        now.name = name.into();
        now.up = false;
        now.addresses.clear();
        Ok(Ok(()))
    }
}
