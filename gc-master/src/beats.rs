//! Heartbeats and their answers, between messages and the directory's own types.

use std::time::Duration;

use percolator_protocol::types::{TableId, Tablet, Timestamp};
use percolator_wire::{Malformed, v1};

use crate::convert::{millis_u32, tablet_ref};
use crate::events::{Departed, Heartbeat, HeartbeatReply};
use crate::refusal::Refusal;
use crate::reports::{Amount, Arrival, Collected, LockObstacle, TabletCollected, Whereabouts};
use crate::settings::StoredSettings;
use crate::state::Role;

impl TryFrom<v1::HeartbeatRequest> for Heartbeat {
    type Error = Refusal;

    fn try_from(request: v1::HeartbeatRequest) -> Result<Self, Refusal> {
        let role = match request.role() {
            v1::Role::Oracle => Role::Oracle,
            v1::Role::Tablet => Role::Tablet,
            v1::Role::Unspecified => {
                return Err(Refusal::Heartbeat {
                    server: request.server,
                    wrong: format!("its role {} is not known", request.role),
                });
            }
        };
        let metrics_address = match &*request.metrics_address {
            "" => None,
            address => Some(address.parse().map_err(|_| Refusal::Heartbeat {
                server: request.server.clone(),
                wrong: format!("its address of metrics {address:?} is no IP:PORT"),
            })?),
        };
        let points = (&request).into();
        let tablets = request.tablets.into_iter().map(Tablet::try_from);
        let tablets = tablets.collect::<Result<_, _>>();
        let tablets = tablets.map_err(|malformed| Refusal::Heartbeat {
            server: request.server.clone(),
            wrong: malformed.to_string(),
        })?;
        let departed = request.departed.into_iter().map(Departed::try_from);
        let departed = departed.collect::<Result<_, _>>();
        let departed = departed.map_err(|malformed| Refusal::Heartbeat {
            server: request.server.clone(),
            wrong: malformed.to_string(),
        })?;
        Ok(Self {
            cluster_id: Some(request.cluster_id).filter(|id| !id.is_empty()),
            role,
            server: request.server,
            address: request.address,
            incarnation: request.incarnation,
            tablets,
            deleted_tables: request.deleted_tables.into_iter().collect(),
            highest_tablet_id: request.highest_tablet_id,
            departed,
            arriving: all(request.arriving),
            points,
            resolved_ts: Timestamp::from_u64(request.resolved_ts),
            obstacle: request.obstacle.map(LockObstacle::from),
            progress: request.progress.map(Collected::from),
            sizes: request.sizes.map(|sizes| all(sizes.tablets)),
            loads: request.loads.map(|loads| all(loads.tablets)),
            draining: request.draining,
            stopping: request.stopping,
            settings: request.gc.unwrap_or_default().into(),
            accepted: request.accepted,
            replaces: request.replaces,
            replaces_accepted: request.replaces_accepted,
            leaving: request.leaving,
            failure: request.failure,
            high_ts: Timestamp::from_u64(request.high_ts),
            groups: request.groups,
            groups_found: request.groups_found.unwrap_or(request.groups),
            time: Timestamp::from_u64(request.time),
            disk_stalled_ms: request.disk_stalled_ms,
            free_bytes: request.free_bytes,
            metrics_address,
            lists_version: request.lists_version,
            has_lists: !request.without_lists,
            oracle_register: request.oracle_register,
            leads_term: request.leads_term,
            takeover_ms: request.takeover_ms,
        })
    }
}

impl TryFrom<v1::DepartedTablet> for Departed {
    type Error = Malformed;

    fn try_from(departed: v1::DepartedTablet) -> Result<Self, Malformed> {
        let tablet = departed
            .tablet
            .ok_or(Malformed("a departed tablet is missing"))?;
        Ok(Self {
            tablet: tablet.try_into()?,
            to: departed.server,
        })
    }
}

