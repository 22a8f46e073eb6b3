//! The servers of a cluster by name, with an index of the oracles: a heartbeat must not visit all servers one by one.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::Index;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::state::{Role, Server};

/// The servers that have sent at least one heartbeat, by name. A server keeps its role.
#[derive(Clone, Debug, Default)]
pub struct ServersByName {
    all: BTreeMap<String, Server>,
    oracles: BTreeSet<String>,
    /// How many servers were visited one by one, for tests.
    visited: Cell<u64>,
}

impl ServersByName {
    /// The server of this name.
    pub fn get(&self, name: &str) -> Option<&Server> {
        self.all.get(name)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Server> {
        self.all.get_mut(name)
    }

    /// Whether there is a server of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// How many tablet servers there are.
    pub fn tablet_servers_len(&self) -> usize {
        self.all.len() - self.oracles.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a server, or replaces the one of this name.
    pub fn insert(&mut self, name: String, server: Server) {
        if server.role == Role::Oracle {
            self.oracles.insert(name.clone());
        } else {
            self.oracles.remove(&name);
        }
        self.all.insert(name, server);
    }

    /// Removes a server.
    pub fn remove(&mut self, name: &str) -> Option<Server> {
        self.oracles.remove(name);
        self.all.remove(name)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Server)> {
        self.all.iter().inspect(|_| self.visit())
    }

    /// The same without names.
    pub fn values(&self) -> impl Iterator<Item = &Server> {
        self.iter().map(|(_, server)| server)
    }

    /// The same, to be changed.
    pub fn values_mut(&mut self) -> btree_map::ValuesMut<'_, String, Server> {
        let all = u64::try_from(self.all.len()).unwrap_or(u64::MAX);
        self.visited.set(self.visited.get().saturating_add(all));
        self.all.values_mut()
    }

    /// The oracles, in order.
    pub fn oracles(&self) -> impl Iterator<Item = (&String, &Server)> {
        let names = self.oracles.iter().inspect(|_| self.visit());
        names.filter_map(|name| self.all.get_key_value(name))
    }

    /// How many servers were visited one by one, for tests.
    pub fn visited(&self) -> u64 {
        self.visited.get()
    }

    fn visit(&self) {
        self.visited.set(self.visited.get().saturating_add(1));
    }
}

impl PartialEq for ServersByName {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Eq for ServersByName {}

impl Index<&str> for ServersByName {
    type Output = Server;

    fn index(&self, name: &str) -> &Server {
        &self.all[name]
    }
}

impl FromIterator<(String, Server)> for ServersByName {
    fn from_iter<I: IntoIterator<Item = (String, Server)>>(servers: I) -> Self {
        let mut by_name = Self::default();
        for (name, server) in servers {
            by_name.insert(name, server);
        }
        by_name
    }
}

impl Serialize for ServersByName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ServersByName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<String, Server>::deserialize(deserializer)?;
        Ok(all.into_iter().collect())
    }
}
