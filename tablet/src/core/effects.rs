//! The effects of decisions in memory.

use percolator_protocol::mutants::{self, Mutant};

use super::Core;
use crate::decision::{Decision, TabletChange};
use crate::latches::Ticket;
use crate::store::LockChange;

impl Core {
    /// Applies what later decisions have to know before the batch is durable.
    pub(super) fn take_effect_at_once(&mut self, decision: &Decision) {
        for (hash, ts) in &decision.memory.records {
            self.state.records.raise(*hash, *ts);
            self.groups.high_ts = self.groups.high_ts.max(*ts);
        }
        let recent = self.state.recent.get_mut();
        recent.decided(decision, self.groups.high_ts);
        if let Some(points) = decision.points {
            self.state.points.decided(points);
        }
        if let Some(change) = &decision.tablet_change {
            self.move_decided(change, true);
        }
        if let Some((commit_ts, cells)) = &decision.held {
            let readers = self.state.readers.get_mut();
            for hash in cells {
                readers.hold(*hash, *commit_ts);
            }
        }
    }

    /// Applies the rest of a durable decision.
    pub(super) fn take_effect(&mut self, ticket: Ticket, decision: &mut Decision) {
        let cache = self.state.cache.get_mut();
        let known = !mutants::on(Mutant::StaleCache);
        for version in decision.memory.versions.drain(..).filter(|_| known) {
            let hash = crate::latches::hash(&[&version.cell_key]);
            cache.learn(hash, &version.cell_key, version.commit_ts, &version.write);
        }
        for change in &decision.memory.lock_changes {
            match change {
                LockChange::Added(hash) => self.state.filter.add(*hash),
                LockChange::Removed(hash) => self.state.filter.remove(*hash),
            }
        }
        for cell_key in decision.memory.unlearn.drain(..) {
            let hash = crate::latches::hash(&[&cell_key]);
            cache.forget(hash, &cell_key);
        }
        self.change_tablets(decision);
        if let Some(points) = decision.points {
            self.state.points.stored(ticket, points);
        }
        if let Some(collecting) = &self.gc.collecting
            && collecting.ticket == ticket
            && !decision.garbage.unfinished
        {
            let of_fates = collecting.of_fates;
            self.gc.front(of_fates).piece_done();
        }
        if let Some(ts) = decision.garbage.postponed {
            self.gc.postpone(ts);
            // The tablets' moves may have ended since the decision.
            if !self.moves() {
                self.gc.resume_postponed();
            }
        }
        if let Some(ts) = decision.garbage.lowest_entry {
            self.gc.front.entry_made(ts);
        }
        if let Some(ts) = decision.garbage.lowest_fate {
            self.gc.fates.entry_made(ts);
        }
        for (tablet, change) in std::mem::take(&mut decision.garbage.counts) {
            self.pace.made(change.made as usize);
            // The tablet may have been merged or dropped since the decision.
            let is_here = self.state.tablets.get(tablet).is_some();
            let tablet = if is_here { tablet } else { 0 };
            self.gc.progress.changed(tablet, change);
            self.gc.sizes.collected(tablet, change.bytes);
        }
    }

    fn change_tablets(&mut self, decision: &mut Decision) {
        match &decision.tablet_change {
            Some(TabletChange::Insert(tablet)) => {
                self.end_departure(tablet.id);
                self.state.tablets.insert(tablet.clone());
                self.gc.sizes.begins(tablet.id);
            }
            Some(TabletChange::Split { first, second }) => {
                self.end_departure(first.id);
                self.state.tablets.insert(first.clone());
                self.state.tablets.insert(second.clone());
                self.gc.progress.split(first.id, second.id);
                self.gc.sizes.split(first.id, second);
                self.state.observed.split(first.id, second.id);
                self.state.readers.get_mut().split(first.id, second.id);
                self.state.rates.get_mut().split(first.id, second.id);
            }
            Some(TabletChange::Merge { merged, gone }) => {
                self.end_departure(merged.id);
                self.end_departure(*gone);
                self.state.tablets.merged(*gone, merged.epoch);
                self.state.tablets.insert(merged.clone());
                self.gc.progress.merge(merged.id, *gone);
                self.gc.sizes.merge(merged.id, *gone);
                self.state.observed.merge(merged.id, *gone, merged.table.0);
                self.state.readers.get_mut().merge(merged.id, *gone);
                self.state.rates.get_mut().merge(merged.id, *gone);
            }
            Some(TabletChange::Drop { id, table }) => {
                self.end_departure(*id);
                self.state.tablets.drop_tablet(*id, *table);
                self.gc.progress.dropped(*id);
                self.gc.sizes.ends(*id);
                self.state.rates.get_mut().ends(*id);
                self.state.observed.forget(*id);
                self.state.readers.get_mut().forget(*id);
                self.gc.clearing.dropped(self.queue.next_ticket);
            }
            Some(TabletChange::Observe { id, table, column }) => {
                self.state.observed.add(*id, *table, column.clone());
            }
            Some(TabletChange::Unobserve { id, table, column }) => {
                self.state.observed.remove(*id, *table, column);
                self.touch_tablet(*id);
            }
            Some(TabletChange::Forget(id)) => self.state.tablets.forget(*id),
            Some(TabletChange::Keep(settings)) => self.state.tablets.keep(*settings),
            Some(_) => {
                if let Some(change) = decision.tablet_change.take() {
                    self.move_done(change);
                }
            }
            None => {}
        }
    }
}
