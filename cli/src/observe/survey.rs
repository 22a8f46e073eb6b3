//! What the master and the oracle say of a cluster, at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use percolator_client::{
    Admin, Client, Cluster, DEAD_LETTERS, GcStatus, IntroducedProxy, ReportedServer, ServerRole,
    StandbyMaster, Table, Tablet, Timestamp,
};

use super::metrics::Page;

/// The role of a proxy.
pub(crate) const PROXY: &str = "proxy";

/// A cluster at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    /// The master's address; of several, the leader's.
    pub(crate) master: String,
    /// Its name.
    pub(crate) master_name: String,
    /// The term in which it leads; 0: it is alone.
    pub(crate) master_term: u64,
    /// How long it took to take over from another master.
    pub(crate) master_takeover: Option<Duration>,
    /// How many masters the manifest has; 0: the master does not know.
    pub(crate) masters_expected: usize,
    /// The same of oracles.
    pub(crate) oracles_expected: usize,
    pub(crate) cluster_id: String,
    /// How many tablet servers the manifest has; 0: the master does not know.
    pub(crate) tablet_servers_expected: usize,
    /// Where servers show metrics, by name, as far as the master knows.
    pub(crate) metrics: BTreeMap<String, String>,
    /// Without the master that leads; in order of role and name.
    pub(crate) servers: Vec<Server>,
    pub(crate) tables: Vec<Table>,
    pub(crate) gc: GcStatus,
    /// Changes that observers have given up, by their table: [`GIVEN_UP_MAX`] of them, or all. Or why they aren't known.
    pub(crate) given_up: Result<BTreeMap<String, usize>, String>,
    /// How long the oracle took for a timestamp, or why there's none.
    pub(crate) oracle: Result<Duration, String>,
}

/// A server, as the master knows it.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) role: &'static str,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) alive: bool,
    /// Of an oracle: the last term in which it led, as it said last; 0: none.
    pub(crate) leads_term: u64,
    /// Of an oracle: how long its last takeover from another one took.
    pub(crate) takeover: Option<Duration>,
    /// `None`: silent since this master leads.
    pub(crate) silence: Option<Duration>,
    /// Tablets that it had, and has no more.
    pub(crate) lost: BTreeSet<u64>,
    /// How long its disk has neither taken a write nor refused it.
    pub(crate) disk_stalled: Duration,
    pub(crate) failed: Option<Failed>,
    /// It is to have no tablets.
    pub(crate) draining: bool,
    /// It has none since then: nobody misses it.
    pub(crate) drained: bool,
    /// It is to have no tablets, and has one that no other server has room for.
    pub(crate) without_room: bool,
    /// It is to have no tablets and owns none, and waits for this, which another server has to say; empty: for nothing.
    pub(crate) waits_for: String,
    /// Of a proxy.
    pub(crate) proxy: Option<ProxyState>,
}

/// What is known of a proxy alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProxyState {
    /// How long ago it introduced itself first.
    pub(crate) known: Duration,
    /// Its open sessions, where its metrics are reached.
    pub(crate) sessions: Option<u64>,
}

/// Starts of a server that have ended because its disk failed, or what it has stored is damaged.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) times: u32,
    /// What the last of them said.
    pub(crate) why: String,
    pub(crate) ago: Duration,
}

/// A table's tablets, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tablets {
    pub(crate) all: usize,
    pub(crate) ready: usize,
    pub(crate) lost: usize,
    /// Their owner is away.
    pub(crate) away: usize,
}

/// Changes that were given up are counted up to this.
pub(crate) const GIVEN_UP_MAX: usize = 1_000;
/// A server that is away is missed by the master within this: three heartbeats.
const MISSED_AFTER: Duration = Duration::from_secs(3);

/// See [`Survey::given_up`]. A server that is away is not waited for.
async fn given_up(client: &Client, cluster: &Cluster) -> Result<BTreeMap<String, usize>, String> {
    let Some(letters) = cluster.tables.iter().find(|it| it.name == DEAD_LETTERS) else {
        return Ok(BTreeMap::new());
    };
    if letters.tablets.iter().any(|tablet| !tablet.server_alive) {
        return Err(format!("a server is away that has rows of {DEAD_LETTERS}"));
    }
    let counted = client.count_dead_letters(GIVEN_UP_MAX).await;
    let mut by_table = BTreeMap::new();
    for ((table, _), count) in counted.map_err(|error| error.to_string())? {
        *by_table.entry(table).or_default() += count;
    }
    Ok(by_table)
}

