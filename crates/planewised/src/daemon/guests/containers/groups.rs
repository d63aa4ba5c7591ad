//! Multicast groups that processes of a guest have joined.

use std::net::{Ipv4Addr, Ipv6Addr};

use pw_error::Result;
use pw_linux::netns::{Netns, run_in};

/// A multicast group that a process in this namespace has joined on this interface; the kernel's own do not
/// count, which it joins on the bond, too.
pub fn joined_group(netns: &Netns, interface: &str) -> Result<Option<String>> {
    let (four, six) = run_in(Some(netns), || {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default()
        };
        Ok((read("igmp"), read("igmp6")))
    })?;
    Ok(group_of_4(&four, interface).or_else(|| group_of_6(&six, interface)))
}

fn group_of_4(table: &str, interface: &str) -> Option<String> {
    let mut is_ours = false;
    for line in table.lines() {
        if !line.starts_with(char::is_whitespace) {
            is_ours = line.split_whitespace().nth(1) == Some(interface);
        } else if is_ours {
            let group = u32::from_str_radix(line.split_whitespace().next()?, 16).ok()?;
            let group = Ipv4Addr::from(group.to_ne_bytes());
            if group != Ipv4Addr::new(224, 0, 0, 1) {
                return Some(group.to_string());
            }
        }
    }
    None
}

fn group_of_6(table: &str, interface: &str) -> Option<String> {
    let groups = table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_ours = fields.next()? == interface;
        let group = u128::from_str_radix(fields.next()?, 16).ok().filter(|_| is_ours)?;
        Some(Ipv6Addr::from(group))
    });
    // All nodes, all routers, and those that nodes solicit.
    let is_kernels = |group: &Ipv6Addr| match group.segments() {
        [0xff01 | 0xff02 | 0xff05, 0, 0, 0, 0, 0, 0, 1 | 2] => true,
        [0xff02, 0, 0, 0, 0, 1, high, _] => high >> 8 == 0xff,
        _ => false,
    };
    groups.into_iter().find(|group| !is_kernels(group)).map(|group| group.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_processes_joined_are_told_from_the_kernels_own() {
        let four = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
1\tlo        :     1      V3\n\t\t\t\tFB0000E0     1 0:00000000\t\t0
7\teth0      :     2      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
        assert_eq!(group_of_4(four, "eth0"), None);
        assert_eq!(group_of_4(four, "lo").as_deref(), Some("224.0.0.251"));
        let six = "7    eth0            ff02000000000000000000000000fb     1 00000004 0
7    eth0            ff020000000000000000000000000001     1 0000000C 0
7    eth0            ff0200000000000000000001ff000002     1 00000004 0
8    eth1            ff0200000000000000000000000000fb     1 00000004 0\n";
        assert_eq!(group_of_6(six, "eth1").as_deref(), Some("ff02::fb"));
        let own = six.lines().skip(1).collect::<Vec<_>>().join("\n");
        assert_eq!(group_of_6(&own, "eth0"), None);
    }
}
