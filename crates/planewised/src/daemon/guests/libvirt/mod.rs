//! libvirt's virtual machines as guests.

pub mod api;
pub mod domain;
pub mod packet;
pub mod socket;
pub mod xdr;
