//! Who uses a VF.

use std::collections::BTreeMap;

use pw_alloc::evidence::User;
use pw_error::Result;
use pw_sriov::driver;
use pw_sriov::kernel::{Linux, vital_interfaces};
use pw_sriov::model;
use pw_sriov::state::{Before, Record, State};

/// The host's own use of VFs.
pub struct HostUse {
    /// Interfaces that carry the default route or an SSH session, with the reason.
    vital: BTreeMap<String, String>,
    /// Records of `planewised vf`.
    records: Vec<Record>,
    /// The operator enrolled the VFs: one that is only up is nobody's.
    enrolled: bool,
}

impl HostUse {
    /// Reads the vital interfaces and the records.
    pub fn of(kernel: &mut Linux, state: &State, enrolled: bool) -> Result<Self> {
        Ok(Self { vital: vital_interfaces(kernel)?, records: state.all()?, enrolled })
    }

    /// The user of a VF.
    pub fn user(&self, vf: &model::Vf) -> User {
        let used_by = || vf.used_by.clone().unwrap_or_default();
        if vf.use_is_unknown {
            return User::Unknown(used_by());
        }
        if vf.driver.as_deref() == Some(driver::VFIO) {
            return match &vf.used_by {
                Some(process) => User::Guest(process.clone()),
                None => self.recorded(vf),
            };
        }
        match &vf.netdev {
            None if vf.driver.is_some() => {
                User::Unknown("its interface is in no namespace that can be seen".to_owned())
            }
            Some(netdev) if !netdev.netns.is_host() => User::Guest(used_by()),
            Some(netdev) => match self.vital.get(&netdev.name) {
                Some(reason) => {
                    User::Host(format!("its interface {} carries {reason}", netdev.name))
                }
                None if vf.used_by.is_some() => User::Host(used_by()),
                None if netdev.up && !self.enrolled => User::Host(format!(
                    "its interface {} is up, and [pool] pfs does not name its PF",
                    netdev.name
                )),
                None => self.recorded(vf),
            },
            None => self.recorded(vf),
        }
    }

    /// A VF that `planewised vf` moved, or changed for an owner, is used by the owner until it is restored.
    fn recorded(&self, vf: &model::Vf) -> User {
        let record = self.records.iter().find(|record| record.address() == vf.address);
        match record {
            Some(Record { owner, before: Before::Vf { before_move, .. }, .. })
                if owner.is_some() || before_move.is_some() =>
            {
                let owner = owner.as_deref().unwrap_or("nobody by name");
                User::Host(format!("`planewised vf` keeps it for {owner}"))
            }
            _ => User::Nobody,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use pw_sriov::model::{Namespace, NetNs, Netdev};

    use super::*;

    /// A VF at home that nobody uses.
    pub fn vf() -> model::Vf {
        let netdev =
            Netdev { name: "pf0v0".into(), index: 7, mtu_bytes: 1500, ..Netdev::default() };
        model::Vf {
            index: 0,
            address: "0000:01:10.0".parse().expect("valid"),
            driver: Some("igbvf".into()),
            driver_override: None,
            numa_node: None,
            iommu_group: None,
            config: None,
            netdev: Some(netdev),
            counters: model::Counters::Unsupported { reason: "igb counts none".into() },
            used_by: None,
            use_is_unknown: false,
            owner: None,
        }
    }

    fn user(host_use: &HostUse, change: impl FnOnce(&mut model::Vf)) -> User {
        let mut vf = vf();
        change(&mut vf);
        host_use.user(&vf)
    }

    #[test]
    fn whoever_uses_a_vf_is_told_and_only_one_that_is_seen_to_be_unused_is_nobodys() {
        let none = HostUse { vital: BTreeMap::new(), records: Vec::new(), enrolled: false };
        assert_eq!(user(&none, |_| ()), User::Nobody);
        assert_eq!(
            user(&none, |vf| vf.used_by = Some("it has the address 198.18.0.1/24".into())),
            User::Host("it has the address 198.18.0.1/24".into())
        );
        let away = NetNs::Other(Namespace { inode: 9, path: "/run/netns/web".into() });
        let moved = user(&none, |vf| {
            vf.netdev.as_mut().expect("it has one").netns = away;
            vf.used_by = Some("the namespace web has it".into());
        });
        assert_eq!(moved, User::Guest("the namespace web has it".into()));
        let nowhere = user(&none, |vf| vf.netdev = None);
        assert!(matches!(nowhere, User::Unknown(_)), "{nowhere:?}");
        let opened = user(&none, |vf| {
            (vf.netdev, vf.driver) = (None, Some(driver::VFIO.into()));
            vf.used_by = Some("process 7 (qemu) has it open".into());
        });
        assert_eq!(opened, User::Guest("process 7 (qemu) has it open".into()));
        let unread = user(&none, |vf| {
            (vf.netdev, vf.driver) = (None, Some(driver::VFIO.into()));
            (vf.used_by, vf.use_is_unknown) = (Some("process 7 cannot be read".into()), true);
        });
        assert_eq!(unread, User::Unknown("process 7 cannot be read".into()));
        let unbound = user(&none, |vf| (vf.netdev, vf.driver) = (None, None));
        assert_eq!(unbound, User::Nobody);
        // Whoever set it up may drive it, by DPDK or by a child in a container, without an address.
        let up = |vf: &mut model::Vf| vf.netdev.as_mut().expect("it has one").up = true;
        assert!(matches!(user(&none, up), User::Host(why) if why.contains("is up")));
        assert_eq!(user(&HostUse { enrolled: true, ..none }, up), User::Nobody);
    }

    #[test]
    fn the_hosts_own_way_out_and_what_planewised_vf_keeps_are_the_hosts() {
        let vital = [("pf0v0".to_owned(), "the default route".to_owned())].into();
        let vital = HostUse { vital, records: Vec::new(), enrolled: false };
        let host = "its interface pf0v0 carries the default route";
        assert_eq!(user(&vital, |_| ()), User::Host(host.into()));
        let before = || Before::Vf {
            pf: "0000:01:00.0".parse().expect("valid"),
            first: Box::new(vf()),
            before_move: None,
        };
        let kept = |owner: Option<&str>| {
            let records = vec![Record::new(before(), owner.map(Into::into), false)];
            user(&HostUse { vital: BTreeMap::new(), records, enrolled: false }, |_| ())
        };
        assert_eq!(kept(Some("ci")), User::Host("`planewised vf` keeps it for ci".into()));
        // A setting that somebody changed and nobody keeps is no use of the VF.
        assert_eq!(kept(None), User::Nobody);
    }
}
