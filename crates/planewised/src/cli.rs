//! The command line of `planewised`: one variant a subcommand, each with a module of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pw_error::Result;

use crate::daemon::cluster::Cluster;
use crate::{daemon, simulate, vf};

/// Planewise on a host: its SR-IOV functions, and who holds them.
#[derive(Debug, Parser)]
#[command(name = "planewised", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands; the help of each is the text of its `Args`.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "a text here would hide that of the Args")]
pub enum Command {
    Vf(Box<vf::Args>),
    Simulate(Box<simulate::Args>),
    Daemon(daemon::run::Args),
}

/// Runs the command; prints its result on stdout, errors on stderr. `cluster` lets the daemon join a
/// cluster.
pub fn main(cli: Cli, cluster: Option<&dyn Cluster>) -> ExitCode {
    pw_error::exit("planewised", run(&cli.command, cluster))
}

fn run(command: &Command, cluster: Option<&dyn Cluster>) -> Result<()> {
    match command {
        Command::Vf(args) => vf::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Daemon(args) => daemon::run::run(args, cluster),
    }
}
