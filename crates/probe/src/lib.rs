//! Packets for Planewise. Knows frames, clocks, sockets and histograms; knows nothing of planes,
//! testbeds or experiments. Every subcommand prints one JSON object on stdout (docs/reference/formats.md).

pub mod affinity;
pub mod agent;
pub mod blast;
pub mod burn;
pub mod capture;
pub mod cli;
pub mod clock;
pub mod connect;
pub mod cpu;
pub mod filter;
pub mod frame;
pub mod histogram;
mod mapping;
pub mod netlink;
pub mod network;
pub mod output;
pub mod ping;
pub mod reflect;
pub mod sink;
pub mod stamp;
pub mod stop;
pub mod tap;
pub mod timestamping;
pub mod trial;
pub mod units;
pub mod wire;

pub use pw_error as error;
pub use pw_linux::netns;
