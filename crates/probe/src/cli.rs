//! The command line of `pw-probe`: one variant a subcommand, each with a module of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Packets for Planewise: measures latency, loss and throughput between two interfaces.
#[derive(Debug, Parser)]
#[command(name = "pw-probe", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {}

/// Runs the command; prints JSON on stdout, errors on stderr.
pub fn main(cli: Cli) -> ExitCode {
    match cli.command {}
}
