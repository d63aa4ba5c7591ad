//! The `pw-probe` command: parses its arguments, runs one subcommand, prints its JSON.

use clap::Parser;

fn main() -> std::process::ExitCode {
    pw_probe::cli::main(pw_probe::cli::Cli::parse())
}
