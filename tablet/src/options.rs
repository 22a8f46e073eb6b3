//! The options of a tablet server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use percolator_engine::EngineKind;
use percolator_telemetry::otlp;

/// The options of a tablet server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its folder.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where to show metrics and health; without it, nowhere. Port 0 picks a free one.
    pub metrics_listen: Option<SocketAddr>,
    /// Where to send spans; without it, nowhere.
    pub traces: Option<otlp::Settings>,
    /// A request that takes this long is logged; without it, none.
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
    /// The server stops when its disk takes no write for this long, so that another one can take its place.
    pub disk_stall_max: Duration,
    /// How long the server moves its tablets to others before it stops; zero: it doesn't.
    pub drain_on_stop: Duration,
    /// Whether to allow the benchmark's plain reads and writes.
    pub raw: bool,
    /// Whether garbage is indexed. Without it nothing is collected: for the benchmark of its price.
    pub index_garbage: bool,
}
