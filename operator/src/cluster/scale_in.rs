//! The removal of tablet servers: which of them the master drains first, and how many run meanwhile. Pure.
//!
//! A server's rows are nowhere else. So the StatefulSet shrinks only when the master reports each server that is to go as drained
//! (`docs/design/operator.md`).

use std::collections::{BTreeMap, BTreeSet};

use percolator_api::{ClaimRetention, ClusterObject, Reason};

use super::names::{self, PORT, Role};
use super::observed::{self, Observed};

/// Why a drain is blocked until a person changes something.
const NOWHERE_TO_DRAIN: &str = "all servers that stay are drained as well, so that none may get the tablets of those that \
    go: `percolator server undrain` one of them, or ask for more servers";
const NO_ROOM: &str = "the servers that stay have no room for all tablets: give them larger volumes, or take fewer away";
/// As many servers are named in a message.
const NAMED_MAX: usize = 3;

/// What the master reports of a tablet server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TabletServer {
    /// Its heartbeats come.
    pub(crate) is_up: bool,
    /// It is to have no tablets.
    pub(crate) is_draining: bool,
    /// It is to have none, and has reported that it has none: the master has stored that.
    pub(crate) is_drained: bool,
    /// How many it has.
    pub(crate) tablets: u64,
    /// It is to have none, and has one that no other server has room for.
    pub(crate) is_without_room: bool,
    /// It is to have none and owns none, and waits for this report of another server; empty: for nothing.
    pub(crate) waits_for: String,
}

/// What the master reports of the tablet servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum MasterReport {
    /// It was not asked, because no decision depends on it.
    #[default]
    NotAsked,
    /// It doesn't answer, for this reason: a constant, so that the status doesn't change each time.
    Away(&'static str),
    /// It was asked to drain servers, and has refused all of it: the others have not enough room.
    NoRoom,
    /// Those that it knows, by their numbers.
    Servers(BTreeMap<u32, TabletServer>),
}

impl MasterReport {
    fn servers(&self) -> Option<&BTreeMap<u32, TabletServer>> {
        match self {
            Self::Servers(servers) => Some(servers),
            Self::NotAsked | Self::Away(_) | Self::NoRoom => None,
        }
    }

    /// What it reports of this server.
    pub(super) fn server(&self, ordinal: u32) -> Option<&TabletServer> {
        self.servers()?.get(&ordinal)
    }

    /// Replaces the report of a server.
    pub(crate) fn note(&mut self, ordinal: u32, server: TabletServer) {
        if let Self::Servers(servers) = self {
            servers.insert(ordinal, server);
        }
    }
}

/// The name by which the master knows a tablet server: its pod's.
pub(crate) fn server_name(cluster: &str, ordinal: u32) -> String {
    format!("{}-{ordinal}", Role::Tablet.set(cluster))
}

/// What happens to the tablet servers that the spec doesn't ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScaleIn {
    /// How many servers are to run now.
    pub(crate) replicas: u32,
    /// Those that the master is to drain.
    pub(crate) drain: Vec<u32>,
    /// Those that it is to undrain, because the spec asks for them again.
    pub(crate) undrain: Vec<u32>,
    /// Those that the operator drains or has drained, for the status.
    pub(crate) recorded: BTreeSet<u32>,
    /// Claims that go, of servers that are gone.
    pub(crate) release: Vec<String>,
    /// What the roll-out waits for.
    pub(crate) waits: Option<(Reason, String)>,
    /// Why the drain is blocked until a person changes something.
    pub(crate) blocked: Option<&'static str>,
}

/// The servers that are to go, and their state.
struct Surplus<'a> {
    cluster: &'a str,
    report: &'a MasterReport,
    /// How many servers the spec asks for.
    asked: u32,
    /// Servers with pods that are to go.
    surplus: std::ops::Range<u32>,
    /// Those that the status records.
    recorded: BTreeSet<u32>,
    /// Servers whose claims have, or had, a volume; and whether it stays.
    volumes: BTreeMap<u32, bool>,
    /// Servers whose claims have none yet.
    without_volume: BTreeSet<u32>,
    /// Servers that have a pod.
    pods: BTreeSet<u32>,
}

