//! Which of several oracles to ask: the leader, and the next one when it doesn't answer.

use std::collections::VecDeque;
use std::time::Duration;

use super::Place;
use crate::cluster::{Cluster, ReportedServer, ServerRole};

/// One of several oracles answers within this, or the next one is asked. A leader's response takes microseconds; one that
/// stands still has lost its right after two seconds.
const TIMEOUT_OF_SEVERAL: Duration = Duration::from_millis(1_000);
/// One that is alone is waited for until the caller's own deadline.
const TIMEOUT_OF_ONE: Duration = Duration::from_secs(24 * 3600);

/// The oracles of a cluster: first the one that led last, as far as the master knows. None if it knows none.
pub fn places(cluster: &Cluster) -> Option<Place> {
    let oracles = cluster.servers.iter();
    let oracles = oracles.filter(|server| server.role == ServerRole::Oracle);
    let mut oracles: Vec<&ReportedServer> = oracles.collect();
    oracles.sort_by_key(|server| std::cmp::Reverse((server.leads_term, server.alive)));
    let mut addresses = oracles.into_iter().map(|server| server.address.clone());
    Some(Place {
        address: addresses.next()?,
        cluster_id: cluster.id.clone(),
        others: addresses.collect(),
    })
}

/// The oracles that are known, and whose turn it is. The oracle client asks by it, and the simulator's clients.
#[derive(Debug, Default)]
pub struct KnownPlaces {
    cluster_id: String,
    /// The first one is asked.
    addresses: VecDeque<String>,
    /// Those that were known when the directory was last read. Oracles that have restarted since are elsewhere: they are
    /// asked only if the directory can't be read.
    earlier: VecDeque<String>,
    several: bool,
    /// Standbys have named a leader so often since the directory was read.
    followed: usize,
}

impl KnownPlaces {
    /// Nobody is left to ask: read the directory.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The directory was read.
    pub fn learn(&mut self, place: Place) {
        self.several = !place.others.is_empty();
        self.cluster_id = place.cluster_id;
        self.addresses = [place.address].into_iter().chain(place.others).collect();
        self.earlier.clone_from(&self.addresses);
        self.followed = 0;
    }

    /// The one that was asked has granted timestamps: when it doesn't any more, the directory knows better who else does.
    pub fn granted(&mut self) {
        self.addresses.truncate(1);
        self.followed = 0;
    }

    /// How long the directory is waited for: not for long if other oracles were known before.
    pub fn directory_timeout(&self) -> Duration {
        if self.earlier.len() > 1 {
            TIMEOUT_OF_SEVERAL
        } else {
            TIMEOUT_OF_ONE
        }
    }

    /// The directory can't be read: those that were known before are asked, once. Whether there are several.
    pub fn recall(&mut self) -> bool {
        let earlier = std::mem::take(&mut self.earlier);
        if earlier.len() > 1 {
            self.addresses.clone_from(&earlier);
        }
        !self.addresses.is_empty()
    }

    /// Whom to ask.
    pub fn current(&self) -> Option<Place> {
        Some(Place {
            address: self.addresses.front()?.clone(),
            cluster_id: self.cluster_id.clone(),
            others: Vec::new(),
        })
    }

    /// How long it is waited for.
    pub fn timeout(&self) -> Duration {
        if self.several {
            TIMEOUT_OF_SEVERAL
        } else {
            TIMEOUT_OF_ONE
        }
    }

    /// The one that was asked granted nothing, and names the leader, if it knows one.
    pub fn failed(&mut self, leader: Option<String>) {
        self.addresses.pop_front();
        // Standbys that name a leader which is dead, or each other, must not keep the client from the directory.
        if let Some(leader) = leader
            && self.followed < 3
        {
            self.followed += 1;
            self.several = true;
            self.addresses.retain(|address| *address != leader);
            self.addresses.push_front(leader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oracle(address: &str, leads_term: u64) -> ReportedServer {
        ReportedServer {
            leads_term,
            ..ReportedServer::new(ServerRole::Oracle, address, address)
        }
    }

    #[test]
    fn the_leader_is_asked_first_and_then_the_others() {
        let mut cluster = Cluster::new("c");
        cluster.servers = vec![oracle("a:1", 0), oracle("b:1", 7), oracle("c:1", 6)];
        let place = places(&cluster).unwrap();
        assert_eq!(place.address, "b:1");
        let mut known = KnownPlaces::default();
        known.learn(place);
        assert_eq!(known.timeout(), TIMEOUT_OF_SEVERAL);
        known.failed(None);
        assert_eq!(known.current().unwrap().address, "c:1");
        known.failed(Some("d:1".to_owned()));
        assert_eq!(known.current().unwrap().address, "d:1");
        known.failed(Some("a:1".to_owned()));
        assert_eq!(known.current().unwrap().address, "a:1");
        known.failed(None);
        assert!(known.is_empty());
    }

    #[test]
    fn others_that_were_known_before_are_asked_only_without_a_directory() {
        let mut known = KnownPlaces::default();
        known.learn(Place {
            others: vec!["b:1".to_owned()],
            ..Place::from("a:1".to_owned())
        });
        known.granted();
        assert_eq!(known.timeout(), TIMEOUT_OF_SEVERAL);
        known.failed(None);
        assert!(known.is_empty(), "the directory is read");
        assert_eq!(known.directory_timeout(), TIMEOUT_OF_SEVERAL);
        assert!(known.recall());
        assert_eq!(known.current().unwrap().address, "a:1");
        known.failed(None);
        assert_eq!(known.current().unwrap().address, "b:1");
        known.failed(None);
        // And then the directory again, for as long as it takes.
        assert!(known.is_empty());
        assert_eq!(known.directory_timeout(), TIMEOUT_OF_ONE);
        assert!(!known.recall());
        // Where one that has granted names another one, that is asked first.
        known.learn("a:1".to_owned().into());
        known.granted();
        known.failed(Some("c:1".to_owned()));
        assert_eq!(known.current().unwrap().address, "c:1");
    }

    #[test]
    fn standbys_that_name_each_other_end() {
        let mut known = KnownPlaces::default();
        known.learn("a:1".to_owned().into());
        assert_eq!(known.timeout(), TIMEOUT_OF_ONE);
        for asked in 0..3 {
            assert!(!known.is_empty(), "{asked}");
            known.failed(Some("b:1".to_owned()));
        }
        known.failed(Some("a:1".to_owned()));
        assert!(known.is_empty());
    }

    #[test]
    fn a_directory_without_oracles_has_no_place() {
        assert_eq!(places(&Cluster::new("c")), None);
    }
}
