//! The program `percolator-tablet`: also a part of `percolator`, which is it under that name.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::{Error, Options, Server};
use clap::Parser;
use percolator_engine::EngineKind;
use percolator_telemetry::otlp;
use percolator_telemetry::who::ServerIdentity;

/// Serves tablets: stores rows, and decides about transactions on them.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  percolator-tablet --server tablet-0 --data-dir /data --master master:7400 --listen [::]:7410 --advertise 10.0.0.7"
)]
struct Flags {
    /// Folder of the server's data; made if it isn't there.
    #[arg(long, value_name = "DIR", env = "PERCOLATOR_TABLET_DATA_DIR")]
    data_dir: PathBuf,
    /// Address to listen on; port 0 picks a free one.
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1:0",
        env = "PERCOLATOR_TABLET_LISTEN"
    )]
    listen: SocketAddr,
    /// Address on which to show /metrics, /healthz and /readyz; port 0 picks a free one. Default: nowhere.
    #[arg(long, value_name = "ADDR", env = "PERCOLATOR_TABLET_METRICS_LISTEN")]
    metrics_listen: Option<SocketAddr>,
    /// Where to send the spans of traces, http://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC). Default:
    /// nowhere.
    #[arg(long, value_name = "URL", env = otlp::ENDPOINT_VARIABLE)]
    otlp_endpoint: Option<String>,
    /// Share of the transactions that clients trace of which this server sends spans, from 0 to 1; the same on every server.
    #[arg(
        long,
        value_name = "RATIO",
        default_value_t = 1.0,
        value_parser = otlp::ratio,
        env = "PERCOLATOR_TABLET_OTLP_SAMPLE_RATIO"
    )]
    otlp_sample_ratio: f64,
    /// Log each request that takes this long, for example 100ms, with the time of its steps. Default: none.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TABLET_SLOW_REQUESTS"
    )]
    slow_requests: Option<Duration>,
    /// Address at which clients reach this server, HOST:PORT, or an IP address alone with the port on which it listens.
    /// Default: where it listens.
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_TABLET_ADVERTISE")]
    advertise: Option<String>,
    /// Address of the master; of several masters, with commas between.
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_TABLET_MASTER")]
    master: String,
    /// Stable name of this server in its cluster.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "tablet-0",
        env = "PERCOLATOR_TABLET_SERVER"
    )]
    server: String,
    /// Engine that stores the rows: redb, sled or memory. A folder keeps the engine it was made with.
    #[arg(
        long,
        value_name = "ENGINE",
        default_value = "redb",
        env = "PERCOLATOR_TABLET_ENGINE"
    )]
    engine: EngineKind,
    /// The engine's cache, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, env = "PERCOLATOR_TABLET_CACHE_BYTES")]
    cache_bytes: u64,
    /// Exit when the disk has neither taken nor refused a write for this long, so that another server can take this one's
    /// place. Nothing that was answered is lost.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = percolator_server::stall_max,
        env = "PERCOLATOR_TABLET_DISK_STALL_MAX"
    )]
    disk_stall_max: Duration,
    /// Move the tablets to other servers before stopping, for at most this long; 0s: stop at once. Tablets that stay are not served
    /// until this server has started again.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "0s",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TABLET_DRAIN_ON_STOP"
    )]
    drain_on_stop: Duration,
    /// Allow plain reads and writes that know no transactions. Only for benchmarks: they can destroy
    /// data.
    #[arg(long, hide = true)]
    raw: bool,
    /// Leave the index of garbage out, so that nothing is ever collected: for the benchmark of its price.
    #[arg(
        long,
        hide = true,
        requires = "raw",
        env = "PERCOLATOR_TABLET_NO_GARBAGE_INDEX"
    )]
    no_garbage_index: bool,
}

impl Options {
    /// The options in the program's arguments, and in the environment for those that are missing. The first argument is the
    /// program's name.
    ///
    /// # Errors
    /// An argument is wrong.
    pub fn parse<A>(arguments: impl IntoIterator<Item = A>) -> Result<Self, clap::Error>
    where
        A: Into<OsString> + Clone,
    {
        Ok(Flags::try_parse_from(arguments)?.options())
    }
}

impl Flags {
    fn options(self) -> Options {
        Options {
            data_dir: self.data_dir,
            listen: self.listen,
            metrics_listen: self.metrics_listen,
            traces: otlp::Settings::of(self.otlp_endpoint, self.otlp_sample_ratio),
            slow_request: self.slow_requests,
            advertise: self.advertise,
            master: self.master,
            server: self.server,
            engine: self.engine,
            cache_bytes: self.cache_bytes,
            disk_stall_max: self.disk_stall_max,
            drain_on_stop: self.drain_on_stop,
            raw: self.raw,
            index_garbage: !self.no_garbage_index,
        }
    }
}

/// Runs the server with the arguments of the process.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    percolator_server::small_pages();
    percolator_server::many_connections();
    percolator_server::logs::init(ServerIdentity {
        role: "tablet",
        server: flags.server.clone(),
    });
    let result = percolator_server::run_on_current_thread("tablet", run(flags.options()));
    percolator_server::exit_code(result.map_err(Error::from).flatten())
}

async fn run(options: Options) -> Result<(), Error> {
    let shutdown = percolator_server::signals::shutdown();
    let server = Server::bind(options).await?;
    percolator_server::announce(server.address(), server.metrics_address())?;
    server.run(shutdown).await
}