impl From<HeartbeatReply> for v1::HeartbeatResponse {
    fn from(reply: HeartbeatReply) -> Self {
        Self {
            cluster_id: reply.cluster_id,
            interval_ms: millis_u32(reply.interval),
            lists_version: reply.lists_version,
            barrier: reply.points.barrier.as_u64(),
            safe_point: reply.points.safe_point.as_u64(),
            resolved_ts: reply.points.resolved.as_u64(),
            gc: Some(reply.settings.into()),
            missing_tablets: reply.missing,
            settled_moves: reply.settled_moves,
            owners: all(reply.owners),
            settled_arrivals: reply.settled_arrivals.into_iter().map(tablet_ref).collect(),
            split_bytes: reply.split_bytes,
            split_load: reply.split_load,
            draining: reply.draining,
            may_stop: reply.may_stop,
            lease: reply.leased.until.as_u64(),
            commits_above: reply.leased.commits_above.as_u64(),
            timestamps_above: reply.leased.timestamps_above.as_u64(),
            lease_ms: millis_u32(reply.leased.lasts),
        }
    }
}

impl From<v1::GcSettings> for StoredSettings {
    fn from(settings: v1::GcSettings) -> Self {
        Self {
            revision: settings.revision,
            retention_ms: settings.retention_ms,
            hold_ms_max: settings.hold_ms_max,
            paused: settings.paused,
        }
    }
}

impl From<StoredSettings> for v1::GcSettings {
    fn from(kept: StoredSettings) -> Self {
        Self {
            revision: kept.revision,
            retention_ms: kept.retention_ms,
            hold_ms_max: kept.hold_ms_max,
            paused: kept.paused,
        }
    }
}

impl From<v1::TabletArrival> for Arrival {
    fn from(arrival: v1::TabletArrival) -> Self {
        Self {
            tablet: arrival.tablet_id,
            epoch: arrival.epoch,
            bytes: arrival.bytes,
            is_complete: arrival.complete,
            failure: Some(arrival.failure).filter(|why| !why.is_empty()),
            from: arrival.from,
            table: TableId(arrival.table_id),
            start_row: arrival.start_row,
        }
    }
}

impl From<v1::LockObstacle> for LockObstacle {
    fn from(obstacle: v1::LockObstacle) -> Self {
        Self {
            what: obstacle.what,
            start_ts: Timestamp::from_u64(obstacle.start_ts),
            since: Duration::from_millis(obstacle.since_ms),
        }
    }
}

impl From<v1::GcProgress> for Collected {
    fn from(progress: v1::GcProgress) -> Self {
        let tablets = progress.tablets.into_iter().map(|it| TabletCollected {
            tablet: it.tablet_id,
            waiting: it.waiting,
            records: it.records,
            bytes: it.bytes,
        });
        Self {
            oldest: Timestamp::from_u64(progress.oldest),
            tablets: tablets.collect(),
        }
    }
}

impl From<&Collected> for v1::GcProgress {
    fn from(collected: &Collected) -> Self {
        let tablets = collected.tablets.iter().map(|it| v1::GcTablet {
            tablet_id: it.tablet,
            waiting: it.waiting,
            records: it.records,
            bytes: it.bytes,
        });
        Self {
            oldest: collected.oldest.as_u64(),
            tablets: tablets.collect(),
        }
    }
}

impl From<v1::TabletSize> for Amount {
    fn from(size: v1::TabletSize) -> Self {
        Self {
            tablet: size.tablet_id,
            amount: size.bytes,
            split_at: Some(size.split_at).filter(|row| !row.is_empty()),
        }
    }
}

impl From<v1::TabletLoad> for Amount {
    fn from(load: v1::TabletLoad) -> Self {
        Self {
            tablet: load.tablet_id,
            amount: load.cells,
            split_at: Some(load.split_at).filter(|row| !row.is_empty()),
        }
    }
}

/// Each of them in the other form.
fn all<A, B: From<A>>(list: Vec<A>) -> Vec<B> {
    list.into_iter().map(B::from).collect()
}

impl From<Whereabouts> for v1::MovedTo {
    fn from(place: Whereabouts) -> Self {
        Self {
            server: Some(v1::Addressee {
                server: place.server,
                incarnation: place.incarnation,
            }),
            address: place.address,
        }
    }
}
