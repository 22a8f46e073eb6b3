//! The core's state in messages: for the master, and for the resolver of this server's locks.

use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

use super::Core;
use crate::arriving::Arrival;
use crate::peers::DepartedTablet;
use crate::{Error, locks};

impl Core {
    /// The durable state of the server: the heartbeat's fields from `tablets` on.
    pub fn report(&self) -> v1::HeartbeatRequest {
        let tablets = &self.state.tablets;
        let points = self.state.points.durable;
        v1::HeartbeatRequest {
            tablets: tablets.all().cloned().map(Into::into).collect(),
            deleted_tables: tablets.deleted_tables().collect(),
            highest_tablet_id: tablets.highest_id(),
            departed: tablets.all_departed().map(departed).collect(),
            gc: Some(tablets.settings().into()),
            lists_version: tablets.lists_version(),
            barrier: points.barrier.as_u64(),
            safe_point: points.safe_point.as_u64(),
            all_resolved_ts: points.resolved.as_u64(),
            resolved_ts: self.resolution.resolved_ts().as_u64(),
            arriving: self.arrivals(),
            progress: Some(self.gc_progress()),
            sizes: Some(self.sizes()),
            loads: Some(self.state.rates.borrow().report()),
            draining: self.state.draining && !self.is_getting(),
            high_ts: self.groups.durable.high_ts.as_u64(),
            groups: self.groups(),
            groups_found: Some(self.groups.found),
            ..v1::HeartbeatRequest::default()
        }
    }

    /// The next locks below this, behind this cell.
    pub(crate) fn locks_below(
        &self,
        below: Timestamp,
        after: Option<v1::CellName>,
    ) -> Result<v1::LocksBelowResponse, Error> {
        locks::page(&self.state, below, after)
    }

    fn arrivals(&self) -> Vec<v1::TabletArrival> {
        let arriving = &self.state.arriving;
        let failures = arriving.failures();
        let failures = failures.map(|(id, epoch, reason)| v1::TabletArrival {
            tablet_id: id,
            epoch,
            failure: reason.to_owned(),
            ..v1::TabletArrival::default()
        });
        arriving.arrivals().map(arrival).chain(failures).collect()
    }

    fn gc_progress(&self) -> v1::GcProgress {
        let tablets = self.gc.progress.tablets();
        let tablets = tablets.map(|(id, garbage)| v1::GcTablet {
            tablet_id: id,
            waiting: garbage.waiting,
            records: garbage.records,
            bytes: garbage.bytes,
        });
        v1::GcProgress {
            oldest: self.oldest_garbage().unwrap_or_default().as_u64(),
            tablets: tablets.collect(),
        }
    }

    fn sizes(&self) -> v1::TabletSizes {
        let tablets = self.gc.sizes.reported();
        let tablets = tablets.map(|(id, bytes, split_at)| v1::TabletSize {
            tablet_id: id,
            bytes,
            split_at: split_at.clone(),
        });
        v1::TabletSizes {
            tablets: tablets.collect(),
        }
    }
}

fn departed(departed: &DepartedTablet) -> v1::DepartedTablet {
    v1::DepartedTablet {
        tablet: Some(departed.tablet.clone().into()),
        server: departed.to.server.server.clone(),
    }
}

fn arrival(arrival: &Arrival) -> v1::TabletArrival {
    let tablet = &arrival.record.tablet;
    v1::TabletArrival {
        tablet_id: tablet.id,
        epoch: tablet.epoch,
        bytes: arrival.bytes(),
        complete: arrival.record.is_complete,
        failure: String::new(),
        from: arrival.owner_name().to_owned(),
        table_id: tablet.table.0,
        start_row: tablet.rows.start.clone(),
    }
}
