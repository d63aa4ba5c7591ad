//! Sockets, connections and their limits.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use pw_error::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::peer::Gate;
use super::token::{Tokens, read_secret};
use super::{FAREWELL, Shared, api};
use crate::daemon::config;
use crate::daemon::request::{Caller, Fault, Refused};

/// Most connections by the socket, and again by TCP, so that TCP cannot exhaust the operator's.
const CONNECTIONS: usize = 64;
/// Most connections that are being refused.
const REFUSING: usize = 16;
/// Time limit of a request's head, and of the pause between two requests.
const HEAD: Duration = Duration::from_secs(10);
/// The same for a client that is being refused.
const REFUSED: Duration = Duration::from_secs(2);
/// Time limit of a client that reads nothing of an answer, and of unacknowledged data (TCP_USER_TIMEOUT,
/// tcp(7)).
const WRITE: Duration = Duration::from_secs(10);
/// Connections by TCP from one address, or /64 of IPv6, at once.
const CONNECTIONS_EACH: usize = 16;
/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Largest head of a request [bytes], and most fields.
const HEAD_BYTES: usize = 16 * 1024;
const HEAD_FIELDS: usize = 64;

/// The way by which a request came in.
#[derive(Debug, Clone)]
pub enum Door {
    /// The socket: the kernel names the caller.
    Socket(Caller),
    /// TLS: a token must name the caller.
    Tls(Arc<Keys>),
    /// The socket: the caller is not permitted, or one too many.
    Refused(Refused),
}

/// The socket's path, removed at the end unless another process replaced the socket.
#[derive(Debug)]
pub struct Socket {
    /// Where.
    pub path: PathBuf,
    device_and_inode: (u64, u64),
}

impl Socket {
    /// Removes the socket, unless it was replaced.
    pub fn remove(&self) {
        if identity(&self.path).is_ok_and(|current| current == self.device_and_inode) {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|data| (data.dev(), data.ino()))
}

/// Listens at `path`: for root and the daemon's own user, and for the group if there is one.
pub fn bind(path: &Path, gate: Gate) -> Result<(Socket, StdUnixListener)> {
    let cannot = |error: io::Error| {
        Error::failed(
            format!("cannot listen at {}", path.display()),
            "name another socket in the configuration, or run the daemon as root",
        )
        .caused_by(error)
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        make_directory(directory).map_err(cannot)?;
    }
    remove_stale_socket(path)?;
    // Made under another name, and renamed once its mode is right.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(name);
    drop(std::fs::remove_file(&temporary));
    let listener = StdUnixListener::bind(&temporary).map_err(cannot)?;
    let placed = (|| {
        let mode = if gate.group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(mode))?;
        if let Some(group) = gate.group {
            std::os::unix::fs::chown(&temporary, None, Some(group.as_raw()))?;
        }
        listener.set_nonblocking(true)?;
        std::fs::rename(&temporary, path)?;
        identity(path)
    })();
    match placed {
        Ok(device_and_inode) => Ok((Socket { path: path.to_owned(), device_and_inode }, listener)),
        Err(error) => {
            drop(std::fs::remove_file(&temporary));
            Err(cannot(error))
        }
    }
}

/// Makes a directory that everybody may pass, whatever the umask: the socket's own mode limits access.
fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))
}

/// Removes a socket that a killed daemon left; anything else is an error.
fn remove_stale_socket(path: &Path) -> Result<()> {
    let Ok(data) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !data.file_type().is_socket() {
        return Err(Error::failed(
            format!("{} is there and is no socket", path.display()),
            "move it away, or name another socket in the configuration",
        ));
    }
    match StdUnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(Error::failed(
            format!("another planewised listens at {}", path.display()),
            "stop it first, or name another socket in the configuration",
        )),
    }
}

/// Configuration of TLS, read and checked.
#[derive(Debug)]
pub struct Tls {
    listen: SocketAddr,
    server: Arc<rustls::ServerConfig>,
    tokens: Arc<Tokens>,
}

impl Tls {
    /// Reads certificate, key and tokens.
    ///
    /// # Errors
    /// One of them cannot be read, makes no sense, or can be read by everybody.
    pub fn load(tcp: &config::Tcp) -> Result<Self> {
        let wrong = |what: &str, path: &Path| {
            Error::bad_input(
                format!("tcp.{what}, {}", path.display()),
                "name a certificate chain and its key, both in PEM",
            )
        };
        let (certificate, key) = (&tcp.certificate, &tcp.key);
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect)
            .map_err(|error| wrong("certificate", certificate).caused_by(error))?;
        let secret = read_secret(key, "key")?;
        let private = PrivateKeyDer::from_pem_slice(secret.as_bytes())
            .map_err(|error| wrong("key", key).caused_by(error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|error| wrong("certificate", certificate).caused_by(error))?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tokens = Arc::new(Tokens::load(&tcp.tokens)?);
        Ok(Self { listen: tcp.listen, server: Arc::new(server), tokens })
    }
}

