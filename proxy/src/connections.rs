//! The connections of clients, of which no client has more than is left for the others: each takes an open file and memory.

use std::net::SocketAddr;
use std::sync::Arc;

use percolator_server::open_files_max;
use percolator_telemetry::{IntCounter, IntGauge, Limited};

use crate::pool::{Full, PoolPermit, SharedPool};
use crate::transit::one_client;

/// Of refused connections, whose clients come again and again.
static REFUSED: Limited = Limited::new();

/// The connections that are open.
#[derive(Debug)]
pub(crate) struct Connections {
    pool: SharedPool,
    open: IntGauge,
    refused: IntCounter,
}

/// One of them, until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    open: IntGauge,
    _permit: PoolPermit,
}

impl Connections {
    /// So many at the most, and fewer if the system lets this process have fewer open files.
    pub(crate) fn new(most: usize, open: IntGauge, refused: IntCounter) -> Arc<Self> {
        // Some are for the cluster, and for metrics.
        let most = most.min(open_files_max() / 4 * 3);
        Arc::new(Self {
            pool: SharedPool::new(most),
            open,
            refused,
        })
    }

    /// Takes a connection of this client, or none if it has its share.
    pub(crate) fn admit(&self, client: SocketAddr) -> Option<OpenConnection> {
        match self.pool.take(one_client(client.ip()), 1) {
            Ok(permit) => {
                self.open.inc();
                Some(OpenConnection {
                    open: self.open.clone(),
                    _permit: permit,
                })
            }
            Err(full) => {
                self.refuse(client, full);
                None
            }
        }
    }

    fn refuse(&self, client: SocketAddr, full: Full) {
        self.refused.inc();
        let Some(left_out) = REFUSED.admit() else {
            return;
        };
        match full {
            Full::All(most) => {
                tracing::warn!(%client, most, left_out, "a connection is refused: all that there may be are open");
            }
            Full::Share { has, most, .. } => {
                tracing::warn!(
                    %client, has, most, left_out, "a connection is refused: its client would have more than is left for others"
                );
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_connections_for_others() {
        let gauge = IntGauge::new("open", "Open.").unwrap();
        let counter = IntCounter::new("refused", "Refused.").unwrap();
        let connections = Connections::new(10, gauge.clone(), counter.clone());
        let client = |number| SocketAddr::from(([10, 0, 0, number], 1));
        let admit = |number| connections.admit(client(number));
        let mut greedy: Vec<_> = (0..20).map_while(|_| admit(1)).collect();
        assert_eq!((greedy.len(), gauge.get(), counter.get()), (5, 5, 1));
        let other = [admit(2), admit(2)];
        assert!(other.iter().all(Option::is_some), "{other:?}");
        greedy.clear();
        assert_eq!(gauge.get(), 2);
        assert!(admit(1).is_some());
    }
}
