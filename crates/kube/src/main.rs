//! `planewised` as a node agent: the same program, which can join a cluster.

use clap::Parser;

fn main() -> std::process::ExitCode {
    planewised::cli::main(planewised::cli::Cli::parse(), Some(&pw_kube::Kubernetes))
}
