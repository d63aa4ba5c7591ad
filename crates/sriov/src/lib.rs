//! SR-IOV functions of this machine: their number, settings, drivers and netdevs, and how to restore
//! their earlier state. The only code that knows sysfs and the netlink of VFs.
//!
//! A [`plan::Plan`] is a value, made from a [`model::Machine`]; [`apply`] performs it through a
//! [`kernel::Kernel`].

pub mod address;
pub mod apply;
pub mod discover;
pub mod driver;
pub mod kernel;
pub mod link;
pub mod lookup;
pub mod model;
pub mod namespaces;
pub mod operate;
pub mod plan;
pub mod state;
pub mod sysfs;
pub mod vfinfo;

pub use pw_linux::mac;
