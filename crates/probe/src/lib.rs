//! Packets for Planewise: frames, clocks, sockets and histograms. Every subcommand prints one JSON
//! object on stdout (docs/reference/probe-output.md).

mod affinity;
mod agent;
mod blast;
mod burn;
mod capture;
pub mod cli;
mod clock;
mod connect;
mod cpu;
mod filter;
mod frame;
mod histogram;
mod netlink;
mod network;
mod output;
mod ping;
mod reflect;
mod resolve;
mod sink;
mod sockets;
mod stamp;
mod stop;
mod tap;
mod trial;
mod units;
mod wire;

use pw_error as error;
use pw_linux::{netns, threads};
