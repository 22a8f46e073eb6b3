//! The client library in a process: its options, and its way to the others.

use std::sync::Arc;

use parking_lot::Mutex;
use percolator_client::transport::OneCluster;
use percolator_client::{Client, Options};

use crate::cluster::Cluster;
use crate::invariants::floors_cover::OpenTransactions;
use crate::master_link::MasterLink;
use crate::mutation::Mutation;
use crate::oracle_link::OracleLink;
use crate::rng::Rng;
use crate::transport::SimTransport;
use crate::world::{NodeId, World};

/// A client library.
#[derive(Clone)]
pub(crate) struct Library {
    pub(crate) client: Client,
    /// What its lease has to cover.
    pub(crate) open: Arc<OpenTransactions>,
}

impl Cluster {
    pub(crate) fn transport(&self, world: &Arc<World>, node: NodeId, life: &str) -> SimTransport {
        SimTransport {
            world: world.clone(),
            node,
            master: self.master().node,
            timeout: self.plan.timeout,
            rng: Mutex::new(Rng::new(self.plan.seed, &format!("transport {life}"))),
            highest: self.highest.clone(),
            cluster: OneCluster::default(),
            masters: MasterLink::new(world),
            oracles: OracleLink::new(world),
            kept: (self.plan.mutation == Some(Mutation::StaleTimestamps)).then(Mutex::default),
            open: Arc::default(),
        }
    }

    pub(crate) fn library(&self, world: &Arc<World>, node: NodeId, life: &str) -> Library {
        let options = Options {
            request_timeout: self.plan.request_timeout,
            lock_ttl: self.plan.lock_ttl,
            buffer_bytes: self.plan.buffer_bytes,
            ..Options::default()
        };
        let transport = self.transport(world, node, life);
        Library {
            open: transport.open.clone(),
            client: Client::over(Arc::new(transport), options),
        }
    }
}
