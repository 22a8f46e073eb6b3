//! When a cluster that was started is ready for clients.

use std::time::{Duration, Instant};

use anyhow::bail;
use percolator_client::Client;
use percolator_telemetry::endpoint::{self, DATA_LOST, NO_ROOM};

use crate::layout::Layout;
use crate::lost_state;
use crate::running::{self, Running};

/// A cluster that isn't ready by then won't be.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The same after the master's state was rebuilt: the servers wait for leases that nobody knows any more.
const READY_AFTER_REBUILD_WITHIN: Duration = Duration::from_secs(120);

/// How often servers that start are asked whether they are ready.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// How often a master that has lost its state is asked whether it has one again.
const ASK_REBUILT_AFTER: Duration = Duration::from_secs(1);

/// A server that does its task says so sooner.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Waits until every server has registered with the master, and the oracle grants timestamps. If a lost state of the master has to be
/// rebuilt, `say` prints what to do, and the wait is longer; but not if `has_command`: a command is to be run then.
///
/// # Errors
/// The cluster is not ready within 30 s, or 120 s after `say` printed what to do: what it waits for.
pub async fn ready(
    running: &[Running],
    layout: &Layout,
    has_command: bool,
    say: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<()> {
    let master = running::masters(running);
    let tablet_servers: Vec<String> = layout.tablet_servers().collect();
    let mut deadline = Instant::now() + READY_WITHIN;
    // A master keeps the state with which it has answered once.
    let mut may_be_lost = !layout.new;
    let mut is_reported = false;
    loop {
        let is_lost = may_be_lost && lost_state::is_lost(&master, &tablet_servers).await;
        let waits = if is_lost {
            Some(lost_state::advice(&master, &tablet_servers))
        } else {
            match Client::connect(&master).await {
                Ok(client) => {
                    may_be_lost = false;
                    waits_for(&client, running).await?
                }
                Err(error) => Some(error.to_string()),
            }
        };
        let Some(waits) = waits else { return Ok(()) };
        if is_lost && !has_command {
            deadline = Instant::now() + READY_AFTER_REBUILD_WITHIN;
            if !is_reported {
                say(&waits);
                is_reported = true;
            }
        }
        if Instant::now() >= deadline {
            bail!("the cluster was not ready in time: {waits}");
        }
        tokio::time::sleep(if is_lost {
            ASK_REBUILT_AFTER
        } else {
            ASK_AGAIN_AFTER
        })
        .await;
    }
}

/// What the servers of a cluster whose master answers still wait for.
async fn waits_for(client: &Client, running: &[Running]) -> anyhow::Result<Option<String>> {
    // A proxy introduces itself when it has reached the master, and serves when it can.
    let reporting = |server: &&Running| !server.is_master() && !server.is_proxy();
    let servers = running.iter().filter(reporting).count();
    let listed = client.servers().await?;
    let alive = listed.iter().filter(|server| server.alive).count();
    let waits = if alive >= servers {
        not_ready(running).await
    } else {
        Some(format!(
            "{alive} of {servers} servers have reported to the master"
        ))
    };
    if waits.is_none() {
        client.timestamp().await?;
    }
    Ok(waits)
}

/// Whether what a server says doesn't pass by waiting: lost data doesn't come, and room can be made by clients.
fn lasts(said: &str) -> bool {
    said.starts_with(DATA_LOST) || said.starts_with(NO_ROOM)
}

/// What a server still waits for, by its own words.
async fn not_ready(running: &[Running]) -> Option<String> {
    for server in running {
        let Some(address) = &server.metrics else {
            continue;
        };
        let asked = endpoint::get(address, "/readyz");
        let why = match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
            Ok(Ok(said)) if said.status == 200 || lasts(&said.body) => continue,
            Ok(Ok(said)) => said.body.trim().to_owned(),
            Ok(Err(error)) => format!("{address}: {error}"),
            Err(_) => format!("{address} does not answer"),
        };
        return Some(format!("{}: {why}", server.server));
    }
    None
}