/// Certificate, key and tokens as they are now: they may be read again while connections are open.
#[derive(Debug)]
pub struct Keys(Mutex<Tls>);

impl Keys {
    fn tls(&self) -> MutexGuard<'_, Tls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces them: for new connections, and the tokens for new requests of open ones, too.
    pub fn renew(&self, tls: Tls) {
        *self.tls() = tls;
    }

    /// The tokens.
    pub fn tokens(&self) -> Arc<Tokens> {
        self.tls().tokens.clone()
    }
}

/// A listening TCP socket with its credentials.
#[derive(Debug)]
pub struct Tcp {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its credentials.
    pub keys: Arc<Keys>,
    listener: std::net::TcpListener,
}

impl Tcp {
    /// Listens at the configured address.
    pub fn bind(tls: Tls) -> Result<Self> {
        let bound = std::net::TcpListener::bind(tls.listen).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        });
        let (address, listener) = bound.map_err(|error| {
            Error::failed(
                format!("cannot listen at tcp.listen = {}", tls.listen),
                "name an address of this host and a port that is free",
            )
            .caused_by(error)
        })?;
        Ok(Self { address, keys: Arc::new(Keys(Mutex::new(tls))), listener })
    }
}

/// Serves both until the daemon stops.
pub async fn serve(shared: Arc<Shared>, unix: StdUnixListener, gate: Gate, tcp: Option<Tcp>) {
    let router = api::router(shared.clone());
    let by_socket = serve_socket(shared.clone(), unix, gate, router.clone());
    let by_tls = async {
        if let Some(tcp) = tcp {
            serve_tls(shared.clone(), tcp, router).await;
        }
    };
    tokio::join!(by_socket, by_tls);
    // Open streams and answers end by themselves.
    drop(timeout(FAREWELL, idle(&shared)).await);
}

/// Waits until no stream of events is open.
async fn idle(shared: &Shared) {
    drop(shared.streams.acquire_many(super::STREAMS as u32).await);
}

async fn stopped(shared: &Shared) {
    let mut stop = shared.stop.clone();
    // The sender gone is a stop, too.
    drop(stop.wait_for(|stop| *stop).await);
}

async fn serve_socket(shared: Arc<Shared>, unix: StdUnixListener, gate: Gate, router: Router) {
    let listener = match UnixListener::from_std(unix) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the socket cannot be served"),
    };
    let (room, refusing) =
        (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(REFUSING)));
    loop {
        let accepted = tokio::select! {
            () = stopped(&shared) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, most likely: open connections continue.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut permit = room.clone().try_acquire_owned();
        let door = match gate.admit(&stream) {
            Err(why) => {
                if shared.log_refusal() {
                    tracing::warn!(why, "a connection to the socket was refused");
                }
                let remedy = match gate.group {
                    Some(_) => "become a member of the group that the configuration names",
                    None => "become root, or name a group in the daemon's configuration",
                };
                Door::Refused(Refused::new(Fault::Forbidden, why, remedy))
            }
            Ok(_) if permit.is_err() => Door::Refused(full()),
            Ok(caller) => Door::Socket(caller),
        };
        if matches!(door, Door::Refused(_)) {
            permit = refusing.clone().try_acquire_owned();
        }
        if let Ok(permit) = permit {
            let connection = serve_http(stream, door, router.clone(), shared.clone());
            tokio::spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    }
}

async fn serve_tls(shared: Arc<Shared>, tcp: Tcp, router: Router) {
    let listener = match TcpListener::from_std(tcp.listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "TCP cannot be served"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let peers = Arc::new(Peers::default());
    loop {
        let accepted = tokio::select! {
            () = stopped(&shared) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, from)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Closed without an answer, which would need a connection that is not available.
        let Some(peer) = peers.enter(from.ip()) else { continue };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let acceptor = TlsAcceptor::from(tcp.keys.tls().server.clone());
        let door = Door::Tls(tcp.keys.clone());
        let (router, shared) = (router.clone(), shared.clone());
        tokio::spawn(async move {
            let handshake = accept_tls(&acceptor, stream);
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, handshake).await {
                serve_http(stream, door, router, shared).await;
            }
            drop((permit, peer));
        });
    }
}

async fn accept_tls(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    setsockopt(&stream, TcpUserTimeout, &(WRITE.as_millis() as u32))?;
    acceptor.accept(stream).await
}

/// The address; of IPv6 its /64, of which a client has all addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => Ipv6Addr::from(u128::from(six) & !u128::from(u64::MAX)).into(),
        four => four,
    }
}