impl<'a> Surplus<'a> {
    fn of(cluster: &'a ClusterObject, observed: &'a Observed) -> Self {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let asked = cluster.spec.tablets.replicas;
        let set = observed.set(name, Role::Tablet);
        let running = set.map_or(0, |set| observed::number(set, "/spec/replicas"));
        let claims = observed.claims_of(name, Role::Tablet).into_iter();
        let (claims, unused): (Vec<_>, Vec<_>) =
            claims.partition(|(_, claim)| observed::has_volume(claim));
        Self {
            cluster: name,
            report: &observed.master,
            asked,
            surplus: asked..u32::try_from(running).unwrap_or(0).max(asked),
            recorded: recorded(cluster),
            pods: pods(name, observed),
            without_volume: unused.into_iter().map(|(ordinal, _)| ordinal).collect(),
            volumes: claims
                .into_iter()
                .map(|(ordinal, claim)| (ordinal, !observed::is_terminating(claim)))
                .collect(),
        }
    }

    fn server(&self, ordinal: u32) -> Option<&TabletServer> {
        self.report.server(ordinal)
    }

    /// Whether rows may be at the server alone. One whose claim has no volume has never run, nor has one without claim and pod:
    /// with a pod, its claim is there and has lost its labels. A server whose claim is being deleted may go if the master doesn't know it either.
    fn may_hold_rows(&self, ordinal: u32) -> bool {
        match (self.report, self.server(ordinal)) {
            (_, Some(server)) => !server.is_drained,
            (MasterReport::Servers(_), None) => self.volumes.get(&ordinal) == Some(&true),
            (MasterReport::NotAsked | MasterReport::Away(_) | MasterReport::NoRoom, None) => {
                let has_unlisted = self.pods.contains(&ordinal);
                let may_have_volume = self.volumes.contains_key(&ordinal) || has_unlisted;
                may_have_volume && !self.without_volume.contains(&ordinal)
            }
        }
    }

    /// Servers that are to go and may not yet.
    fn kept(&self) -> Vec<u32> {
        let surplus = self.surplus.clone();
        surplus.filter(|it| self.may_hold_rows(*it)).collect()
    }

    /// Of the servers that stay, those that may get tablets.
    fn takers(&self) -> impl Iterator<Item = &TabletServer> {
        let servers = self.report.servers().into_iter().flatten();
        let stay = servers.filter(|(ordinal, server)| {
            **ordinal < self.asked && (!server.is_draining || self.recorded.contains(ordinal))
        });
        stay.map(|(_, server)| server)
    }

    fn has_nowhere(&self) -> bool {
        self.report.servers().is_some() && self.takers().next().is_none()
    }

