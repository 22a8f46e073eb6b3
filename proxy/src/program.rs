//! The program `percolator-proxy`: also a part of `percolator`, which is it under that name.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use percolator_client::limits::TRANSACTION_BYTES_MAX;
use percolator_server::{
    announce, exit_code, logs, many_connections, run_on_current_thread, signals,
};
use percolator_telemetry::otlp;
use percolator_telemetry::who::ServerIdentity;

use crate::sessions::Limits;
use crate::{Error, Options, Server};

const EXAMPLES: &str = "\
Examples:
  For the cluster of `percolator up` on this machine, which has a proxy of its own:
    percolator-proxy --master 127.0.0.1:7400 --server second --listen 127.0.0.1:7495 --metrics-listen 127.0.0.1:7496

  In a cluster:
    percolator-proxy --master master.example.svc:7401 --server \"$HOSTNAME\" --listen [::]:7490 --idle-max 10s

When it serves, it prints one line on standard output: listening on ADDRESS. With --metrics-listen there's one
before it: metrics on ADDRESS.
Its log goes to standard error; PERCOLATOR_LOG sets the level (default: info).";

/// So many sessions that have ended are remembered for each that may be open.
const ENDS_FOR_EACH_SESSION: usize = 4;

/// Transactions for applications in any language, over gRPC and over HTTP with JSON.
#[derive(Debug, Parser)]
#[command(name = "percolator-proxy", version, after_help = EXAMPLES)]
struct Flags {
    /// Where the master is, HOST:PORT; of several masters, with commas between. A master that is away is waited for.
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_PROXY_MASTER")]
    master: String,

    /// Where to listen, IP:PORT, for gRPC and for HTTP; port 0 picks a free one.
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:0",
        env = "PERCOLATOR_PROXY_LISTEN"
    )]
    listen: SocketAddr,

    /// Where to show /metrics, /healthz and /readyz, IP:PORT; port 0 picks a free one. Default: nowhere.
    #[arg(long, value_name = "IP:PORT", env = "PERCOLATOR_PROXY_METRICS_LISTEN")]
    metrics_listen: Option<SocketAddr>,

    /// Where to send the spans of traces, http://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC). Default:
    /// nowhere.
    #[arg(long, value_name = "URL", env = otlp::ENDPOINT_VARIABLE)]
    otlp_endpoint: Option<String>,

    /// The part of the traces that clients sample, and name in their calls' `traceparent`, of which spans are sent: 0 to 1, the
    /// same traces on every server.
    #[arg(
        long,
        value_name = "RATIO",
        default_value_t = 1.0,
        value_parser = otlp::ratio,
        env = "PERCOLATOR_PROXY_OTLP_SAMPLE_RATIO"
    )]
    otlp_sample_ratio: f64,

    /// Name of this proxy, which sessions' tokens have: 1 to 253 of a-z, 0-9, '_', '.' and '-', starting with a letter or digit. No
    /// other proxy of the cluster may have the same one.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "proxy-0",
        value_parser = server_name,
        env = "PERCOLATOR_PROXY_SERVER"
    )]
    server: String,

    /// Where clients reach this proxy, HOST:PORT, or an IP address, which gets the port that the proxy listens at. Sessions' tokens
    /// name it, so that a client that has a token can send its calls there. Default: tokens have the proxy's name.
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_PROXY_ADVERTISE")]
    advertise: Option<String>,

    /// The other proxies of the cluster, HOST:PORT, with commas between; where a host has many addresses, all of them. A client of
    /// this proxy may join a transaction of those (--advertise). Default: none.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        env = "PERCOLATOR_PROXY_PEERS"
    )]
    peers: Vec<String>,

    /// A session without a call for so long is rolled back.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_PROXY_IDLE_MAX"
    )]
    idle_max: Duration,

    /// A session that is open for so long is rolled back.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_PROXY_SESSION_MAX"
    )]
    session_max: Duration,

    /// Open sessions.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 20_000,
        env = "PERCOLATOR_PROXY_SESSIONS_MAX"
    )]
    sessions_max: usize,

    /// What a session may write, in bytes of memory: some 128 for each cell, beside its row, column and value. At
    /// most 33554432.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 16 << 20,
        value_parser = session_bytes,
        env = "PERCOLATOR_PROXY_SESSION_BYTES_MAX"
    )]
    session_bytes_max: usize,

    /// What all open sessions together may have written, in bytes of memory.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 256 << 20,
        env = "PERCOLATOR_PROXY_BYTES_MAX"
    )]
    bytes_max: usize,

    /// Open connections of clients; fewer if the system lets the proxy have fewer open files.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 8_192,
        value_parser = above_zero,
        env = "PERCOLATOR_PROXY_CONNECTIONS_MAX"
    )]
    connections_max: usize,

    /// What requests that are not carried out yet, and answers that are not sent, may have together, in bytes.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 256 << 20,
        env = "PERCOLATOR_PROXY_TRANSIT_BYTES_MAX"
    )]
    transit_bytes_max: usize,

    /// Calls under way, but for scans.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1024,
        env = "PERCOLATOR_PROXY_CALLS_MAX"
    )]
    calls_max: usize,

    /// Scans under way.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 256,
        env = "PERCOLATOR_PROXY_SCANS_MAX"
    )]
    scans_max: usize,

    /// How long open sessions may go on when the proxy is stopped; then they are rolled back.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_PROXY_GRACE"
    )]
    grace: Duration,
}

