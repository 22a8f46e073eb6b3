//! Groups of decisions on their way to the disk, one at a time.

use std::sync::Arc;

use percolator_engine::{Batch, Column, Error};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;

use super::queue::PendingRequest;
use crate::decision::Decision;
use crate::latches::Ticket;
use crate::limits::Limits;
use crate::store::{self, FolderProgress};

/// The decisions that wait, and the group that is on its way.
pub(super) struct Groups {
    /// Decisions that wait for the next group.
    pub(super) decided: Vec<PendingDecision>,
    pub(super) decided_bytes: usize,
    /// The group on its way: its decisions and their batches.
    pub(super) committing: Vec<PendingDecision>,
    pub(super) group: Arc<Vec<Batch>>,
    pub(super) in_flight: bool,
    /// The last group of new data was refused, because the disk is full.
    pub(super) short_of_room: bool,
    /// The highest timestamp of any write record that was decided.
    pub(super) high_ts: Timestamp,
    /// The durable progress.
    pub(super) durable: FolderProgress,
    /// The number of groups that were durable when the server started.
    pub(super) found: u64,
    /// The progress once the group on its way is durable.
    pub(super) reaches: FolderProgress,
}

/// A decided request. It is answered when the decision is durable.
pub(super) struct PendingDecision {
    pub(super) ticket: Ticket,
    pub(super) asked: PendingRequest,
    pub(super) decision: Decision,
}

/// A group whose commit has ended.
pub(super) struct CommittedGroup {
    pub(super) group: Arc<Vec<Batch>>,
    /// A full disk refused the whole group because of its batches of new data. Batches that may spend the reserve are tried
    /// again.
    pub(super) refused_for_others: bool,
}

impl Groups {
    /// The groups of a server that has just started.
    pub(super) fn at(reached: FolderProgress) -> Self {
        Self {
            decided: Vec::new(),
            decided_bytes: 0,
            committing: Vec::new(),
            group: Arc::default(),
            in_flight: false,
            short_of_room: false,
            high_ts: reached.high_ts,
            durable: reached,
            found: reached.groups,
            reaches: reached,
        }
    }

    /// Adds a decision to the next group.
    pub(super) fn push(&mut self, decided: PendingDecision) {
        self.decided_bytes += decided.decision.batch.size_bytes();
        self.decided.push(decided);
    }

    /// The tickets of the decisions that wait for the next group.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = Ticket> {
        self.decided.iter().map(|decided| decided.ticket)
    }

    /// Returns the batches of the committing decisions. `read_ts`: the highest snapshot that was read.
    pub(super) fn depart(&mut self, read_ts: Timestamp) -> Arc<Vec<Batch>> {
        let mut group: Vec<Batch> = self
            .committing
            .iter_mut()
            .map(|decided| std::mem::take(&mut decided.decision.batch))
            .collect();
        let taken: usize = group.iter().map(Batch::size_bytes).sum();
        self.decided_bytes = self.decided_bytes.saturating_sub(taken);
        // The timestamp must be durable with the records that it covers, or before. It is written each time: a batch that was
        // refused and comes again has an older one in it.
        let single = group.len() == 1 && mutants::on(Mutant::HighTsNotEachTime);
        self.reaches = FolderProgress {
            high_ts: self.high_ts,
            groups: self.durable.groups + 1,
            read_ts,
        };
        if let Some(last) = group.last_mut().filter(|_| !single) {
            last.put(Column::Meta, store::REACHED, self.reaches.encode());
        }
        self.in_flight = true;
        self.group = Arc::new(group);
        self.group.clone()
    }

    /// Takes the result of the group on its way.
    pub(super) fn arrive(&mut self, error: Option<&Error>) -> CommittedGroup {
        self.in_flight = false;
        let group = std::mem::take(&mut self.group);
        let (mut spending, mut new) = (false, false);
        for batch in group.iter() {
            spending |= batch.spends_reserve();
            new |= !batch.spends_reserve();
        }
        if error.is_none() {
            self.durable = self.reaches;
        }
        let full = matches!(error, Some(Error::Full { .. }));
        if new {
            self.short_of_room = full;
        }
        CommittedGroup {
            group,
            refused_for_others: full && new && spending,
        }
    }

    /// The decisions of the next group. On a disk that is short of room either all of them may spend the reserve, or none, as
    /// the one that has waited longest: a group of both kinds would be refused.
    pub(super) fn next(&mut self, limits: &Limits) -> Vec<PendingDecision> {
        let kind = |decided: &PendingDecision| decided.decision.batch.spends_reserve();
        let of_kind = match (self.short_of_room, self.decided.first()) {
            (true, Some(first)) => Some(kind(first)),
            _ => None,
        };
        let mut bytes = 0;
        let mut fits = |decided: &PendingDecision| {
            if of_kind.is_some_and(|of_kind| of_kind != kind(decided)) {
                return false;
            }
            let first = bytes == 0;
            bytes += decided.decision.batch.size_bytes().max(1);
            first || limits.is_a_group(bytes)
        };
        if of_kind.is_some() {
            return self.decided.extract_if(.., |one| fits(one)).collect();
        }
        let fits = self.decided.iter().take_while(|one| fits(one)).count();
        self.decided.drain(..fits).collect()
    }
}
