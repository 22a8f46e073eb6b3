//! A stream of changes goes on while collection has to: what it has given already is held for nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::{Changes, ChangesOptions, Error};

use crate::cluster::Cluster;
use crate::run::keeper;
use crate::world::World;

/// Between two steps of the stream.
const INTERVAL: Duration = Duration::from_millis(500);
/// It ends within this.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Somebody who follows a table.
pub(crate) struct Follower {
    ends: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
}

impl Follower {
    /// Begins to follow this table. Timestamps that are granted from now on lie above where it has begun.
    pub(crate) fn begin(world: &Arc<World>, cluster: &Arc<Cluster>, table: &str) -> Option<Self> {
        let table = table.to_owned();
        let changes = keeper(world, cluster, "following a table", move |session| {
            let table = table.clone();
            async move {
                let options = ChangesOptions {
                    interval: INTERVAL,
                    ..ChangesOptions::default()
                };
                let changes = session.client.changes(&table, options).await?;
                session.client.timestamp().await?;
                Ok(changes)
            }
            .boxed()
        })?;
        let (ends, has_ended) = (Arc::default(), Arc::default());
        let follower = Self { ends, has_ended };
        let (node, session) = cluster.keeper_session(world);
        let (ends, has_ended) = (follower.ends.clone(), follower.has_ended.clone());
        let follow = async move {
            follow(changes, &session.world, &ends).await;
            has_ended.store(true, Ordering::Relaxed);
        };
        world.spawn(node, follow.boxed());
        Some(follower)
    }

    /// Nobody follows any more.
    pub(crate) fn end(self, world: &Arc<World>) {
        self.ends.store(true, Ordering::Relaxed);
        let has_ended = || self.has_ended.load(Ordering::Relaxed);
        world.run(world.now() + ENDS_WITHIN, has_ended);
    }
}

async fn follow(mut changes: Changes, world: &Arc<World>, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        match changes.next().await {
            Ok(Some(_)) => {}
            Ok(None) | Err(Error::TooOld(_) | Error::UnknownTable { .. }) => return,
            Err(_) => world.sleep(INTERVAL).await,
        }
    }
}