fn above_zero(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "it is a number, at least 1".to_owned())
}

/// As the master lists proxies.
fn server_name(text: &str) -> Result<String, String> {
    let outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_name = (1..=253).contains(&text.len())
        && text.bytes().next().is_some_and(outer)
        && text
            .bytes()
            .all(|byte| outer(byte) || b"_.-".contains(&byte));
    if is_name {
        return Ok(text.to_owned());
    }
    Err("a name is 1 to 253 of a-z, 0-9, '_', '.' and '-', starting with a letter or digit".into())
}

fn session_bytes(text: &str) -> Result<usize, String> {
    let most = TRANSACTION_BYTES_MAX / 2;
    match text.parse() {
        Ok(bytes) if bytes <= most => Ok(bytes),
        _ => Err(format!("not a number of bytes up to {most}")),
    }
}

impl Options {
    /// What the program's arguments say, and the environment where they don't. The first one is the program's name.
    ///
    /// # Errors
    /// What is wrong with them.
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
            listen: self.listen,
            metrics_listen: self.metrics_listen,
            traces: otlp::Settings::of(self.otlp_endpoint, self.otlp_sample_ratio),
            master: self.master,
            server: self.server,
            advertise: self.advertise,
            peers: self.peers,
            limits: Limits {
                sessions_max: self.sessions_max,
                ends_max: ENDS_FOR_EACH_SESSION.saturating_mul(self.sessions_max),
                idle_max: self.idle_max,
                session_max: self.session_max,
                session_bytes_max: self.session_bytes_max,
                bytes_max: self.bytes_max,
                calls_max: self.calls_max,
                scans_max: self.scans_max,
                ..Limits::default()
            },
            connections_max: self.connections_max,
            transit_bytes_max: self.transit_bytes_max,
            grace: self.grace,
        }
    }
}

/// Runs it, by the arguments of the process, to its end.
pub fn main() -> ExitCode {
    let options = Flags::parse().options();
    many_connections();
    logs::init(ServerIdentity {
        role: "proxy",
        server: options.server.clone(),
    });
    let result = run_on_current_thread("percolator-proxy", async {
        let shutdown = pin!(signals::shutdown());
        let server = Server::bind(options)?;
        announce(server.address(), server.metrics_address())?;
        server.run(shutdown).await
    });
    exit_code(result.map_err(Error::from).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_sound_and_their_defaults_are_the_librarys() {
        use clap::CommandFactory;
        Flags::command().debug_assert();
        let flags = Flags::parse_from(["percolator-proxy", "--master", "x:1"]);
        let expected = format!("{:?}", Options::new("x:1"));
        assert_eq!(format!("{:?}", flags.options()), expected);
    }

    #[test]
    fn a_proxy_has_a_name_that_the_master_lists() {
        for (name, is_one) in [
            ("demo-proxy-7d9f8c-abcde", true),
            ("", false),
            ("My Proxy", false),
            ("../x", false),
        ] {
            let named = format!("--server={name}");
            let parsed = Flags::try_parse_from(["percolator-proxy", "--master=x:1", &named]);
            assert_eq!(parsed.is_ok(), is_one, "{name}");
        }
        let none = ["percolator-proxy", "--master=x:1", "--connections-max=0"];
        assert!(Flags::try_parse_from(none).is_err());
    }

    #[test]
    fn a_session_may_not_write_more_than_the_library_buffers() {
        let parse = |bytes: &str| {
            let limit = format!("--session-bytes-max={bytes}");
            Flags::try_parse_from(["percolator-proxy", "--master=x:1", &limit])
        };
        assert!(parse("33554432").is_ok());
        assert!(parse("33554433").is_err());
        assert!(parse("16MiB").is_err());
    }
}
