//! `planewised vf …`: reads its options, calls pw_sriov, prints the result.

mod change;
mod list;

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use pw_error::{Error, Result};
use pw_sriov::kernel::Linux;
use pw_sriov::operate::{Operator, Options};
use pw_sriov::state::State;

/// SR-IOV functions: list, set up, change, bind, move, and restore their former state.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,

    /// Where sysfs is, or a made-up tree of its shape
    #[arg(long, global = true, value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,

    /// Where records and locks are kept [default: /run/planewise/vf, for a plain user
    /// $XDG_RUNTIME_DIR/planewise/vf]
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
    Setup(change::SetupArgs),
    Set(change::SetArgs),
    Bind(change::BindArgs),
    Move(Box<change::MoveArgs>),
    Release(change::ReleaseArgs),
    Restore(change::RestoreArgs),
}

/// Options of all commands that change something.
#[derive(Debug, clap::Args)]
struct ChangeArgs {
    /// Print the steps, change nothing
    #[arg(long)]
    dry_run: bool,

    /// Who does this: others are then refused what it holds; with restore, whose changes to undo
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Also where the default route, the SSH session or another owner is in the way, or (setup)
    /// VFs are in use
    #[arg(long)]
    force: bool,

    /// How long to wait for another planewised that works on the same function
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    wait: f64,
}

impl ChangeArgs {
    fn options(&self) -> Result<Options> {
        let wait = Duration::try_from_secs_f64(self.wait).map_err(|_| {
            Error::bad_input(format!("--wait {} is no time to wait", self.wait), "in seconds")
        })?;
        Ok(Options { owner: self.owner.clone(), force: self.force, dry_run: self.dry_run, wait })
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<()> {
    let mut kernel = Linux::new(&args.sysfs);
    let state = State::new(args.state.clone().unwrap_or_else(State::default_directory));
    let how = match &args.command {
        Command::List(list) => return list::run(list, &mut kernel, &state, args.json),
        Command::Setup(args) => &args.how,
        Command::Set(args) => &args.how,
        Command::Bind(args) => &args.how,
        Command::Move(args) => &args.how,
        Command::Release(args) => &args.how,
        Command::Restore(args) => &args.how,
    };
    if kernel.is_real() && !how.dry_run && !nix::unistd::geteuid().is_root() {
        return Err(Error::failed(
            "VFs can be changed by root alone",
            "run it with sudo; --dry-run, which changes nothing, and `list` work for everybody",
        ));
    }
    let mut operator = Operator { kernel: &mut kernel, state: &state, options: how.options()? };
    match &args.command {
        Command::List(_) => Ok(()),
        Command::Setup(setup) => change::setup(setup, &mut operator, args.json),
        Command::Set(set) => change::set(set, &mut operator, args.json),
        Command::Bind(bind) => change::bind(bind, &mut operator, args.json),
        Command::Move(moved) => change::move_vf(moved, &mut operator, args.json),
        Command::Release(release) => change::release(release, &mut operator, args.json),
        Command::Restore(restore) => change::restore(restore, &mut operator, args.json),
    }
}
