//! The program `percolator-tso`: also a part of `percolator`, which is it under that name.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock, WrongClock};
use crate::{Error, Options, Server};
use clap::Parser;
use percolator_protocol::oracle::Settings;
use percolator_server::{
    RegisterLocation, announce, exit_code, logs, many_connections, run_on_current_thread, signals,
};
use percolator_telemetry::otlp;
use percolator_telemetry::who::ServerIdentity;

const EXAMPLES: &str = "\
Examples:
  On this machine, for trying it out (prints the port that it got):
    percolator-tso --data-dir ./data/tso-0

  In a cluster, telling the master where clients reach it:
    percolator-tso --data-dir /var/lib/percolator --listen [::]:7400 \\
      --advertise tso-0.tso.example.svc:7400 --master master.example.svc:7401

When it serves, it prints one line on standard output: listening on ADDRESS. With --metrics-listen there's one
before it: metrics on ADDRESS.
Its log goes to standard error; PERCOLATOR_LOG sets the level (default: info).";

/// The timestamp oracle: strictly increasing timestamps, across restarts and clock trouble.
#[derive(Debug, Parser)]
#[command(name = "percolator-tso", version, after_help = EXAMPLES)]
struct Flags {
    /// Folder of this oracle alone; created if it's missing.
    #[arg(long, value_name = "DIR", env = "PERCOLATOR_TSO_DATA_DIR")]
    data_dir: PathBuf,

    /// Where to listen, IP:PORT; port 0 picks a free one.
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "127.0.0.1:0",
        env = "PERCOLATOR_TSO_LISTEN"
    )]
    listen: SocketAddr,

    /// Where to show /metrics, /healthz and /readyz, IP:PORT; port 0 picks a free one. Default: nowhere.
    #[arg(long, value_name = "IP:PORT", env = "PERCOLATOR_TSO_METRICS_LISTEN")]
    metrics_listen: Option<SocketAddr>,

    /// Where to send the spans of traces, http://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC). Default:
    /// nowhere.
    #[arg(long, value_name = "URL", env = otlp::ENDPOINT_VARIABLE)]
    otlp_endpoint: Option<String>,

    /// Of the transactions that clients trace, this part is told of, from 0 to 1; the same one on every server.
    #[arg(
        long,
        value_name = "RATIO",
        default_value_t = 1.0,
        value_parser = otlp::ratio,
        env = "PERCOLATOR_TSO_OTLP_SAMPLE_RATIO"
    )]
    otlp_sample_ratio: f64,

    /// Where clients reach it, HOST:PORT, or an IP address alone with the port on which it listens. Default: where it
    /// listens; needed with --master when it listens on every address (`[::]`).
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_TSO_ADVERTISE")]
    advertise: Option<String>,

    /// Where the master is, HOST:PORT; of several masters, with commas between. Default: none, the oracle serves alone. A master that is
    /// away is waited for; timestamps are granted meanwhile.
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_TSO_MASTER")]
    master: Option<String>,

    /// The register that it shares with other oracles, of which one leads and grants: file:DIR, for processes of one machine
    /// that share this folder; kube:NAMESPACE/NAME, for pods: a ConfigMap, by default (kube:NAME) in the pod's own
    /// namespace; etcd:HOST:PORT/KEY, without TLS: a key, of several members with commas between their addresses. Default: none, the oracle is alone and its limit is in its own folder.
    #[arg(long, value_name = "REGISTER", env = "PERCOLATOR_TSO_REGISTER")]
    register: Option<RegisterLocation>,

    /// Stable name of this oracle; its folder is bound to it.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "tso-0",
        env = "PERCOLATOR_TSO_SERVER"
    )]
    server: String,

    /// How far ahead of use the limit of timestamps is made durable, for example 500ms or 3s. One
    /// small write happens each half of it; a restart leaves out at most this much time.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "3s",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TSO_WINDOW"
    )]
    window: Duration,

    /// How far the clock may jump ahead while the oracle runs and still be followed.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TSO_JUMP_MAX"
    )]
    jump_max: Duration,

    /// How long the oracle may have been stopped: with a clock further than this beyond its last
    /// limit it refuses to start, because timestamps never go back. Raise it once if the clock is right.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1day",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TSO_STOPPED_MAX"
    )]
    stopped_max: Duration,

    /// How long a request waits when no timestamp may be granted, because the disk fails, before
    /// it is refused as unavailable.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5s",
        value_parser = humantime::parse_duration,
        env = "PERCOLATOR_TSO_WAIT_MAX"
    )]
    wait_max: Duration,

    /// End when the disk has neither taken a write nor refused it for so long, so that another server can take this one's
    /// place. Nothing that was answered is lost.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = percolator_server::stall_max,
        env = "PERCOLATOR_TSO_DISK_STALL_MAX"
    )]
    disk_stall_max: Duration,

    /// For tests: a file with the milliseconds by which the clock is wrong.
    #[arg(long, hide = true, value_name = "FILE")]
    test_clock: Option<PathBuf>,
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
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Options {
            data_dir: self.data_dir,
            listen: self.listen,
            metrics_listen: self.metrics_listen,
            traces: otlp::Settings::of(self.otlp_endpoint, self.otlp_sample_ratio),
            advertise: self.advertise,
            master: self.master,
            register: self.register,
            server: self.server,
            settings: Settings {
                window_ms: ms(self.window),
                jump_ms_max: ms(self.jump_max),
                stopped_ms_max: ms(self.stopped_max),
            },
            wait_max: self.wait_max,
            disk_stall_max: self.disk_stall_max,
        }
    }
}

/// Runs it, by the arguments of the process, to its end.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    many_connections();
    let clock: Arc<dyn Clock> = match &flags.test_clock {
        Some(file) => Arc::new(WrongClock {
            offset_ms: file.clone(),
        }),
        None => Arc::new(SystemClock),
    };
    let options = flags.options();
    logs::init(ServerIdentity {
        role: "tso",
        server: options.server.clone(),
    });
    let result = run_on_current_thread("percolator-tso", async {
        let mut shutdown = pin!(signals::shutdown());
        // A register that can't be read is waited for.
        let server = tokio::select! {
            () = &mut shutdown => return Ok(()),
            server = Server::bind_with(options, clock, |file| Arc::new(file)) => server?,
        };
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
        let flags = Flags::parse_from(["percolator-tso", "--data-dir", "x"]);
        let expected = format!("{:?}", Options::new("x"));
        assert_eq!(format!("{:?}", flags.options()), expected);
    }
}
