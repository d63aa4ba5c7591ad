//! Facts about drivers that no kernel interface tells. Touches nothing.

use crate::model::{Counters, VfCounters};

/// The driver through which user space (a guest) drives a VF.
pub const VFIO: &str = "vfio-pci";

/// Drivers that may have functions of an IOMMU group that is passed through.
pub const VFIO_ALLOWED: &[&str] = &[VFIO, "pci-stub", "pcieport"];

/// The network driver for the VFs of a PF's driver; none when it is not known.
pub fn network_driver_of_vfs(pf_driver: &str) -> Option<&str> {
    Some(match pf_driver {
        "igb" => "igbvf",
        "ixgbe" => "ixgbevf",
        "i40e" | "ice" | "idpf" => "iavf",
        "cxgb4" => "cxgb4vf",
        "LiquidIO" => "LiquidIO_VF",
        "fm10k" | "mlx5_core" | "mlx4_core" | "bnxt_en" | "bnx2x" | "qede" | "sfc" | "ionic"
        | "be2net" | "enic" | "nfp" | "hinic" => pf_driver,
        _ => return None,
    })
}

/// Drivers whose `ndo_get_vf_stats` fills the counters, with a kernel (major, minor) known to have it.
const COUNTING: &[(&str, (u32, u32))] = &[
    ("mlx5_core", (4, 15)),
    ("ice", (5, 10)),
    ("i40e", (5, 10)),
    ("ionic", (5, 10)),
    ("LiquidIO", (5, 10)),
    ("ixgbe", (6, 1)),
];

/// Drivers that are known to fill no counter: the kernel sends zeros.
const SILENT: &[&str] = &["igb"];

/// Tells counters from zeros that mean nothing.
///
/// rtnetlink sends IFLA_VF_STATS full of zeros for a driver without `ndo_get_vf_stats`. A nonzero
/// count on any VF of the PF (`counts_on_pf`) proves that the driver counts; without one, only a
/// driver in `COUNTING` is believed.
pub fn judge(
    driver: Option<&str>,
    kernel: (u32, u32),
    counters: Option<VfCounters>,
    counts_on_pf: bool,
) -> Counters {
    let driver = driver.unwrap_or("none");
    let unsupported = |reason: String| Counters::Unsupported { reason };
    let Some(counters) = counters else {
        return unsupported(format!("the kernel sends no counters for VFs of the driver {driver}"));
    };
    let counting = COUNTING.iter().any(|(name, since)| *name == driver && kernel >= *since);
    if counts_on_pf || counting {
        return Counters::Supported(counters);
    }
    if SILENT.contains(&driver) {
        return unsupported(format!("the driver {driver} keeps no counters for VFs"));
    }
    unsupported(format!(
        "the driver {driver} is not known to keep counters for VFs, and those of this PF are all zero"
    ))
}

/// Major and minor number of a kernel's release, such as `6.12.1-amd64`.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supported(driver: &str, kernel: (u32, u32), counts: bool) -> bool {
        let zeros = Some(VfCounters::default());
        matches!(judge(Some(driver), kernel, zeros, counts), Counters::Supported(_))
    }

    #[test]
    fn zeros_are_believed_of_drivers_that_count_and_of_no_other() {
        assert!(supported("mlx5_core", (6, 1), false));
        assert!(!supported("igb", (6, 12), false));
        assert!(!supported("novel", (6, 12), false));
        assert!(!supported("ixgbe", (5, 10), false));
        assert!(supported("ixgbe", (6, 1), false));
    }

    #[test]
    fn a_count_that_was_seen_is_proof() {
        assert!(supported("novel", (6, 12), true));
        assert!(supported("igb", (9, 0), true));
        assert!(matches!(judge(Some("igb"), (9, 0), None, true), Counters::Unsupported { .. }));
    }

    #[test]
    fn releases_of_distributions_are_read() {
        assert_eq!(kernel_version("6.12.57+deb13-amd64"), Some((6, 12)));
        assert_eq!(kernel_version("5.4.0-171-generic"), Some((5, 4)));
        assert_eq!(kernel_version("linux"), None);
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = kernel_version(text);
        });
    }
}