impl Survey {
    /// Asks a cluster that was connected to.
    ///
    /// # Errors
    /// The master doesn't answer.
    pub(crate) async fn take(client: &Client, admin: &Admin) -> anyhow::Result<Self> {
        let asked = Instant::now();
        let oracle = match client.timestamp().await {
            Ok(_) => Ok(asked.elapsed()),
            Err(error) => {
                // Whether it is away, or only out of reach from here, the master knows by then.
                tokio::time::sleep(MISSED_AFTER.saturating_sub(asked.elapsed())).await;
                Err(error.to_string())
            }
        };
        let cluster = client.cluster().await?;
        let gc = admin.gc_status().await?;
        let given_up = match &oracle {
            Ok(_) => given_up(client, &cluster).await,
            Err(why) => Err(why.clone()),
        };
        let master = admin.master_address();
        let metrics = metrics(&cluster, &master);
        let standbys = cluster.standby_masters.into_iter().map(standby_master);
        let proxies = cluster.proxies.into_iter().map(proxy);
        let mut servers: Vec<Server> = cluster.servers.into_iter().map(server).collect();
        servers.extend(standbys.chain(proxies));
        servers.sort_by(|a, b| (a.role, &a.name).cmp(&(b.role, &b.name)));
        Ok(Self {
            master,
            master_name: cluster.master,
            master_term: cluster.master_term,
            master_takeover: cluster.master_takeover,
            masters_expected: usize::try_from(cluster.masters_expected)?,
            oracles_expected: usize::try_from(cluster.oracles_expected)?,
            cluster_id: cluster.id,
            tablet_servers_expected: usize::try_from(cluster.tablet_servers_expected)?,
            metrics,
            servers,
            tables: cluster.tables,
            gc,
            given_up,
            oracle,
        })
    }

    /// Adds what only the servers' metrics say.
    pub(crate) fn add_shown(&mut self, pages: &BTreeMap<String, Page>) {
        let servers = self
            .servers
            .iter()
            .filter(|it| it.role != PROXY || it.alive);
        let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
        for server in servers {
            *by_name.entry(server.name.clone()).or_default() += 1;
        }
        // Of several with one name it isn't known whose page it is.
        let is_one = |proxy: &Server| proxy.alive && by_name.get(&proxy.name) == Some(&1);
        let proxies = self.servers.iter_mut();
        for proxy in proxies.filter(|it| it.role == PROXY && is_one(it)) {
            let page = pages.get(&proxy.name);
            let sessions = page.and_then(|page| page.sum("percolator_proxy_sessions", &[]));
            if let Some(state) = &mut proxy.proxy {
                // A gauge of whole numbers.
                state.sessions = sessions.map(|sessions| sessions as u64);
            }
        }
    }

    /// The term in which an oracle leads that is one of several; none if it is a standby, or alone.
    pub(crate) fn leads(&self, oracle: &Server) -> Option<u64> {
        let last = self.last_oracle_term();
        (last > 0 && oracle.leads_term == last).then_some(last)
    }

    /// The term in which one of several oracles leads; 0: there is one without a register.
    pub(crate) fn last_oracle_term(&self) -> u64 {
        let terms = self.servers.iter().map(|server| server.leads_term);
        terms.max().unwrap_or_default()
    }

    /// Whether the server that owns it doesn't have it any more.
    pub(crate) fn is_lost(&self, tablet: u64) -> bool {
        self.servers.iter().any(|it| it.lost.contains(&tablet))
    }

    pub(crate) fn tablets(&self, table: &Table) -> Tablets {
        let mut counted = Tablets::default();
        for tablet in &table.tablets {
            counted.all += 1;
            match (self.is_lost(tablet.id), tablet.server_alive) {
                (true, _) => counted.lost += 1,
                (false, false) => counted.away += 1,
                (false, true) => counted.ready += 1,
            }
        }
        counted
    }

    /// The tablets that the directory gives it, with their tables.
    pub(crate) fn owned_by(&self, server: &str) -> impl Iterator<Item = (&Table, &Tablet)> {
        let tables = self.tables.iter();
        let tablets = tables.flat_map(|table| table.tablets.iter().map(move |it| (table, it)));
        tablets.filter(move |(_, tablet)| tablet.server == server)
    }

    /// Of those that their clients have named, or of a client's floor.
    pub(crate) fn oldest(&self) -> Option<(Timestamp, String)> {
        let holders = self.gc.holders.iter();
        let named = holders.filter_map(|holder| {
            let first = *holder.transactions.first()?;
            Some((first, holder.owner.to_string()))
        });
        named.min_by_key(|(start_ts, _)| *start_ts)
    }

