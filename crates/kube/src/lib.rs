//! This host as a node of a Kubernetes cluster: pods become guests of the daemon, and the holders of VFs
//! are published in the cluster (docs/reference/kubernetes.md). Decides nothing about VFs.

pub mod controller;
mod devices;
mod feeds;
mod node;
mod objects;
mod policy;
mod process;
mod publish;
mod report;
mod slices;
mod write;

use std::path::Path;
use std::sync::Arc;

use kube::config::{KubeConfigOptions, Kubeconfig};
use planewised::daemon::cluster::{Cluster, Node};
use planewised::daemon::config;
use planewised::daemon::status::Status;
use pw_error::{Error, Result};
use tokio::sync::watch;

/// Joins the cluster by its API server.
#[derive(Debug, Clone, Copy)]
pub struct Kubernetes;

impl Cluster for Kubernetes {
    fn join(
        &self,
        config: &config::Kubernetes,
        status: watch::Receiver<Arc<Status>>,
    ) -> Result<Node> {
        let name = config.node.clone().or_else(|| std::env::var("NODE_NAME").ok());
        let name = name.filter(|name| is_name(name)).ok_or_else(|| {
            Error::bad_input(
                "[kubernetes] names no node",
                "set node = \"…\", or the environment variable NODE_NAME (the DaemonSet does)",
            )
        })?;
        let runtime = runtime()?;
        let client = runtime.block_on(client(config.kubeconfig.as_deref()))?;
        let shared = Arc::new(node::Shared::default());
        let (config, agents_share) = (config.clone(), Arc::clone(&shared));
        let run = move || {
            let agent = node::Agent::new(name, &client, config, agents_share);
            let reporter = report::Reporter::new(&agent, client, status.clone());
            runtime.block_on(async {
                tokio::select! {
                    () = agent.run(&status) => {}
                    () = reporter.run() => {}
                }
            });
        };
        std::thread::Builder::new().name("kubernetes".into()).spawn(run).map_err(|error| {
            Error::failed("cannot start a thread for the cluster", "").caused_by(error)
        })?;
        Ok(Node { pods: Arc::clone(&shared) as _, devices: shared })
    }
}

/// Is this a valid object name?
fn is_name(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !name.is_empty() && name.len() <= 253 && name.bytes().all(plain)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| {
        Error::failed("cannot start a runtime for the cluster", "").caused_by(error)
    })
}

/// A client with the access of `kubeconfig`, else of the pod's service account.
async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client> {
    let failed = |what: String| {
        let remedy = "run it as a pod with a service account, or name a kubeconfig";
        Error::bad_input(format!("no access to the cluster's API: {what}"), remedy)
    };
    let access = match kubeconfig {
        None => kube::Config::incluster().map_err(|error| failed(error.to_string()))?,
        Some(path) => {
            let of_file = |error: kube::config::KubeconfigError| {
                failed(format!("{}: {error}", path.display()))
            };
            let file = Kubeconfig::read_from(path).map_err(of_file)?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(file, &options).await.map_err(of_file)?
        }
    };
    kube::Client::try_from(access).map_err(|error| failed(error.to_string()))
}
