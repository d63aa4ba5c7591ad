//! The `planewised` command: parses its arguments and runs one subcommand.

use clap::Parser;

fn main() -> std::process::ExitCode {
    planewised::cli::main(planewised::cli::Cli::parse(), None)
}
