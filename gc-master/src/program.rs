//! The program `percolator-master`: also a part of `percolator`, which is it under that name.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use crate::{Error, Options, Server, Settings};
use clap::Parser;
use percolator_server::{
    RegisterLocation, announce, exit_code, logs, many_connections, run_on_current_thread, signals,
};
use percolator_telemetry::otlp;
use percolator_telemetry::who::ServerIdentity;

/// The master of a Percolator cluster: the directory of tables, tablets and servers.
///
/// Prints one line on standard output once it can be reached: `listening on ADDRESS`. Its log goes
/// to standard error; PERCOLATOR_LOG says how much (default: info). With --metrics-listen there's a line before that
/// one: `metrics on ADDRESS`.
#[derive(Parser)]
#[command(name = "percolator-master", version, after_help = EXAMPLES)]
struct Flags {
    /// The folder of its state; created if it's missing
    #[arg(long, value_name = "FOLDER", env = "PERCOLATOR_MASTER_DATA_DIR")]
    data_dir: PathBuf,

    /// Where to listen; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7400",
        env = "PERCOLATOR_MASTER_LISTEN"
    )]
    listen: SocketAddr,

    /// Where to show /metrics, /healthz and /readyz; port 0 picks a free one (default: nowhere)
    #[arg(long, value_name = "ADDRESS", env = "PERCOLATOR_MASTER_METRICS_LISTEN")]
    metrics_listen: Option<SocketAddr>,

    /// Where to send the spans of traces, http://HOST:PORT of an OpenTelemetry collector (OTLP over gRPC; default:
    /// nowhere)
    #[arg(long, value_name = "URL", env = otlp::ENDPOINT_VARIABLE)]
    otlp_endpoint: Option<String>,

    /// Of the transactions that clients trace, this part is told of, from 0 to 1; the same one on every server
    #[arg(
        long,
        value_name = "RATIO",
        default_value_t = 1.0,
        value_parser = otlp::ratio,
        env = "PERCOLATOR_MASTER_OTLP_SAMPLE_RATIO"
    )]
    otlp_sample_ratio: f64,

    /// Where the others reach it, HOST:PORT, or an IP address alone with the port on which it listens (default: where it
    /// listens; needed with --register when it listens on every address, `[::]`)
    #[arg(long, value_name = "HOST:PORT", env = "PERCOLATOR_MASTER_ADVERTISE")]
    advertise: Option<String>,

    /// The registers that it shares with other masters, of which one leads and answers: file:DIR, for processes of one machine
    /// that share this folder; kube:NAMESPACE/NAME, for pods: the ConfigMaps NAME and NAME-state, by default (kube:NAME) in the
    /// pod's own namespace; etcd:HOST:PORT/KEY, without TLS: the keys KEY and KEY-state, of several members with commas between their
    /// addresses (default: none, the master is alone and its state is in its own folder)
    #[arg(long, value_name = "REGISTER", env = "PERCOLATOR_MASTER_REGISTER")]
    register: Option<RegisterLocation>,

    /// Its stable name
    #[arg(
        long,
        value_name = "NAME",
        default_value = "master-0",
        env = "PERCOLATOR_MASTER_SERVER"
    )]
    server: String,

    /// Begin a new cluster if the folder is empty (default: an empty folder means that the state was lost, and nothing is
    /// begun: see `percolator master rebuild`)
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true",
        action = clap::ArgAction::Set,
        env = "PERCOLATOR_MASTER_NEW_CLUSTER"
    )]
    new_cluster: bool,

    /// The file with what the cluster's manifest says for the master: JSON, as
    /// {"retentionMs": 600000, "maxHoldMs": 3600000, "paused": false, "tabletServers": 3}, where each may be left out.
    /// It is read again every second, and wins over `percolator gc set`
    #[arg(long, value_name = "FILE", env = "PERCOLATOR_MASTER_MANIFEST")]
    manifest: Option<PathBuf>,

    /// How long servers may answer without hearing from the master, from 2s to 5m: so long, at the most, one that died
    /// on another machine is waited for before its successor serves, and so long reads go on while the master is away.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = lease,
        env = "PERCOLATOR_MASTER_LEASE"
    )]
    lease: Duration,
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
            data_dir: self.data_dir,
            listen: self.listen,
            advertise: self.advertise,
            register: self.register,
            server: self.server,
            metrics_listen: self.metrics_listen,
            traces: otlp::Settings::of(self.otlp_endpoint, self.otlp_sample_ratio),
            new_cluster: self.new_cluster,
            settings: Settings {
                lease: self.lease,
                ..Settings::default()
            },
            manifest: self.manifest,
        }
    }
}

/// A lease that servers can renew in time, and that people can wait for.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_secs(2)..=Duration::from_secs(300)).contains(&lease) {
        Ok(lease)
    } else {
        Err("it must be from 2s to 5m".to_owned())
    }
}

const EXAMPLES: &str = "\
Examples:
  # The first start of a new cluster
  percolator-master --data-dir data/master-0 --new-cluster

  # Every later start
  percolator-master --data-dir data/master-0

  # Any free port, for a test
  percolator-master --data-dir data/master-0 --listen 127.0.0.1:0";

/// Runs it, by the arguments of the process, to its end.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    many_connections();
    logs::init(ServerIdentity {
        role: "master",
        server: flags.server.clone(),
    });
    let result = run_on_current_thread("master", async {
        let mut shutdown = pin!(signals::shutdown());
        // A register that can't be read is waited for.
        let server = tokio::select! {
            () = &mut shutdown => return Ok(()),
            server = Server::bind(flags.options()) => server?,
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
    fn a_new_cluster_can_be_asked_for_and_not() {
        use clap::CommandFactory;
        Flags::command().debug_assert();
        let flags = |more: &[&str]| {
            let given = ["percolator-master", "--data-dir", "x"];
            Flags::parse_from(given.iter().chain(more)).new_cluster
        };
        assert!(!flags(&[]));
        assert!(flags(&["--new-cluster"]));
        // As the variable is written: manifests of pods say it either way.
        assert!(flags(&["--new-cluster=true"]));
        assert!(!flags(&["--new-cluster=false"]));
    }

    #[test]
    fn the_leases_default_is_the_librarys_and_it_has_bounds() {
        let lease = |text: &str| {
            let flags = ["percolator-master", "--data-dir", "x", "--lease", text];
            Flags::try_parse_from(flags).map(|flags| flags.lease)
        };
        let flags = Flags::parse_from(["percolator-master", "--data-dir", "x"]);
        assert_eq!(flags.lease, Settings::default().lease);
        assert_eq!(lease("2s").unwrap(), Duration::from_secs(2));
        for text in ["1s", "6m", "ten"] {
            assert!(lease(text).is_err(), "{text}");
        }
    }
}
