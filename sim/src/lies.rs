//! Disks and stores that say what isn't so: for mutations.

use crate::cluster::Cluster;
use crate::disk::Lie;
use crate::mutation::Mutation;
use crate::store::CheckpointLie;

impl Cluster {
    /// As a mutation asks.
    pub(crate) fn break_disks(&self) {
        match self.plan.mutation {
            Some(Mutation::LimitNotDurable) => self.oracle().disk.lie(Lie::Sync),
            Some(Mutation::RenameNotDurable) => {
                self.oracle().disk.lie(Lie::Folder);
                self.master().disk.lie(Lie::Folder);
            }
            Some(Mutation::AnswerBeforeSync) => {
                for tablet in self.tablets() {
                    tablet.disk.lie(Lie::Sync);
                }
            }
            Some(Mutation::SyncTriedAgain) => {
                for tablet in self.tablets() {
                    tablet.disk.lie(Lie::SyncAgain);
                }
            }
            Some(Mutation::ReplayNotRewritten) => {
                for tablet in self.tablets() {
                    tablet.disk.lie(Lie::Rewrite);
                }
            }
            Some(Mutation::CutNotDone) => {
                for tablet in self.tablets() {
                    tablet.disk.lie(Lie::Cut);
                }
            }
            Some(Mutation::CheckpointNotDurable) => self.lie_of_checkpoints(CheckpointLie::Nothing),
            Some(Mutation::CheckpointBrokenOff) => {
                self.lie_of_checkpoints(CheckpointLie::BrokenOff)
            }
            _ => {}
        }
    }

    fn lie_of_checkpoints(&self, lie: CheckpointLie) {
        let tablets = self.tablets();
        for image in tablets.iter().filter_map(|tablet| tablet.image.as_ref()) {
            image.lock().lies = Some(lie);
        }
    }
}