/// Open connections by TCP of each address, or /64 of IPv6.
#[derive(Debug, Default)]
struct Peers(Mutex<HashMap<IpAddr, usize>>);

/// A connection; it counts until it is dropped.
#[derive(Debug)]
struct Peer {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    /// Counts one more connection from this address; none where it has too many.
    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Peer> {
        let address = network(address);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= CONNECTIONS_EACH {
            return None;
        }
        *count += 1;
        Some(Peer { peers: self.clone(), address })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut open = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

fn full() -> Refused {
    Refused::new(
        Fault::Unavailable,
        format!("{CONNECTIONS} connections to the daemon are open: it takes no more"),
        "close some, or wait: idle ones are closed after 10 s",
    )
}

/// Serves the requests of one connection, one after the other.
async fn serve_http<S>(stream: S, door: Door, router: Router, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let refused = matches!(door, Door::Refused(_));
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(door.clone());
        let mut router = router.clone();
        async move { router.call(request.map(Body::new)).await }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(if refused { REFUSED } else { HEAD })
        .keep_alive(!refused)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_FIELDS);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE));
    let mut connection = pin!(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&shared) => {
            connection.as_mut().graceful_shutdown();
            timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use pw_alloc::settings::PolicyKind;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::daemon::request::ends;
    use crate::daemon::status::Status;

    fn gate() -> Gate {
        Gate::new(None).expect("no group")
    }

    #[test]
    fn a_socket_that_a_killed_daemon_left_is_taken_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run/x.sock");
        let (first, listener) = bind(&path, gate()).expect("bound");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = bind(&path, gate()).expect_err("somebody listens");
        assert!(error.what.starts_with("another planewised listens at "), "{}", error.what);
        drop(listener);
        // A process that another test is just starting has a copy until it runs its program.
        let begun = std::time::Instant::now();
        while StdUnixStream::connect(&path).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody listens any more");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (second, _listener) = bind(&path, gate()).expect("taken over");
        first.remove();
        assert!(path.exists(), "the successor's socket is not ours to remove");
        second.remove();
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(directory.path().join("run")).expect("read").count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_nothing_of_an_answer_is_cut_off() {
        // Somebody asks and reads nothing, by a pipe that has no room for the answer.
        let (stream, mut other) = tokio::io::duplex(64);
        let (_core, http) = ends(Status::new(PolicyKind::Benefit, 1.0, 1.0));
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let shared = Arc::new(Shared::new(http, stopped));
        let router = Router::new().fallback(|| async { "an answer ".repeat(1000) });
        let door = Door::Socket(Caller::Local { uid: 0, pid: None });
        let begun = tokio::time::Instant::now();
        let served = tokio::spawn(serve_http(stream, door, router, shared));
        other.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("taken");
        let ended = timeout(10 * WRITE, served).await;
        assert!(ended.is_ok(), "it holds its place for ever");
        assert!((WRITE..2 * WRITE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[test]
    fn one_address_cannot_take_all_connections() {
        let peers = Arc::new(Peers::default());
        let (one, other) = ([198, 18, 0, 1].into(), [198, 18, 0, 2].into());
        let mut open: Vec<Option<Peer>> = (0..CONNECTIONS).map(|_| peers.enter(one)).collect();
        assert_eq!(open.iter().flatten().count(), CONNECTIONS_EACH);
        assert!(peers.enter(other).is_some());
        // A client has a whole /64 of IPv6.
        let six = |low: u16| [0x2001, 2, 0, 0, 0, 0, 0, low].into();
        let of_64: Vec<_> = (0..64).filter_map(|low| peers.enter(six(low))).collect();
        assert_eq!(of_64.len(), CONNECTIONS_EACH);
        drop(of_64);
        open.clear();
        assert!(peers.enter(one).is_some());
        assert!(peers.0.lock().expect("no panic").is_empty());
    }

    #[test]
    fn a_place_that_cannot_be_used_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "precious").expect("written");
        let error = bind(&path, gate()).expect_err("a file");
        assert!(error.what.ends_with("is there and is no socket"));
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
        let beneath = path.join("x.sock");
        let error = bind(&beneath, gate()).expect_err("beneath a file");
        assert!(error.what.contains("file/x.sock") && !error.remedy.is_empty());
    }
}
