//! `planewised vf …`: reads its options, calls pw_sriov, prints what came of it.

mod list;

use std::path::PathBuf;

use clap::Subcommand;
use pw_linux::error::Result;
use pw_sriov::kernel::Linux;

/// SR-IOV functions: list, set up, change, bind, move, and bring back what was before.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where sysfs is, or a made-up tree of its shape
    #[arg(long, global = true, value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,

    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
}

/// Runs the subcommand.
///
/// # Errors
/// It could not be done; the sentence says what and where.
pub fn run(args: &Args) -> Result<()> {
    let mut kernel = Linux::new(&args.sysfs);
    match &args.command {
        Command::List(list) => list::run(list, &mut kernel, args.json),
    }
}
