//! How a client reads: past locks, by asking their primaries.

use bytes::Bytes;
use percolator_protocol::actions::ScanEnd;
use percolator_protocol::txn::{MetLock, ReadNext, after_status_read};
use percolator_protocol::types::Cell;

use super::client::{Purpose, State, ask, resolve};
use super::plan::ReadPlan;
use super::request::{Request, Response};
use super::world::World;
use crate::support::store::{ReadResult, ScanRange};

impl World<'_> {
    /// Sends the read that the client is at.
    pub(super) fn read(&mut self, at: usize) {
        let client = &self.clients[at];
        let State::Reading(next) = client.state else {
            return;
        };
        let (ts, bypass) = (client.start_ts, client.bypass.clone());
        let request = match self.plan.txns[at].reads[next] {
            ReadPlan::Cell(cell) => Request::Get {
                ts,
                bypass,
                cell: self.plan.cell(cell),
            },
            ReadPlan::Scan { reverse, limit } => Request::Scan {
                ts,
                bypass,
                range: ScanRange {
                    reverse,
                    limit: Some(limit),
                    ..ScanRange::default()
                },
            },
        };
        self.call(at, Purpose::Read, request);
    }

    pub(super) fn read_answered(&mut self, at: usize, purpose: Purpose, answer: Response) {
        let State::Reading(next) = self.clients[at].state else {
            return;
        };
        let read = self.plan.txns[at].reads[next];
        match (purpose, read, answer) {
            (Purpose::Read, ReadPlan::Cell(cell), Response::Get(seen)) => {
                let cell = self.plan.cell(cell);
                match seen {
                    ReadResult::Value(value) => self.found(at, read, vec![(cell, value)]),
                    ReadResult::Absent => self.found(at, read, Vec::new()),
                    ReadResult::Locked(lock) => self.met(at, MetLock { cell, lock }),
                    ReadResult::RolledBack => panic!("only its owner's read says so"),
                }
            }
            (Purpose::Read, _, Response::Scan(_, ScanEnd::Locked(cell, lock))) => {
                self.met(at, MetLock { cell, lock })
            }
            (Purpose::Read, _, Response::Scan(found, _)) => self.found(at, read, found),
            (Purpose::ReadStatus(met), _, Response::CheckStatus(status)) => {
                let snapshot = self.clients[at].start_ts;
                match after_status_read(status, snapshot) {
                    ReadNext::Resolve(ending) => {
                        self.call(
                            at,
                            Purpose::ReadResolve,
                            resolve(std::slice::from_ref(&met), ending),
                        );
                    }
                    ReadNext::Bypass => {
                        self.clients[at].bypass.push(met.lock.start_ts);
                        self.read(at);
                    }
                    ReadNext::Wait => self.met(at, met),
                }
            }
            (Purpose::ReadResolve, ..) => self.read(at),
            (purpose, _, answer) => unreachable!("{purpose:?} was answered by {answer:?}"),
        }
    }

    fn met(&mut self, at: usize, met: MetLock) {
        let snapshot = self.clients[at].start_ts;
        let request = ask(&met, self.tick(), Some(snapshot), false);
        self.call(at, Purpose::ReadStatus(met), request);
    }

    fn found(&mut self, at: usize, read: ReadPlan, found: Vec<(Cell, Bytes)>) {
        let client = &mut self.clients[at];
        client.found.push((read, found));
        if let State::Reading(next) = &mut client.state {
            *next += 1;
        }
        self.go_on(at);
    }

    pub(super) fn go_on(&mut self, at: usize) {
        if self.plan.txns[at].eager {
            self.advance(at);
        }
    }
}