    /// Without what may name a row: of what is in the way only the server.
    pub(crate) fn without_keys(mut self) -> Self {
        for obstacle in &mut self.gc.obstacles {
            "something is in the way there: `percolator gc why-blocked` names it"
                .clone_into(&mut obstacle.what);
        }
        for server in &mut self.servers {
            if let Some(failed) = &mut server.failed {
                "its log says why".clone_into(&mut failed.why);
            }
        }
        if let Err(why) = &mut self.given_up {
            "their table could not be read, and `percolator status` says why".clone_into(why);
        }
        for table in &mut self.tables {
            for tablet in &mut table.tablets {
                tablet.start_row.clear();
                tablet.end_row.clear();
            }
        }
        self
    }
}

/// Where servers show metrics, by name, as far as the master knows; it is itself reached at `master`, the first one of
/// several.
pub(crate) fn metrics(cluster: &Cluster, master: &str) -> BTreeMap<String, String> {
    let master = master.split(',').next().unwrap_or_default();
    let servers = cluster.servers.iter();
    let servers = servers.map(|it| (&it.server, &*it.address, &it.metrics_address));
    let mut metrics: BTreeMap<String, String> =
        std::iter::once((&cluster.master, master, &cluster.master_metrics_address))
            .chain(servers)
            .filter_map(|(name, address, shown)| Some((name.clone(), reached(address, shown)?)))
            .collect();
    // One that is down was replaced by another one elsewhere. Anything may call itself a proxy: it takes no server's place.
    for proxy in cluster.proxies.iter().filter(|it| it.alive) {
        if let Some(shown) = reached(&proxy.address, &proxy.metrics_address) {
            metrics.entry(proxy.server.clone()).or_insert(shown);
        }
    }
    metrics
}

/// Where metrics are reached that a server shows where it listens: an unspecified address stands for its host.
fn reached(address: &str, shown: &str) -> Option<String> {
    let shown: SocketAddr = shown.parse().ok()?;
    if !shown.ip().is_unspecified() {
        return Some(shown.to_string());
    }
    if let Ok(listens) = address.parse::<SocketAddr>()
        && listens.ip().is_unspecified()
    {
        // It listens on some machine, and doesn't say on which.
        return None;
    }
    let (host, _) = address.rsplit_once(':')?;
    Some(format!("{host}:{}", shown.port()))
}

fn server(info: ReportedServer) -> Server {
    Server {
        role: match info.role {
            ServerRole::Oracle => "oracle",
            ServerRole::Tablet => "tablet",
        },
        name: info.server,
        address: info.address,
        alive: info.alive,
        leads_term: info.leads_term,
        takeover: info.takeover,
        silence: info.silence,
        lost: info.lost_tablets.into_iter().collect(),
        disk_stalled: info.disk_stalled,
        failed: info.failure.map(|failure| Failed {
            times: failure.times,
            why: failure.reason,
            ago: failure.ago,
        }),
        draining: info.draining,
        drained: info.drained,
        without_room: info.without_room,
        waits_for: info.waits_for,
        proxy: None,
    }
}

fn standby_master(master: StandbyMaster) -> Server {
    without_tablets(
        "master",
        master.server,
        master.address,
        master.alive,
        master.silence,
    )
}

fn proxy(proxy: IntroducedProxy) -> Server {
    let state = ProxyState {
        known: proxy.known,
        sessions: None,
    };
    Server {
        proxy: Some(state),
        ..without_tablets(
            PROXY,
            proxy.server,
            proxy.address,
            proxy.alive,
            proxy.silence,
        )
    }
}

/// Of which the master knows whether it is up, and no more.
fn without_tablets(
    role: &'static str,
    name: String,
    address: String,
    alive: bool,
    silence: Duration,
) -> Server {
    Server {
        role,
        name,
        address,
        alive,
        leads_term: 0,
        takeover: None,
        silence: Some(silence),
        lost: BTreeSet::new(),
        disk_stalled: Duration::ZERO,
        failed: None,
        draining: false,
        drained: false,
        without_room: false,
        waits_for: String::new(),
        proxy: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_reached_where_the_server_is_or_where_it_says() {
        let at = |address, shown| reached(address, shown);
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            at("tablet-0.demo:7402", "0.0.0.0:9090"),
            some("tablet-0.demo:9090")
        );
        assert_eq!(at("[fd00::1]:7402", "[::]:9090"), some("[fd00::1]:9090"));
        assert_eq!(
            at("10.0.0.1:7402", "127.0.0.1:9090"),
            some("127.0.0.1:9090")
        );
        assert_eq!(at("10.0.0.1:7402", ""), None);
        assert_eq!(at("[::]:7490", "[::]:9090"), None);
    }
}
