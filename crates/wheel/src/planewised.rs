//! The `planewised` command: parses its arguments and runs one subcommand.

use clap::Parser;

fn main() -> std::process::ExitCode {
    match planewised::cli::Cli::try_parse() {
        Ok(cli) => planewised::cli::main(cli, None),
        Err(text) => pw_error::exit_printed("planewised", text.print(), text.exit_code()),
    }
}
