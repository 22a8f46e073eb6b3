//! The barrier, the safe point and resolved, as this server has them (`protocol::safe_point`).

use percolator_engine::{Batch, Column, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use crate::Error;
use crate::decision::Decision;
use crate::latches::Ticket;

/// The key of the record: the barrier, the safe point, then resolved, eight bytes each.
const POINTS: &[u8] = b"points";

/// The points of this server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerPoints {
    /// The decided points, durable or on their way to the disk. Requests below this barrier are refused at once, so that no
    /// such request is carried out after the barrier is durable.
    decided: Points,
    /// The points that the master gets, and that collection uses.
    pub(crate) durable: Points,
    /// Points that are durable, but wait for decisions before this ticket, which may lie below the barrier: a full disk takes
    /// those later.
    pending: Option<(Ticket, Points)>,
}

impl ServerPoints {
    /// Reads the record.
    pub(crate) fn load(engine: &dyn Engine) -> Result<Self, Error> {
        let durable = match engine.get(Column::Meta, POINTS)? {
            None => Points::default(),
            Some(stored) => decode(&stored).ok_or(Error::Points {
                bytes: stored.len(),
            })?,
        };
        Ok(Self {
            decided: durable,
            durable,
            pending: None,
        })
    }

    /// Notes points that the request with this ticket has made durable.
    pub(crate) fn stored(&mut self, ticket: Ticket, points: Points) {
        let points = self
            .pending
            .map_or(points, |(_, older)| older.raised(points));
        self.pending = Some((ticket, points));
    }

    /// Counts stored points as durable once all decisions before them are. `waiting`: the tickets of those that are not.
    pub(crate) fn settle(&mut self, mut waiting: impl Iterator<Item = Ticket>) {
        if let Some((_, points)) = self
            .pending
            .take_if(|(stored, _)| waiting.all(|ticket| ticket > *stored))
        {
            self.durable = self.durable.raised(points);
        }
    }

    /// Notes decided points.
    pub(crate) fn decided(&mut self, points: Points) {
        self.decided = self.decided.raised(points);
    }

    /// The points that a record has to have so that these are durable; `None`: they are. A full disk may have refused a decided
    /// record, which is then decided again.
    pub(crate) fn news(&self, points: Points) -> Option<Points> {
        let is_news = self.durable.raised(points) != self.durable;
        is_news.then(|| self.decided.raised(points))
    }

    /// The points from which the next record is raised, so that it doesn't lower another one on its way.
    pub(crate) fn highest(&self) -> Points {
        self.decided
    }

    /// Writes the points of the next group. On a disk that is short of room decisions go in another order than they were made:
    /// no record may lower a later one.
    pub(crate) fn take_nothing_back<'a>(&self, group: impl Iterator<Item = &'a mut Decision>) {
        // The disk has the pending points, too.
        let pending = self.pending.map(|(_, points)| points);
        let mut written = pending.map_or(self.durable, |points| self.durable.raised(points));
        for decision in group {
            if let Some(points) = decision.points {
                written = written.raised(points);
                write(&mut decision.batch, written);
            }
        }
    }

    /// The points by which requests are refused.
    pub(crate) fn now(&self) -> Points {
        Points {
            barrier: self.decided.barrier,
            ..self.durable
        }
    }
}

/// Writes the record.
pub(crate) fn write(batch: &mut Batch, points: Points) {
    let key = if mutants::on(Mutant::BarrierNotDurable) {
        &b"forgotten points"[..]
    } else {
        POINTS
    };
    let points = [points.barrier, points.safe_point, points.resolved];
    let bytes = points.map(|point| point.as_u64().to_be_bytes());
    batch.put_again(Column::Meta, key, bytes.concat());
}

fn decode(stored: &[u8]) -> Option<Points> {
    let (points, []) = stored.as_chunks::<8>() else {
        return None;
    };
    let &[barrier, safe_point, resolved] = points else {
        return None;
    };
    let point = |bytes| Timestamp::from_u64(u64::from_be_bytes(bytes));
    Some(Points {
        barrier: point(barrier),
        safe_point: point(safe_point),
        resolved: point(resolved),
    })
}
