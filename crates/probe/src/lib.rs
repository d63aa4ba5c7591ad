//! Packets for Planewise. Knows frames, clocks, sockets and histograms; knows nothing of planes,
//! testbeds or experiments. Every subcommand prints one JSON object on stdout (docs/formats.md).

pub mod cli;
pub mod clock;
pub mod cpu;
pub mod error;
pub mod histogram;
pub mod netns;
pub mod output;
pub mod ping;
pub mod reflect;
pub mod stamp;
pub mod stop;
pub mod timestamping;
pub mod units;
pub mod wire;
