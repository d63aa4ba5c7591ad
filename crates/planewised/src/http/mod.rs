//! HTTP on a Unix socket (and, if wished, by TLS): API, metrics, events, the live page; and the log.
//! A thread of its own that knows the core only by [`crate::daemon::request`]: no request can stop the
//! core.

mod api;
mod events;
mod listen;
pub mod log;
mod metrics;
mod page;
mod peer;
mod token;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pw_error::{Error, Result};
use tokio::sync::{Semaphore, watch};

use crate::daemon::config::Config;
use crate::daemon::request::HttpEnds;
use crate::daemon::status::Status;

pub use api::openapi;
pub use listen::Tls;

/// Most open streams of events.
const STREAMS: usize = 32;
/// How long connections may take to end when the daemon stops.
const FAREWELL: Duration = Duration::from_millis(500);

/// State shared by all requests.
#[derive(Debug)]
struct Shared {
    ends: HttpEnds,
    streams: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
    /// The last status as JSON, cached for all readers.
    written: Mutex<Option<(Arc<Status>, Arc<str>)>>,
    refusals: Mutex<VecDeque<Instant>>,
}

impl Shared {
    fn new(ends: HttpEnds, stop: watch::Receiver<bool>) -> Self {
        Self {
            ends,
            streams: Arc::new(Semaphore::new(STREAMS)),
            stop,
            written: Mutex::new(None),
            refusals: Mutex::new(VecDeque::new()),
        }
    }

    /// The status now, as JSON.
    fn status_json(&self) -> Arc<str> {
        let status = self.ends.status.borrow().clone();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match &*written {
            Some((cached, text)) if Arc::ptr_eq(cached, &status) => text.clone(),
            _ => {
                // Maps with keys that are no strings are all that could fail; there are none.
                let text: Arc<str> = serde_json::to_string(&*status).unwrap_or_default().into();
                *written = Some((status, text.clone()));
                text
            }
        }
    }

    /// Is this refusal to be logged? Ten in ten seconds are, so that callers cannot fill the log.
    fn log_refusal(&self) -> bool {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while refusals.front().is_some_and(|at| now - *at > Duration::from_secs(10)) {
            refusals.pop_front();
        }
        let logged = refusals.len() < 10;
        if logged {
            refusals.push_back(now);
        }
        logged
    }
}

/// A running server. Ends with [`Server::stop`], or when it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    socket: listen::Socket,
    tcp: Option<std::net::SocketAddr>,
    keys: Option<Arc<listen::Keys>>,
}

/// Reads and checks certificate, key and tokens, if TCP is configured.
///
/// # Errors
/// One of them cannot be read, makes no sense, or can be read by everybody.
pub fn read_keys(config: &Config) -> Result<Option<Tls>> {
    config.tcp.as_ref().map(Tls::load).transpose()
}

/// Opens the socket, and TCP if it is configured, and serves both in a thread of its own.
///
/// # Errors
/// An address cannot be used, the group does not exist, TLS or tokens cannot be read or are not
/// safe. Nothing listens then.
pub fn start(config: &Config, ends: HttpEnds) -> Result<Server> {
    let tcp = read_keys(config)?.map(listen::Tcp::bind).transpose()?;
    let gate = peer::Gate::new(config.group.as_deref())?;
    let (socket, unix) = listen::bind(&config.socket, gate)?;
    let address = tcp.as_ref().map(|tcp| tcp.address);
    let keys = tcp.as_ref().map(|tcp| tcp.keys.clone());
    let (stop, stopped) = watch::channel(false);
    let shared = Arc::new(Shared::new(ends, stopped));
    let failed = |error: std::io::Error| {
        Error::failed(
            format!("cannot start the thread that serves {}", config.socket.display()),
            "the machine is out of processes or memory",
        )
        .caused_by(error)
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .name("http".into())
        .spawn(move || {
            runtime.block_on(listen::serve(shared, unix, gate, tcp));
            runtime.shutdown_timeout(FAREWELL);
        })
        .map_err(failed)?;
    if let Some(address) = address {
        tracing::info!("serves TLS at {address}");
    }
    Ok(Server { stop, thread: Some(thread), socket, tcp: address, keys })
}

impl Server {
    /// Where the socket is.
    pub const fn socket(&self) -> &PathBuf {
        &self.socket.path
    }

    /// Where TCP is served; the port is the real one where 0 was configured.
    pub const fn tcp(&self) -> Option<std::net::SocketAddr> {
        self.tcp
    }

    /// Uses this certificate for new connections, and these tokens for new requests.
    pub fn renew(&self, tls: Option<Tls>) {
        if let (Some(keys), Some(tls)) = (&self.keys, tls) {
            keys.renew(tls);
        }
    }

    /// Ends all connections and removes the socket.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.socket.remove();
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
