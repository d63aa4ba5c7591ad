//! This host as a node of a Kubernetes cluster: its pods become guests of the daemon, and the cluster is
//! told who holds its VFs (docs/reference/kubernetes.md). Decides nothing about VFs.

mod devices;
mod feeds;
mod node;
mod objects;
mod policy;
mod process;
mod report;

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
        let failed = |what: String| {
            let remedy = "run it as a pod with a service account, or set [kubernetes] kubeconfig";
            Error::bad_input(format!("no access to the cluster's API: {what}"), remedy)
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let client = runtime.block_on(client(config)).map_err(failed)?;
        let shared = Arc::new(node::Shared::default());
        let (config, told) = (config.clone(), Arc::clone(&shared));
        let run = move || {
            let agent = node::Agent::new(name, &client, config, told);
            let reporter = report::Reporter::new(&agent, client, status.clone());
            runtime.block_on(async {
                tokio::select! {
                    () = agent.run(&status) => {}
                    () = reporter.run() => {}
                }
            });
        };
        std::thread::Builder::new()
            .name("kubernetes".into())
            .spawn(run)
            .map_err(|error| failed(error.to_string()))?;
        Ok(Node { pods: Arc::clone(&shared) as _, devices: shared })
    }
}

/// May an object be called so?
fn is_name(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !name.is_empty() && name.len() <= 253 && name.bytes().all(plain)
}

async fn client(config: &config::Kubernetes) -> std::result::Result<kube::Client, String> {
    let access = match &config.kubeconfig {
        None => kube::Config::incluster().map_err(|error| error.to_string())?,
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| format!("{}: {error}", path.display()))?
        }
    };
    kube::Client::try_from(access).map_err(|error| error.to_string())
}
