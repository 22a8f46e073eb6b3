//! `percolator server`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use percolator_client::{Client, Error, ReportedServer, ServerRole};
use serde_json::{Value, json};

use crate::cells::Waiting;
use crate::output::{Output, columns, load, size};

/// How often the state of a server that is drained is requested.
const PAUSE: Duration = Duration::from_millis(500);

/// The tablet servers of a cluster: list them, move everything off one, and let it have tablets again.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator server list
  percolator server drain tablet-2
  percolator server undrain tablet-2")]
pub(crate) enum Command {
    /// List tablet servers: whether they are up, stopping or drained, how many tablets they have, and how large these are.
    #[command(after_help = "\
Examples:
  percolator server list
  percolator server list -o json     one line of JSON for each")]
    List {
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Move all tablets off tablet servers, and give them no new ones.
    ///
    /// Transactions go on meanwhile. The command waits until the servers have no tablet left; then they can be stopped for good.
    /// If the command ends before that, the master goes on, and saying it again waits further. The servers stay drained until
    /// `percolator server undrain`.
    ///
    /// If the other servers have no room for all tablets, none of those that are named is drained: so name all that are to go.
    ///
    /// It gives up when no tablet has left for as long as --request-timeout says.
    #[command(after_help = "\
Examples:
  percolator server drain tablet-2
  percolator server drain tablet-2 tablet-3
  percolator server drain tablet-2 --no-wait       the master goes on by itself
  percolator server drain tablet-2 --request-timeout 10m  large tablets take long")]
    Drain {
        /// The servers' names.
        #[arg(required = true, value_name = "SERVER")]
        servers: Vec<String>,
        /// Don't wait until the servers have no tablet left.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Let tablet servers that were drained have tablets again.
    #[command(after_help = "Examples:\n  percolator server undrain tablet-2")]
    Undrain {
        /// The servers' names.
        #[arg(required = true, value_name = "SERVER")]
        servers: Vec<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
}

impl Command {
    pub(crate) fn waiting(&self) -> Waiting {
        match self {
            Self::List { waiting }
            | Self::Drain { waiting, .. }
            | Self::Undrain { waiting, .. } => *waiting,
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::List { .. } => list(client, output).await?,
        Command::Drain {
            servers,
            no_wait,
            waiting,
        } => {
            for mut info in client.drain_servers(&servers, true).await? {
                if !no_wait {
                    info = wait(client, info, waiting.request_timeout, output).await?;
                }
                output.result(&line(&info), &json(&info))?;
            }
        }
        Command::Undrain { servers, .. } => {
            for info in client.drain_servers(&servers, false).await? {
                output.result(&line(&info), &json(&info))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Until the server has no tablet left. Gives up when none has left for so long.
async fn wait(
    client: &Client,
    mut info: ReportedServer,
    request_timeout: Duration,
    output: Output,
) -> anyhow::Result<ReportedServer> {
    let mut since = Instant::now();
    let mut said = None;
    while !info.drained {
        if said != Some(info.tablets) {
            said = Some(info.tablets);
            since = Instant::now();
            let (tablets, bytes) = (info.tablets, size(info.bytes));
            output.note(&format!(
                "{}: {tablets} tablet(s) left, {bytes}",
                info.server
            ));
        } else if since.elapsed() >= request_timeout {
            return Err(Error::Unavailable(waits_for(&info)).into());
        }
        tokio::time::sleep(PAUSE).await;
        let name = info.server;
        let servers = client.cluster().await?.servers;
        let found = servers.into_iter().find(|it| it.server == name);
        info = found.ok_or_else(|| Error::Unavailable(format!("{name} is not known any more")))?;
        if !info.draining {
            let why = format!("{name} is not drained any more: somebody has undrained it");
            return Err(Error::Invalid(why).into());
        }
    }
    Ok(info)
}

fn waits_for(info: &ReportedServer) -> String {
    let ReportedServer {
        server: name,
        waits_for,
        ..
    } = info;
    if !waits_for.is_empty() {
        return format!("{name} waits for {waits_for}: start that one again, or reach it");
    }
    let why = if info.alive {
        "`percolator tablet list` shows what is on its way, `percolator status` what is in the way; tablets of a table that \
         is being deleted stay until its rows are gone"
    } else {
        "it is down, and what is only there can't be moved: start it again"
    };
    format!(
        "{name} still has {} tablet(s), and none has left for a while; the master goes on: {why}",
        info.tablets
    )
}

/// What a server is, in a word.
pub(crate) fn state(info: &ReportedServer) -> &'static str {
    if info.stopping {
        return "stopping";
    }
    match (info.alive, info.draining, info.drained) {
        (true, false, _) => "up",
        (false, false, _) => "down",
        (true, true, true) => "drained",
        (true, true, false) => "draining",
        (false, true, true) => "drained, down",
        (false, true, false) => "draining, down",
    }
}

fn line(info: &ReportedServer) -> String {
    let (name, state) = (&info.server, state(info));
    format!(
        "{name} is {state}: {} tablet(s), {}",
        info.tablets,
        size(info.bytes)
    )
}

fn json(info: &ReportedServer) -> Value {
    json!({
        "server": info.server,
        "address": info.address,
        "alive": info.alive,
        "stopping": info.stopping,
        "draining": info.draining,
        "drained": info.drained,
        "waits_for": info.waits_for,
        "tablets": info.tablets,
        "bytes": info.bytes,
        "load": info.load,
    })
}

async fn list(client: &Client, output: Output) -> anyhow::Result<()> {
    let servers = client.cluster().await?.servers.into_iter();
    let servers: Vec<_> = servers.filter(|it| it.role == ServerRole::Tablet).collect();
    if output.format == crate::output::Format::Json {
        for server in &servers {
            output.line(&json(server).to_string())?;
        }
        return Ok(());
    }
    let heads = ["SERVER", "ADDRESS", "STATE", "TABLETS", "SIZE", "LOAD"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(servers.iter().map(|server| {
        vec![
            server.server.clone(),
            server.address.clone(),
            state(server).to_owned(),
            server.tablets.to_string(),
            size(server.bytes),
            load(server.load),
        ]
    }));
    output.line(&columns(&rows))?;
    Ok(())
}
