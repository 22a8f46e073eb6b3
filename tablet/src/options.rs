//! How a tablet server is run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use percolator_engine::EngineKind;
use percolator_telemetry::otlp;

/// How to run a tablet server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its folder.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where to show metrics and health; without it, nowhere. Port 0 picks a free one.
    pub metrics_listen: Option<SocketAddr>,
    /// Where to send spans of what clients trace; without it, nowhere.
    pub traces: Option<otlp::Settings>,
    /// A request that takes so long is told in the log; without it, none.
    pub slow_request: Option<Duration>,
    /// Where clients reach it, HOST:PORT; where it listens, if not given.
    pub advertise: Option<String>,
    /// The master, HOST:PORT, or several of these with commas between.
    pub master: String,
    /// Its stable name, for example "tablet-0".
    pub server: String,
    /// The engine.
    pub engine: EngineKind,
    /// The engine's cache, in bytes.
    pub cache_bytes: u64,
    /// A disk that takes no write for so long ends this server, so that another one can take its place.
    pub disk_stall_max: Duration,
    /// It moves its tablets to others before it stops, for at most so long; zero: it doesn't.
    pub drain_on_stop: Duration,
    /// Whether to allow the benchmark's plain reads and writes.
    pub raw: bool,
    /// Whether what may be collected is indexed: not only to measure the price.
    pub index_garbage: bool,
}
