//! Requests to the masters of clusters: their reports of tablet servers, and drains. A reconcile goes on if a master doesn't
//! answer.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_client::{Client, Error, Options, ReportedServer, ServerRole};

use crate::cluster::{MasterReport, Observed, Plan, TabletServer, server_name};

/// How long a request to a master is tried.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long all requests to the master of one cluster may take, of one reconcile. The next one goes on.
const ALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages of a condition: constants, so that the status doesn't change each time.
const NOT_READY: &str = "no master is ready";
const NO_ANSWER: &str =
    "the master doesn't answer the operator at port 7400 (a NetworkPolicy may be in the way)";
const NOT_TAKEN: &str = "the master doesn't take the request now";

fn options() -> Options {
    Options {
        request_timeout: TIMEOUT,
        ..Options::default()
    }
}

fn server(info: &ReportedServer) -> TabletServer {
    TabletServer {
        is_up: info.alive,
        is_draining: info.draining,
        is_drained: info.drained,
        tablets: info.tablets,
        is_without_room: info.without_room,
        waits_for: info.waits_for.clone(),
    }
}

/// Requests a report of the cluster's tablet servers from the master at one of these addresses.
pub(crate) async fn ask(cluster: &str, addresses: &[String]) -> MasterReport {
    if addresses.is_empty() {
        return MasterReport::Away(NOT_READY);
    }
    let asked = async {
        let client = Client::connect_with(&addresses.join(","), options()).await?;
        client.servers().await
    };
    match tokio::time::timeout(ALL_TIMEOUT, asked).await {
        Ok(Ok(infos)) => MasterReport::Servers(by_ordinal(cluster, &infos)),
        Ok(Err(error)) => {
            tracing::info!(%error, "the master doesn't answer");
            MasterReport::Away(NO_ANSWER)
        }
        Err(_) => MasterReport::Away(NO_ANSWER),
    }
}

fn by_ordinal(cluster: &str, infos: &[ReportedServer]) -> BTreeMap<u32, TabletServer> {
    let prefix = server_name(cluster, 0);
    let prefix = prefix.trim_end_matches('0');
    let tablets = infos.iter().filter(|info| info.role == ServerRole::Tablet);
    let known = tablets.filter_map(|info| {
        let ordinal = info.server.strip_prefix(prefix)?.parse().ok()?;
        Some((ordinal, server(info)))
    });
    known.collect()
}

/// Asks the master to drain and undrain servers as planned, and records its new report of them in `observed`.
pub(crate) async fn carry_out(
    cluster: &str,
    addresses: &[String],
    plan: &Plan,
    observed: &mut Observed,
) {
    // Those that stay are there for the tablets of those that go. The servers that go are named together: the master drains all
    // of them, or none.
    let requests = [(&plan.undrain, false), (&plan.drain, true)];
    let requests = requests.map(|(ordinals, drain)| {
        let names = ordinals.iter().map(|it| server_name(cluster, *it));
        (names.collect::<Vec<_>>(), drain)
    });
    if requests.iter().all(|(names, _)| names.is_empty()) {
        return;
    }
    let asked = async {
        let client = Client::connect_with(&addresses.join(","), options()).await?;
        let mut refused = None;
        for (names, drain) in requests {
            if names.is_empty() {
                continue;
            }
            match client.drain_servers(&names, drain).await {
                Ok(infos) => {
                    tracing::info!(servers = ?names, drain, "asked the master");
                    for (ordinal, server) in by_ordinal(cluster, &infos) {
                        observed.master.note(ordinal, server);
                    }
                }
                // Servers that aren't undrained are no reason not to drain others.
                Err(error @ (Error::Invalid(_) | Error::NoRoom(_))) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    };
    let refused = match tokio::time::timeout(ALL_TIMEOUT, asked).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the master has not drained or undrained servers");
            Some(error)
        }
        Err(_) => None,
    };
    observed.master = report_after(refused.as_ref());
}

/// The report after the master has refused a request, or has not answered (`None`).
fn report_after(refused: Option<&Error>) -> MasterReport {
    match refused {
        Some(Error::NoRoom(_)) => MasterReport::NoRoom,
        // Since its last report the master may have lost its state, or a person has drained the others.
        Some(Error::Invalid(_)) => MasterReport::Away(NOT_TAKEN),
        _ => MasterReport::Away(NO_ANSWER),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn info(name: &str, role: ServerRole) -> ReportedServer {
        ReportedServer {
            tablets: 7,
            ..ReportedServer::new(role, name, "")
        }
    }

    #[test]
    fn tablet_servers_are_known_by_their_numbers() {
        let infos = [
            info("demo-tso-0", ServerRole::Oracle),
            info("demo-tablet-10", ServerRole::Tablet),
            info("demo-tablet-0", ServerRole::Tablet),
            info("demo-tablet-x", ServerRole::Tablet),
            info("other-tablet-1", ServerRole::Tablet),
        ];
        let known = by_ordinal("demo", &infos);
        assert_eq!(Vec::from_iter(known.keys()), [&0, &10]);
        assert_eq!(known[&10].tablets, 7);
    }

    /// The clock goes on by itself while nothing else happens.
    #[tokio::test(start_paused = true)]
    async fn a_master_that_does_not_answer_holds_up_no_reconcile() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = silent.local_addr().expect("an address").to_string();
        let began = tokio::time::Instant::now();
        let report = ask("demo", std::slice::from_ref(&address)).await;
        assert_eq!(report, MasterReport::Away(NO_ANSWER));
        assert!(began.elapsed() <= ALL_TIMEOUT);
        assert_eq!(ask("demo", &[]).await, MasterReport::Away(NOT_READY));

        // A request that it doesn't take counts as no answer.
        let plan = Plan {
            drain: vec![1],
            ..Plan::default()
        };
        let mut observed = Observed {
            master: MasterReport::Servers(BTreeMap::new()),
            ..Observed::default()
        };
        carry_out("demo", &[address], &plan, &mut observed).await;
        assert_eq!(observed.master, MasterReport::Away(NO_ANSWER));
    }

    #[test]
    fn refusals_of_the_master_are_distinguished() {
        let why = || "its own words".to_owned();
        let full = report_after(Some(&Error::NoRoom(why())));
        assert_eq!(full, MasterReport::NoRoom);
        let refused = report_after(Some(&Error::Invalid(why())));
        assert_eq!(refused, MasterReport::Away(NOT_TAKEN));
        let away = report_after(Some(&Error::Unavailable(why())));
        assert_eq!(away, MasterReport::Away(NO_ANSWER));
    }
}
