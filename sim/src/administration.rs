//! What an administrator does while everything goes on: settings are changed, masters are started again with other ones, and a
//! tablet server joins. Behind half of it the masters are started again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::transport::MasterError;
use percolator_wire::v1;

use crate::cluster::Cluster;
use crate::messages::{Answer, Ask};
use crate::plan::{Fault, Plan};
use crate::seen::Seen;
use crate::transport::odd;
use crate::world::World;

/// Retentions that are set: from the shortest that may be.
const RETENTIONS: [u64; 4] = [1, 2, 30, 600];
/// Leases that masters are started with.
const LEASES: [u64; 3] = [2, 3, 10];
/// Masters that are started again are away for so long.
const MASTERS_DOWN: Duration = Duration::from_millis(10);
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

/// Changes the retention, pauses collection or lets it go on, or starts all masters again with another lease and the same state.
pub(crate) fn change_settings(world: &Arc<World>, cluster: &Arc<Cluster>, way: u64) {
    let (which, starts_again, way) = (way % 4, way / 4 % 2 == 1, way / 8);
    let one_of = |of: &[u64]| Duration::from_secs(of[(way % of.len() as u64) as usize]);
    if which < 3 {
        let (retention, pauses) = (one_of(&RETENTIONS), way.is_multiple_of(2));
        let (cluster2, world2) = (cluster.clone(), world.clone());
        let setting = async move {
            let set = match which {
                2 => cluster2.pause_collection(&world2, pauses).await,
                _ => cluster2.set_retention(&world2, retention).await,
            };
            // It may be in force all the same.
            if set.is_err() {
                world2.note(|| "that is not set, as far as it is known".to_owned());
            }
            if starts_again {
                cluster2.start_masters_again(&world2);
            }
        };
        return world.spawn(cluster.keeper, setting.boxed());
    }
    let lease = one_of(&LEASES);
    world.note(|| format!("masters are started with leases of {} s", lease.as_secs()));
    for master in &cluster.masters {
        master.settings.lock().lease = lease;
    }
    cluster.start_masters_again(world);
}

/// As [`join`]; in half of the cases all masters are started again when the server may just be known.
pub(crate) fn join_behind_a_start(world: &Arc<World>, cluster: &Arc<Cluster>, way: u64) {
    join(world, cluster);
    if way.is_multiple_of(2) {
        let cluster = cluster.clone();
        let start = move |world: &Arc<World>| cluster.start_masters_again(world);
        world.at(Duration::from_millis(way / 2 % 100), Box::new(start));
    }
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
    /// The master's state is lost with its folder; it is started again after this time.
    pub(crate) fn lose_master(self: &Arc<Self>, world: &Arc<World>, down: Duration) {
        world.note(|| "the master loses its state".to_owned());
        self.kill_server(world, 0, down, false);
        self.master().disk.lose();
    }

    /// Unless it comes so late that the faults are over.
    pub(crate) fn start_masters_again(self: &Arc<Self>, world: &Arc<World>) {
        if !self.is_healed() {
            self.kill_masters(world, MASTERS_DOWN);
        }
    }

    async fn set_retention(
        &self,
        world: &Arc<World>,
        retention: Duration,
    ) -> Result<(), MasterError> {
        let request = v1::SetGcRequest {
            retention_ms: Some(retention.as_millis() as u64),
            ..v1::SetGcRequest::default()
        };
        world.see(&Seen::RetentionAsked(retention));
        self.set_gc(world, request).await?;
        // A state that is lost takes the setting with it.
        if !self.plan.has(Fault::LoseMaster) {
            world.see(&Seen::RetentionSet);
        }
        world.note(|| format!("versions are kept for {} s", retention.as_secs()));
        Ok(())
    }

    async fn pause_collection(&self, world: &Arc<World>, pauses: bool) -> Result<(), MasterError> {
        let request = v1::SetGcRequest {
            paused: Some(pauses),
            ..v1::SetGcRequest::default()
        };
        self.set_gc(world, request).await?;
        let how = if pauses { "pauses" } else { "goes on" };
        world.note(|| format!("collection {how}"));
        Ok(())
    }

    async fn set_gc(
        &self,
        world: &Arc<World>,
        request: v1::SetGcRequest,
    ) -> Result<(), MasterError> {
        let life = self.life("keeper");
        let transport = self.transport(world, self.keeper, &life);
        match transport.ask_master(Ask::SetGc(request)).await? {
            Answer::GcSet(_) => Ok(()),
            _ => Err(odd()),
        }
    }

    /// What was asked for during the faults may come so late.
    fn late_max(&self) -> Duration {
        3 * self.plan.lock_ttl + LATE_MIN
    }

    /// Lets collection go on, however often that takes, and once more after all that was asked before and was late.
    pub(crate) fn collect_at_last(self: &Arc<Self>, world: &Arc<World>) {
        let (cluster, world2) = (self.clone(), world.clone());
        let setting = async move {
            for wait in [Duration::ZERO, cluster.late_max()] {
                world2.sleep(wait).await;
                while cluster.pause_collection(&world2, false).await.is_err() {
                    world2.sleep(AGAIN).await;
                }
            }
        };
        world.spawn(self.keeper, setting.boxed());
    }

    /// Sets the retention, however often that takes, after all that was asked before and was late.
    pub(crate) fn set_retention_at_last(self: &Arc<Self>, world: &Arc<World>, retention: Duration) {
        let (cluster, world2) = (self.clone(), world.clone());
        let setting = async move {
            world2.sleep(cluster.late_max()).await;
            while cluster.set_retention(&world2, retention).await.is_err() {
                world2.sleep(AGAIN).await;
            }
        };
        world.spawn(self.keeper, setting.boxed());
    }
}