    /// See [`ScaleIn::blocked`].
    fn blocked(&self, kept: &[u32]) -> Option<&'static str> {
        if *self.report == MasterReport::NoRoom {
            return Some(NO_ROOM);
        }
        if self.has_nowhere() {
            return Some(NOWHERE_TO_DRAIN);
        }
        // Volumes may have filled since the master has taken the drain.
        let mut servers = kept.iter().filter_map(|it| self.server(*it));
        servers.any(|it| it.is_without_room).then_some(NO_ROOM)
    }

    /// How many servers are to run now.
    fn replicas(&self, kept: &[u32]) -> u32 {
        if !kept.is_empty() {
            return self.surplus.end;
        }
        // Somebody has scaled the set by hand, or has undrained a server that was about to go: rows are only there. A master that
        // leads since knows no tablet of a server that has not reported to it: its volume says that there may be some.
        let gone = self.recorded.range(self.surplus.end..);
        let with_rows = gone.filter(|ordinal| {
            let has_volume = self.volumes.get(ordinal) == Some(&true);
            let server = self.server(**ordinal);
            server.is_some_and(|it| !it.is_drained && (it.tablets > 0 || has_volume))
        });
        with_rows.max().map_or(self.asked, |last| last + 1)
    }

    fn to_drain(&self) -> Vec<u32> {
        let gone = self.recorded.range(self.surplus.end..).copied();
        let go = self.surplus.clone().chain(gone);
        let is_to_go = |ordinal: &u32| self.server(*ordinal).is_some_and(|it| !it.is_draining);
        go.filter(is_to_go).collect()
    }

    fn to_undrain(&self) -> Vec<u32> {
        let stay = self.recorded.range(..self.asked);
        // One whose volume goes gets no tablets: it starts anew first, with another one.
        let has_lasting = |ordinal: &&u32| self.volumes.get(ordinal) != Some(&false);
        let is_draining = |ordinal: &&u32| self.server(**ordinal).is_some_and(|it| it.is_draining);
        let undrained = stay.filter(has_lasting).filter(is_draining);
        undrained.copied().collect()
    }

    /// Those of the recorded servers that the record is still needed for.
    fn still_recorded(&self) -> BTreeSet<u32> {
        let is_needed = |ordinal: &u32| {
            let has_answered = self.report.servers().is_some();
            match self.server(*ordinal) {
                Some(server) => *ordinal >= self.asked || server.is_draining,
                None => !has_answered || self.surplus.contains(ordinal),
            }
        };
        let recorded = self.recorded.iter().copied();
        recorded.filter(is_needed).collect()
    }

    fn names(&self, ordinals: &[u32]) -> String {
        let named = ordinals.iter().take(NAMED_MAX);
        let named: Vec<String> = named.map(|it| server_name(self.cluster, *it)).collect();
        let more = ordinals.len().saturating_sub(NAMED_MAX);
        match more {
            0 => named.join(", "),
            _ => format!("{} and {more} more", named.join(", ")),
        }
    }

    /// Why servers that are to go can't be drained now.
    fn obstacle(&self, kept: &[u32]) -> Option<String> {
        let servers = match self.report {
            MasterReport::Away(why) => return Some((*why).to_owned()),
            MasterReport::NotAsked => return None,
            MasterReport::NoRoom => return Some(NO_ROOM.to_owned()),
            MasterReport::Servers(servers) => servers,
        };
        if let Some(blocked) = self.blocked(kept) {
            return Some(blocked.to_owned());
        }
        let unknown: Vec<u32> = kept
            .iter()
            .copied()
            .filter(|it| !servers.contains_key(it))
            .collect();
        if let Some(first) = unknown.first() {
            let claim = names::claim(self.cluster, Role::Tablet, *first);
            return Some(format!(
                "the master doesn't know {}, which has a volume: it goes when it has served; or, if it never has, when its \
                 claim is deleted (kubectl delete pvc {claim} --wait=false)",
                self.names(&unknown)
            ));
        }
        let is_down = |ordinal: &u32| self.server(*ordinal).is_some_and(|it| !it.is_up);
        let down: Vec<u32> = kept.iter().copied().filter(is_down).collect();
        if !down.is_empty() {
            return Some(format!(
                "{} is down, and tablets that are only there can't be moved until it serves",
                self.names(&down)
            ));
        }
        let waits = |ordinal: &u32| {
            let server = self.server(*ordinal)?;
            let what = &server.waits_for;
            let waits = !what.is_empty();
            waits.then(|| format!("{} waits for {what}", self.names(&[*ordinal])))
        };
        if let Some(waits) = kept.iter().find_map(waits) {
            return Some(waits);
        }
        let is_any_up = self.takers().any(|server| server.is_up);
        (!is_any_up).then(|| "none of the servers that stay is up".to_owned())
    }

    fn waits(&self, kept: &[u32], undrain: &[u32]) -> Option<(Reason, String)> {
        if !kept.is_empty() {
            let left: u64 = kept
                .iter()
                .filter_map(|it| self.server(*it))
                .map(|it| it.tablets)
                .sum();
            let mut message = format!("taking {} away", self.names(kept));
            if self.report.servers().is_some() {
                message += &format!(": {left} tablets left there");
            }
            return Some(match self.obstacle(kept) {
                Some(obstacle) => (Reason::DrainBlocked, format!("{message}; {obstacle}")),
                None => (Reason::DrainingTablets, message),
            });
        }
        let stay: Vec<u32> = self.recorded.range(..self.asked).copied().collect();
        match self.report {
            MasterReport::Away(why) if !stay.is_empty() => {
                let message = format!("{} is to be undrained; {why}", self.names(&stay));
                Some((Reason::DrainBlocked, message))
            }
            _ if !undrain.is_empty() => {
                let message = format!("{} is to be undrained", self.names(undrain));
                Some((Reason::DrainingTablets, message))
            }
            _ => None,
        }
    }

    /// Claims of servers that the operator has had drained and taken away.
    fn release(&self, observed: &Observed, retention: ClaimRetention) -> Vec<String> {
        let set = observed.set(self.cluster, Role::Tablet);
        // Before there is a set, the number of its pods is unknown.
        let Some((set, ClaimRetention::Delete)) = set.map(|set| (set, retention)) else {
            return Vec::new();
        };
        let pods = observed::number(set, "/status/replicas");
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        let gone = self.recorded.range(self.surplus.end.max(pods)..);
        let is_empty = |ordinal: &&u32| {
            let is_drained = self.server(**ordinal).is_some_and(|it| it.is_drained);
            is_drained && self.volumes.get(ordinal) == Some(&true)
        };
        // The set counts its pods. Only their list says which ones are there.
        let empty = gone.filter(is_empty);
        let empty = empty.filter(|ordinal| !self.pods.contains(ordinal));
        empty
            .map(|ordinal| names::claim(self.cluster, Role::Tablet, *ordinal))
            .collect()
    }
}

