//! `planewised` as a node agent, which can join a cluster; and the controller over all nodes.

use clap::{Parser, Subcommand};

const PROGRAM: &str = "planewised-kubernetes";

/// Planewise on a Kubernetes node: its VFs and who holds them; and the view over all nodes.
#[derive(Parser)]
#[command(name = PROGRAM, version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Controller(pw_kube::controller::Args),
    #[command(flatten)]
    Host(planewised::cli::Command),
}

fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(text) => return pw_error::exit_printed(PROGRAM, text.print(), text.exit_code()),
    };
    match cli.command {
        Command::Controller(args) => pw_error::exit(PROGRAM, pw_kube::controller::run(&args)),
        Command::Host(command) => {
            planewised::cli::main(planewised::cli::Cli { command }, Some(&pw_kube::Kubernetes))
        }
    }
}
