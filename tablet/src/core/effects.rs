//! What a decision changes in memory, once it is durable.

use percolator_protocol::mutants::{self, Mutant};

use super::Core;
use crate::decision::{Decision, TabletChange};
use crate::latches::Ticket;
use crate::store::LockChange;

impl Core {
    pub(super) fn take_effect(&mut self, ticket: Ticket, decision: &mut Decision) {
        let cache = self.cache.get_mut();
        let known = !mutants::on(Mutant::StaleCache);
        for version in decision.versions.drain(..).filter(|_| known) {
            let hash = crate::latches::hash(&[&version.cell_key]);
            cache.learn(hash, &version.cell_key, version.commit_ts, &version.write);
        }
        for change in &decision.lock_changes {
            match change {
                LockChange::Added(hash) => self.filter.add(*hash),
                LockChange::Removed(hash) => self.filter.remove(*hash),
            }
        }
        match &decision.tablet_change {
            Some(TabletChange::Insert(tablet)) => self.tablets.insert(tablet.clone()),
            Some(TabletChange::Drop { id, table }) => {
                self.tablets.drop_tablet(*id, *table);
                self.progress.dropped(*id);
                self.readers.get_mut().forget(*id);
                self.clearing.dropped(self.next_ticket);
            }
            Some(TabletChange::Forget(id)) => self.tablets.forget(*id),
            Some(TabletChange::Meet(servers)) => self.tablets.meet(servers.clone()),
            Some(TabletChange::Keep(settings)) => self.tablets.keep(*settings),
            None => {}
        }
        if let Some(points) = decision.points {
            self.points.stored(ticket, points);
        }
        if self.collecting == Some(ticket) && !decision.unfinished {
            self.front.piece_done();
        }
        if let Some(ts) = decision.lowest_entry {
            self.front.entry_made(ts);
        }
        for (tablet, change) in std::mem::take(&mut decision.garbage) {
            self.pace.made(change.made as usize);
            self.progress.changed(tablet, change);
        }
    }
}
