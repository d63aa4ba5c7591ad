//! SR-IOV functions of this machine: which there are, their number, their settings, their drivers,
//! where their netdevs are, and the way back to what was before. The only code that knows sysfs and
//! the netlink of VFs. Knows nothing of guests, planes, or who deserves a VF.
//!
//! A [`plan::Plan`] is a value, made from a [`model::Machine`] that was read; [`apply`] performs it
//! through a [`kernel::Kernel`].

pub mod address;
pub mod discover;
pub mod driver;
pub mod kernel;
pub mod link;
pub mod mac;
pub mod model;
pub mod namespaces;
pub mod sysfs;
pub mod vfinfo;
