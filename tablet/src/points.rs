//! The barrier, the safe point and resolved, as this server has them (`protocol::safe_point`).

use percolator_engine::{Batch, Column, Engine};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use crate::Error;
use crate::decision::Decision;
use crate::latches::Ticket;

/// Where they are kept: the barrier, the safe point, then resolved, eight bytes each.
const POINTS: &[u8] = b"points";

/// See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerPoints {
    /// How far is decided; on its way to the disk, or there. What is below the barrier is refused from the moment on when
    /// that is decided, so that anyone who hears that it is durable knows that nothing below comes after it.
    decided: Points,
    /// What the master is told, and what may be collected.
    pub(crate) durable: Points,
    /// Durable too, but for what was decided before this ticket, below the barrier, and is not yet: a full disk
    /// takes it later.
    pending: Option<(Ticket, Points)>,
}

impl ServerPoints {
    /// Reads them.
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

    /// These were made durable, by the request with this ticket.
    pub(crate) fn stored(&mut self, ticket: Ticket, points: Points) {
        let points = self
            .pending
            .map_or(points, |(_, older)| older.raised(points));
        self.pending = Some((ticket, points));
    }

    /// Makes what was stored count, where all that was decided before is durable. `waiting`: what is not.
    pub(crate) fn settle(&mut self, mut waiting: impl Iterator<Item = Ticket>) {
        if let Some((_, points)) = self
            .pending
            .take_if(|(stored, _)| waiting.all(|ticket| ticket > *stored))
        {
            self.durable = self.durable.raised(points);
        }
    }

    /// These were decided.
    pub(crate) fn decided(&mut self, points: Points) {
        self.decided = self.decided.raised(points);
    }

    /// What a record has to say so that these are durable; `None`: they are. What was decided once may never have come to the
    /// disk: a full one refuses it, and it is decided again.
    pub(crate) fn news(&self, points: Points) -> Option<Points> {
        let is_news = self.durable.raised(points) != self.durable;
        is_news.then(|| self.decided.raised(points))
    }

    /// What the next record is raised from: it must not take back what another one on its way has.
    pub(crate) fn highest(&self) -> Points {
        self.decided
    }

    /// These go to the disk next. Where room is short, that isn't the order in which they were decided: none of their
    /// records takes back what another one has raised since.
    pub(crate) fn take_nothing_back<'a>(&self, group: impl Iterator<Item = &'a mut Decision>) {
        // What the disk has, also where it doesn't count yet.
        let pending = self.pending.map(|(_, points)| points);
        let mut written = pending.map_or(self.durable, |points| self.durable.raised(points));
        for decision in group {
            if let Some(points) = decision.points {
                written = written.raised(points);
                write(&mut decision.batch, written);
            }
        }
    }

    /// What is refused, and what is no longer known.
    pub(crate) fn now(&self) -> Points {
        Points {
            barrier: self.decided.barrier,
            ..self.durable
        }
    }
}

/// Keeps them.
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
