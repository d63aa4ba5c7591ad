//! The `pw-probe` command: parses its arguments, runs one subcommand, prints its JSON.

use clap::Parser;

fn main() -> std::process::ExitCode {
    match pw_probe::cli::Cli::try_parse() {
        Ok(cli) => pw_probe::cli::main(cli),
        Err(text) => pw_error::exit_printed("pw-probe", text.print(), text.exit_code()),
    }
}