/// The tablet servers that have a pod.
fn pods(cluster: &str, observed: &Observed) -> BTreeSet<u32> {
    let prefix = format!("{}-", Role::Tablet.set(cluster));
    let names = observed.pods.iter().map(observed::name_of);
    let ordinals = names.filter_map(|name| name.strip_prefix(&prefix)?.parse().ok());
    ordinals.collect()
}

impl ScaleIn {
    pub(crate) fn of(cluster: &ClusterObject, observed: &Observed) -> Self {
        let it = Surplus::of(cluster, observed);
        let kept = it.kept();
        let blocked = it.blocked(&kept).filter(|_| !kept.is_empty());
        let drain = if it.has_nowhere() {
            Vec::new()
        } else {
            it.to_drain()
        };
        let undrain = it.to_undrain();
        let mut recorded = it.still_recorded();
        if !cluster.spec.paused {
            recorded.extend(&drain);
        }
        Self {
            replicas: it.replicas(&kept),
            waits: it.waits(&kept, &undrain),
            release: it.release(observed, cluster.spec.claims.when_scaled),
            blocked,
            drain,
            undrain,
            recorded,
        }
    }
}

/// The servers that the status records as drained by the operator.
pub(crate) fn recorded(cluster: &ClusterObject) -> BTreeSet<u32> {
    let status = cluster.status.as_ref();
    let draining = status.into_iter().flat_map(|it| &it.tablets.draining);
    draining.filter_map(|it| u32::try_from(*it).ok()).collect()
}

/// The addresses of masters that are ready, if a decision depends on the master's report of servers. None: it needn't be asked.
///
/// They are the pods' addresses, which need no DNS.
pub(crate) fn masters_to_ask(cluster: &ClusterObject, observed: &Observed) -> Option<Vec<String>> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    observed.own_set(cluster, Role::Tablet)?;
    let it = Surplus::of(cluster, observed);
    if it.surplus.is_empty() && it.recorded.is_empty() {
        return None;
    }
    let prefix = format!("{}-", Role::Master.set(name));
    let serving = observed.serving();
    let masters = observed.pods.iter().filter(|pod| {
        let name = observed::name_of(*pod);
        serving.contains(name) && name.starts_with(&prefix)
    });
    let address = |pod| observed::address(pod, PORT);
    Some(masters.filter_map(address).collect())
}
