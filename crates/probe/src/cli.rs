//! The command line of `pw-probe`: one variant a subcommand, each with a module of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;
use crate::{agent, blast, burn, connect, cpu, network, ping, reflect, sink, tap, trial};

/// Packets for Planewise: measures latency, loss and throughput between two interfaces.
#[derive(Debug, Parser)]
#[command(name = "pw-probe", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands; the help of each is the text of its `Args`.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "a text here would hide that of the Args")]
pub enum Command {
    Ping(Box<ping::Args>),
    Reflect(reflect::Args),
    Tap(tap::Args),
    Trial(Box<trial::Args>),
    Send(Box<trial::send::Args>),
    Receive(trial::receive::Args),
    Blast(blast::Args),
    Sink(sink::Args),
    Connect(connect::Args),
    Accept(connect::AcceptArgs),
    Burn(burn::Args),
    Cpu(cpu::Args),
    Agent(agent::Args),
    Network(network::Args),
}

/// Runs the command; prints JSON on stdout, errors on stderr.
pub fn main(cli: Cli) -> ExitCode {
    pw_error::exit("pw-probe", run(&cli.command))
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Ping(args) => ping::run(args),
        Command::Reflect(args) => reflect::run(args),
        Command::Tap(args) => tap::run(args),
        Command::Trial(args) => trial::run(args),
        Command::Send(args) => trial::send::run(args),
        Command::Receive(args) => trial::receive::run(args),
        Command::Blast(args) => blast::run(args),
        Command::Sink(args) => sink::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Accept(args) => connect::accept(args),
        Command::Burn(args) => burn::run(args),
        Command::Cpu(args) => cpu::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Network(args) => network::run(args),
    }
}
