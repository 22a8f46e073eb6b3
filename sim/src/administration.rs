//! What an administrator does while everything goes on: settings are changed, masters are started again with other ones, and a
//! tablet server joins.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::transport::MasterError;
use percolator_wire::v1;

use crate::cluster::Cluster;
use crate::messages::{Answer, Ask};
use crate::plan::{Fault, Plan};
use crate::transport::odd;
use crate::world::World;

/// Retentions that are set: from the shortest that may be.
const RETENTIONS: [u64; 4] = [1, 2, 30, 600];
/// Leases that masters are started with.
const LEASES: [u64; 3] = [2, 3, 10];
/// A request may be late by so much, and thrice as long as locks live (`nemesis::begin`).
const LATE_MIN: Duration = Duration::from_secs(1);
/// One that was not set is set again after this.
const AGAIN: Duration = Duration::from_millis(200);

impl Plan {
    /// How many tablet servers there are from the beginning: all, or all but the last.
    pub(crate) fn tablet_servers_at_first(&self) -> usize {
        let joins_later = self.has(Fault::JoinLater) && self.tablet_servers > 1;
        self.tablet_servers - usize::from(joins_later)
    }
}

/// Changes the retention, or starts all masters again with another lease and the same state.
pub(crate) fn change_settings(world: &Arc<World>, cluster: &Arc<Cluster>, way: u64) {
    let (way, which) = (way / 2, way % 2);
    let one_of = |of: &[u64]| Duration::from_secs(of[(way % of.len() as u64) as usize]);
    if which == 0 {
        let (retention, cluster2) = (one_of(&RETENTIONS), cluster.clone());
        let world2 = world.clone();
        let setting = async move {
            // It may be in force all the same.
            if cluster2.set_retention(&world2, retention).await.is_err() {
                world2.note(|| "the retention is not set, as far as it is known".to_owned());
            }
        };
        return world.spawn(cluster.keeper, setting.boxed());
    }
    let lease = one_of(&LEASES);
    world.note(|| format!("masters are started with leases of {} s", lease.as_secs()));
    for master in &cluster.masters {
        master.settings.lock().lease = lease;
    }
    cluster.kill_masters(world, Duration::from_millis(10));
}

/// The tablet server that wasn't there from the beginning is started, if it is not there yet.
pub(crate) fn join(world: &Arc<World>, cluster: &Arc<Cluster>) {
    let tablet = cluster.tablet(cluster.plan.tablet_servers - 1);
    if cluster
        .master()
        .tablet_servers
        .lock()
        .contains(&tablet.name)
    {
        return;
    }
    world.note(|| format!("{} joins", tablet.name));
    for master in &cluster.masters {
        master.tablet_servers.lock().push(tablet.name.clone());
    }
    tablet.boot(world);
}

impl Cluster {
    async fn set_retention(
        &self,
        world: &Arc<World>,
        retention: Duration,
    ) -> Result<(), MasterError> {
        let request = v1::SetGcRequest {
            retention_ms: Some(retention.as_millis() as u64),
            ..v1::SetGcRequest::default()
        };
        let life = self.life("keeper");
        let transport = self.transport(world, self.keeper, &life);
        match transport.ask_master(Ask::SetGc(request)).await? {
            Answer::GcSet(_) => {
                world.note(|| format!("versions are kept for {} s", retention.as_secs()));
                Ok(())
            }
            _ => Err(odd()),
        }
    }

    /// Sets the retention, however often that takes, after all that was asked before and was late.
    pub(crate) fn set_retention_at_last(self: &Arc<Self>, world: &Arc<World>, retention: Duration) {
        let (cluster, world2) = (self.clone(), world.clone());
        let late_max = 3 * self.plan.lock_ttl + LATE_MIN;
        let setting = async move {
            world2.sleep(late_max).await;
            while cluster.set_retention(&world2, retention).await.is_err() {
                world2.sleep(AGAIN).await;
            }
        };
        world.spawn(self.keeper, setting.boxed());
    }
}
